//! Pinned namespaces on the kernel.

mod support;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use cni_shim::Network;
use cni_shim::namespaces::{HelperCommand, IdMap, Mappings, PinSpec, hide, pin, show, unpin};
use support::{config, helper, in_pod, isolated, pin_dir, ping, sandbox, shell};

fn all() -> PinSpec {
    PinSpec {
        net: true,
        ipc: true,
        uts: true,
        hostname: Some("pod".into()),
        ..PinSpec::default()
    }
}

fn mapped(host: u32) -> Option<Mappings> {
    let map = vec![IdMap {
        container: 0,
        host,
        size: 65536,
    }];
    Some(Mappings {
        uids: map.clone(),
        gids: map,
    })
}

#[test]
fn pinned_namespaces_outlive_their_thread_and_carry_name_and_parameters() {
    isolated(
        "pinned_namespaces_outlive_their_thread_and_carry_name_and_parameters",
        async |dir| {
            let sysctls = [
                ("net.ipv4.conf.eth0.rp_filter", "1"), // waits for the interface
                ("net.ipv4.ip_unprivileged_port_start", "7"),
                ("kernel.shm_rmid_forced", "1"),
            ];
            let sysctls = sysctls
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec();
            let before = shell("cat /proc/sys/kernel/shm_rmid_forced; hostname");
            let pinned =
                pin(&PinSpec { sysctls, ..all() }, &dir.join("p"), &helper()).expect("pins");
            let path = |of: &Option<std::path::PathBuf>| {
                of.as_ref().expect("is pinned").display().to_string()
            };
            let (net, ipc, uts) = (path(&pinned.net), path(&pinned.ipc), path(&pinned.uts));
            let seen = shell(&format!(
                "nsenter --net={net} --ipc={ipc} --uts={uts} sh -c 'hostname; cat /proc/sys/kernel/shm_rmid_forced \
             /proc/sys/net/ipv4/ip_unprivileged_port_start; ip -o link show lo'"
            ));
            let lines: Vec<&str> = seen.lines().collect();
            assert_eq!(lines[..3], ["pod", "1", "7"]);
            assert!(lines[3].contains("UP"), "{seen}");
            assert_eq!(
                shell("cat /proc/sys/kernel/shm_rmid_forced; hostname"),
                before
            );
            unpin(&dir.join("p")).expect("unpins");
        },
    );
}

#[test]
fn a_user_namespace_owns_the_others_and_its_pod_is_attached_as_any() {
    isolated(
        "a_user_namespace_owns_the_others_and_its_pod_is_attached_as_any",
        async |dir| {
            let sysctls = vec![
                ("kernel.msgmax".to_owned(), "9000".to_owned()),
                (
                    "net.ipv4.ip_unprivileged_port_start".to_owned(),
                    "0".to_owned(),
                ),
            ];
            let spec = PinSpec {
                userns: mapped(1_000_000),
                sysctls,
                ..all()
            };
            let pins = pin_dir(&dir, "mapped");
            let pinned = pin(&spec, &pins, &helper()).expect("pins");
            let path = |of: &Option<std::path::PathBuf>| {
                of.as_ref().expect("is pinned").display().to_string()
            };
            let (user, ipc, uts) = (path(&pinned.user), path(&pinned.ipc), path(&pinned.uts));
            let seen = shell(&format!(
                "nsenter --user={user} --ipc={ipc} --uts={uts} sh -c 'cat /proc/self/uid_map; hostname; \
             cat /proc/sys/kernel/msgmax; hostname renamed && hostname'"
            ));
            let words: Vec<&str> = seen.split_whitespace().collect();
            assert_eq!(words, ["0", "1000000", "65536", "pod", "9000", "renamed"]);
            let queues = shell(&format!(
                "nsenter --user={user} --ipc={ipc} unshare --mount sh -c 'mount -t mqueue queues /tmp && stat -c %u:%g /tmp'"
            ));
            assert_eq!(queues.trim(), "0:0", "message queues are its root's");

            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            let (_plain, mut attach) = sandbox(&dir, "plain");
            attach.sandbox_id = "mapped".into();
            attach.netns = pinned.net.clone().expect("is pinned");
            let attached = network.attach(attach).await.expect("attaches");
            assert!(ping(attached.ips[0]));
            // Its root may change it: the network namespace belongs to the user namespace.
            let net = path(&pinned.net);
            shell(&format!(
                "nsenter --user={user} --net={net} ip link add inner type veth peer name inner2"
            ));
            assert!(in_pod(&pinned, "ip -o link").contains("inner"));
            network.detach("mapped").await.expect("detaches");
            unpin(&pins).expect("unpins");
        },
    );
}

#[test]
fn a_failure_at_any_step_leaves_no_mount_and_no_file() {
    isolated(
        "a_failure_at_any_step_leaves_no_mount_and_no_file",
        async |dir| {
            let pins = dir.join("p");
            let bad_value = PinSpec {
                sysctls: vec![("net.ipv4.ip_forward".into(), "many".into())],
                ..all()
            };
            let program = |program: &str, args: &[&str]| HelperCommand {
                program: program.into(),
                args: args.iter().map(OsString::from).collect(),
            };
            let with_user = PinSpec {
                userns: mapped(1_000_000),
                ..all()
            };
            let no_root = PinSpec {
                userns: Some(Mappings::default()),
                ..all()
            };
            for (spec, helper, expected) in [
                (
                    &bad_value,
                    helper(),
                    "sysctl net.ipv4.ip_forward: set \"many\": Invalid argument",
                ),
                (
                    &with_user,
                    program("/nonexistent", &[]),
                    "start /nonexistent: No such file",
                ),
                (&with_user, program("true", &[]), "sandbox helper"),
                (
                    &with_user,
                    program("echo", &["I am no helper"]),
                    "sandbox helper",
                ),
                (
                    &no_root,
                    helper(),
                    "invalid request for namespaces: uid mappings: container id 0 is not mapped",
                ),
            ] {
                let error = pin(spec, &pins, &helper).expect_err(expected).to_string();
                // The write to an ended program may fail before its missing answer is detected.
                assert!(
                    error.starts_with(expected) || error.starts_with("write to the sandbox helper"),
                    "{error}"
                );
                assert!(!pins.exists());
                assert!(!shell("cat /proc/self/mounts").contains(&pins.display().to_string()));
            }
        },
    );
}

#[test]
fn a_pin_cut_short_is_removed_by_unpin_and_can_be_made_again() {
    isolated(
        "a_pin_cut_short_is_removed_by_unpin_and_can_be_made_again",
        async |dir| {
            let pins = dir.join("p");
            let dirs = pins.display();
            // The state after a kill: the directory mounted twice, a file without its namespace.
            shell(&format!(
                "mkdir {dirs}; mount --bind {dirs} {dirs}; touch {dirs}/net; mount --bind {dirs} {dirs}"
            ));
            let in_use = pin(&all(), &pins, &helper())
                .expect_err("holds something")
                .to_string();
            assert!(
                in_use.contains("not empty") && pins.join("net").exists(),
                "{in_use}"
            );
            unpin(&pins).expect("unpins");
            let pinned = pin(&all(), &pins, &helper()).expect("pins");
            let net = pinned.net.expect("is pinned");
            assert_ne!(
                fs::metadata(net).expect("exists").ino(),
                fs::metadata("/proc/self/ns/net").expect("exists").ino()
            );
            unpin(&pins).expect("unpins");
            unpin(&pins).expect("again is no error");
            assert!(!shell("cat /proc/self/mounts").contains(&pins.display().to_string()));
        },
    );
}

#[test]
fn a_shown_network_reaches_a_container_that_mounted_the_directory_before() {
    isolated(
        "a_shown_network_reaches_a_container_that_mounted_the_directory_before",
        async |dir| {
            let (pins, shown) = (dir.join("p"), dir.join("netns"));
            let at = shown.join("one");
            let (of, file) = (shown.display(), at.display());
            shell(&format!(
                "mkdir {of}; mount --bind {of} {of}; mount --make-shared {of}"
            ));
            let look = format!("echo ready; read go; stat -fc %T {file}");
            let mut container = Command::new("unshare")
                .args(["--mount", "--propagation", "slave", "sh", "-c", &look])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("starts");
            let out = container.stdout.take().expect("is piped");
            let mut lines = BufReader::new(out).lines();
            assert_eq!(lines.next().expect("a line").expect("reads"), "ready");
            let pinned = pin(&all(), &pins, &helper()).expect("pins");
            show(&pinned.net.expect("is pinned"), &at).expect("shows");
            drop(container.stdin.take());
            assert_eq!(lines.next().expect("a line").expect("reads"), "nsfs");
            container.wait().expect("ends");
            hide(&at).expect("hides");
            hide(&at).expect("a second call succeeds");
            assert!(!at.exists());
            unpin(&pins).expect("unpins");
        },
    );
}

/// The kernel's list of links ends before such a link.
#[test]
fn a_link_with_many_alternative_names_hides_no_traffic() {
    isolated(
        "a_link_with_many_alternative_names_hides_no_traffic",
        async |dir| {
            let pinned = pin(&all(), &dir.join("p"), &helper()).expect("pins");
            let net = pinned.net.clone().expect("is pinned");
            let lines = dir.join("lines");
            let names = (0..434).map(|n| {
                let name = format!("{n}-{}", "x".repeat(120));
                format!("link property add dev lo altname {name}\n")
            });
            fs::write(&lines, names.collect::<String>()).expect("written");
            let (at, lines) = (net.display(), lines.display());
            shell(&format!("nsenter --net={at} ip -batch {lines}"));
            shell(&format!(
                "nsenter --net={at} ip link add v0 type veth peer name v1"
            ));
            let links = cni_shim::namespaces::interfaces(&net).expect("lists");
            let mut names: Vec<_> = links.into_iter().map(|(name, _)| name).collect();
            names.sort();
            assert_eq!(names, ["lo", "v0", "v1"]);
            unpin(&dir.join("p")).expect("unpins");
        },
    );
}
