//! Invalid requests: the correct code, one line that names object and cause, and no leftovers.

use std::{fs, time::Duration};

use cairn_tests::{Daemon, cri, look, pod::host_network};
use tonic::{Code, Status};

/// Checks a message for users: one line, not empty, with the name of its object.
fn names(error: &Status, code: Code, what: &str) {
    let text = error.message();
    assert_eq!(error.code(), code, "{text}");
    assert!(
        !text.is_empty() && !text.contains('\n'),
        "one line: {text:?}"
    );
    assert!(text.contains(what), "{what:?} is named: {text:?}");
}

#[tokio::test]
async fn unknown_ids_are_not_found() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let id = "0123456789ab".to_owned() + &"c".repeat(52);
    let container = cri.container_by_id(&id, daemon.path("none"));
    let ghost = cri.pod_by_id(&id, "ghost");
    let config = cri.container_config("c", &["true"]);
    for answer in [
        container.start().await,
        container.try_status().await.map(drop),
        container.try_exec(&["true"], 1).await.map(drop),
        cri.pod_status(&id).await.map(drop),
        ghost.try_create(config).await.map(drop),
        container.limit_memory(64 << 20).await,
    ] {
        names(&answer.expect_err("none"), Code::NotFound, &id);
    }
    let stats = cri::ContainerStatsRequest { container_id: id };
    let mut runtime = cri.client.runtime.clone();
    let stats = runtime.container_stats(stats).await.expect_err("none");
    assert_eq!(stats.code(), Code::NotFound, "{stats}");
}

#[tokio::test]
async fn an_id_that_could_be_two_is_an_invalid_argument() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut pods = Vec::new();
    // Seventeen ids of hexadecimal digits: at least two share their first digit.
    for n in 0..17 {
        let mut config = cri.pod_config(&format!("p{n}"));
        host_network(&mut config);
        pods.push(cri.try_pod(config).await.expect("RunPodSandbox"));
    }
    let mut firsts: Vec<&str> = pods.iter().map(|p| &p.id[..1]).collect();
    firsts.sort_unstable();
    let twice = firsts
        .windows(2)
        .find(|w| w[0] == w[1])
        .expect("two begin alike")[0];
    let error = cri.pod_status(twice).await.expect_err("it could be two");
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    for pod in pods {
        pod.remove().await.expect("RemovePodSandbox");
    }
}

#[tokio::test]
async fn wrong_states_are_refused() {
    let daemon = Daemon::start().await;
    let refused = |error: &Status, what: &str| names(error, Code::FailedPrecondition, &what[..12]);
    let pod = daemon.cri().pod("states").await;
    let container = pod.create("c", &["sleep", "1000"]).await;
    let exec = async || container.try_exec(&["true"], 5).await;
    exec().await.expect_err("it is not started");
    container.start().await.expect("StartContainer");
    let again = container.start().await.expect_err("it runs");
    refused(&again, &container.id);
    container.stop(Duration::ZERO).await.expect("StopContainer");
    exec().await.expect_err("it has exited");
    let again = container.start().await.expect_err("it ran");
    refused(&again, &container.id);
    pod.stop().await.expect("StopPodSandbox");
    let late = pod.cri.container_config("late", &["true"]);
    let late = pod.try_create(late).await.expect_err("the pod is stopped");
    refused(&late, &pod.id);
    pod.remove().await.expect("RemovePodSandbox");
}

/// Returns the code for a case, by the client's remedy: change the request, or create the missing
/// object.
fn code(case: &str) -> Code {
    match case {
        // Detected only by reading or trying it.
        "unknown sysctl" | "a seccomp profile that is not there" => Code::Internal,
        _ if case.ends_with("that is not there") || case == "a mount of what cannot be made" => {
            Code::NotFound
        }
        _ => Code::InvalidArgument,
    }
}

type SpoilPod = (&'static str, &'static str, fn(&mut cri::PodSandboxConfig));

#[tokio::test]
async fn a_pod_that_asks_for_nonsense_is_refused_and_leaves_nothing() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    cri.pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    let cases: [SpoilPod; 8] = [
        ("no metadata", "config.metadata is missing", |c| {
            c.metadata = None
        }),
        ("no name", "metadata.name", |c| {
            c.metadata.as_mut().expect("set").name.clear()
        }),
        ("long hostname", "hostname: longer than 64 bytes", |c| {
            c.hostname = "h".repeat(65)
        }),
        ("sysctl of the host", "kernel.panic", |c| {
            let linux = c.linux.as_mut().expect("set");
            linux.sysctls = [("kernel.panic".to_owned(), "1".to_owned())].into();
        }),
        ("unknown sysctl", "net.no.such", |c| {
            let linux = c.linux.as_mut().expect("set");
            linux.sysctls = [("net.no.such".to_owned(), "1".to_owned())].into();
        }),
        ("bad port", "port_mappings.host_port: 70000", |c| {
            c.port_mappings = vec![cri::PortMapping {
                host_port: 70_000,
                container_port: 80,
                ..Default::default()
            }];
        }),
        ("a cgroup parent that climbs", "cgroup_parent", |c| {
            c.linux.as_mut().expect("set").cgroup_parent = "/../../cairn-test-escape".into();
        }),
        ("network of a container", "namespace_options.network", |c| {
            let linux = c.linux.as_mut().expect("set");
            let options = linux
                .security_context
                .as_mut()
                .and_then(|s| s.namespace_options.as_mut());
            options.expect("set").network = cri::NamespaceMode::Target.into();
        }),
    ];
    let mut wrong = Vec::new();
    for (case, word, spoil) in cases {
        let mut config = cri.pod_config("bad");
        spoil(&mut config);
        match cri.try_pod(config).await {
            Ok(pod) => {
                wrong.push(format!("{case}: accepted"));
                pod.remove().await.expect("RemovePodSandbox");
            }
            Err(e)
                if e.code() != code(case)
                    || e.message().contains('\n')
                    || !e.message().contains(word) =>
            {
                wrong.push(format!("{case}: {:?} {}", e.code(), e.message()));
            }
            Err(_) => {}
        }
        assert!(cri.pods().await.is_empty(), "{case}: something is listed");
    }
    daemon.leaves_only(&before).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let handler = cri::RunPodSandboxRequest {
        config: Some(cri.pod_config("handler")),
        runtime_handler: "no-such-handler".into(),
    };
    let error = cri
        .client
        .runtime
        .clone()
        .run_pod_sandbox(handler)
        .await
        .expect_err("unknown");
    assert!(error.message().contains("no-such-handler"), "{error}");
}

type SpoilContainer = (&'static str, &'static str, fn(&mut cri::ContainerConfig));

fn security(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerSecurityContext {
    let linux = config.linux.as_mut().expect("set by container_config");
    linux
        .security_context
        .as_mut()
        .expect("set by container_config")
}

#[tokio::test]
async fn a_container_that_asks_for_nonsense_is_refused_and_leaves_nothing() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("host").await;
    let neighbour = pod.sleeper("neighbour").await;
    let before = daemon.inventory().await;
    let cases: [SpoilContainer; 12] = [
        ("no metadata", "config.metadata is missing", |c| {
            c.metadata = None
        }),
        ("no image", "config.image", |c| c.image = None),
        ("an image that is not there", "localhost/none:1", |c| {
            c.image.as_mut().expect("set").image = "localhost/none:1".into();
        }),
        ("a group without a user", "run_as_group", |c| {
            security(c).run_as_group = Some(cri::Int64Value { value: 5 });
        }),
        ("a user name that is not there", "nosuchuser", |c| {
            security(c).run_as_username = "nosuchuser".into();
        }),
        ("an unknown capability", "MAKE_COFFEE", |c| {
            security(c).capabilities = Some(cri::Capability {
                add_capabilities: vec!["MAKE_COFFEE".into()],
                ..Default::default()
            });
        }),
        ("privileged in a pod that is not", "privileged: ", |c| {
            security(c).privileged = true
        }),
        (
            "a seccomp profile that is not there",
            "/no/such/profile.json",
            |c| {
                security(c).seccomp = Some(cri::SecurityProfile {
                    profile_type: cri::security_profile::ProfileType::Localhost.into(),
                    localhost_ref: "/no/such/profile.json".into(),
                });
            },
        ),
        (
            "a mount of what cannot be made",
            "/etc/passwd/source",
            |c| {
                c.mounts = vec![mount("/etc/passwd/source", "/mnt")];
            },
        ),
        ("a relative mount", "relative/path", |c| {
            c.mounts = vec![mount("/tmp", "relative/path")]
        }),
        ("a device that is not there", "/dev/no-such-device", |c| {
            c.devices = vec![cri::Device {
                container_path: "/dev/x".into(),
                host_path: "/dev/no-such-device".into(),
                permissions: "rwm".into(),
            }];
        }),
        ("a log path that climbs", "log_path", |c| {
            c.log_path = "../../../climbed.log".into()
        }),
    ];
    let mut wrong = Vec::new();
    for (case, word, spoil) in cases {
        let mut config = pod.cri.container_config("bad", &["true"]);
        spoil(&mut config);
        match pod.try_create(config).await {
            Ok(container) => {
                wrong.push(format!("{case}: accepted"));
                container.remove().await.expect("RemoveContainer");
            }
            Err(e)
                if e.code() != code(case)
                    || e.message().contains('\n')
                    || !e.message().contains(word) =>
            {
                wrong.push(format!("{case}: {:?} {}", e.code(), e.message()));
            }
            Err(_) => {}
        }
    }
    assert_eq!(pod.cri.containers().await.len(), 1);
    daemon.leaves_only(&before).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        neighbour.exec(&["echo", "undisturbed"]).await,
        "undisturbed"
    );
    pod.end().await;
}

fn mount(from: &str, to: &str) -> cri::Mount {
    cri::Mount {
        host_path: from.into(),
        container_path: to.into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_taken_name_is_refused() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("taken").await;
    let first = pod.create("c", &["true"]).await;
    first.status().await;
    let again = pod
        .try_create(pod.cri.container_config("c", &["true"]))
        .await;
    let again = again.expect_err("the first one exists");
    names(&again, Code::AlreadyExists, "container name \"c_0\"");
    names(&again, Code::AlreadyExists, &first.id);
    let mut other = pod.cri.container_config("c", &["false"]);
    other.envs = vec![cri::KeyValue {
        key: "OTHER".into(),
        value: "1".into(),
    }];
    let other = pod.try_create(other).await;
    let other = other.expect_err("the name is taken");
    names(&other, Code::AlreadyExists, "container name \"c_0\"");
    assert_eq!(pod.cri.containers().await.len(), 1, "never two of one name");
    pod.end().await;
}

#[tokio::test]
async fn a_client_that_goes_away_orphans_nothing() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    cri.pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    for n in 0..20 {
        let config = cri.pod_config(&format!("gone{n}"));
        let call = cri.try_pod(config);
        // Each call is dropped at a different point of the work.
        let _ = tokio::time::timeout(Duration::from_millis(n), call).await;
    }
    // Work that has begun is completed or undone; every listed object can be removed.
    cairn_tests::until(
        "every pod that was begun is settled and removed",
        || async {
            for pod in cri.pods().await {
                cri.pod_by_id(&pod.id, "any")
                    .remove()
                    .await
                    .expect("RemovePodSandbox");
            }
            let after = daemon.inventory().await;
            after.difference(&before).next().is_none().then_some(())
        },
    )
    .await;
}

#[tokio::test]
async fn garbage_on_the_socket_disturbs_nobody() {
    use tokio::io::AsyncWriteExt;
    let daemon = Daemon::start().await;
    for junk in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff",
    ] {
        let mut socket = tokio::net::UnixStream::connect(daemon.socket())
            .await
            .expect("it listens");
        let _ = socket.write_all(junk).await;
    }
    daemon.cri().pod("after-junk").await.end().await;
}

#[tokio::test]
async fn a_bad_configuration_is_one_line_before_anything_is_touched() {
    let mut daemon = Daemon::new(cairn_tests::Setup::default()).await;
    for (toml, word) in [
        ("version = 1\nroot = 5\n", "root"),
        ("version = 1\n[network]\nbrigde = \"x\"\n", "brigde"),
        ("version = 99\n", "version"),
        (
            "version = 1\n[network]\nsubnet = \"not a subnet\"\n",
            "subnet",
        ),
        ("version = ", "cairn.toml"),
    ] {
        fs::write(daemon.path("cairn.toml"), toml).expect("it can be written");
        let log = daemon.path("bad.log");
        let _ = fs::remove_file(&log);
        let argv = daemon.argv();
        let pid = daemon.yard.run(&argv, &[], &log).await.expect("it starts");
        let ended = daemon.yard.ended(pid).await;
        let printed = fs::read_to_string(&log).expect("its log");
        assert_eq!(
            ended.code(),
            Some(78),
            "{toml:?}: the unit starts it no more"
        );
        assert_eq!(printed.lines().count(), 1, "{toml:?}: {printed}");
        assert!(printed.contains(word), "{word}: {printed}");
        assert!(look::tree(&daemon.path("root")).is_empty() && !daemon.path("state").exists());
    }
}
