use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use super::*;

/// For trees built by hand.
fn make_opaque(dir: &Path) {
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(dir, "trusted.overlay.opaque", b"y", none).unwrap();
}

struct Trees {
    tmp: tempfile::TempDir,
}

impl Trees {
    fn new() -> Self {
        Self {
            tmp: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, tree: &str, path: &str) -> PathBuf {
        let path = self.tmp.path().join(tree).join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn file(&self, tree: &str, path: &str, text: &str) {
        fs::write(self.path(tree, path), text).unwrap();
    }

    fn whiteout(&self, tree: &str, path: &str) {
        let path = self.path(tree, path);
        let kind = FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, Mode::empty(), 0).unwrap();
    }

    fn view(&self, trees: &[&str]) -> View {
        let trees: Vec<_> = trees.iter().map(|t| self.tmp.path().join(t)).collect();
        trees.iter().for_each(|t| fs::create_dir_all(t).unwrap());
        View::open(&trees).unwrap()
    }
}

fn text(view: &View, path: &str) -> Option<String> {
    view.text(Path::new(path), 100).unwrap()
}

#[test]
fn the_topmost_file_is_shown_and_whiteouts_hide_what_is_below() {
    let t = Trees::new();
    t.file("low", "etc/passwd", "low");
    t.file("low", "etc/group", "low");
    t.file("mid", "etc/passwd", "mid");
    t.whiteout("top", "etc/group");
    let view = t.view(&["top", "mid", "low"]);
    assert_eq!(text(&view, "/etc/passwd").as_deref(), Some("mid"));
    assert_eq!(text(&view, "/etc/group"), None);
    assert_eq!(text(&view, "/etc/shadow"), None);
}

#[test]
fn an_opaque_directory_and_a_file_in_its_place_hide_the_lower_one() {
    let t = Trees::new();
    t.file("low", "a/x", "low");
    t.file("low", "b/x", "low");
    t.file("top", "a/y", "top");
    make_opaque(&t.path("top", "a"));
    t.file("top", "b", "now a file");
    let view = t.view(&["top", "low"]);
    assert_eq!(text(&view, "/a/x"), None);
    assert_eq!(text(&view, "/a/y").as_deref(), Some("top"));
    assert_eq!(text(&view, "/b/x"), None);
}

#[test]
fn symlinks_are_followed_across_layers_but_never_out_of_the_view() {
    let t = Trees::new();
    t.file("low", "usr/etc/passwd", "inside");
    symlink("/usr/etc", t.path("top", "etc")).unwrap();
    symlink("../../../../etc/passwd", t.path("top", "up")).unwrap();
    symlink("loop", t.path("top", "loop")).unwrap();
    let view = t.view(&["top", "low"]);
    assert_eq!(text(&view, "/etc/passwd").as_deref(), Some("inside"));
    assert_eq!(text(&view, "/up").as_deref(), Some("inside"));
    assert!(view.text(Path::new("/loop"), 100).is_err());
}

#[test]
fn what_is_no_short_text_file_is_an_error_and_a_fifo_does_not_block() {
    let t = Trees::new();
    t.file("top", "long", &"x".repeat(101));
    let fifo = t.path("top", "fifo");
    rustix::fs::mknodat(rustix::fs::CWD, fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let view = t.view(&["top"]);
    for path in ["/long", "/fifo", "/"] {
        assert!(view.text(Path::new(path), 100).is_err(), "{path}");
    }
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
    let view = t.view(&["top", "low"]);
    let mut budget = CopyBudget::new(100);
    view.copy_up(Path::new("/data"), &into, &mut budget)
        .unwrap();
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
    view.copy_up(Path::new("/absent"), &into, &mut budget)
        .unwrap();
}

#[test]
fn holes_stay_holes_and_only_data_counts_in_a_volume() {
    let t = Trees::new();
    let sparse = File::create(t.path("low", "data/sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &[7; 4096], 64 << 20).unwrap();
    let into = t.path("volume", "x");
    fs::create_dir(&into).unwrap();
    let view = t.view(&["low"]);
    let mut budget = CopyBudget::new(1 << 20);
    view.copy_up(Path::new("/data"), &into, &mut budget)
        .unwrap();
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
    let view = t.view(&["low"]);
    let e = view.copy_up(Path::new("/data"), &into, &mut CopyBudget::new(100));
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
    let view = t.view(&["low"]);
    let before = open_descriptors();
    let mut most = 0;
    let done = std::sync::atomic::AtomicBool::new(false);
    let copying = std::thread::scope(|scope| {
        let (done, most) = (&done, &mut most);
        let watch = scope.spawn(move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                *most = open_descriptors().max(*most);
            }
        });
        let copied = view.copy_up(Path::new("/data"), &into, &mut CopyBudget::new(100));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        watch.join().unwrap();
        copied
    });
    copying.unwrap();
    // Other tests of this process have some open, too.
    assert!(most < before + 200, "{most} descriptors, {before} before");
    assert_eq!(
        fs::read_to_string(into.join(deep).join("f")).unwrap(),
        "deep"
    );
    assert_eq!(fs::read_dir(into.join("wide")).unwrap().count(), 1500);
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
