//! The confinement of the unpack helper, and trees shifted into a user namespace.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn::image::Progress;

use crate::registry::{Reply, fake_registry};
use crate::support::*;

/// Polls for a value, for at most ten seconds.
async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Finds the helper that works below `dir`.
fn helper_of(dir: &Path) -> Option<PathBuf> {
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|e| e.path());
    let dir = dir.to_str()?;
    processes.into_iter().find(|p| {
        let line = fs::read(p.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("unpack") && line.contains(dir)
    })
}

#[tokio::test]
async fn the_helper_has_its_layer_six_capabilities_and_nothing_else() {
    let image = Image::build(
        "x:1",
        &[Layer::new().file("f", "x")],
        Packing::Plain,
        |_| {},
    );
    let blob = image.layer_blob(0);
    let bytes = image.blobs[&blob].clone();
    let fake = fake_registry(vec![("a:1", image)], move |r| {
        r.path
            .contains(blob.as_str())
            .then(|| Reply::Stall(bytes.clone(), 10))
    });
    let f = Fixture::new();
    let images = f.images.clone();
    let name = format!("{}/a:1", fake.host);
    let pulling = tokio::spawn(async move { images.pull(&name, None, &Progress::default()).await });
    let dir = f.path("images/tmp");
    let helper = until("no helper", || helper_of(&dir)).await;
    // The seccomp filter is the last step of its confinement.
    let status = until("the helper stays as it was started", || {
        let status = fs::read_to_string(helper.join("status")).ok()?;
        status.contains("Seccomp:\t2").then_some(status)
    })
    .await;
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_once(':').unwrap().1.trim().to_owned()
    };
    // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, MKNOD, SETFCAP.
    let six = 1u64 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 27 | 1 << 31;
    for set in ["CapEff", "CapPrm"] {
        assert_eq!(u64::from_str_radix(&field(set), 16).unwrap(), six, "{set}");
    }
    for ids in ["Uid", "Gid"] {
        let of_helpers = |id: &str| id.parse::<u32>().is_ok_and(|id| id >> 24 == 0x7a);
        assert!(
            field(ids).split('\t').all(of_helpers),
            "{ids}: {}",
            field(ids)
        );
    }
    let limits = fs::read_to_string(helper.join("limits")).unwrap();
    for (limit, most) in [("Max processes", "0"), ("Max open files", "64")] {
        let line = limits.lines().find(|l| l.starts_with(limit)).unwrap();
        assert_eq!(
            line.split_whitespace()
                .nth(3 - usize::from(limit == "Max processes")),
            Some(most),
            "{line}"
        );
    }
    assert_eq!(
        (&*field("Groups"), &*field("NoNewPrivs"), &*field("Threads")),
        ("", "1", "1")
    );
    let root = fs::read_link(helper.join("root")).unwrap();
    assert!(root.starts_with(&dir) && root.ends_with("fs"), "{root:?}");
    let net = fs::read_link(helper.join("ns/net")).unwrap();
    assert_ne!(net, fs::read_link("/proc/self/ns/net").unwrap());
    assert_eq!(fs::read_to_string(helper.join("environ")).unwrap(), "");
    let open: Vec<_> = fs::read_dir(helper.join("fd"))
        .unwrap()
        .map(|e| fs::read_link(e.unwrap().path()).unwrap())
        .filter(|target| !target.to_string_lossy().starts_with("pipe:"))
        .collect();
    // Descriptors that the test itself inherited without CLOEXEC are not the daemon's fault.
    let null = Path::new("/dev/null");
    // Its report is written to an unnamed file.
    let report = fs::read_link(helper.join("fd/1")).unwrap();
    let nameless = report.to_string_lossy().ends_with(" (deleted)");
    assert!(nameless && report.starts_with(&dir), "{report:?}");
    let known = |t: &PathBuf| t == &root || t == null || t == &report;
    assert!(open.iter().all(known), "{open:?}");
    pulling.abort();
    until("the helper outlives the pull", || {
        (!helper.exists()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_helper_that_cannot_be_started_is_said_so() {
    let tmp = tempfile::tempdir().unwrap();
    let images = open(tmp.path(), |o| {
        o.unpack_helper = vec!["/absent/helper".into()]
    });
    let from = std::io::Cursor::new(Image::new("x:1", &[Layer::new().file("f", "")]).layout());
    let e = images
        .import(from, None, &Progress::default())
        .await
        .unwrap_err();
    assert!(e.to_string().contains("unpack helper"), "{e}");
}

/// A process that keeps a user namespace open.
struct Userns(Child);

impl Userns {
    fn new() -> Self {
        let ours = fs::read_link("/proc/self/ns/user").unwrap();
        let child = Command::new("unshare")
            .args(["-U", "sleep", "60"])
            .spawn()
            .unwrap();
        let this = Self(child);
        let proc = this.proc();
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_link(proc.join("ns/user")).unwrap() == ours {
            assert!(Instant::now() < deadline, "no user namespace");
            std::thread::yield_now();
        }
        for map in ["uid_map", "gid_map"] {
            fs::write(proc.join(map), "0 100000 65536").unwrap();
        }
        this
    }

    fn proc(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.0.id()))
    }

    fn fd(&self) -> Arc<OwnedFd> {
        Arc::new(fs::File::open(self.proc().join("ns/user")).unwrap().into())
    }
}

impl Drop for Userns {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn in_a_user_namespace_lower_trees_are_shifted_and_the_upper_one_is_its_roots() {
    let f = Fixture::new();
    let layers = [
        Layer::new()
            .file("root", "")
            .file("other", "")
            .owner(1000, 1001),
        Layer::new().file("more", ""),
    ];
    f.import(&Image::new("x:1", &layers)).await.unwrap();
    let record = f.images.list().pop().unwrap();
    let userns = Userns::new();
    let tried = f.path("tried");
    fs::create_dir(&tried).unwrap();
    cairn::image::try_root_in(&tried, Some(userns.fd())).unwrap();
    let root = Some((100_000, 100_000));
    let rootfs = f.images.prepare_rootfs("c", &record, root).await.unwrap();
    assert_eq!(fs::metadata(&rootfs.upper).unwrap().uid(), 100_000);
    let merged = f.path("merged");
    fs::create_dir(&merged).unwrap();
    rootfs.mount_at(&merged, Some(userns.fd()), None).unwrap();
    let _mounted = Mounted(merged.clone());
    let volume = f
        .images
        .mount_image_volume("pod", &record, "", Some(userns.fd()), None)
        .await
        .unwrap();
    let _volume = Mounted(volume.clone());
    for view in [&merged, &volume] {
        let owner = |name: &str| {
            let meta = fs::metadata(view.join(name)).unwrap();
            (meta.uid(), meta.gid())
        };
        assert_eq!(owner("root"), (100_000, 100_000));
        assert_eq!(owner("other"), (101_000, 101_001));
    }
    assert_eq!(fs::metadata(rootfs.lower[0].join("more")).unwrap().uid(), 0);
}
