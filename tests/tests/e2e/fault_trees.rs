//! Trees made by a container that are too deep for a recursive removal.

use std::time::Duration;

use cairn_tests::{
    Daemon,
    container::Container,
    image::{Image, Layer},
    pod::Pod,
    until,
    until::until_within,
};

/// Recursion needs more than a hundred bytes of stack per level, and a thread has two megabytes.
const DEEPER_THAN_A_STACK: usize = 30_000;

/// Makes a container of an image with a VOLUME, and trees of these depths in the volume and in its
/// own layer.
async fn digger(daemon: &Daemon, volume: usize, layer: usize) -> (Pod, Container) {
    let image = Image::busybox("localhost/cairn-test/volume:1")
        .layer(Layer::default().dir("data", 0o755))
        .config("Volumes", serde_json::json!({ "/data": {} }));
    daemon.import(&image).await;
    let pod = daemon.cri().pod("deep").await;
    let mut config = daemon.cri().container_config("c", &["sleep", "100000"]);
    config.image.as_mut().expect("set").image = "localhost/cairn-test/volume:1".to_owned();
    let container = pod.started(config).await;
    let pid = container.pid().await.expect("a pid");
    for (dir, depth) in [("data", volume), ("tmp", layer)] {
        let at = daemon.yard.inside(format!("/proc/{pid}/root/{dir}"));
        tokio::task::spawn_blocking(move || dig_at(&at, depth))
            .await
            .expect("it can be dug");
    }
    (pod, container)
}

fn dig_at(dir: &std::path::Path, depth: usize) {
    use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = open(dir, flags, Mode::empty()).expect("the directory is there");
    for _ in 0..depth {
        mkdirat(&at, "d", Mode::RWXU).expect("one deeper");
        at = openat(&at, "d", flags, Mode::empty()).expect("one deeper");
    }
}

#[tokio::test]
async fn a_tree_deeper_than_a_stack_is_removed_with_its_container() {
    let daemon = Daemon::start().await;
    let (pod, container) = digger(&daemon, 100_000, DEEPER_THAN_A_STACK).await;
    let pid = daemon.pid();
    container.remove().await.expect("RemoveContainer");
    pod.end().await;
    let left = || cairn_tests::look::tree(&daemon.path("root/volumes"));
    assert!(left().is_empty(), "{:?}", left());
    emptied_trash(&daemon).await;
    assert!(daemon.yard.ending(pid).is_none(), "the daemon lives");
}

#[tokio::test]
async fn recovery_removes_a_tree_deeper_than_a_stack() {
    let mut daemon = Daemon::start().await;
    let (pod, container) = digger(&daemon, DEEPER_THAN_A_STACK, DEEPER_THAN_A_STACK).await;
    // A mount in the volume keeps its removal from ending before the check.
    let volumes = daemon.path("root/volumes").join(&container.id);
    let [volume] = &cairn_tests::look::subdirs(&volumes)[..] else {
        panic!("it has one volume");
    };
    let busy = volume.join("busy").display().to_string();
    daemon.lines(&["mkdir", &busy]).await;
    daemon.lines(&["mount", "-t", "tmpfs", "busy", &busy]).await;
    daemon.kill().await;
    // Simulates a daemon that died during the removal: no record owns the tree any more.
    let record = format!("root/containers/{}.json", container.id);
    std::fs::remove_file(daemon.path(&record)).expect("the record is there");
    daemon.serve().await;
    until("it was swept", || async {
        let volumes = cairn_tests::look::tree(&daemon.path("root/volumes"));
        volumes.is_empty().then_some(())
    })
    .await;
    let trash = cairn_tests::look::subdirs(&daemon.path("root/images/trash"));
    assert!(!trash.is_empty(), "what was swept is in the trash");
    let busy = daemon.lines(&["findmnt", "-rno", "TARGET", "busy"]).await;
    let busy = busy.first().expect("it is mounted, where it was moved to");
    assert!(busy.contains("/images/trash/"), "{busy}");
    daemon.lines(&["umount", busy]).await;
    daemon.cri().pod_by_id(&pod.id, "deep").end().await;
    emptied_trash(&daemon).await;
}

async fn emptied_trash(daemon: &Daemon) {
    // A few hundred megabytes of directories, on a disk that may be busy; no call waits for their
    // removal.
    let left = "the trees are removed from the trash, too";
    until_within(left, Duration::from_secs(600), || async {
        cairn_tests::look::subdirs(&daemon.path("root/images/trash"))
            .is_empty()
            .then_some(())
    })
    .await;
}
