use std::fs;
use std::os::unix::fs::symlink;

use rustix::fs::Mode;

use super::*;

/// For trees built by hand.
fn make_opaque(dir: &Path) {
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(dir, "trusted.overlay.opaque", b"y", none).unwrap();
}

pub(crate) struct Trees {
    tmp: tempfile::TempDir,
}

impl Trees {
    pub(crate) fn new() -> Self {
        Self {
            tmp: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, tree: &str, path: &str) -> PathBuf {
        let path = self.tmp.path().join(tree).join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub(crate) fn file(&self, tree: &str, path: &str, text: &str) {
        fs::write(self.path(tree, path), text).unwrap();
    }

    pub(crate) fn whiteout(&self, tree: &str, path: &str) {
        let path = self.path(tree, path);
        let kind = FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, Mode::empty(), 0).unwrap();
    }

    pub(crate) fn view(&self, trees: &[&str]) -> View {
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
