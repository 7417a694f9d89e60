//! The sample programs of `nri/plugins` with the daemon: each by its documented usage, and the
//! effects of two of them on the host and a container. `nri/plugins/tests/samples` tests their
//! annotations and flags.

use std::fs;

use cairn_tests::{
    Daemon, Setup, bins,
    client::Cri,
    cri,
    image::{BUSYBOX, Image},
    output::shown,
    until,
};
use serde_json::Value;
use tonic::Status;

mod cgroups;
mod network;
mod usage;

/// The kind of a plugin in `cairn plugins`.
const LAUNCHED: &str = "launched";
const CONNECTED: &str = "external";

/// Starts a sample with these flags like in a shell, and waits until the daemon has accepted it as
/// each of `ids`.
async fn connect(daemon: &mut Daemon, program: &str, flags: &[&str], ids: &[&str]) {
    let log = daemon.path(&format!("{program}-{}.log", daemon.yard.next()));
    let mut argv = vec![
        bins::built(program).display().to_string(),
        "-socket-path".to_owned(),
        daemon.nri_socket().display().to_string(),
    ];
    argv.extend(flags.iter().map(|flag| flag.to_string()));
    let started = daemon.yard.run(&argv, &[], &log).await;
    started.unwrap_or_else(|why| panic!("{program} does not start: {why}"));
    for id in ids {
        active(daemon, id, CONNECTED).await;
    }
}

/// Waits until `cairn plugins` lists it as active, and of this kind.
async fn active(daemon: &Daemon, id: &str, kind: &str) {
    until(&format!("{id} is active, and {kind}"), || async {
        let all = daemon.plugins().await;
        let is_it = |p: &Value| p["id"] == id && p["state"] == "active" && p["kind"] == kind;
        all.iter().any(is_it).then_some(())
    })
    .await;
}

/// A daemon that launches one sample, under index 10.
async fn launching(program: &str) -> Daemon {
    let file = format!("10-{program}");
    let daemon = Daemon::with(Setup::default().plugin(&file, bins::built(program))).await;
    active(&daemon, &file, LAUNCHED).await;
    daemon
}

/// Returns a pod's configuration with these additional annotations.
fn annotated(cri: &Cri, name: &str, annotations: &[(&str, &str)]) -> cri::PodSandboxConfig {
    let mut config = cri.pod_config(name);
    let more = annotations.iter();
    config
        .annotations
        .extend(more.map(|(key, value)| (key.to_string(), value.to_string())));
    config
}

/// Checks that an error is one line with all these words.
fn reports(error: &Status, words: &[&str]) {
    let text = error.message();
    assert!(!text.trim().contains('\n'), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?}: {text}");
    }
}

/// Covers a directory of the machine with an overlay that takes all writes, in the yard only.
async fn cover(daemon: &Daemon, dir: &str) {
    let script = "mkdir -p /run/cover$0/up /run/cover$0/work && mount -t overlay overlay \
         -o lowerdir=$0,upperdir=/run/cover$0/up,workdir=/run/cover$0/work $0";
    let made = daemon.yard.command("sh").args(["-c", script, dir]).output();
    let made = made.await.expect("nsenter runs");
    assert!(made.status.success(), "{dir}: {}", shown(&made));
}

/// Writes a file in the yard, and makes its directories.
fn write(daemon: &Daemon, path: &str, text: &str) {
    let path = daemon.yard.inside(path);
    let dir = path.parent().expect("a file is in a directory");
    fs::create_dir_all(dir).expect("a directory");
    fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Starts a daemon that was only set up.
async fn serve(daemon: &mut Daemon) {
    daemon.serve().await;
    daemon.import(&Image::busybox(BUSYBOX)).await;
}
