//! Names in a layer: cleaned, confined, and distinguished from whiteouts. Pure.

/// Longest accepted path; the kernel's own limit.
pub const PATH_MAX: usize = 4096;
/// Longest single name.
const NAME_MAX: usize = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    #[error("the name contains a NUL byte")]
    Nul,
    #[error("the name is longer than a path may be")]
    TooLong,
    #[error("the whiteout does not name an entry of its own directory")]
    Whiteout,
}

/// A path relative to the layer's root: no leading slash, no empty, `.` or `..` component.
/// Empty is the root itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CleanPath(Vec<u8>);

impl CleanPath {
    /// Cleans a name of an archive: absolute names start at the root, and `..` at the root stays
    /// there, as in a chroot (CRI-444).
    pub fn new(raw: &[u8]) -> Result<Self, BadPath> {
        if raw.contains(&0) {
            return Err(BadPath::Nul);
        }
        if raw.len() > PATH_MAX {
            return Err(BadPath::TooLong);
        }
        let mut kept: Vec<&[u8]> = Vec::new();
        for component in raw.split(|b| *b == b'/') {
            match component {
                b"" | b"." => {}
                b".." => drop(kept.pop()),
                name if name.len() > NAME_MAX => return Err(BadPath::TooLong),
                name => kept.push(name),
            }
        }
        Ok(Self(kept.join(&b'/')))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Directory and last component; `None` for the root.
    pub fn split(&self) -> Option<(CleanPath, &[u8])> {
        if self.is_root() {
            return None;
        }
        Some(match self.0.iter().rposition(|b| *b == b'/') {
            None => (CleanPath::default(), &self.0[..]),
            Some(at) => (CleanPath(self.0[..at].to_vec()), &self.0[at + 1..]),
        })
    }

    /// The name that opens this path from the root's descriptor.
    pub fn for_open(&self) -> &[u8] {
        if self.is_root() { b"." } else { &self.0 }
    }

    /// This directory's entry `name`, which is a single component.
    pub fn join(&self, name: &[u8]) -> CleanPath {
        CleanPath(below(&self.0, name))
    }

    /// The directories on the way to this path, shallowest first, itself included.
    pub fn prefixes(&self) -> impl Iterator<Item = CleanPath> + '_ {
        let ends = (0..self.0.len()).filter(|at| self.0[*at] == b'/');
        let end = (!self.is_root()).then_some(self.0.len());
        ends.chain(end).map(|end| CleanPath(self.0[..end].to_vec()))
    }
}

/// Joins a name to its directory's path, which is empty for the root.
pub fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        name.to_vec()
    } else {
        [dir, b"/", name].concat()
    }
}

/// Meaning of a name in a layer (CRI-441).
#[derive(Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// An entry to make.
    Entry,
    /// Hides `name` of lower layers.
    Whiteout(&'a [u8]),
    /// Hides all content of lower layers in this directory.
    Opaque,
    /// Bookkeeping of an old driver, which is ignored.
    Ignored,
}

/// The meaning of the last component of a name.
pub fn meaning(name: &[u8]) -> Result<Meaning<'_>, BadPath> {
    let Some(hidden) = name.strip_prefix(b".wh.") else {
        return Ok(Meaning::Entry);
    };
    match hidden {
        b".wh..opq" => Ok(Meaning::Opaque),
        b"" | b"." | b".." => Err(BadPath::Whiteout),
        _ if hidden.starts_with(b".wh.") => Ok(Meaning::Ignored),
        _ => Ok(Meaning::Whiteout(hidden)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clean(raw: &str) -> String {
        String::from_utf8(CleanPath::new(raw.as_bytes()).unwrap().as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn names_are_cleaned_and_stay_below_the_root() {
        for (raw, want) in [
            ("./", ""),
            ("/", ""),
            ("a/b/", "a/b"),
            ("/etc/passwd", "etc/passwd"),
            ("../../etc/passwd", "etc/passwd"),
            ("a/../../b", "b"),
            ("a//./b", "a/b"),
            ("a/..", ""),
            ("...", "..."),
        ] {
            assert_eq!(clean(raw), want, "{raw}");
        }
    }

    #[test]
    fn a_name_with_a_nul_or_beyond_the_limits_is_refused() {
        assert_eq!(CleanPath::new(b"a\0b"), Err(BadPath::Nul));
        assert_eq!(CleanPath::new(&[b'a'; 256]), Err(BadPath::TooLong));
        assert_eq!(CleanPath::new(&b"a/".repeat(2049)), Err(BadPath::TooLong));
    }

    #[test]
    fn whiteouts_name_an_entry_of_their_own_directory_or_are_refused() {
        assert_eq!(meaning(b"file"), Ok(Meaning::Entry));
        assert_eq!(meaning(b".wh.file"), Ok(Meaning::Whiteout(b"file")));
        assert_eq!(meaning(b".wh..hidden"), Ok(Meaning::Whiteout(b".hidden")));
        assert_eq!(meaning(b".wh..wh..opq"), Ok(Meaning::Opaque));
        assert_eq!(meaning(b".wh..wh.plnk"), Ok(Meaning::Ignored));
        for bad in [&b".wh."[..], b".wh..", b".wh..."] {
            assert_eq!(meaning(bad), Err(BadPath::Whiteout));
        }
    }

    #[test]
    fn the_prefixes_of_a_path_lead_down_to_it() {
        let path = CleanPath::new(b"a/bc/d").unwrap();
        let all: Vec<_> = path.prefixes().map(|p| p.as_bytes().to_vec()).collect();
        assert_eq!(all, [&b"a"[..], b"a/bc", b"a/bc/d"]);
        assert_eq!(CleanPath::default().prefixes().count(), 0);
    }

    proptest! {
        #[test]
        fn no_name_leaves_the_root(raw in prop::collection::vec(prop::sample::select(b"a./\xff".to_vec()), 0..60)) {
            let path = CleanPath::new(&raw).unwrap();
            prop_assert!(!path.as_bytes().starts_with(b"/"));
            if !path.is_root() {
                for part in path.as_bytes().split(|b| *b == b'/') {
                    prop_assert!(!matches!(part, b"" | b"." | b".."));
                }
            }
            prop_assert_eq!(CleanPath::new(path.as_bytes()).unwrap(), path.clone());
            if let Some((dir, name)) = path.split() {
                prop_assert_eq!(dir.join(name), path);
            }
        }

        #[test]
        fn no_whiteout_hides_more_than_one_plain_name(name in prop::collection::vec(any::<u8>(), 0..20)) {
            let name: Vec<u8> = [b".wh.".to_vec(), name].concat();
            if name.contains(&b'/') { return Ok(()); }
            if let Ok(Meaning::Whiteout(hidden)) = meaning(&name) {
                prop_assert!(!matches!(hidden, b"" | b"." | b".."));
            }
        }
    }
}
