//! Features that libcontainer lacks or implements wrongly: user namespaces with idmapped mounts,
//! recursive read-only, propagation, hooks, shared pid namespaces, cgroups seen from inside. Needs
//! root.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use common::{Box, Ground, records};
use serde_json::json;

fn lines(log: &str) -> Vec<String> {
    records(log).into_iter().map(|r| r.2).collect()
}

#[track_caller]
fn has(lines: &[String], wanted: &str) {
    assert!(
        lines.iter().any(|l| l == wanted),
        "no line {wanted:?} in\n{}",
        lines.join("\n")
    );
}

fn in_user_namespace(ground: &Ground, b: &mut Box) {
    // The container's root needs access to its root file system.
    fs::set_permissions(ground.dir.path(), fs::Permissions::from_mode(0o711)).expect("chmod");
    let namespaces = b.spec["linux"]["namespaces"]
        .as_array_mut()
        .expect("namespaces");
    namespaces.push(json!({"type": "user"}));
    let map = json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
    b.spec["linux"]["uidMappings"] = map.clone();
    b.spec["linux"]["gidMappings"] = map;
}

#[tokio::test]
async fn a_user_namespace_holds_init_and_exec_with_an_idmapped_volume() {
    let mut ground = Ground::new().await;
    let look = "tr -s ' ' < /proc/self/uid_map; id -u; cat /vol/mine; stat -c '%u %g' /vol/mine; touch /vol/new; \
         stat -c %u /vol/new; echo by-name > /dev/stdout; grep Seccomp: /proc/self/status; ls /dev/null /sys/fs/cgroup/memory/tasks";
    let mut b = ground.container(&["sh", "-c", &format!("{look}; sleep 100")]);
    in_user_namespace(&ground, &mut b);
    let volume = ground.dir.path().join("volume");
    fs::create_dir(&volume).expect("volume");
    fs::write(volume.join("mine"), "content\n").expect("file");
    fs::set_permissions(volume.join("mine"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let map = b.spec["linux"]["uidMappings"].clone();
    b.spec["mounts"].as_array_mut().expect("mounts").push(json!({
        "destination": "/vol", "type": "bind", "source": volume, "options": ["rbind", "rw", "rprivate"],
        "uidMappings": map, "gidMappings": map
    }));
    fs::create_dir(ground.root().join("vol")).expect("vol");
    let monitor = ground.launch(&b).await.expect("create");
    monitor.start().await.expect("start");
    common::until("init has looked", || {
        fs::read_to_string(&b.log).is_ok_and(|l| l.contains("tasks"))
    })
    .await;
    let init = lines(&fs::read_to_string(&b.log).expect("log"));
    for wanted in [
        " 0 100000 65536",
        "0",
        "content",
        "0 0",
        "by-name",
        "/dev/null",
    ] {
        has(&init, wanted);
    }
    assert_eq!(
        fs::metadata(volume.join("new")).expect("new").uid(),
        0,
        "on disk the volume's owner is the host's"
    );
    let out = monitor
        .exec_sync(b.exec(&["sh", "-c", look]))
        .await
        .expect("exec");
    let exec: Vec<String> = String::from_utf8_lossy(&out.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    assert_eq!(exec, init, "{}", String::from_utf8_lossy(&out.stderr));
    monitor.kill(9, true).await.expect("kill");
    monitor.wait().await;
    monitor.delete().await.expect("delete");
}

#[tokio::test]
async fn a_volume_owned_by_a_user_keeps_its_owner_for_an_idmapped_user() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&["sh", "-c", "cat /vol/f && stat -c %u /vol/f"]);
    in_user_namespace(&ground, &mut b);
    b.spec["process"]["user"] = json!({"uid": 1000, "gid": 1000});
    let file = ground.dir.path().join("f");
    fs::write(&file, "single\n").expect("file");
    chown(&file, Some(1000), Some(1000)).expect("chown");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).expect("chmod");
    b.spec["mounts"].as_array_mut().expect("mounts").push(json!({
        "destination": "/vol/f", "type": "bind", "source": file, "options": ["rbind", "ro", "idmap"]
    }));
    fs::create_dir(ground.root().join("vol")).expect("vol");
    fs::write(ground.root().join("vol/f"), "").expect("target");
    let found = lines(&ground.run(&b).await);
    assert_eq!(found, ["single", "1000"]);
}

#[tokio::test]
async fn a_filesystem_without_idmapping_is_named() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&["true"]);
    in_user_namespace(&ground, &mut b);
    let map = b.spec["linux"]["uidMappings"].clone();
    b.spec["mounts"]
        .as_array_mut()
        .expect("mounts")
        .push(json!({
            "destination": "/tmp", "type": "bind", "source": "/proc/sys", "options": ["rbind"],
            "uidMappings": map, "gidMappings": map
        }));
    let error = ground.launch(&b).await.err().expect("refused").to_string();
    assert!(
        error.contains("/proc/sys") && error.contains("filesystem"),
        "{error}"
    );
}

#[tokio::test]
async fn recursive_read_only_reaches_mounts_below() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&["sh", "-c", "touch /vol/x /vol/below/x; echo $?; touch /plain/x; echo $?; grep /plain /proc/self/mountinfo"]);
    let volume = ground.dir.path().join("volume");
    let below = volume.join("below");
    fs::create_dir_all(&below).expect("directories");
    let no_flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &below, "tmpfs", no_flags, None).expect("we are root");
    let _unmount = Unmount(below);
    b.spec["mounts"].as_array_mut().expect("mounts").extend([
        json!({"destination": "/vol", "type": "bind", "source": volume, "options": ["rbind", "rro"]}),
        json!({"destination": "/plain", "type": "bind", "source": volume, "options": ["rbind", "rprivate"]}),
    ]);
    let log = ground.run(&b).await;
    let found = lines(&log);
    has(&found, "touch: /vol/x: Read-only file system");
    has(&found, "touch: /vol/below/x: Read-only file system");
    has(&found, "0");
    let plain = found
        .iter()
        .find(|l| l.contains(" /plain "))
        .expect("the mount");
    assert!(
        !plain.contains("master:") && !plain.contains("shared:"),
        "rprivate: {plain}"
    );
    fs::remove_file(volume.join("x")).expect("written through /plain");
}

#[tokio::test]
async fn oci_hooks_run_and_a_failing_one_fails_the_creation() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&["sh", "-c", "cat /proc/self/cgroup"]);
    let mark = ground.dir.path().join("mark");
    let hook = |text: &str| json!([{"path": "/bin/sh", "args": ["sh", "-c", text]}]);
    b.spec["hooks"] = json!({"createRuntime": hook(&format!("cat > {}", mark.display()))});
    let found = lines(&ground.run(&b).await);
    let state: serde_json::Value =
        serde_json::from_slice(&fs::read(&mark).expect("the hook ran")).expect("state");
    assert_eq!(state["id"], b.id.as_str());
    assert_eq!(
        found
            .iter()
            .filter(|l| l.ends_with(&format!("/{}", b.id)))
            .count(),
        b.cgroups.len()
    );
    let mut b = ground.container(&["sleep", "100"]);
    let (after_start, after_stop) = (
        ground.dir.path().join("poststart"),
        ground.dir.path().join("poststop"),
    );
    b.spec["hooks"] = json!({
        "poststart": hook(&format!("cat > {}; exit 1", after_start.display())),
        "poststop": hook(&format!("cat > {}", after_stop.display()))
    });
    let monitor = ground.launch(&b).await.expect("create");
    assert!(!after_start.exists());
    monitor.start().await.expect("start");
    let state: serde_json::Value =
        serde_json::from_slice(&fs::read(&after_start).expect("it ran")).expect("state");
    assert_eq!(
        (&state["status"], &state["pid"]),
        (&json!("running"), &json!(monitor.init().0))
    );
    monitor.kill(9, false).await.expect("kill");
    monitor.wait().await;
    assert!(!after_stop.exists());
    monitor.delete().await.expect("delete");
    let state: serde_json::Value =
        serde_json::from_slice(&fs::read(&after_stop).expect("it ran")).expect("state");
    assert_eq!(state["status"], "stopped");
    let mut b = ground.container(&["true"]);
    b.spec["hooks"] = json!({"createRuntime": hook("exit 3")});
    let error = ground.launch(&b).await.err().expect("refused").to_string();
    assert!(error.contains("exit code: 3"), "{error}");
}

#[tokio::test]
async fn a_shared_mount_goes_out_to_the_host_and_the_container_sees_its_cgroups() {
    let mut ground = Ground::new().await;
    let shared = ground.dir.path().join("shared");
    fs::create_dir_all(shared.join("below")).expect("directory");
    rustix::mount::mount_bind(&shared, &shared).expect("bind");
    let _unmount = Unmount(shared.clone());
    rustix::mount::mount_change(&shared, rustix::mount::MountPropagationFlags::SHARED)
        .expect("shared");
    let mut b = ground.container(&[
        "sh",
        "-c",
        "cat /proc/self/cgroup; ls /sys/fs/cgroup; mount -t tmpfs none /vol/below && echo mounted; sleep 100",
    ]);
    b.spec["linux"]["rootfsPropagation"] = "rshared".into();
    let caps = json!(["CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"]);
    b.spec["process"]["capabilities"] =
        json!({"bounding": caps, "effective": caps, "permitted": caps});
    b.spec["mounts"]
        .as_array_mut()
        .expect("mounts")
        .push(json!({
            "destination": "/vol", "type": "bind", "source": shared, "options": ["rbind", "rshared"]
        }));
    let monitor = ground.launch(&b).await.expect("create");
    monitor.start().await.expect("start");
    common::until("it has mounted", || {
        fs::read_to_string(&b.log).is_ok_and(|l| l.contains("mounted"))
    })
    .await;
    let found = lines(&fs::read_to_string(&b.log).expect("log"));
    let below = shared.join("below");
    let here = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    assert!(
        here.contains(&format!(" {} ", below.display())),
        "the mount has come out"
    );
    let _ = rustix::mount::unmount(&below, rustix::mount::UnmountFlags::DETACH);
    assert_eq!(
        found
            .iter()
            .filter(|l| l.ends_with(&format!("/{}", b.id)))
            .count(),
        b.cgroups.len()
    );
    has(&found, "memory");
    assert!(
        !found.iter().any(|l| l == "unified"),
        "of a hybrid host: {found:?}"
    );
    monitor.kill(9, true).await.expect("kill");
    monitor.wait().await;
    monitor.delete().await.expect("delete");
}

/// A shared mount with a directory `below`.
fn shared(ground: &Ground, name: &str) -> (PathBuf, Unmount) {
    let dir = ground.dir.path().join(name);
    fs::create_dir(&dir).expect("directory");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &dir, "tmpfs", flags, None).expect("we are root");
    let unmount = Unmount(dir.clone());
    rustix::mount::mount_change(&dir, rustix::mount::MountPropagationFlags::SHARED)
        .expect("shared");
    fs::create_dir(dir.join("below")).expect("directory");
    (dir, unmount)
}

/// The mounts at and below `dir` in a mount table.
fn mounts_at(table: &str, dir: &Path) -> Vec<String> {
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let found = points.filter(|point| Path::new(point).starts_with(dir));
    found.map(str::to_owned).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = names.map(|n| n.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_hosts_devices_at_dev_stay_as_they_are_beside_a_shared_mount_and_hooks() {
    let mut ground = Ground::new().await;
    // As on a host: names that are made in a container's own /dev.
    let (devices, _unmount) = shared(&ground, "devices");
    fs::create_dir(devices.join("pts")).expect("a directory");
    symlink("/proc/self/fd", devices.join("fd")).expect("a link");
    fs::write(devices.join("ptmx"), "the host's\n").expect("a file");
    let (volume, _unmount) = shared(&ground, "volume");
    let seen_by_hook = ground.dir.path().join("seen");
    let look = format!(
        "(readlink /proc/self/ns/mnt; cat /proc/self/mountinfo) > {}; ls {}",
        seen_by_hook.display(),
        volume.display()
    );
    let hook = |text: &str| json!([{"path": "/bin/sh", "args": ["sh", "-c", text]}]);
    let before = names(&devices);
    for (is_shared, has_hooks, fails) in [
        (true, false, false),
        (false, true, false),
        (true, true, false),
        (true, true, true),
    ] {
        let mut b = ground.container(&[
            "sh",
            "-c",
            "cat /dev/ptmx; mount -t tmpfs none /vol/below; echo mounted; sleep 100",
        ]);
        let caps = json!(["CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"]);
        b.spec["process"]["capabilities"] =
            json!({"bounding": caps, "effective": caps, "permitted": caps});
        let mounts = b.spec["mounts"].as_array_mut().expect("mounts");
        mounts[1] = json!({
            "destination": "/dev", "type": "bind", "source": devices, "options": ["rbind", "rprivate"]
        });
        let propagation = if is_shared { "rshared" } else { "rprivate" };
        mounts.push(json!({
            "destination": "/vol", "type": "bind", "source": volume, "options": ["rbind", propagation]
        }));
        if is_shared {
            b.spec["linux"]["rootfsPropagation"] = "rshared".into();
        }
        if has_hooks {
            let last = if fails { "exit 3" } else { "ls /dev/null" };
            b.spec["hooks"] = json!({"createRuntime": hook(&look), "createContainer": hook(last)});
        }
        match ground.launch(&b).await {
            Ok(monitor) => {
                monitor.start().await.expect("start");
                common::until("it has mounted", || {
                    fs::read_to_string(&b.log).is_ok_and(|l| l.contains("mounted"))
                })
                .await;
                has(
                    &lines(&fs::read_to_string(&b.log).expect("log")),
                    "the host's",
                );
                fs::write(devices.join("new"), "").expect("a file");
                let new = monitor.exec_sync(b.exec(&["ls", "/dev/new"])).await;
                assert_eq!(new.expect("exec").code, 0, "a new device is seen");
                fs::remove_file(devices.join("new")).expect("removed");
                monitor.kill(9, true).await.expect("kill");
                monitor.wait().await;
                monitor.delete().await.expect("delete");
            }
            Err(e) => assert!(fails && e.to_string().contains("exit code: 3"), "{e}"),
        }
        let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        assert_eq!(names(&devices), before);
        assert_eq!(mounts_at(&table, &devices).len(), 1, "{table}");
        let propagated = mounts_at(&table, &volume.join("below")).len();
        assert_eq!(propagated, usize::from(is_shared && !fails), "{table}");
        if propagated == 1 {
            let flags = rustix::mount::UnmountFlags::DETACH;
            rustix::mount::unmount(volume.join("below"), flags).expect("unmount");
        }
        if has_hooks {
            let seen = fs::read_to_string(&seen_by_hook).expect("the hook ran");
            let ours = fs::read_link("/proc/self/ns/mnt").expect("a namespace");
            assert_eq!(
                seen.lines().next(),
                ours.to_str(),
                "the hook is on the host"
            );
            assert_eq!(mounts_at(&seen, &devices).len(), 1, "{seen}");
            fs::remove_file(&seen_by_hook).expect("removed");
        }
    }
}

#[tokio::test]
async fn a_shared_bind_at_dev_is_refused() {
    let mut ground = Ground::new().await;
    let (devices, _unmount) = shared(&ground, "devices");
    let mut b = ground.container(&["true"]);
    b.spec["mounts"].as_array_mut().expect("mounts")[1] = json!({
        "destination": "/dev", "type": "bind", "source": devices, "options": ["rbind", "rshared"]
    });
    b.spec["linux"]["rootfsPropagation"] = "rshared".into();
    let error = ground.launch(&b).await.err().expect("refused").to_string();
    assert!(error.contains("mount /dev: it cannot be shared"), "{error}");
    assert_eq!(names(&devices), ["below"]);
}

#[tokio::test]
async fn hooks_run_beside_an_idmapped_volume_of_a_user_namespace() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&["stat", "-c", "%u", "/tmp"]);
    in_user_namespace(&ground, &mut b);
    let volume = ground.dir.path().join("volume");
    fs::create_dir(&volume).expect("volume");
    let map = b.spec["linux"]["uidMappings"].clone();
    b.spec["mounts"]
        .as_array_mut()
        .expect("mounts")
        .push(json!({
            "destination": "/tmp", "type": "bind", "source": volume, "options": ["rbind"],
            "uidMappings": map, "gidMappings": map
        }));
    let mark = ground.dir.path().join("mark");
    let hook = |text: &str| json!([{"path": "/bin/sh", "args": ["sh", "-c", text]}]);
    // The root is at the host's path, with the mounts.
    let inside = format!("test $(stat -c %u {}/tmp) = 0", ground.root().display());
    b.spec["hooks"] = json!({
        "createRuntime": hook(&format!("touch {}", mark.display())),
        "createContainer": hook(&inside)
    });
    assert_eq!(lines(&ground.run(&b).await), ["0"]);
    assert!(mark.exists());
}

#[tokio::test]
async fn binds_of_the_hosts_cgroups_leave_the_container_in_its_own() {
    let mut ground = Ground::new().await;
    for source in ["/", "/sys", "/sys/fs/cgroup"] {
        let look = "cat /proc/self/cgroup; grep -c ' /tmp.* - cgroup' /proc/self/mountinfo";
        let mut b = ground.container(&["sh", "-c", look]);
        b.spec["mounts"].as_array_mut().expect("mounts").push(json!({
            "destination": "/tmp", "type": "bind", "source": source, "options": ["rbind", "rslave"]
        }));
        let found = lines(&ground.run(&b).await);
        let own = |l: &&String| l.ends_with(&format!("/{}", b.id));
        assert_eq!(
            found.iter().filter(own).count(),
            b.cgroups.len(),
            "{found:?}"
        );
        let bound = found.last().and_then(|n| n.parse::<usize>().ok());
        assert!(bound >= Some(b.cgroups.len()), "{source}: {found:?}");
    }
}

#[tokio::test]
async fn device_nodes_outside_of_dev_are_made_inside_of_the_root_also_if_it_is_read_only() {
    for is_mapped in [false, true] {
        let mut ground = Ground::new().await;
        let look = "stat -c '%F %a %u %g' /srv/a/zero /opt/pipe /dev/shm/full; head -c 3 /srv/a/zero | wc -c; \
             touch /srv/x";
        let mut b = ground.container(&["sh", "-c", look]);
        if is_mapped {
            in_user_namespace(&ground, &mut b);
        }
        // A link of an image that leads out of its root if it is followed from outside.
        let link = ground.root().join("linked");
        symlink("../../../../../srv", link).expect("a link");
        let shm = ground.dir.path().join("shm");
        let owner = if is_mapped { 100_000 } else { 0 };
        for dir in [&shm, &ground.root().join("srv"), &ground.root().join("opt")] {
            fs::create_dir(dir).expect("a directory");
            chown(dir, Some(owner), Some(owner)).expect("we are root");
        }
        b.spec["mounts"]
            .as_array_mut()
            .expect("mounts")
            .push(json!({
                "destination": "/dev/shm", "type": "bind", "source": shm, "options": ["rbind"]
            }));
        b.spec["root"]["readonly"] = true.into();
        let node = |path: &str, kind: &str, minor: u32| json!({"path": path, "type": kind, "major": 1, "minor": minor, "fileMode": 0o644, "uid": 7, "gid": 8});
        b.spec["linux"]["devices"] = json!([
            node("/linked/a/zero", "c", 5),
            node("/opt/pipe", "p", 0),
            node("/dev/shm/full", "c", 7),
        ]);
        let found = lines(&ground.run(&b).await);
        let wanted = [
            "character special file 644 7 8",
            "fifo 644 7 8",
            "character special file 644 7 8",
            "3",
        ];
        assert_eq!(&found[..4], wanted, "{found:?}");
        has(&found, "touch: /srv/x: Read-only file system");
        assert!(!Path::new("/srv/a").exists(), "the host's");
        assert_eq!(fs::metadata(shm.join("full")).expect("a target").len(), 0);
    }
}

#[tokio::test]
async fn a_root_whose_dev_is_a_link_is_refused_and_changes_nothing_on_the_host() {
    let mut ground = Ground::new().await;
    let root = ground.root();
    let victim = ground.dir.path().join("victim");
    fs::create_dir(&victim).expect("a directory");
    fs::write(victim.join("ptmx"), "the host's").expect("a file");
    // Inside the root, `lo` is a link to a deeper directory. On the host it is a directory of sysfs,
    // five below `/`: the same path leads to the root of a process there.
    let deep = root.join("a/b/c/d/e/f");
    let process = std::process::id();
    let inside = format!("proc/{process}/root{}", victim.display());
    for dir in [
        &deep,
        &root.join("a").join(&inside),
        &root.join("sys/class/net"),
    ] {
        fs::create_dir_all(dir).expect("directories");
    }
    symlink("/a/b/c/d/e/f", root.join("sys/class/net/lo")).expect("a link");
    let path = format!("../../../../sys/class/net/lo/../../../../../{inside}");
    fs::remove_dir(root.join("dev")).expect("it is empty");
    symlink(path, root.join("dev")).expect("a link");
    let mut b = ground.container(&["true"]);
    let mounts = b.spec["mounts"].as_array_mut().expect("mounts");
    mounts.retain(|mount| mount["destination"] != "/dev/pts");
    let error = ground.launch(&b).await.err().expect("refused").to_string();
    assert_eq!(names(&victim), ["ptmx"], "{error}");
    assert_eq!(
        fs::read_to_string(victim.join("ptmx")).expect("a file"),
        "the host's"
    );
    assert!(
        error.contains("/dev of the root must be a directory"),
        "{error}"
    );
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        for path in [self.0.join("below"), self.0.clone()] {
            // It may not be mounted.
            let _ = rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

#[tokio::test]
async fn a_joined_namespace_need_not_be_reachable_from_inside_a_user_namespace() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&["hostname"]);
    in_user_namespace(&ground, &mut b);
    let first = ground.container(&["sleep", "100"]);
    let first_monitor = ground.launch(&first).await.expect("create");
    let hidden = ground.dir.path().join("hidden");
    fs::create_dir(&hidden).expect("directory");
    fs::write(hidden.join("ipc"), "").expect("file");
    let source = format!("/proc/{}/ns/ipc", first_monitor.init().0);
    rustix::mount::mount_bind(&source, hidden.join("ipc")).expect("pin");
    let _unmount = Unmount(hidden.join("ipc"));
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).expect("chmod");
    for n in b.spec["linux"]["namespaces"]
        .as_array_mut()
        .expect("namespaces")
    {
        if n["type"] == "ipc" {
            n["path"] = json!(hidden.join("ipc"));
        }
    }
    // The namespace belongs to the host's user namespace, so the join itself is refused; the error
    // shows how far it came.
    let error = ground.launch(&b).await.err().expect("refused").to_string();
    assert!(
        error.contains("EPERM") && !error.contains("EACCES"),
        "{error}"
    );
    drop(first_monitor);
}

/// snapd pins a mount namespace per snap below `/run`; a pod may mount all of `/`.
#[tokio::test]
async fn a_source_with_a_pinned_mount_namespace_is_mounted_without_it() {
    let mut ground = Ground::new().await;
    let (source, _unmount) = shared(&ground, "pins");
    // The kernel pins none on a shared mount.
    let private = rustix::mount::MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change(&source, private).expect("private");
    let pin = source.join("pin");
    fs::write(&pin, "").expect("a file");
    let option = format!("--mount={}", pin.display());
    let mut unshare = std::process::Command::new("unshare");
    let made = unshare.args([option.as_str(), "true"]).status();
    assert!(made.expect("unshare runs").success());
    let _unpin = Unmount(pin);
    // Whether the kernel refuses the tree depends on the numbers of both namespaces.
    for _ in 0..6 {
        let mut b = ground.container(&["ls", "/vol"]);
        b.spec["mounts"].as_array_mut().expect("mounts").push(json!({
            "destination": "/vol", "type": "bind", "source": source, "options": ["rbind", "rslave"]
        }));
        let monitor = ground.launch(&b).await.expect("create");
        monitor.start().await.expect("start");
        monitor.wait().await;
        let found = lines(&fs::read_to_string(&b.log).expect("log"));
        assert_eq!(found, ["below", "pin"]);
        monitor.delete().await.expect("delete");
    }
}
