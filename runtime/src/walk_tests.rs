use std::{cell::Cell, collections::BTreeSet, ffi::CString, fs, os::fd::AsFd as _, path::Path};

use rustix::fs::mkdirat;

use super::*;

/// Records what it sees; runs `meddle` at each entry.
struct Seen<'a> {
    entries: Vec<(usize, CString)>,
    passed_over: Vec<Errno>,
    ends: usize,
    meddle: &'a dyn Fn(&CStr),
}

impl Visitor for Seen<'_> {
    type Error = Errno;

    fn entry(&mut self, at: &At<'_>, name: &CStr, kind: FileType) -> Result<Then, Errno> {
        (self.meddle)(name);
        self.entries.push((at.depth, name.to_owned()));
        Ok(match kind {
            FileType::Directory => Then::Enter,
            _ => Then::Pass,
        })
    }

    fn end(&mut self, _: BorrowedFd<'_>) -> Result<(), Errno> {
        self.ends += 1;
        Ok(())
    }

    fn passed_over(&mut self, why: Errno) -> Result<(), Errno> {
        self.passed_over.push(why);
        Ok(())
    }
}

fn open(path: &Path) -> OwnedFd {
    fs::File::open(path).unwrap().into()
}

/// Nested directories, with `beside` called in each.
fn dig(top: &Path, depth: usize, beside: impl Fn(&OwnedFd)) {
    let mut at = open(top);
    for _ in 0..depth {
        beside(&at);
        mkdirat(&at, c"d", Mode::RWXU).unwrap();
        at = open_dir(at.as_fd(), c"d", Mounts::Refuse).unwrap();
    }
}

fn seen<'a>(top: &Path, limits: &Limits<'_>, meddle: &'a dyn Fn(&CStr)) -> (Seen<'a>, Option<Cut>) {
    let mut seen = Seen {
        entries: Vec::new(),
        passed_over: Vec::new(),
        ends: 0,
        meddle,
    };
    let cut = walk(open(top), Mounts::Refuse, limits, &mut seen).unwrap();
    (seen, cut)
}

#[test]
fn each_entry_of_a_tree_that_is_deep_and_wide_is_seen_once() {
    let tmp = tempfile::tempdir().unwrap();
    const DEPTH: usize = 300;
    dig(tmp.path(), DEPTH, |at| {
        for name in [c"a", c"z"] {
            mkdirat(at, name, Mode::RWXU).unwrap();
            mkdirat(at, [name, c"/in"].map(CStr::to_bytes).concat(), Mode::RWXU).unwrap();
        }
    });
    let (seen, cut) = seen(tmp.path(), &Limits::NONE, &|_| {});
    assert_eq!((cut, seen.passed_over), (None, vec![]));
    assert_eq!((seen.entries.len(), seen.ends), (5 * DEPTH, 5 * DEPTH + 1));
    let each: BTreeSet<_> = seen.entries.iter().collect();
    assert_eq!(each.len(), 4 * DEPTH, "two of a depth are called alike");
    crate::remove::remove_tree_at(&tmp.path().join("d")).unwrap();
}

#[test]
fn no_more_than_a_few_directories_are_open_and_the_way_back_is_found() {
    let tmp = tempfile::tempdir().unwrap();
    dig(tmp.path(), 500, |_| {});
    let most = Cell::new(0);
    let look = |_: &CStr| {
        let open = fs::read_dir("/proc/self/fd").unwrap();
        let below =
            |e: &fs::DirEntry| fs::read_link(e.path()).is_ok_and(|to| to.starts_with(tmp.path()));
        most.set(open.flatten().filter(below).count().max(most.get()));
    };
    let (seen, _) = seen(tmp.path(), &Limits::NONE, &look);
    assert_eq!(
        (seen.entries.len(), seen.ends, seen.passed_over.len()),
        (500, 501, 0)
    );
    assert!(
        (1..=2 * KEPT_OPEN + 2).contains(&most.get()),
        "{}",
        most.get()
    );
    crate::remove::remove_tree_at(&tmp.path().join("d")).unwrap();
}

/// A container renames a directory of the walk: nothing outside is visited; the walk continues.
#[test]
fn a_directory_moved_away_under_the_walk_leads_it_nowhere_else() {
    let tmp = tempfile::tempdir().unwrap();
    let (top, outside) = (tmp.path().join("top"), tmp.path().join("outside"));
    for dir in [&top, &outside] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(outside.join("secret"), "").unwrap();
    fs::write(top.join("last"), "").unwrap();
    dig(&top, 100, |_| {});
    let mut way = Way::new(open(&top), Mounts::Refuse).unwrap();
    for _ in 0..100 {
        way.down(c"d").unwrap();
    }
    // In the closed part of the way: the way back leads outside.
    let from = top.join(["d"].repeat(50).join("/"));
    fs::rename(&from, outside.join("moved")).unwrap();
    let mut ups = Vec::new();
    loop {
        match way.up() {
            Up::Top => break,
            up => ups.push(up),
        }
        let here = way.here().unwrap();
        assert!(statat(here, c"secret", AtFlags::empty()).is_err());
    }
    assert_eq!(ups.iter().filter(|up| **up == Up::Elsewhere).count(), 1);
    assert_eq!(way.depth(), 0);
    assert!(statat(way.here().unwrap(), c"last", AtFlags::empty()).is_ok());
    crate::remove::remove_tree_at(tmp.path()).unwrap();
    fs::create_dir(tmp.path()).unwrap();
}

#[test]
fn a_walk_ends_at_its_limits_and_when_its_caller_leaves() {
    let tmp = tempfile::tempdir().unwrap();
    dig(tmp.path(), 200, |_| {});
    let cut = |limits: Limits<'_>| seen(tmp.path(), &limits, &|_| {}).1;
    let entries = Limits {
        entries: 7,
        ..Limits::NONE
    };
    assert_eq!(cut(entries), Some(Cut::Entries));
    let until = Some(Instant::now());
    assert_eq!(
        cut(Limits {
            until,
            ..Limits::NONE
        }),
        Some(Cut::Time)
    );
    let waiting = Waiting::default();
    let is_over = waiting.is_over();
    assert_eq!(
        cut(Limits {
            is_over: &is_over,
            ..Limits::NONE
        }),
        None
    );
    drop(waiting);
    assert_eq!(
        cut(Limits {
            is_over: &is_over,
            ..Limits::NONE
        }),
        Some(Cut::Over)
    );
    let shallow = Limits {
        depth: 20,
        ..Limits::NONE
    };
    let (seen, cut) = seen(tmp.path(), &shallow, &|_| {});
    assert_eq!((seen.entries.len(), cut), (21, None));
    assert_eq!(seen.passed_over, [Errno::NAMETOOLONG]);
    crate::remove::remove_tree_at(&tmp.path().join("d")).unwrap();
}
