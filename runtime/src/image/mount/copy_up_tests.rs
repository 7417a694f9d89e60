use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use super::*;
use crate::image::mount::overlay;
use crate::image::mount::view::tests::Trees;

/// Topmost first.
fn view(t: &Trees, trees: &[&str]) -> OwnedFd {
    let path = |tree: &str| {
        let path = t.path(tree, "");
        fs::create_dir_all(&path).unwrap();
        path
    };
    let trees = trees.iter().map(|tree| path(tree)).collect();
    overlay::view_of(trees, "view").unwrap()
}

fn copied(view: &OwnedFd, path: &str, into: &Path, budget: &mut CopyBudget<'_>) -> io::Result<()> {
    copy_up(view, Path::new(path), into, budget)
}

fn budget(bytes: u64) -> CopyBudget<'static> {
    CopyBudget::new(bytes, &|| false)
}

#[test]
fn a_volume_gets_the_merged_content_with_owner_mode_and_links() {
    let t = Trees::new();
    t.file("low", "data/sub/old", "old");
    t.file("low", "data/sub/gone", "gone");
    t.whiteout("top", "data/sub/gone");
    t.file("top", "data/sub/new", "new");
    symlink("/elsewhere", t.path("top", "data/link")).unwrap();
    std::os::unix::fs::chown(t.path("top", "data/sub/new"), Some(12), Some(34)).unwrap();
    std::os::unix::fs::chown(t.path("top", "data"), Some(7), Some(8)).unwrap();
    let into = t.path("volume", "x");
    fs::create_dir(&into).unwrap();
    let view = view(&t, &["top", "low"]);
    let mut budget = budget(100);
    copied(&view, "/data", &into, &mut budget).unwrap();
    assert_eq!(
        (budget.entries, budget.bytes),
        (COPY_MAX - 4, 94),
        "each entry, shown once"
    );
    assert_eq!(fs::read_to_string(into.join("sub/old")).unwrap(), "old");
    assert!(!into.join("sub/gone").exists());
    assert_eq!(
        fs::read_link(into.join("link")).unwrap(),
        Path::new("/elsewhere")
    );
    let new = fs::metadata(into.join("sub/new")).unwrap();
    assert_eq!((new.uid(), new.gid()), (12, 34));
    assert_eq!(fs::metadata(&into).unwrap().uid(), 7);
    copied(&view, "/absent", &into, &mut budget).unwrap();
}

#[test]
fn holes_stay_holes_and_only_data_counts_in_a_volume() {
    let t = Trees::new();
    let sparse = File::create(t.path("low", "data/sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &[7; 4096], 64 << 20).unwrap();
    let into = t.path("volume", "x");
    fs::create_dir(&into).unwrap();
    let view = view(&t, &["low"]);
    let mut budget = budget(1 << 20);
    copied(&view, "/data", &into, &mut budget).unwrap();
    let copied = fs::metadata(into.join("sparse")).unwrap();
    assert_eq!(copied.len(), 1 << 30);
    assert!(copied.blocks() * 512 < 1 << 20, "{}", copied.blocks());
    let mut page = [0; 4096];
    let copied = File::open(into.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&copied, &mut page, 64 << 20).unwrap();
    assert_eq!(page, [7; 4096]);
}

#[test]
fn a_volume_beyond_its_bound_is_refused_by_the_settings_name() {
    let t = Trees::new();
    t.file("low", "data/a", &"x".repeat(60));
    t.file("low", "data/b", &"x".repeat(60));
    let into = t.path("volume", "x");
    fs::create_dir(&into).unwrap();
    let view = view(&t, &["low"]);
    let e = copied(&view, "/data", &into, &mut budget(100));
    let e = e.unwrap_err().to_string();
    assert_eq!(e, "more than 100 bytes (image.max_volume_bytes)");
}

#[test]
fn a_volume_with_more_directories_than_descriptors_is_copied() {
    let t = Trees::new();
    let deep = vec!["d"; 400].join("/");
    t.file("low", &format!("data/{deep}/f"), "deep");
    for n in 0..1500 {
        fs::create_dir(t.path("low", &format!("data/wide/{n}"))).unwrap();
    }
    let into = t.path("volume", "x");
    fs::create_dir(&into).unwrap();
    let view = view(&t, &["low"]);
    let trees = [t.path("low", ""), into.clone()];
    let mut most = 0;
    let done = std::sync::atomic::AtomicBool::new(false);
    let copying = std::thread::scope(|scope| {
        let (done, most, trees) = (&done, &mut most, &trees);
        let watch = scope.spawn(move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                *most = open_below(trees).max(*most);
            }
        });
        let copied = copied(&view, "/data", &into, &mut budget(100));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        watch.join().unwrap();
        copied
    });
    copying.unwrap();
    assert!(most > 0, "nothing was seen");
    assert!(most < 200, "{most} descriptors");
    assert_eq!(
        fs::read_to_string(into.join(deep).join("f")).unwrap(),
        "deep"
    );
    assert_eq!(fs::read_dir(into.join("wide")).unwrap().count(), 1500);
}

#[test]
fn a_volume_deeper_than_an_image_may_be_is_refused_and_a_given_up_one_ends() {
    let t = Trees::new();
    let mut at: OwnedFd = File::open(t.path("low", "data/x").parent().unwrap())
        .unwrap()
        .into();
    for _ in 0..IMAGE_DEPTH_MAX + 1 {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        at = rustix::fs::openat(&at, "d", flags, Mode::empty()).unwrap();
    }
    let view = view(&t, &["low"]);
    let [deep, given_up] = ["deep", "given-up"].map(|name| t.path("volume", name));
    for into in [&deep, &given_up] {
        fs::create_dir(into).unwrap();
    }
    let e = copied(&view, "/data", &deep, &mut budget(100)).unwrap_err();
    assert_eq!(e.to_string(), "more than 4096 directories in each other");
    let mut over = CopyBudget::new(100, &|| true);
    let e = copied(&view, "/data", &given_up, &mut over).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::Interrupted);
    for tree in ["low", "volume"] {
        crate::remove::remove_tree_at(&t.path(tree, "")).unwrap();
    }
}

/// Descriptors of this process in these trees: other tests have their own.
fn open_below(trees: &[std::path::PathBuf]) -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let targets = all.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets
        .filter(|target| trees.iter().any(|tree| target.starts_with(tree)))
        .count()
}
