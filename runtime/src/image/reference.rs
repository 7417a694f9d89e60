//! Image references, normalised as by Docker (CRI-400). Pure.
//!
//! ```text
//! [registry/]path[:tag][@sha256:hex]      busybox -> docker.io/library/busybox:latest
//! ```

use std::fmt;
use std::str::FromStr;

use super::digest::Digest;

/// Longest accepted name (registry and path).
const NAME_MAX: usize = 255;
const TAG_MAX: usize = 128;
/// Longest parsed text, so that a hostile one costs nothing.
const TEXT_MAX: usize = NAME_MAX + 1 + TAG_MAX + 1 + 71;
const DEFAULT_REGISTRY: &str = "docker.io";

/// A normalised reference: it names a registry and has a tag, a digest, or both.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reference {
    /// `host[:port]`, as in the image's name (`docker.io`, not its API host).
    pub registry: String,
    /// Path below the registry, such as `library/busybox`.
    pub repository: String,
    pub tag: Option<String>,
    pub digest: Option<Digest>,
}

/// Error of parsing a reference.
#[derive(Debug, Clone, thiserror::Error)]
#[error("image reference {text:?}: {why}")]
pub struct BadReference {
    text: String,
    why: &'static str,
}

impl Reference {
    /// Registry and repository, without tag and digest.
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// `name:tag` for `repo_tags`, if it has a tag and no digest (CRI-172).
    pub fn repo_tag(&self) -> Option<String> {
        match (&self.tag, &self.digest) {
            (Some(tag), None) => Some(format!("{}:{tag}", self.name())),
            _ => None,
        }
    }

    /// `name@digest` for `repo_digests`, with a digest of this repository.
    pub fn repo_digest(&self, digest: &Digest) -> String {
        format!("{}@{digest}", self.name())
    }

    /// The name in a request to a registry: the digest if present, else the tag.
    pub fn manifest_name(&self) -> &str {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.as_str(),
            (None, Some(tag)) => tag,
            (None, None) => "latest",
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        parse(text).map_err(|why| BadReference {
            text: text.chars().take(100).collect(),
            why,
        })
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    if text.is_empty() {
        return Err("is empty");
    }
    if text.len() > TEXT_MAX {
        return Err("is too long");
    }
    let (rest, digest) = match text.split_once('@') {
        None => (text, None),
        Some((rest, digest)) => {
            let digest = digest
                .parse()
                .map_err(|_| "the digest is not sha256:<64 hex>")?;
            (rest, Some(digest))
        }
    };
    let (registry, rest) = split_registry(rest);
    // A colon can only start the tag: the registry is cut off already.
    let tagged = rest.split_once(':');
    let (path, tag) = tagged.map_or((rest, None), |(path, tag)| (path, Some(tag)));
    check_path(path)?;
    if let Some(tag) = tag {
        check_tag(tag)?;
    }
    let registry = match registry {
        None | Some("index.docker.io") => DEFAULT_REGISTRY,
        Some(registry) => {
            check_registry(registry)?;
            registry
        }
    };
    let repository = if registry == DEFAULT_REGISTRY && !path.contains('/') {
        // Otherwise a bare image id would become a name.
        if path.len() == 64 && path.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err("is an image id, not a name");
        }
        format!("library/{path}")
    } else {
        path.to_owned()
    };
    if registry.len() + 1 + repository.len() > NAME_MAX {
        return Err("the name is longer than 255 bytes");
    }
    let tag = match (tag, &digest) {
        (Some(tag), _) => Some(tag.to_owned()),
        (None, Some(_)) => None,
        (None, None) => Some("latest".to_owned()),
    };
    Ok(Reference {
        registry: registry.to_owned(),
        repository,
        tag,
        digest,
    })
}

/// The first component is a registry only if it has a dot or a colon, or is `localhost`.
fn split_registry(text: &str) -> (Option<&str>, &str) {
    match text.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
            (Some(first), rest)
        }
        _ => (None, text),
    }
}

fn check_registry(registry: &str) -> Result<(), &'static str> {
    const WHY: &str = "the registry is not host[:port]";
    let (host, port) = if let Some(v6) = registry.strip_prefix('[') {
        let (addr, after) = v6.split_once(']').ok_or(WHY)?;
        addr.parse::<std::net::Ipv6Addr>().map_err(|_| WHY)?;
        let port = after.strip_prefix(':');
        (None, port.or((!after.is_empty()).then_some("bad")))
    } else {
        let (host, port) = registry.split_once(':').unzip();
        (host.or(Some(registry)), port)
    };
    if let Some(host) = host {
        let label = |l: &str| {
            let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
            let b = l.as_bytes();
            edge(b.first())
                && edge(b.last())
                && b.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
        };
        if !host.split('.').all(label) {
            return Err(WHY);
        }
    }
    match port {
        Some(port) if !port.bytes().all(|b| b.is_ascii_digit()) || port.parse::<u16>().is_err() => {
            Err(WHY)
        }
        _ => Ok(()),
    }
}

/// Components of `[a-z0-9]+`, joined inside by `.`, `_`, `__` or dashes.
fn check_path(path: &str) -> Result<(), &'static str> {
    if path.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err("the repository must be lower case");
    }
    let good = path.split('/').all(|component| {
        let bytes = component.as_bytes();
        let alnum = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        bytes.first().is_some_and(alnum)
            && bytes.last().is_some_and(alnum)
            && bytes.iter().all(|b| alnum(b) || b"._-".contains(b))
            && component
                .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                .all(|sep| matches!(sep, "" | "." | "_" | "__") || sep.bytes().all(|b| b == b'-'))
    });
    if good {
        Ok(())
    } else {
        Err("the repository is malformed")
    }
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let good = tag.len() <= TAG_MAX
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-');
    if good {
        Ok(())
    } else {
        Err("the tag is malformed")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn full(text: &str) -> String {
        text.parse::<Reference>().unwrap().to_string()
    }

    #[test]
    fn familiar_names_become_full_names() {
        for (text, want) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("docker.io/busybox", "docker.io/library/busybox:latest"),
            (
                "index.docker.io/busybox",
                "docker.io/library/busybox:latest",
            ),
            ("a/b", "docker.io/a/b:latest"),
            ("localhost/b", "localhost/b:latest"),
            ("localhost:5000/b:v1", "localhost:5000/b:v1"),
            ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c:latest"),
            ("[::1]:5000/b", "[::1]:5000/b:latest"),
            ("x.example/y", "x.example/y:latest"),
        ] {
            assert_eq!(full(text), want, "{text}");
        }
    }

    #[test]
    fn a_digest_suppresses_the_default_tag_and_keeps_a_given_one() {
        let bare = format!("busybox@sha256:{HEX}");
        assert_eq!(
            full(&bare),
            format!("docker.io/library/busybox@sha256:{HEX}")
        );
        let both: Reference = format!("busybox:1@sha256:{HEX}").parse().unwrap();
        assert_eq!(both.tag.as_deref(), Some("1"));
        assert_eq!(both.repo_tag(), None);
        assert_eq!(both.manifest_name(), format!("sha256:{HEX}"));
    }

    #[test]
    fn what_is_no_reference_is_refused_with_the_reason() {
        let long = "a".repeat(300);
        for bad in [
            "",
            "Busybox",
            "a//b",
            "a/",
            "/a",
            ":x",
            "a:",
            "a:b:c",
            "a@sha256:12",
            "a@b@c",
            "-a",
            "a-",
            "a..b",
            "a___b",
            "a:-x",
            "ex ample/a",
            "..",
            "../../etc",
            "a.b:x/y",
            "a.b:99999/y",
            "[::1/b",
            "[zz]:5/b",
            "-a.b/c",
            HEX,
            &long,
        ] {
            assert!(bad.parse::<Reference>().is_err(), "{bad:?} was taken");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused_without_panic(text in ".{0,200}") {
            let _ = text.parse::<Reference>();
        }

        #[test]
        fn the_full_form_is_a_fixed_point(
            registry in "([a-z][a-z0-9]{0,8}\\.){1,2}[a-z]{2,4}(:[1-9][0-9]{0,3})?",
            path in "[a-z0-9]{1,5}([._-][a-z0-9]{1,5}){0,2}(/[a-z0-9]{1,8}){0,3}",
            tag in prop::option::of("[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}"),
            digest in any::<bool>(),
        ) {
            let mut text = format!("{registry}/{path}");
            if let Some(tag) = tag { text += &format!(":{tag}"); }
            if digest { text += &format!("@sha256:{HEX}"); }
            let once: Reference = text.parse().unwrap();
            let twice: Reference = once.to_string().parse().unwrap();
            prop_assert_eq!(once, twice);
        }
    }
}
