//! Opens paths named by a container (working directory, program, mount target) with our privileges.
//!
//! A path never leaves the root, and never follows a magic link of procfs (CVE-2024-21626).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, OFlags, ResolveFlags};

use crate::sys;

const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

/// A path of an image or a configuration; relative paths start at the root too.
fn c_path(path: &[u8]) -> io::Result<CString> {
    let path: &[u8] = if path.is_empty() { b"/" } else { path };
    CString::new(path).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Opens `path` below `root`.
pub fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    loop {
        match sys::open_at(root, &path, flags, RESOLVE) {
            // A concurrent rename while the kernel resolved a `..`: it asks for another attempt.
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return Err(describe_loop(&e)),
            other => return other,
        }
    }
}

fn describe_loop(e: &io::Error) -> io::Error {
    io::Error::new(
        e.kind(),
        "a symlink loop or a magic link of procfs is not followed",
    )
}

/// Opens a directory as a base for further lookups.
pub fn directory(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    open(root, path, OFlags::PATH | OFlags::DIRECTORY)
}

/// Opens `path` below `root` if no component of it is a link.
pub fn open_direct(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    let resolve = RESOLVE.union(ResolveFlags::NO_SYMLINKS);
    sys::open_at(root, &c_path(path)?, OFlags::PATH, resolve)
}

/// The file that [`make`] creates if the path does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    Directory,
    /// An empty regular file.
    File,
}

/// A place in a root, opened without access to its content.
#[derive(Debug)]
pub struct Found {
    pub fd: OwnedFd,
    /// The mounts of the links that were followed to it, except those that the kernel made (sysfs).
    pub links: Vec<u64>,
}

/// Decides whether something may be created in an open directory, to which links of these mounts
/// have led.
pub type MayMake<'a> = dyn Fn(BorrowedFd<'_>, &[u64]) -> io::Result<()> + 'a;

/// Opens `path` below `root`, and creates its missing components. A dangling link is followed, also
/// to its end: what it names is created, inside the root. Existing files may be of another type than
/// `missing`.
pub fn make(
    root: BorrowedFd<'_>,
    path: &[u8],
    missing: Missing,
    may_make: &MayMake<'_>,
) -> io::Result<Found> {
    if let Ok(fd) = open_direct(root, path) {
        let links = Vec::new();
        return Ok(Found { fd, links });
    }
    let mut walk = Walk::new(root, path)?;
    walk.run(missing, may_make)?;
    Ok(walk.into_found())
}

/// As the kernel's limit.
const MAX_LINKS: usize = 40;
/// Bounds the steps if others change the tree meanwhile.
const MAX_STEPS: usize = 4 * 4096;

/// Resolves a path component by component: only this way can a missing component be created below
/// the directory that was found. It holds a descriptor of each directory from the root on, so that
/// `..` returns to the one that the path came through, wherever others move it meanwhile.
struct Walk {
    way: Vec<OwnedFd>,
    /// Components, the next one last.
    left: Vec<Vec<u8>>,
    followed: usize,
    links: Vec<u64>,
    /// Set if the path ends at something other than a directory.
    file: Option<OwnedFd>,
}

impl Walk {
    fn new(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<Walk> {
        let mut walk = Walk {
            way: vec![directory(root, b"/")?],
            left: Vec::new(),
            followed: 0,
            links: Vec::new(),
            file: None,
        };
        walk.prepend(path);
        Ok(walk)
    }

    fn prepend(&mut self, path: &[u8]) {
        let parts = path.split(|b| *b == b'/').rev();
        let parts = parts.filter(|part| !part.is_empty() && *part != b".");
        self.left.extend(parts.map(<[u8]>::to_vec));
    }

    fn run(&mut self, missing: Missing, may_make: &MayMake<'_>) -> io::Result<()> {
        for _ in 0..MAX_STEPS {
            let Some(name) = self.left.pop() else {
                return Ok(());
            };
            if name == b".." {
                if self.way.len() > 1 {
                    self.way.pop();
                }
                continue;
            }
            match self.open_part(&name) {
                Ok(found) => self.enter(found)?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    may_make(self.here(), &self.links)?;
                    let kind = if self.left.is_empty() {
                        missing
                    } else {
                        Missing::Directory
                    };
                    self.create(&name, kind)?;
                    // Opened in the next step, as what it then is.
                    self.left.push(name);
                }
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::other("the path changes while it is resolved"))
    }

    fn here(&self) -> BorrowedFd<'_> {
        let last = self.way.last();
        last.expect("the root is never removed").as_fd()
    }

    fn open_part(&self, name: &[u8]) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        sys::open_at(self.here(), &c_path(name)?, flags, ResolveFlags::empty())
    }

    fn enter(&mut self, found: OwnedFd) -> io::Result<()> {
        match sys::file_type(found.as_fd())? {
            FileType::Symlink => self.follow(&found),
            FileType::Directory => {
                self.way.push(found);
                Ok(())
            }
            _ if self.left.is_empty() => {
                self.file = Some(found);
                Ok(())
            }
            _ => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }

    fn follow(&mut self, link: &OwnedFd) -> io::Result<()> {
        const SYSFS_MAGIC: u64 = 0x6265_6572;
        self.followed += 1;
        let kind = rustix::fs::fstatfs(link)?.f_type;
        if kind == rustix::fs::PROC_SUPER_MAGIC || self.followed > MAX_LINKS {
            return Err(describe_loop(&io::Error::from_raw_os_error(libc::ELOOP)));
        }
        if u64::try_from(kind) != Ok(SYSFS_MAGIC) {
            self.links.push(sys::mount_id(link.as_fd())?);
        }
        let target = rustix::fs::readlinkat(link, c"", Vec::new())?.into_bytes();
        if target.starts_with(b"/") {
            self.way.truncate(1);
        }
        self.prepend(&target);
        Ok(())
    }

    fn create(&self, name: &[u8], kind: Missing) -> io::Result<()> {
        let name = c_path(name)?;
        let made = match kind {
            Missing::Directory => sys::make_directory_at(self.here(), &name, 0o755),
            Missing::File => sys::make_file_at(self.here(), &name, 0o644),
        };
        match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    fn into_found(mut self) -> Found {
        let last = self.way.pop();
        Found {
            fd: self.file.or(last).expect("the root is never removed"),
            links: self.links,
        }
    }
}

/// Changes the working directory, and checks that it is below this process's root.
pub fn enter(path: &[u8]) -> io::Result<()> {
    let root = sys::open_root()?;
    let dir = directory(root.as_fd(), path)?;
    sys::enter_directory(dir.as_fd())?;
    if sys::working_directory_is_below_root()? {
        return Ok(());
    }
    sys::enter_directory(root.as_fd())?;
    Err(io::Error::other(
        "the directory is outside of the container",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_leads_out_of_the_root_or_through_procfs() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("etc")).expect("a directory");
        symlink("/etc", dir.path().join("absolute")).expect("a link");
        symlink("../../../../etc", dir.path().join("up")).expect("a link");
        let root = File::open(dir.path()).expect("it is there");
        for path in ["/etc", "absolute", "/up", "../../etc", "", "/"] {
            directory(root.as_fd(), path.as_bytes())
                .unwrap_or_else(|e| panic!("{path:?} is in the root: {e}"));
        }
        directory(root.as_fd(), b"/proc").expect_err("the root has no proc");
        let host = File::open("/").expect("a root");
        for path in [
            "/proc/self/fd/0/..",
            "/proc/self/cwd",
            "/proc/self/root",
            "/proc/self/exe",
        ] {
            let error = open(host.as_fd(), path.as_bytes(), OFlags::PATH).expect_err(path);
            assert!(error.to_string().contains("procfs"), "{path}: {error}");
        }
    }

    fn anywhere(_: BorrowedFd<'_>, _: &[u64]) -> io::Result<()> {
        Ok(())
    }

    /// Makes `path` in a new root with these links, and returns what then exists below it.
    fn made(links: &[(&str, &str)], path: &str, missing: Missing) -> io::Result<Vec<String>> {
        let dir = tempfile::tempdir().expect("a directory");
        for (link, to) in links {
            symlink(to, dir.path().join(link)).expect("a link");
        }
        let root = File::open(dir.path()).expect("it is there");
        let place = make(root.as_fd(), path.as_bytes(), missing, &anywhere)?;
        assert_eq!(place.links.is_empty(), links.is_empty());
        let kind = sys::file_type(place.fd.as_fd()).expect("a type");
        assert_eq!(kind == FileType::Directory, missing == Missing::Directory);
        let mut found = Vec::new();
        let mut left = vec![dir.path().to_owned()];
        while let Some(at) = left.pop() {
            for entry in fs::read_dir(at).expect("a directory").flatten() {
                let kind = entry.file_type().expect("a type");
                if kind.is_dir() {
                    left.push(entry.path());
                }
                if !kind.is_symlink() {
                    let below = entry.path();
                    let below = below.strip_prefix(dir.path()).expect("below");
                    found.push(below.display().to_string());
                }
            }
        }
        found.sort();
        Ok(found)
    }

    #[test]
    fn missing_components_are_made_inside_also_where_dangling_links_lead() {
        use Missing::{Directory, File};
        type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, Missing, &'a [&'a str]);
        let cases: &[Case<'_>] = &[
            (&[], "/a//b", Directory, &["a", "a/b"]),
            (&[], "/a/../../../c", Directory, &["a", "c"]),
            (&[("l", "/real")], "/l/a", Directory, &["real", "real/a"]),
            (&[("l", "../../up")], "/l", Directory, &["up"]),
            (&[("l", "/no/file")], "/l", File, &["no", "no/file"]),
            (&[("l", "m"), ("m", "/n/")], "/l/x", File, &["n", "n/x"]),
            (&[("l", "/d/..")], "/l/x", Directory, &["d", "x"]),
        ];
        for (links, path, missing, wanted) in cases {
            let found = made(links, path, *missing).expect(path);
            assert_eq!(&found, wanted, "{path} with {links:?}");
        }
    }

    #[test]
    fn links_without_end_and_files_in_the_way_make_nothing() {
        let many: Vec<(String, String)> = (0..41)
            .map(|n| (format!("l{n}"), format!("l{}", n + 1)))
            .collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(l, t)| (&**l, &**t)).collect();
        for links in [&many[..], &[("l0", "l0")]] {
            let error = made(links, "/l0/x", Missing::File).expect_err("refused");
            assert!(error.to_string().contains("loop"), "{error}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("file"), "").expect("a file");
        let root = File::open(dir.path()).expect("it is there");
        let refused = make(root.as_fd(), b"/file/x", Missing::Directory, &anywhere);
        refused.expect_err("a file is no directory");
    }

    #[test]
    fn the_caller_decides_where_something_is_made() {
        let dir = tempfile::tempdir().expect("a directory");
        symlink("/away", dir.path().join("link")).expect("a link");
        let root = File::open(dir.path()).expect("it is there");
        let direct = |_: BorrowedFd<'_>, links: &[u64]| match links {
            [] => Ok(()),
            _ => Err(io::Error::other("by a link")),
        };
        make(root.as_fd(), b"/a/b", Missing::Directory, &direct).expect("no link");
        let refused = make(root.as_fd(), b"/link/b", Missing::Directory, &direct);
        assert_eq!(refused.expect_err("refused").to_string(), "by a link");
        assert!(!dir.path().join("away").exists());
        open_direct(root.as_fd(), b"/a/b").expect("no link");
        open_direct(root.as_fd(), b"/link").expect_err("a link");
    }
}
