//! `cairn image ls`, `pull` and `rm`.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
};

use cairn_tests::{
    Daemon, bins,
    image::{BUSYBOX, Image, Layer},
    output::{shown, stdout},
    registry::{Reply, Request, start as start_registry},
    until,
};
use serde_json::Value;

use crate::escape::noise;

const REGISTRY: &str = "127.0.0.1:5000";

async fn asked(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.cairn(args).await;
    assert!(output.status.success(), "{}", shown(&output));
    stdout(&output)
}

fn small(name: &str) -> Image {
    Image::bare(name).layer(Layer::default().file("data", 0o644, b"some"))
}

#[tokio::test]
async fn images_are_listed_with_what_uses_them_and_removal_names_that() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("user").await;
    let container = pod.sleeper("web").await;
    let id = container.status().await.image_id;
    let table = asked(&daemon, &["image", "ls"]).await;
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    let head: Vec<_> = lines[0].split_whitespace().collect();
    assert_eq!(head, ["IMAGE", "ID", "SIZE", "CONTAINERS", "PINNED"]);
    let row: Vec<_> = lines[1].split_whitespace().collect();
    let short = &id.trim_start_matches("sha256:")[..13];
    assert_eq!((row[0], row[1], row[4]), (BUSYBOX, short, "1"), "{table}");
    let json: Value =
        serde_json::from_str(&asked(&daemon, &["image", "ls", "-o", "json"]).await).expect("JSON");
    assert_eq!(json["images"][0]["id"], id.as_str());
    assert_eq!(json["images"][0]["containers"][0], container.id.as_str());

    let gone = daemon.cairn(&["image", "rm", BUSYBOX]).await;
    assert!(gone.status.success(), "{}", shown(&gone));
    assert_eq!(stdout(&gone), format!("{id} {BUSYBOX}\n"));
    let printed = String::from_utf8_lossy(&gone.stderr).into_owned();
    let user = format!("web ({})", &container.id[..13]);
    assert!(
        printed.contains("was in use") && printed.contains(&user),
        "{printed}"
    );
    assert_eq!(container.exec(&["echo", "here"]).await, "here");
    assert_eq!(
        asked(&daemon, &["image", "ls"]).await,
        "there is no image\n"
    );
    let again = daemon.cairn(&["image", "rm", BUSYBOX]).await;
    assert_eq!(again.status.code(), Some(1));
    let printed = shown(&again);
    assert!(
        printed.contains("there is none of this name or id"),
        "{printed}"
    );
    pod.end().await;
}

/// Requires `u:hunter2` by basic authentication.
fn guarded(request: &Request) -> Option<Reply> {
    let good = request.header("authorization") == "Basic dTpodW50ZXIy";
    let challenge = "WWW-Authenticate: Basic realm=\"test\"".to_owned();
    (!good).then(|| Reply::Full(401, vec![challenge], Vec::new()))
}

#[tokio::test]
async fn a_pull_takes_credentials_from_the_line_and_they_are_in_no_log() {
    let daemon = Daemon::start().await;
    let images = vec![("app:1", small("unused").blobs())];
    let id = images[0].1.id.clone();
    let _registry = start_registry(&daemon.yard, REGISTRY, images, guarded);
    let image = format!("{REGISTRY}/app:1");
    let pulled = asked(&daemon, &["image", "pull", &image, "--creds", "u:hunter2"]).await;
    assert_eq!(pulled, format!("{id} {image}\n"));
    asked(&daemon, &["image", "rm", &id]).await;
    for (args, says) in [
        (&[][..], "401"),
        (&["--creds", "u:wrong-secret"][..], "401"),
        (&["--creds", "wrong-secret"], "user:password is expected"),
    ] {
        let line = [&["image", "pull", &image][..], args].concat();
        let output = daemon.cairn(&line).await;
        assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
        let printed = shown(&output);
        assert!(printed.contains(says), "{args:?}: {printed}");
        assert!(!printed.contains("wrong-secret"), "{printed}");
    }
    let log = daemon.log();
    for secret in ["hunter2", "dTpodW50ZXIy", "wrong-secret"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[tokio::test]
async fn a_pull_tells_how_far_it_is_by_lines_and_ends_with_its_command() {
    let daemon = Daemon::start().await;
    let layer = Layer::default().file("data", 0o644, &noise(1_000_000));
    let blobs = Image::bare("unused").layer(layer).blobs();
    let layer = blobs.blobs[0].clone();
    assert!(layer.1.len() > 900_000, "it does not compress");
    let registry = start_registry(&daemon.yard, REGISTRY, vec![("slow:1", blobs)], {
        move |request| {
            let is_layer = request.path.contains(&layer.0);
            is_layer.then(|| Reply::Stall(layer.1.clone(), 600_000))
        }
    });
    let image = format!("{REGISTRY}/slow:1");
    let mut pull = Command::new(bins::cairn())
        .args(["image", "pull", &image, "--connect"])
        .arg(format!("unix://{}", daemon.socket().display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cairn runs");
    let mut printed = BufReader::new(pull.stderr.take().expect("piped"));
    // A fast machine prints only the first line. Each line counts the layer and the small
    // configuration.
    let (lines, mut printed) = tokio::task::spawn_blocking(move || {
        let mut lines = Vec::new();
        while !lines
            .last()
            .is_some_and(|line: &String| line.contains("600.0 kB of 1."))
        {
            let mut line = String::new();
            assert_ne!(
                printed.read_line(&mut line).expect("a line"),
                0,
                "{lines:?}"
            );
            lines.push(line);
        }
        (lines, printed)
    })
    .await
    .expect("no panic");
    for line in lines {
        let is_ours = line.starts_with(&format!("{image}: ")) && line.contains(" kB of 1.");
        assert!(is_ours && line.ends_with(" MB\n"), "{line}");
    }
    let pid = rustix::process::Pid::from_child(&pull);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let rest = tokio::task::spawn_blocking(move || {
        let mut rest = String::new();
        printed.read_to_string(&mut rest).expect("text");
        (rest, pull.wait().expect("it ends"))
    });
    let (rest, ended) = rest.await.expect("no panic");
    assert_eq!(ended.code(), Some(1), "{rest}");
    let last = format!("cairn: pull {image}: interrupted: it is given up");
    assert!(rest.contains(&last), "{rest}");
    until("the pull is given up", || async {
        let output = daemon.cairn(&["status", "--output", "json"]).await;
        let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (status["pulls"] == serde_json::json!([])).then_some(())
    })
    .await;
    drop(registry);
}
