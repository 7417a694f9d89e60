//! Attacks by an archive of images: on the disk, on the daemon's memory, and on the process that
//! reads it.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use cairn_tests::{
    Daemon, Setup, bins,
    image::{Image, Layer},
    look,
    output::shown,
    until,
    until::{PATIENCE, poll_within},
};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, ChildStdin, Command},
};

/// An archive with one file of this many zeros, which gzip compresses to a thousandth.
fn bomb(bytes: usize) -> Vec<u8> {
    let tar = Layer::default().file("x", 0o644, &vec![0; bytes]).bytes();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gz.write_all(&tar).expect("memory takes all");
    gz.finish().expect("memory takes all")
}

/// A zstd frame with a window of this many bits, without compression.
fn zstd(bytes: &[u8], window: u8) -> Vec<u8> {
    const BLOCK: usize = 100_000;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, (window - 10) << 3];
    let blocks: Vec<_> = bytes.chunks(BLOCK).collect();
    for (n, block) in blocks.iter().enumerate() {
        let last = u32::from(n + 1 == blocks.len());
        let size = u32::try_from(block.len()).expect("it is a block's");
        frame.extend(&(size << 3 | last).to_le_bytes()[..3]);
        frame.extend(*block);
    }
    frame
}

fn write(daemon: &Daemon, name: &str, bytes: &[u8]) -> PathBuf {
    let file = daemon.path(name);
    fs::write(&file, bytes).expect("the archive can be written");
    file
}

#[tokio::test]
async fn an_archive_beyond_the_bytes_of_an_image_is_refused_by_the_settings_name() {
    let toml = "[image]\nmax_image_bytes = \"8MiB\"";
    let daemon = Daemon::with(Setup::default().toml(toml)).await;
    let before = daemon.inventory().await;
    let file = write(&daemon, "bomb.tar.gz", &bomb(64 << 20));
    let (one, two) = tokio::join!(daemon.import_file(&file), daemon.import_file(&file));
    for done in [one, two] {
        let printed = shown(&done);
        assert!(
            !done.status.success() && printed.contains("max_image_bytes"),
            "{printed}"
        );
    }
    daemon.leaves_only(&before).await;
}

#[tokio::test]
async fn an_archive_that_asks_for_much_memory_is_refused_and_others_of_zstd_are_not() {
    let daemon = Daemon::start().await;
    let plain = Image::bare("localhost/cairn-test/zstd:1")
        .layer(Layer::default().file("f", 0o644, b"x"))
        .blobs()
        .archive();
    let before = daemon.inventory().await;
    for window in [24, 27] {
        let done = daemon
            .import_file(&write(&daemon, "wide.tar.zst", &zstd(&plain, window)))
            .await;
        let printed = shown(&done);
        assert!(
            !done.status.success() && printed.contains("windows of up to 8 MiB"),
            "{window}: {printed}"
        );
    }
    daemon.leaves_only(&before).await;
    let file = write(&daemon, "narrow.tar.zst", &zstd(&plain, 23));
    let done = daemon.import_file(&file).await;
    assert!(done.status.success(), "{}", shown(&done));
}

/// The start of an archive, longer than the buffers between a client and a daemon that does not
/// read.
const BEGINNING: usize = 700_000;

/// Starts `cairn image import -` with the start of an archive; it waits for the rest.
async fn begun(daemon: &Daemon) -> (Child, ChildStdin) {
    let layer = Layer::default().file("begun", 0o644, &super::bounds::noise(1 << 20));
    begun_with(daemon, &layer.bytes()).await
}

/// As [`begun`], with this archive.
async fn begun_with(daemon: &Daemon, archive: &[u8]) -> (Child, ChildStdin) {
    let mut import = Command::new(bins::cairn())
        .args(["image", "import", "-", "--connect"])
        .arg(format!("unix://{}", daemon.socket().display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("cairn runs");
    let mut stdin = import.stdin.take().expect("it is piped");
    stdin
        .write_all(&archive[..BEGINNING])
        .await
        .expect("the beginning is taken");
    (import, stdin)
}

/// Returns `/proc/<pid>` of the processes that work below the images' `tmp`.
fn helpers(daemon: &Daemon) -> Vec<PathBuf> {
    let tmp = daemon.path("root/images/tmp");
    let in_yard = fs::read_dir(daemon.yard.inside("/proc")).expect("the yard has a procfs");
    let is_helper = |proc: &PathBuf| {
        let line = fs::read(proc.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("unpack") && line.contains(tmp.to_str().expect("it is text"))
    };
    let processes = in_yard.flatten().map(|entry| entry.path());
    processes.filter(is_helper).collect()
}

async fn helper(daemon: &Daemon) -> PathBuf {
    until("an archive is read by a helper", || async {
        helpers(daemon).into_iter().find(|proc| {
            // The seccomp filter is the last step of its confinement.
            let status = fs::read_to_string(proc.join("status")).unwrap_or_default();
            status.contains("Seccomp:\t2")
        })
    })
    .await
}

#[tokio::test]
async fn an_archive_is_read_by_a_helper_without_rights_that_ends_with_its_import() {
    let mut daemon = Daemon::start().await;
    let before = daemon.inventory().await;
    let (mut import, _more) = begun(&daemon).await;
    let reader = helper(&daemon).await;
    let status = fs::read_to_string(reader.join("status")).expect("it waits for more");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or_else(
            || panic!("{name} in {status}"),
            |(_, v)| v.trim().to_owned(),
        )
    };
    for set in ["CapEff", "CapPrm", "CapInh"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    let own = |id: &str| id.parse::<u32>().is_ok_and(|id| id >> 24 == 0x7a);
    assert!(field("Uid").split('\t').all(own), "{}", field("Uid"));
    assert_eq!(field("NoNewPrivs"), "1");
    let net = |proc: &Path| fs::read_link(proc.join("ns/net")).expect("it runs");
    let daemons = daemon.yard.inside(format!("/proc/{}", daemon.pid()));
    assert_ne!(net(&reader), net(&daemons));
    let root = fs::read_link(reader.join("root")).expect("it runs");
    assert!(root.ends_with("files"), "{root:?}");

    // Its client is killed.
    import.kill().await.expect("it is ours");
    daemon.leaves_only(&before).await;
    // The helper is killed.
    let (mut import, _more) = begun(&daemon).await;
    let pid = helper(&daemon).await;
    let pid: i32 = pid
        .file_name()
        .and_then(|name| name.to_str()?.parse().ok())
        .expect("a pid");
    daemon.yard.kill(pid, 9).await;
    let ended = tokio::time::timeout(PATIENCE, import.wait()).await;
    let ended = ended.expect("the import ends").expect("it is ours");
    assert!(!ended.success(), "{ended:?}");
    daemon.leaves_only(&before).await;
    // The daemon is killed.
    let (mut import, _more) = begun(&daemon).await;
    helper(&daemon).await;
    daemon.kill_and_restart().await;
    let _ended = import.kill().await;
    until("the helper of the former daemon has ended", || async {
        helpers(&daemon).is_empty().then_some(())
    })
    .await;
    until("nothing is left of it", || async {
        let left = ["tmp", "trash"].map(|dir| look::tree(&daemon.path("root/images").join(dir)));
        left.iter().all(|left| left.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_import_waits_for_the_one_before_it() {
    let daemon = Daemon::start().await;
    let (mut first, _more) = begun(&daemon).await;
    helper(&daemon).await;
    let alone = helpers(&daemon).len();
    let name = "localhost/cairn-test/second:1";
    let archive = Image::bare(name)
        .layer(Layer::default().file("f", 0o644, &super::bounds::noise(1 << 20)))
        .blobs()
        .archive();
    // The daemon has read its start, so that the second import is in progress there.
    let (mut second, mut more) = begun_with(&daemon, &archive).await;
    let both = poll_within(Duration::from_millis(500), || async {
        (helpers(&daemon).len() > alone).then_some(())
    });
    assert!(both.await.is_none(), "the second does not wait");
    first.kill().await.expect("it is ours");
    let rest = more.write_all(&archive[BEGINNING..]);
    rest.await.expect("the rest is taken");
    drop(more);
    let done = tokio::time::timeout(PATIENCE, second.wait()).await;
    let done = done.expect("the second goes on").expect("it is ours");
    assert!(done.success(), "{done:?}");
    assert!(shown(&daemon.crictl(&["images"]).await).contains("cairn-test/second"));
}

#[tokio::test]
async fn an_import_whose_archive_does_not_come_ends() {
    let toml = "[image]\nprogress_timeout = \"1s\"";
    let daemon = Daemon::with(Setup::default().toml(toml)).await;
    let before = daemon.inventory().await;
    let (mut import, _more) = begun(&daemon).await;
    let ended = tokio::time::timeout(PATIENCE, import.wait()).await;
    let ended = ended.expect("it is not waited for without end");
    assert!(!ended.expect("it is ours").success());
    daemon.leaves_only(&before).await;
}
