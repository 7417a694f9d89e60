//! A disk of 8 MB that fills up under the daemon: containers continue, ends are reported, and the
//! daemon recovers.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    time::Duration,
};

use cairn_tests::{
    Daemon, Setup,
    container::Container,
    cri::ContainerState,
    criclog,
    image::{BUSYBOX, Image},
    look,
    output::shown,
    pod::Pod,
};

/// A daemon whose records, images, roots and logs are on a file system of 8 MB.
async fn on_a_small_disk() -> Daemon {
    let mut daemon = Daemon::new(Setup::default()).await;
    let (image, root) = (daemon.path("disk.img"), daemon.path("root"));
    File::create(&image)
        .and_then(|file| file.set_len(8 << 20))
        .expect("a file of 8 MB");
    fs::create_dir(&root).expect("a place for it");
    let mut make = daemon.yard.command("mkfs.ext4");
    make.args(["-q", "-m", "0", "-O", "^has_journal"])
        .arg(&image);
    done(make.output().await);
    let mut mount = daemon.yard.command("mount");
    mount.args(["-o", "loop"]).arg(&image).arg(&root);
    done(mount.output().await);
    daemon.serve().await;
    daemon.import(&Image::busybox(BUSYBOX)).await;
    daemon
}

fn done(output: std::io::Result<std::process::Output>) {
    let output = output.expect("it can be run");
    assert!(output.status.success(), "{}", shown(&output));
}

/// Uses all free space; releases it when dropped.
struct Filler(PathBuf);

impl Filler {
    fn new(daemon: &Daemon) -> Self {
        let path = daemon.yard.inside(daemon.path("root/filler"));
        let mut file = File::create(&path).expect("made");
        for size in [64 << 10, 4096, 512, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        file.sync_all().ok();
        Self(path)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        fs::remove_file(&self.0).expect("it was ours");
    }
}

const ENDING: [&str; 3] = [
    "sh",
    "-c",
    "while [ ! -e /dev/shm/die ]; do sleep 0.05; done; exit 9",
];

/// Ends a container of this kind through the pod's shm, which is not on the disk.
fn end(daemon: &Daemon, pod: &Pod) {
    let shm = daemon.path("state/pods").join(&pod.id).join("shm/die");
    File::create(daemon.yard.inside(shm)).expect("the pod's shm takes it");
}

#[tokio::test]
async fn an_exit_on_a_full_disk_is_told_also_after_a_restart_and_is_written_when_there_is_room() {
    let mut daemon = on_a_small_disk().await;
    let pod = daemon.cri().pod("full").await;
    let container = pod.run("c", &ENDING).await;
    let other = pod.run("o", &["sleep", "100000"]).await;
    let full = Filler::new(&daemon);
    end(&daemon, &pod);
    assert_eq!(container.exited().await.exit_code, 9);
    daemon.kill_and_restart().await;
    let cri = daemon.cri();
    let container = cri.container_by_id(&container.id, container.log.clone());
    assert_eq!(container.exited().await.exit_code, 9, "the monitor kept it");
    let other = cri.container_by_id(&other.id, other.log.clone());
    assert_eq!(other.state().await, ContainerState::ContainerRunning);
    assert_eq!(other.exec(&["echo", "here"]).await, "here");
    drop(full);
    let record = daemon.yard.inside(
        daemon
            .path("root/containers")
            .join(format!("{}.json", container.id)),
    );
    cairn_tests::until("the exit is on record", || async {
        let text = fs::read_to_string(&record).ok()?;
        text.contains("\"code\": 9").then_some(())
    })
    .await;
    daemon.kill_and_restart().await;
    let cri = daemon.cri();
    let container = cri.container_by_id(&container.id, container.log.clone());
    assert_eq!(container.status().await.exit_code, 9);
    cri.pod_by_id(&pod.id, "full").end().await;
    assert!(look::cgroup_pids(daemon.cgroup_parent()).is_empty());
}

#[tokio::test]
async fn a_start_that_fails_on_a_full_disk_is_on_record_as_soon_as_there_is_room() {
    let mut daemon = on_a_small_disk().await;
    let pod = daemon.cri().pod("full").await;
    let container = pod.create("c", &["sleep", "100000"]).await;
    let full = Filler::new(&daemon);
    let refused = container.start().await.expect_err("its root takes no file");
    let reported = container.status().await;
    assert_eq!(reported.reason, "StartError", "{refused}");
    let record = daemon
        .path("root/containers")
        .join(format!("{}.json", container.id));
    let record = daemon.yard.inside(record);
    let recorded = || fs::read_to_string(&record).is_ok_and(|text| text.contains("StartError"));
    assert!(!recorded(), "there is no room for it");
    drop(full);
    cairn_tests::until("the failed start is on record", || async {
        recorded().then_some(())
    })
    .await;
    daemon.kill_and_restart().await;
    let cri = daemon.cri();
    let container = cri.container_by_id(&container.id, container.log.clone());
    let status = container.status().await;
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (128, "StartError")
    );
    assert_eq!(status.message, reported.message);
    cri.pod_by_id(&pod.id, "full").end().await;
}

#[tokio::test]
async fn on_a_full_disk_requests_fail_by_name_removals_work_and_everything_heals() {
    let daemon = on_a_small_disk().await;
    daemon.cri().pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    let cri = daemon.cri();
    let pod = cri.pod("full").await;
    let container = pod.run("c", &["sleep", "100000"]).await;
    let idle = pod.create("idle", &["true"]).await;
    let full = Filler::new(&daemon);
    let refused = cri.try_pod(cri.pod_config("more")).await;
    let refused = refused.expect_err("its record cannot be written");
    assert!(refused.message().contains("No space left"), "{refused}");
    let config = cri.container_config("more", &["true"]);
    let refused = pod.try_create(config).await.expect_err("no room for it");
    assert!(refused.message().contains("No space left"), "{refused}");
    assert_eq!(container.exec(&["echo", "here"]).await, "here");
    container
        .stop(Duration::from_secs(0))
        .await
        .expect("StopContainer");
    container.remove().await.expect("a removal makes room");
    idle.remove().await.expect("a removal makes room");
    pod.end().await;
    drop(full);
    daemon.leaves_only(&before).await;
    let again = cri.pod("more").await;
    assert_eq!(again.run("c", &["true"]).await.exited().await.exit_code, 0);
    again.end().await;
}

/// The end of each of its lines.
const TAIL: &str = "-0123456789012345678901234567890123456789";

/// Returns the lines of a log. When the disk was full, a record may be cut at any byte, also before
/// its content; it counts as a line.
fn lines(container: &Container) -> Vec<String> {
    let log = fs::read(&container.log).unwrap_or_default();
    let line = |record: &[u8]| match criclog::parse(record) {
        Ok(records) => criclog::lines(&records, "stdout").concat(),
        Err(_) => String::from_utf8_lossy(record).trim_end().to_owned(),
    };
    let records = criclog::whole(&log).split_inclusive(|byte| *byte == b'\n');
    records.map(line).collect()
}

#[tokio::test]
async fn lines_that_were_written_before_the_disk_was_full_are_there_and_lines_follow() {
    let mut daemon = on_a_small_disk().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("lines");
    let logs = daemon.path("root/logs");
    config.log_directory = daemon.yard.inside(&logs).display().to_string();
    fs::create_dir_all(daemon.yard.inside(&logs)).expect("made");
    let mut inside = config.clone();
    inside.log_directory = logs.display().to_string();
    let pod = cri.try_pod(inside).await.expect("RunPodSandbox");
    let script = format!("i=0; while :; do echo line-$i{TAIL}; i=$((i+1)); sleep 0.002; done");
    let command = ["sh", "-c", &script];
    let container = pod.try_create(cri.container_config("c", &command)).await;
    let mut container = container.expect("CreateContainer");
    container.log = daemon.yard.inside(&container.log);
    container.start().await.expect("StartContainer");
    cairn_tests::until("it writes", || async {
        (lines(&container).len() > 50).then_some(())
    })
    .await;
    let full = Filler::new(&daemon);
    let acknowledged = lines(&container);
    daemon.kill_and_restart().await;
    drop(full);
    let seen = lines(&container).len();
    cairn_tests::until("it goes on when there is room", || async {
        (lines(&container).len() > seen + 50).then_some(())
    })
    .await;
    let lines = lines(&container);
    assert_eq!(
        lines[..acknowledged.len()],
        acknowledged[..],
        "none of them is lost"
    );
    let number = |line: &String| {
        let number = line.strip_prefix("line-")?.strip_suffix(TAIL)?;
        number.parse::<u32>().ok()
    };
    let torn: Vec<_> = lines.iter().filter(|line| number(line).is_none()).collect();
    assert!(
        torn.len() <= 1 && torn.iter().all(|line| !line.ends_with(TAIL)),
        "but where it was torn, and the next is a line of its own: {torn:?}"
    );
    let numbers = lines.iter().filter_map(number);
    assert!(
        numbers.is_sorted_by(|one, next| one < next),
        "none is reported twice"
    );
    daemon.cri().pod_by_id(&pod.id, "lines").end().await;
}

#[tokio::test]
async fn events_that_a_full_disk_refuses_are_shown_and_are_in_the_files_when_there_is_room() {
    let daemon = on_a_small_disk().await;
    let pod = daemon.cri().pod("events").await;
    let container = pod.run("c", &ENDING).await;
    let full = Filler::new(&daemon);
    end(&daemon, &pod);
    assert_eq!(container.exited().await.exit_code, 9);
    // Each fails, and its event is recorded: together more than fits in the free part of the file's
    // last block.
    for _ in 0..30 {
        container.start().await.expect_err("it has ended");
    }
    let shown = daemon.cairn(&["timeline", "--json"]).await;
    let shown = numbers(&String::from_utf8_lossy(&shown.stdout));
    let in_files = || {
        let dir = daemon.yard.inside(daemon.path("root/trace"));
        let file = fs::read_dir(dir).expect("it is there").flatten().next();
        numbers(&fs::read_to_string(file.expect("one").path()).expect("readable"))
    };
    assert!(
        shown.iter().copied().eq(1..=shown.len() as u64),
        "{shown:?}"
    );
    assert!(in_files().len() < shown.len(), "the disk refused some");
    drop(full);
    pod.end().await;
    let all = cairn_tests::until("the file has them all", || async {
        Some(in_files()).filter(|all| all.len() > shown.len())
    })
    .await;
    assert!(all.iter().copied().eq(1..=all.len() as u64), "{all:?}");
}

/// Returns the numbers of the events, one per line; 0 for an invalid line. An incomplete last line
/// is still being written.
fn numbers(lines: &str) -> Vec<u64> {
    let number = |line: &str| {
        let event = serde_json::from_str::<serde_json::Value>(line).unwrap_or_default();
        event["seq"].as_u64().unwrap_or(0)
    };
    let whole = lines
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole.map(number).collect()
}
