//! A daemon killed at any moment: acknowledged work is kept, unfinished work leaves nothing behind.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cairn::image::Progress;

use crate::support::*;

const ROOT: &str = "CAIRN_TEST_VICTIM";
const IMAGES: usize = 6;

fn image(n: usize) -> Image {
    let shared = Layer::new().dir("d", 0o755).file("d/base", "base");
    let own = Layer::new()
        .file("d/own", &n.to_string())
        .file(".wh.d/x", "");
    Image::new(&format!("i:{n}"), &[shared, own])
}

/// Not a test: the daemon that is killed. It writes down each acknowledged step.
#[test]
#[ignore = "started, and killed, by the test below"]
fn victim() {
    let Some(root) = std::env::var_os(ROOT).map(PathBuf::from) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut printed = OpenOptions::new()
        .create(true)
        .append(true)
        .open(root.join("said"))
        .unwrap();
    runtime.block_on(async {
        let images = open(&root, |_| {});
        for n in (0..IMAGES).cycle() {
            let from = Cursor::new(image(n).layout());
            images
                .import(from, None, &Progress::default())
                .await
                .unwrap();
            // In one write, so that a line is complete or missing.
            printed.write_all(format!("+{n}\n").as_bytes()).unwrap();
            let record = images.resolve(&format!("i:{n}")).unwrap().unwrap();
            images
                .prepare_rootfs(&format!("c{n}"), &record, None)
                .await
                .unwrap();
            let gone = (n + IMAGES / 2) % IMAGES;
            // Written before the removal: the image may be removed as soon as the request is made.
            printed.write_all(format!("-{gone}\n").as_bytes()).unwrap();
            images.release_rootfs(&format!("c{gone}")).await.unwrap();
            images.remove(&format!("i:{gone}")).await.unwrap();
        }
    });
}

/// Returns the images that were acknowledged last.
fn promised(root: &Path) -> BTreeSet<usize> {
    let mut there = BTreeSet::new();
    for line in fs::read_to_string(root.join("said"))
        .unwrap_or_default()
        .lines()
    {
        match (line.strip_prefix('+'), line.strip_prefix('-')) {
            (Some(n), _) => drop(there.insert(n.parse().unwrap())),
            (_, Some(n)) => drop(there.remove(&n.parse().unwrap())),
            _ => {}
        }
    }
    there
}

async fn check(root: &Path) {
    let images = open(root, |_| {});
    for n in promised(root) {
        assert!(
            images.resolve(&format!("i:{n}")).unwrap().is_some(),
            "image {n} was promised"
        );
    }
    let mut layers = BTreeSet::new();
    for record in images.list() {
        let rootfs = images.prepare_rootfs("check", &record, None).await.unwrap();
        let own = images
            .rootfs_text(&rootfs, "/d/own")
            .await
            .unwrap()
            .unwrap();
        assert_eq!(record.id, image(own.parse().unwrap()).id);
        assert_eq!(
            images
                .rootfs_text(&rootfs, "/d/base")
                .await
                .unwrap()
                .unwrap(),
            "base"
        );
        layers.extend(record.layers.clone());
    }
    for n in 0..IMAGES {
        images.release_rootfs(&format!("c{n}")).await.unwrap();
    }
    images.release_rootfs("check").await.unwrap();
    let count = |dir: &str| fs::read_dir(root.join("images").join(dir)).unwrap().count();
    assert_eq!(count("layers"), layers.len(), "a layer that nothing names");
    let deadline = Instant::now() + Duration::from_secs(20);
    while count("tmp") + count("trash") > 0 {
        assert!(
            Instant::now() < deadline,
            "{} in tmp, {} in trash",
            count("tmp"),
            count("trash")
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_daemon_killed_at_any_moment_keeps_its_word_and_leaves_nothing_behind() {
    let tmp = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for round in 0..20u64 {
        let before = fs::metadata(tmp.path().join("said")).map_or(0, |m| m.len());
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "crash::victim"])
            .env(ROOT, tmp.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From its first line on, at a different moment in each round.
        let deadline = Instant::now() + Duration::from_secs(20);
        while fs::metadata(tmp.path().join("said")).map_or(0, |m| m.len()) == before {
            assert!(Instant::now() < deadline, "the victim does nothing");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(round * 3700));
        victim.kill().unwrap();
        victim.wait().unwrap();
        runtime.block_on(check(tmp.path()));
    }
}
