//! The three usage lines in the README of each sample, run as written.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::symlink,
    path::Path,
};

use cairn_tests::{Daemon, Setup, bins, until};

use super::{cover, serve};

/// Returns the lines between the fences below each program's name.
fn usages(readme: &str) -> BTreeMap<&str, Vec<&str>> {
    let sections = readme.split("\n### ").skip(1);
    sections
        .filter_map(|section| {
            let (name, rest) = section.split_once("\n```\n")?;
            Some((
                name,
                rest.lines().take_while(|line| *line != "```").collect(),
            ))
        })
        .collect()
}

/// Returns the number of the daemon's plugins.
async fn plugins(daemon: &Daemon) -> usize {
    let all = daemon.plugins().await;
    // A newer instance shadows an older one with the same name.
    let there = |p: &&serde_json::Value| p["state"] == "active" || p["state"] == "shadowed";
    all.iter().filter(there).count()
}

/// Runs a line in a shell with the samples in its PATH; returns the shell's pid. Waits until the
/// daemon has one plugin more, or the line has ended.
async fn paste(daemon: &mut Daemon, line: &str) -> i32 {
    let bins = bins::built("logger");
    let bins = bins.parent().unwrap_or(Path::new("/")).display();
    let path = format!("{bins}:/usr/sbin:/usr/bin:/sbin:/bin");
    let log = daemon.path(&format!("paste-{}.log", daemon.yard.next()));
    let before = plugins(daemon).await;
    let shell = daemon
        .yard
        .run(&["sh", "-c", line], &[("PATH", &path)], &log)
        .await;
    let shell = shell.expect("there is a shell");
    until(&format!("{line:?} works"), || async {
        if let Some(ended) = daemon.yard.ending(shell) {
            let printed = fs::read_to_string(&log).unwrap_or_default();
            assert_eq!(ended.code(), Some(0), "{line:?}: {printed}");
            return Some(());
        }
        (plugins(daemon).await > before).then_some(())
    })
    .await;
    shell
}

/// Ends a shell with all its processes; a job is a separate group.
async fn end(daemon: &Daemon, shell: i32) {
    let group = shell.to_string();
    let kill = ["-c", "kill -s KILL -- -$0", &group];
    let done = daemon.yard.command("sh").args(kill).output().await;
    // A finished line has no processes left.
    done.expect("nsenter runs");
}

/// Runs a pod with these additional annotations, and a container with the name in
/// `examples/container.json`.
async fn run(
    daemon: &Daemon,
    name: &str,
    annotations: BTreeMap<String, String>,
) -> Result<(), String> {
    let cri = daemon.cri();
    let mut config = cri.pod_config(name);
    config.annotations.extend(annotations);
    let pod = cri
        .try_pod(config)
        .await
        .map_err(|e| e.message().to_owned())?;
    let created = pod
        .try_create(cri.container_config("greeter", &["true"]))
        .await;
    let ran = match created {
        Err(e) => Err(e.message().to_owned()),
        Ok(container) => {
            let started = container.start().await.map_err(|e| e.message().to_owned());
            match started {
                Ok(()) => match container.exited().await.exit_code {
                    0 => Ok(()),
                    code => Err(format!("exit code {code}")),
                },
                failed => failed,
            }
        }
    };
    pod.end().await;
    ran
}

#[tokio::test]
async fn the_usage_of_every_sample_can_be_pasted() {
    let readme = bins::repository().join("nri/plugins/README.md");
    let readme = fs::read_to_string(readme).expect("the README");
    let usages = usages(&readme);
    let expected = [
        "default-validator",
        "demo-adjuster",
        "device-injector",
        "differ",
        "hook-injector",
        "logger",
        "network-device-injector",
        "network-logger",
        "rdt",
        "template",
        "ulimit-adjuster",
        "v010-adapter",
        "writable-cgroups",
    ];
    assert_eq!(
        usages.keys().copied().collect::<BTreeSet<_>>(),
        BTreeSet::from(expected)
    );

    let mut daemon = Daemon::new(Setup::default()).await;
    for dir in ["/etc", "/opt"] {
        cover(&daemon, dir).await;
    }
    serve(&mut daemon).await;
    // The socket is at the default path of plugins.
    let nri = daemon.yard.inside("/run/nri");
    fs::create_dir_all(&nri).expect("a directory");
    symlink(daemon.nri_socket(), nri.join("nri.sock")).expect("a link");
    daemon
        .lines(&[
            "ip", "link", "add", "eth1", "type", "veth", "peer", "eth1peer",
        ])
        .await;

    for (name, lines) in usages {
        let [_what, start, example] = lines[..] else {
            panic!("{name}: not three lines: {lines:?}")
        };
        assert!(start.starts_with(name), "{name}: {start}");
        let mut shells = vec![paste(&mut daemon, start).await];
        let mut annotations = BTreeMap::new();
        match example.strip_prefix("\"annotations\": ") {
            Some(json) => annotations = serde_json::from_str(json).expect(example),
            None => shells.push(paste(&mut daemon, example).await),
        }
        let ran = run(&daemon, name, annotations).await;
        match name {
            "rdt" if !Path::new("/sys/fs/resctrl/schemata").exists() => {
                assert!(ran.is_err_and(|e| e.contains("resctrl is not available")));
            }
            _ => assert_eq!(ran, Ok(()), "{name}"),
        }
        for shell in shells {
            end(&daemon, shell).await;
        }
        until(&format!("{name} has ended"), || async {
            (plugins(&daemon).await == 0).then_some(())
        })
        .await;
    }
    for file in [
        "/run/hooked",
        "/run/events",
        "/run/changes",
        "/run/networks",
        "/run/asked",
    ] {
        assert!(
            daemon.yard.inside(file).exists(),
            "{file} was not made by an example"
        );
    }
}
