//! C-04.6: a plugin's adjustments as seen in the container.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use nri::{
    adjust::{Adjust, HookKind},
    proto::*,
};

use super::create::pid_of;
use crate::{
    cri::{Container, SLEEPER},
    look,
    point::{Point, points},
    stage::{Stage, eventually},
};
use testkit::{
    plugin::Plugin,
    verdict::{Answer, Checked, done, miss, same, skip, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "C-04.6/env" "variables are added, replaced and removed" env;
        Fast "C-04.6/args" "the command line is replaced" args;
        Fast "C-04.6/annotations" "annotations reach the OCI hooks" annotations;
        Fast "C-04.6/mounts" "mounts are added, with their options" mounts;
        Fast "C-04.6/mount-removal" "a mount that was asked for is taken away" mount_removal;
        Fast "C-04.6/devices" "a device is made with its mode and owner, and can be used" devices;
        Fast "C-04.6/cdi-devices" "a CDI device adds what its file defines" cdi_devices;
        Fast "C-04.6/rlimits" "resource limits are set" rlimits;
        Fast "C-04.6/oom-score" "the OOM score adjustment is set" oom_score;
        Fast "C-04.6/oci-hooks" "OCI hooks run, with the container's state on their standard input" oci_hooks;
        Fast "C-04.6/sysctl" "a sysctl is set" sysctl;
        Fast "C-04.6/namespaces" "a namespace is made new, or is the host's where it is taken away" namespaces;
        Fast "C-04.6/seccomp-policy" "a seccomp policy denies what it lists" seccomp_policy;
        Fast "C-04.6/io-priority" "the I/O priority is set" io_priority;
        Fast "C-04.6/scheduler" "the scheduler is set" scheduler;
        Fast "C-04.6/cgroups-path" "the cgroup is where the plugin put it" cgroups_path;
        Fast "C-04.6/memory-policy" "the memory policy is set" memory_policy;
    }
}

/// Runs a container with a plugin's adjustment.
pub(super) async fn adjusted(
    s: &Stage,
    change: impl Fn(&mut ContainerAdjustment) + Send + Sync + 'static,
) -> Checked<(Plugin, Container)> {
    let plugin = s.plugin("10", "a").await?;
    plugin.adjusts(change);
    let pod = s.pod("p").await?;
    let created = pod.created("c").await?;
    created.start().await.succeeds("StartContainer")?;
    Ok((plugin, created))
}

/// Returns the output of a script in the container; the script must succeed.
async fn inside(container: &Container, script: &str) -> Checked<String> {
    let (printed, code) = container.sh(script).await.succeeds("ExecSync")?;
    that(
        code == 0,
        format!("{script:?} succeeds"),
        format!("{code}: {printed}"),
    )?;
    Ok(printed)
}

/// Returns the output of a script in an adjusted container.
async fn shows(
    s: &Stage,
    change: impl Fn(&mut ContainerAdjustment) + Send + Sync + 'static,
    script: &str,
    expected: &str,
) -> Checked {
    let (_plugin, container) = adjusted(s, change).await?;
    let printed = inside(&container, script).await?;
    same(script, expected, printed.as_str())
}

async fn env(s: &Stage) -> Checked {
    let plugin = s.plugin("10", "a").await?;
    plugin.adjusts(|a| {
        a.add_env("NEW", "1")
            .set_env("CHANGED", "after")
            .remove_env("GONE");
    });
    let pod = s.pod("p").await?;
    let mut config = pod.cri.container_config("c", &SLEEPER);
    let asked = [("CHANGED", "before"), ("GONE", "x"), ("KEPT", "k")];
    config.envs = asked
        .map(|(key, value)| testkit::cri::KeyValue {
            key: key.into(),
            value: value.into(),
        })
        .into();
    let container = pod.create_with(config).await.succeeds("CreateContainer")?;
    container.start().await.succeeds("StartContainer")?;
    let printed = inside(&container, "echo $NEW,$CHANGED,${GONE-gone},$KEPT").await?;
    same("NEW,CHANGED,GONE,KEPT", "1,after,gone,k", printed.as_str())?;
    let init = "tr '\\0' '\\n' </proc/1/environ | grep -E '^(NEW|CHANGED|GONE|KEPT)=' | sort";
    let printed = inside(&container, init).await?;
    same(init, "CHANGED=after\nKEPT=k\nNEW=1", printed.as_str())
}

async fn args(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.set_args(["sleep", "2000"]);
    };
    shows(s, change, "tr '\\0' ' ' < /proc/1/cmdline", "sleep 2000").await
}

/// Writes an executable script on the host.
fn script(path: &Path, text: &str) -> Checked {
    let written = fs::write(path, format!("#!/bin/sh\n{text}\n"))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)));
    done("a script can be written", written)
}

fn hook(path: &Path) -> Hook {
    Hook {
        path: path.display().to_string(),
        args: vec!["hook".into()],
        ..Default::default()
    }
}

/// Returns the standard input that OCI hooks of these kinds got.
async fn hook_state(
    s: &Stage,
    kinds: &'static [(&'static str, HookKind)],
) -> Checked<Vec<serde_json::Value>> {
    let dir = s.directory()?;
    for (name, _) in kinds {
        let out = dir.join(format!("{name}.json"));
        // Write atomically: the file is read as soon as it exists.
        let text = format!("cat > {0}.new && mv {0}.new {0}", out.display());
        script(&dir.join(name), &text)?;
    }
    let here = dir.clone();
    let change = move |a: &mut ContainerAdjustment| {
        a.add_annotation("added", "by a plugin");
        for (name, kind) in kinds {
            a.add_hook(*kind, hook(&here.join(name)));
        }
    };
    let _made = adjusted(s, change).await?;
    let mut reported = Vec::new();
    for (name, _) in kinds {
        let out = dir.join(format!("{name}.json"));
        let what = format!("the {name} hook runs");
        let state = eventually(&what, || async {
            let text = fs::read_to_string(&out).map_err(|e| e.to_string())?;
            serde_json::from_str::<serde_json::Value>(&text).map_err(|e| e.to_string())
        });
        reported.push(state.await?);
    }
    Ok(reported)
}

async fn annotations(s: &Stage) -> Checked {
    let reported = hook_state(s, &[("createRuntime", HookKind::CreateRuntime)]).await?;
    let seen = reported[0]["annotations"]["added"].as_str();
    same(
        "annotation added, in the state that OCI hooks get",
        Some("by a plugin"),
        seen,
    )
}

async fn oci_hooks(s: &Stage) -> Checked {
    const KINDS: &[(&str, HookKind)] = &[
        ("createRuntime", HookKind::CreateRuntime),
        ("poststart", HookKind::Poststart),
    ];
    let reported = hook_state(s, KINDS).await?;
    for (state, (name, _)) in reported.iter().zip(KINDS) {
        let has_id = state["id"].as_str().is_some_and(|id| !id.is_empty());
        that(
            has_id,
            format!("the {name} hook gets the container's id"),
            state,
        )?;
    }
    Ok(())
}

async fn mounts(s: &Stage) -> Checked {
    let dir = s.directory()?;
    done(
        "a file can be written",
        fs::write(dir.join("note"), "a gift"),
    )?;
    let change = move |a: &mut ContainerAdjustment| {
        a.add_mount(Mount {
            destination: "/gift".into(),
            r#type: "bind".into(),
            source: dir.display().to_string(),
            options: ["rbind", "ro"].map(String::from).into(),
        });
    };
    let look = "cat /gift/note; touch /gift/x 2>/dev/null && echo writable || echo ' read-only'";
    shows(s, change, look, "a gift read-only").await
}

async fn mount_removal(s: &Stage) -> Checked {
    let dir = s.directory()?;
    let plugin = s.plugin("10", "a").await?;
    plugin.adjusts(|a| {
        a.remove_mount("/asked");
    });
    let pod = s.pod("p").await?;
    let mut config = pod.cri.container_config("c", &SLEEPER);
    let mount = |to: &str| testkit::cri::Mount {
        host_path: dir.display().to_string(),
        container_path: to.into(),
        ..Default::default()
    };
    config.mounts = vec![mount("/asked"), mount("/kept")];
    let container = pod.create_with(config).await.succeeds("CreateContainer")?;
    container.start().await.succeeds("StartContainer")?;
    let look = "grep -c ' /asked ' /proc/self/mounts; grep -c ' /kept ' /proc/self/mounts";
    let (printed, _) = container.sh(look).await.succeeds("ExecSync")?;
    same("mounts at /asked and at /kept", "0\n1", printed.as_str())
}

async fn devices(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.add_device(LinuxDevice {
            path: "/dev/contract-null".into(),
            r#type: "c".into(),
            major: 1,
            minor: 3,
            file_mode: Some(OptionalFileMode { value: 0o640 }),
            uid: Some(OptionalUInt32 { value: 11 }),
            gid: Some(OptionalUInt32 { value: 22 }),
        });
    };
    let look =
        "stat -c '%t:%T %a %u %g' /dev/contract-null; echo x > /dev/contract-null && echo usable";
    shows(s, change, look, "1:3 640 11 22\nusable").await
}

/// The directory where runtimes look for CDI files.
const CDI: &str = "/var/run/cdi";

/// A file that is removed when this is dropped.
struct Gone(std::path::PathBuf);
impl Drop for Gone {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

async fn cdi_devices(s: &Stage) -> Checked {
    let kind = format!("{}.nri-contract/gift", s.run.id);
    let file = Gone(Path::new(CDI).join(format!("{}-nri-contract.json", s.run.id)));
    let spec = serde_json::json!({
        "cdiVersion": "0.6.0", "kind": kind,
        "devices": [{ "name": "one", "containerEdits": { "env": ["GIFT=from-cdi"] } }],
    });
    let written = fs::create_dir_all(CDI).and_then(|()| fs::write(&file.0, spec.to_string()));
    done("a CDI file can be written", written)?;
    let device = format!("{kind}=one");
    let change = move |a: &mut ContainerAdjustment| {
        a.add_cdi_device(&device);
    };
    shows(s, change, "echo $GIFT", "from-cdi").await
}

async fn rlimits(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.add_rlimit("RLIMIT_NOFILE", 777, 555);
    };
    let look = "grep 'Max open files' /proc/1/limits | tr -s ' '";
    shows(s, change, look, "Max open files 555 777 files").await
}

async fn oom_score(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.oom_score_adj(777);
    };
    shows(s, change, "cat /proc/1/oom_score_adj", "777").await
}

async fn sysctl(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.add_sysctl("net.ipv4.ip_default_ttl", "33");
    };
    shows(s, change, "cat /proc/sys/net/ipv4/ip_default_ttl", "33").await
}

async fn namespaces(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.remove_namespace("uts");
    };
    let (_plugin, container) = adjusted(s, change).await?;
    let printed = inside(&container, "readlink /proc/1/ns/uts").await?;
    let own = done("our own namespace", fs::read_link("/proc/self/ns/uts"))?;
    same(
        "the container's UTS namespace, which is to be the host's",
        own.display().to_string(),
        printed,
    )
}

async fn seccomp_policy(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.seccomp_policy(LinuxSeccomp {
            default_action: "SCMP_ACT_ALLOW".into(),
            syscalls: vec![LinuxSyscall {
                names: ["mkdir", "mkdirat"].map(String::from).into(),
                action: "SCMP_ACT_ERRNO".into(),
                errno_ret: Some(OptionalUInt32 { value: 28 }),
                ..Default::default()
            }],
            ..Default::default()
        });
    };
    let (_plugin, container) = adjusted(s, change).await?;
    let (printed, code) = container.sh("mkdir /tmp/x").await.succeeds("ExecSync")?;
    that(
        code != 0 && printed.contains("No space left"),
        "mkdir fails with the policy's error, ENOSPC",
        format!("{code}: {printed}"),
    )
}

async fn io_priority(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.io_priority(LinuxIoPriority {
            class: IoPrioClass::IoprioClassBe as i32,
            priority: 6,
        });
    };
    shows(s, change, "ionice -p 1", "best-effort: prio 6").await
}

/// Returns policy and nice value by proc_pid_stat(5).
async fn scheduler(s: &Stage) -> Checked {
    let change = |a: &mut ContainerAdjustment| {
        a.scheduler(LinuxScheduler {
            policy: LinuxSchedulerPolicy::SchedBatch as i32,
            nice: 5,
            ..Default::default()
        });
    };
    let look = "sed 's/.*) //' /proc/1/stat | cut -d' ' -f17,39";
    shows(s, change, look, "5 3").await
}

async fn cgroups_path(s: &Stage) -> Checked {
    let path = format!("{}/by-a-plugin", s.run.common.cgroup_parent);
    if !path.starts_with('/') {
        return skip("cgroup paths of cgroupfs (the runtime's driver is systemd)");
    }
    let there = path.clone();
    let change = move |a: &mut ContainerAdjustment| {
        a.cgroups_path(&there);
    };
    let (plugin, _) = adjusted(s, change).await?;
    let pid = pid_of(&plugin, "p/c").await?;
    let pids = look::pids(&path);
    that(
        pids.contains(&pid),
        format!("the process {pid} is in {path}"),
        format!("{pids:?}"),
    )
}

async fn memory_policy(s: &Stage) -> Checked {
    if !Path::new("/proc/self/numa_maps").exists() {
        return skip("NUMA in this kernel");
    }
    let change = |a: &mut ContainerAdjustment| {
        a.memory_policy(LinuxMemoryPolicy {
            mode: MpolMode::MpolInterleave as i32,
            nodes: "0".into(),
            flags: Vec::new(),
        });
    };
    let (plugin, _) = adjusted(s, change).await?;
    let pid = pid_of(&plugin, "p/c").await?;
    let maps = fs::read_to_string(format!("/proc/{pid}/numa_maps"));
    let maps = done("numa_maps of the container can be read", maps)?;
    match maps.lines().next() {
        Some(line) if line.contains("interleave:0") => Ok(()),
        line => miss(
            "memory of the container is interleaved on node 0",
            format!("{line:?}"),
        ),
    }
}
