//! Trees of every shape that an image or a container may make: the shape does not increase the
//! daemon's memory, and the time of a walk is proportional to the number of directories.
//!
//! Each walk is measured over a small tree and over one with eight times the directories: the
//! daemon's peak memory, and its processor time, which waiting does not change. Beside other tests
//! on two cores the same walk costs up to three times as much, so the bound leaves that much. `hack/test escape` prints a table
//! with a line per cell.

use std::{
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cairn_tests::{
    Daemon, Setup,
    container::Container,
    cri,
    image::{BUSYBOX, Image, Layer},
    look,
    output::shown,
    pod::{Pod, host_network, set_image},
    table,
    until::until_within,
};
use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
use tar::EntryType;

/// The number of directories in the larger tree.
const FULL: usize = 150_000;
/// How many times the directories of the smaller tree the larger one has.
const TIMES: usize = 8;
/// The number in an image: an archive has kilobytes per directory, and a development build is slow.
const IN_AN_IMAGE: usize = 20_000;
/// The depth that an image may have.
const IMAGE_DEPTH: usize = 1_900;
/// The limit of the daemon's growth, in kB.
const GROWTH_MAX: u64 = 8 << 10;
/// The time limit of a walk.
const PATIENCE: Duration = Duration::from_secs(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// All nested.
    Deep,
    /// All in one directory with a path of 3.8 kB.
    Wide,
    /// Nested, with others beside each.
    Comb,
}

impl Shape {
    /// Makes `n` directories in `dir`; a comb has at most `deepest` nested ones.
    fn grow(self, dir: &Path, n: usize, deepest: usize) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let make = |at: &OwnedFd, name: &str| mkdirat(at, name, Mode::from(0o755)).expect("room");
        let below = |at: &OwnedFd, name: &str| {
            make(at, name);
            openat(at, name, flags, Mode::empty()).expect("it was made")
        };
        fs::create_dir_all(dir).expect("the tree's top can be made");
        let mut at = open(dir, flags, Mode::empty()).expect("the tree's top is there");
        match self {
            Self::Deep => {
                for _ in 0..n {
                    at = below(&at, "d");
                }
            }
            Self::Wide => {
                let long = "l".repeat(250);
                for _ in 0..15 {
                    at = below(&at, &long);
                }
                (0..n - 15).for_each(|n| make(&at, &n.to_string()));
            }
            Self::Comb => {
                let levels = (n / 2).min(deepest);
                for level in 0..levels {
                    let teeth = (level + 1) * n / levels - level * n / levels - 1;
                    (0..teeth).for_each(|tooth| make(&at, &tooth.to_string()));
                    at = below(&at, "d");
                }
            }
        }
    }
}

async fn grow(shape: Shape, dir: PathBuf, n: usize, deepest: usize) {
    let grown = tokio::task::spawn_blocking(move || shape.grow(&dir, n, deepest));
    grown.await.expect("it can be grown");
}

/// Measures the daemon's use from one moment on.
struct Meter {
    process: PathBuf,
    peak: u64,
    ticks: u64,
    begun: Instant,
}

#[derive(Clone, Copy)]
struct Reading {
    growth: u64,
    /// In units of 10 ms.
    ticks: u64,
    time: Duration,
}

impl Meter {
    fn start(daemon: &Daemon) -> Self {
        let process = daemon.yard.inside(format!("/proc/{}", daemon.pid()));
        // Reset the peak.
        fs::write(process.join("clear_refs"), "5").expect("the peak can be forgotten");
        Self {
            peak: peak(&process),
            ticks: ticks(&process),
            process,
            begun: Instant::now(),
        }
    }

    fn read(&self) -> Reading {
        Reading {
            growth: peak(&self.process).saturating_sub(self.peak),
            ticks: ticks(&self.process) - self.ticks,
            time: self.begun.elapsed(),
        }
    }
}

fn peak(process: &Path) -> u64 {
    let peak = look::status_field(process, "VmHWM").expect("the daemon runs");
    let number = peak.split_whitespace().next();
    number.and_then(|n| n.parse().ok()).expect("a number of kB")
}

fn ticks(process: &Path) -> u64 {
    let stat = fs::read_to_string(process.join("stat")).expect("the daemon runs");
    // After the command in brackets: state is field 3, the times are fields 14 and 15.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let times = fields.split_whitespace().skip(11).take(2);
    times.map(|n| n.parse::<u64>().expect("a number")).sum()
}

/// Checks and records a cell of the table: the walks over the smaller tree and the larger.
fn check(walk: &str, shape: Shape, n: usize, readings: [Reading; 2]) {
    let [small, full] = readings;
    let shape = format!("{shape:?}").to_lowercase();
    let growth = small.growth.max(full.growth);
    table::cell(&format!(
        "{walk:<22} {shape:<5} {n:>7} directories: {:>6.2} s, grew {growth:>5} kB, processor {:>4} ms (an eighth of them: {:>4} ms)",
        full.time.as_secs_f64(),
        full.ticks * 10,
        small.ticks * 10,
    ));
    assert!(
        growth < GROWTH_MAX,
        "{walk}, {shape}: the daemon grew by {growth} kB"
    );
    // A path lookup for each directory would take 64 times as much.
    let bound = small.ticks * TIMES as u64 * 3 + 25;
    let ticks = full.ticks;
    assert!(
        ticks <= bound,
        "{walk}, {shape}: {} ticks, then {ticks}",
        small.ticks
    );
}

/// A daemon with its directory in memory, so that the time is the daemon's and not the disk's.
async fn daemon(toml: &str) -> Daemon {
    let mut daemon = Daemon::new(Setup::default().toml(toml)).await;
    let root = daemon.path("root");
    fs::create_dir(&root).expect("it is not there yet");
    let root = root.display().to_string();
    daemon
        .lines(&[
            "mount",
            "-t",
            "tmpfs",
            "-o",
            "mode=755,nr_inodes=0",
            "root",
            &root,
        ])
        .await;
    daemon.serve().await;
    daemon.import(&Image::busybox(BUSYBOX)).await;
    daemon
}

async fn pod(daemon: &Daemon) -> Pod {
    let mut config = daemon.cri().pod_config("trees");
    host_network(&mut config);
    daemon.cri().try_pod(config).await.expect("RunPodSandbox")
}

async fn inodes(container: &Container) -> Option<u64> {
    let mut runtime = container.cri.client.runtime.clone();
    let container_id = container.id.clone();
    let stats = runtime
        .container_stats(cri::ContainerStatsRequest { container_id })
        .await;
    let stats = stats.expect("ContainerStats").into_inner().stats?;
    Some(stats.writable_layer?.inodes_used?.value)
}

async fn emptied_trash(daemon: &Daemon) {
    let trash = daemon.yard.inside(daemon.path("root/images/trash"));
    until_within("the trash is empty", PATIENCE, || async {
        look::subdirs(&trash).is_empty().then_some(())
    })
    .await;
}

/// Removes the container; its tree is moved to the trash.
async fn removed(daemon: &Daemon, container: &Container) -> Reading {
    let meter = Meter::start(daemon);
    container.remove().await.expect("RemoveContainer");
    let waited = meter.begun.elapsed();
    assert!(
        waited < Duration::from_secs(10),
        "its removal took {waited:?}"
    );
    emptied_trash(daemon).await;
    meter.read()
}

async fn count_and_remove(daemon: &Daemon, pod: &Pod, shape: Shape) {
    let (mut counts, mut removals) = (Vec::new(), Vec::new());
    for n in [FULL / TIMES, FULL] {
        let container = pod.create(&format!("count-{n}"), &["true"]).await;
        let upper = daemon
            .path("root/roots")
            .join(&container.id)
            .join("rootfs/upper");
        grow(shape, daemon.yard.inside(upper).join("tmp"), n, usize::MAX).await;
        let meter = Meter::start(daemon);
        let all = n as u64;
        let counted = until_within("all of it is counted", PATIENCE, || async {
            inodes(&container).await.filter(|inodes| *inodes >= all)
        })
        .await;
        assert!(counted < all + 10, "{shape:?}: {counted} of {all}");
        counts.push(meter.read());
        removals.push(removed(daemon, &container).await);
    }
    check("count a layer", shape, FULL, [counts[0], counts[1]]);
    check("remove a layer", shape, FULL, [removals[0], removals[1]]);
}

/// The configuration of a container whose image has a VOLUME `/data-<n>` of this shape.
async fn container_of_a_volume(daemon: &Daemon, shape: Shape, n: usize) -> cri::ContainerConfig {
    let name = format!("localhost/cairn-test/trees-{n}:1");
    let own = Layer::default().dir(&format!("data-{n}"), 0o755);
    let volumes = serde_json::json!({ format!("/data-{n}"): {} });
    daemon
        .import(&Image::busybox(&name).layer(own).config("Volumes", volumes))
        .await;
    let layers = look::subdirs(&daemon.yard.inside(daemon.path("root/images/layers")));
    let mut layers = layers
        .iter()
        .map(|layer| layer.join(format!("fs/data-{n}")));
    let data = layers
        .find(|data| data.is_dir())
        .expect("the layer is in the store");
    grow(shape, data.join("tree"), n, IMAGE_DEPTH).await;
    let mut config = daemon
        .cri()
        .container_config(&format!("fill-{n}"), &["true"]);
    set_image(&mut config, &name);
    config
}

async fn fill_and_remove(daemon: &Daemon, pod: &Pod, shape: Shape) {
    let (mut fills, mut removals) = (Vec::new(), Vec::new());
    for n in [FULL / TIMES, FULL] {
        let config = container_of_a_volume(daemon, shape, n).await;
        let meter = Meter::start(daemon);
        let made = tokio::time::timeout(PATIENCE, pod.try_create(config)).await;
        let made =
            made.unwrap_or_else(|_| panic!("{shape:?}: no end of the VOLUME of {n} directories"));
        fills.push(meter.read());
        if shape == Shape::Deep {
            let error = made.expect_err("deeper than any image may be").to_string();
            let why = format!(
                "image VOLUME /data-{n}: cannot fill: more than 4096 directories in each other"
            );
            assert!(error.contains(&why), "{error}");
            emptied_trash(daemon).await;
            continue;
        }
        removals.push(removed(daemon, &made.expect("CreateContainer")).await);
    }
    check("fill a VOLUME", shape, FULL, [fills[0], fills[1]]);
    if let [small, full] = removals[..] {
        check("remove a VOLUME", shape, FULL, [small, full]);
    }
}

async fn sweep(daemon: &mut Daemon, shape: Shape) {
    let trash = daemon
        .yard
        .inside(daemon.path("root/images/trash/1000000000"));
    let mut readings = Vec::new();
    // The first start has no leftovers: its cost is the base of the others.
    for n in [0, FULL / TIMES, FULL] {
        daemon.terminate().await;
        if n > 0 {
            grow(shape, trash.clone(), n, usize::MAX).await;
        }
        let begun = Instant::now();
        daemon.serve().await;
        let (process, serving) = (
            daemon.yard.inside(format!("/proc/{}", daemon.pid())),
            begun.elapsed(),
        );
        assert!(
            serving < Duration::from_secs(10),
            "{shape:?}: it serves after {serving:?}"
        );
        emptied_trash(daemon).await;
        readings.push((peak(&process), ticks(&process), begun.elapsed()));
    }
    let [idle, small, full] = readings[..] else {
        panic!("three starts");
    };
    let above = |(peak, ticks, time): (u64, u64, Duration)| Reading {
        growth: peak.saturating_sub(idle.0),
        ticks: ticks.saturating_sub(idle.1),
        time,
    };
    check(
        "sweep at the start",
        shape,
        FULL,
        [above(small), above(full)],
    );
}

async fn every_walk_of_the_daemon(shape: Shape) {
    let mut daemon = daemon("").await;
    let pod = pod(&daemon).await;
    count_and_remove(&daemon, &pod, shape).await;
    pod.end().await;
    sweep(&mut daemon, shape).await;
    assert!(!daemon.log().contains("not fully counted"), "all of it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_of_150_000_directories_in_each_other_costs_the_daemon_no_memory() {
    every_walk_of_the_daemon(Shape::Deep).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_of_150_000_directories_beside_each_other_costs_the_daemon_no_memory() {
    every_walk_of_the_daemon(Shape::Wide).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comb_of_150_000_directories_costs_the_daemon_no_memory() {
    every_walk_of_the_daemon(Shape::Comb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_150_000_directories_is_filled_in_linear_time_or_refused_by_name() {
    for shape in [Shape::Comb, Shape::Deep, Shape::Wide] {
        let daemon = daemon("").await;
        let pod = pod(&daemon).await;
        fill_and_remove(&daemon, &pod, shape).await;
        pod.end().await;
    }
}

#[tokio::test]
async fn a_pod_is_removed_while_a_volume_of_its_container_is_still_filled() {
    let daemon = daemon("").await;
    let pod = pod(&daemon).await;
    let config = container_of_a_volume(&daemon, Shape::Wide, FULL).await;
    let made = tokio::spawn({
        let pod = pod.clone();
        async move { pod.try_create(config).await }
    });
    let volumes = daemon.yard.inside(daemon.path("root/volumes"));
    until_within("the VOLUME is being filled", PATIENCE, || async {
        let filled = look::subdirs(&volumes)
            .into_iter()
            .flat_map(|of| look::subdirs(&of));
        let mut filled = filled.flat_map(|volume| look::subdirs(&volume));
        filled.next().map(drop)
    })
    .await;
    let removed = daemon.cairn(&["rm", "--force", &pod.id]).await;
    assert!(removed.status.success(), "{removed:?}");
    let error = made.await.expect("it does not panic");
    let error = error.expect_err("the pod was removed").to_string();
    assert!(error.contains("given up"), "{error}");
    assert!(look::subdirs(&volumes).is_empty(), "its volumes are left");
}

/// An entry whose name may be too long for a header.
fn entry(layer: Layer, kind: EntryType, name: &str) -> Layer {
    let long = [name.as_bytes(), b"\0"].concat();
    let layer = layer.raw(EntryType::GNULongName, "././@LongLink", "", 0o644, &long);
    layer.raw(kind, &name[..name.len().min(99)], "", 0o755, b"")
}

/// The tree of a shape as a layer, with an entry for each directory.
fn layer(shape: Shape, n: usize) -> Layer {
    let dir = |layer: Layer, name: &str| entry(layer, EntryType::Directory, name);
    let mut layer = Layer::default();
    match shape {
        Shape::Wide => (0..n).fold(layer, |layer, at| dir(layer, &format!("w/{at}"))),
        Shape::Deep | Shape::Comb => {
            let levels = match shape {
                Shape::Deep => n,
                _ => IMAGE_DEPTH / 4,
            };
            let mut path = String::new();
            for level in 0..levels {
                let teeth = (level + 1) * n / levels - level * n / levels - 1;
                for tooth in 0..teeth {
                    layer = dir(layer, &format!("{path}{tooth}"));
                }
                path.push_str("d/");
                layer = dir(layer, &path);
            }
            layer
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_every_shape_is_unpacked_and_removed_without_memory() {
    let daemon = daemon("[image]\nmax_image_depth = 2048").await;
    for shape in [Shape::Deep, Shape::Wide, Shape::Comb] {
        let most = match shape {
            Shape::Deep => IMAGE_DEPTH,
            _ => IN_AN_IMAGE,
        };
        let (mut unpacked, mut gone) = (Vec::new(), Vec::new());
        for n in [most / TIMES, most] {
            let name = format!("localhost/cairn-test/{shape:?}-{n}:1").to_lowercase();
            let file = daemon.path("shape.tar");
            Image::bare(&name).layer(layer(shape, n)).write(&file);
            let meter = Meter::start(&daemon);
            let done = daemon.import_file(&file).await;
            assert!(done.status.success(), "{}", shown(&done));
            unpacked.push(meter.read());
            let meter = Meter::start(&daemon);
            let done = daemon.cairn(&["image", "rm", &name]).await;
            assert!(done.status.success(), "{}", shown(&done));
            emptied_trash(&daemon).await;
            gone.push(meter.read());
        }
        check("unpack an image", shape, most, [unpacked[0], unpacked[1]]);
        check("remove an image", shape, most, [gone[0], gone[1]]);
    }
}
