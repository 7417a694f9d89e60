//! Damaged trees of every kind, against their inventories.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, XattrFlags};

use super::*;
use crate::image::verify::inventory::{Sums, write};

struct Tree {
    dir: tempfile::TempDir,
    digest: Digest,
}

impl Tree {
    /// A tree made by `make`, with its inventory.
    fn of(make: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fs = dir.path().join("fs");
        fs::create_dir(&fs).unwrap();
        make(&fs);
        let out = File::create(dir.path().join("tree")).unwrap();
        let root = File::open(&fs).unwrap();
        let digest = write(root.as_fd(), &Sums::new(), &out).unwrap().unwrap();
        Self { dir, digest }
    }

    fn fs(&self, path: &str) -> PathBuf {
        self.dir.path().join("fs").join(path)
    }

    fn found(&self) -> Found {
        let progress = Progress::default();
        let watch = Watch {
            progress: &progress,
            is_over: &|| false,
        };
        compare(self.dir.path(), &self.digest, &watch).unwrap()
    }

    fn damages(&self) -> BTreeMap<String, String> {
        self.found().damages.into_iter().collect()
    }

    fn damage(&self, path: &str) -> String {
        let mut damages = self.damages();
        let why = damages.remove(path).unwrap_or_default();
        assert!(damages.is_empty(), "{damages:?}");
        why
    }
}

fn small() -> Tree {
    Tree::of(|fs| {
        fs::create_dir_all(fs.join("usr/bin")).unwrap();
        fs::write(fs.join("usr/bin/tool"), vec![7; 10_000]).unwrap();
        fs::hard_link(fs.join("usr/bin/tool"), fs.join("usr/bin/again")).unwrap();
        fs::write(fs.join("usr/empty"), b"").unwrap();
        symlink("usr/bin/tool", fs.join("link")).unwrap();
        rustix::fs::mkfifoat(CWD, fs.join("fifo"), Mode::RWXU).unwrap();
        let dir = File::open(fs.join("usr")).unwrap();
        rustix::fs::fsetxattr(&dir, "user.a", b"1", XattrFlags::empty()).unwrap();
        fs::write(fs.join(std::ffi::OsStr::new("\u{fffd}\n ö")), b"x").unwrap();
    })
}

#[test]
fn a_tree_as_it_was_is_sound_and_every_entry_of_it_was_looked_at() {
    let tree = small();
    let found = tree.found();
    assert!(found.damages.is_empty(), "{:?}", found.damages);
    assert_eq!(found.entries, 9);
}

#[test]
fn each_kind_of_damage_is_reported_with_its_path() {
    type Break = fn(&Tree);
    let cases: [(&str, &str, Break); 11] = [
        ("usr/empty", "is missing", |t| {
            fs::remove_file(t.fs("usr/empty")).unwrap()
        }),
        ("usr", "has entries that the layer has not: 1 of 3", |t| {
            fs::write(t.fs("usr/more"), b"").unwrap();
        }),
        ("link", "points elsewhere than it did", |t| {
            fs::remove_file(t.fs("link")).unwrap();
            symlink("usr/bin/tooL", t.fs("link")).unwrap();
        }),
        ("fifo", "is a file, and was a fifo", |t| {
            fs::remove_file(t.fs("fifo")).unwrap();
            fs::write(t.fs("fifo"), b"").unwrap();
        }),
        ("usr/empty", "has mode 600, and had 644", |t| {
            fs::set_permissions(t.fs("usr/empty"), fs::Permissions::from_mode(0o600)).unwrap();
        }),
        ("link", "belongs to 7:8, and did to 0:0", |t| {
            std::os::unix::fs::lchown(t.fs("link"), Some(7), Some(8)).unwrap();
        }),
        ("usr", "has other extended attributes than it had", |t| {
            let dir = File::open(t.fs("usr")).unwrap();
            rustix::fs::fsetxattr(&dir, "user.a", b"2", XattrFlags::empty()).unwrap();
        }),
        ("usr", "has other extended attributes than it had", |t| {
            let dir = File::open(t.fs("usr")).unwrap();
            rustix::fs::fremovexattr(&dir, "user.a").unwrap();
        }),
        (
            "usr/bin",
            "has other extended attributes than it had",
            |t| {
                // Longer than most.
                let dir = File::open(t.fs("usr/bin")).unwrap();
                let value = vec![b'x'; 2000];
                rustix::fs::fsetxattr(&dir, "user.b", &value, XattrFlags::empty()).unwrap();
            },
        ),
        ("usr", "is a symlink, and was a directory", |t| {
            fs::remove_dir_all(t.fs("usr")).unwrap();
            // The content behind it is not the layer's.
            symlink("/", t.fs("usr")).unwrap();
        }),
        ("", "has mode 700, and had 755", |t| {
            fs::set_permissions(t.fs(""), fs::Permissions::from_mode(0o700)).unwrap();
        }),
    ];
    for (path, why, break_it) in cases {
        let tree = small();
        fs::set_permissions(tree.fs("usr/empty"), fs::Permissions::from_mode(0o644)).unwrap();
        break_it(&tree);
        assert_eq!(tree.damage(path), why, "{path}");
    }
}

#[test]
fn a_flipped_bit_is_reported_under_each_name_of_the_file_and_a_cut_one_by_its_bytes() {
    let tree = small();
    let mut content = fs::read(tree.fs("usr/bin/tool")).unwrap();
    content[9_999] ^= 1;
    fs::write(tree.fs("usr/bin/tool"), &content).unwrap();
    let why = "has another content than it had".to_owned();
    let both = ["usr/bin/again", "usr/bin/tool"].map(|path| (path.to_owned(), why.clone()));
    assert_eq!(tree.damages(), both.into());
    fs::write(tree.fs("usr/bin/tool"), b"").unwrap();
    let why = "has 0 bytes of 10000".to_owned();
    assert_eq!(tree.damages().get("usr/bin/tool"), Some(&why));
}

#[test]
fn a_damaged_inventory_and_a_lost_tree_are_reported() {
    let tree = small();
    let path = tree.dir.path().join("tree");
    let mut inventory = fs::read(&path).unwrap();
    inventory[40] ^= 1;
    fs::write(&path, inventory).unwrap();
    assert_eq!(
        tree.damage(""),
        "its inventory cannot be read: it is damaged itself"
    );
    fs::remove_file(&path).unwrap();
    assert!(
        tree.damage("")
            .starts_with("its inventory cannot be read: ")
    );
    let tree = small();
    fs::remove_dir_all(tree.fs("")).unwrap();
    assert!(tree.damage("").starts_with("its tree cannot be opened: "));
}

#[test]
fn of_many_damages_the_first_are_reported_and_the_rest_is_counted() {
    let tree = Tree::of(|fs| {
        for n in 0..50 {
            fs::write(fs.join(n.to_string()), b"x").unwrap();
        }
    });
    for n in 0..50 {
        fs::remove_file(tree.fs(&n.to_string())).unwrap();
    }
    let found = tree.found();
    assert_eq!((found.damages.len(), found.omitted), (REPORTED_MAX, 30));
}

#[test]
fn a_tree_that_became_deeper_than_any_stack_or_path_is_one_entry_too_many() {
    let tree = small();
    let mut at: OwnedFd = File::open(tree.fs("usr")).unwrap().into();
    for _ in 0..20_000 {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = fsutil::open_dir(at.as_fd(), c"d").unwrap();
    }
    let damages = tree.damages();
    crate::remove::remove_tree_at(&tree.fs("usr")).unwrap();
    let why = "has entries that the layer has not: 1 of 3".to_owned();
    assert_eq!(damages, [("usr".to_owned(), why)].into());
}

#[test]
fn a_tree_deeper_than_a_path_may_be_long_is_written_down_and_compared() {
    let name = "n".repeat(250);
    let below = |dir: &OwnedFd| {
        let name = std::ffi::CString::new(name.as_str()).unwrap();
        fsutil::open_dir(dir.as_fd(), &name).unwrap()
    };
    let tree = Tree::of(|fs| {
        let mut at: OwnedFd = File::open(fs).unwrap().into();
        for _ in 0..40 {
            rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = below(&at);
        }
        rustix::fs::symlinkat("x", &at, "end").unwrap();
    });
    let found = tree.found();
    assert!(found.damages.is_empty(), "{:?}", found.damages);
    assert_eq!(found.entries, 42);
    let path = [name.as_str()].repeat(40).join("/");
    let top = OwnedFd::from(File::open(tree.fs("")).unwrap());
    let end = (0..40).fold(top, |dir, _| below(&dir));
    rustix::fs::unlinkat(&end, "end", rustix::fs::AtFlags::empty()).unwrap();
    assert_eq!(tree.damage(&format!("{path}/end")), "is missing");
}

#[test]
fn nobody_waits_for_a_fifo_where_a_file_was() {
    let tree = small();
    for path in ["usr/bin/tool", "usr/bin/again"] {
        fs::remove_file(tree.fs(path)).unwrap();
        rustix::fs::mkfifoat(CWD, tree.fs(path), Mode::RWXU).unwrap();
    }
    assert_eq!(tree.damages().len(), 2);
}

#[test]
fn it_ends_when_the_watch_is_over() {
    let tree = small();
    let progress = Progress::default();
    let watch = Watch {
        progress: &progress,
        is_over: &|| true,
    };
    let found = compare(tree.dir.path(), &tree.digest, &watch).unwrap();
    assert_eq!((found.entries, progress.get().0), (0, 0));
}
