//! AppArmor on this host: whether it is enabled, the kernel's profiles, and our own profile.
//!
//! The host's `apparmor_parser` keeps the compiled policy below `<root>/apparmor`, so that only the
//! first start of a version compiles it. Each start loads it anew, so that a change in the kernel
//! does not change the meaning of `runtime/default`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use cairn_monitor::own_file;

use crate::{replace, store};

/// The profile's name in the kernel.
const DEFAULT_PROFILE: &str = "cairn-default";
const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
const PARSER: &str = "apparmor_parser";
/// Directories of the parser, independent of a unit's PATH.
const PARSER_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Enforced for containers that request no profile: their capabilities, namespaces and mounts stay
/// usable, but not the kernel's own switches.
const PROFILE_TEXT: &str = include_str!("cairn-default.apparmor");
/// The line to replace with rules about the daemon.
const OWN_LABEL: &str = "  # (cairn's own label)\n";

/// `None` if the kernel has no AppArmor. Loads our profile; `Err` is the reason of a failure.
pub fn facts(dir: &Path) -> Option<Result<String, String>> {
    let enabled = fs::read_to_string(ENABLED).ok()?;
    let loaded = || load(dir).map(|()| DEFAULT_PROFILE.to_owned());
    enabled.starts_with('Y').then(loaded)
}

pub fn is_loaded(name: &str) -> bool {
    fs::read_to_string(PROFILES).is_ok_and(|list| has(&list, name))
}

/// Each line is a name and, in parentheses, a mode.
fn has(list: &str, name: &str) -> bool {
    let names = list.lines().filter_map(|line| line.rsplit_once(" ("));
    names.into_iter().any(|(loaded, _)| loaded == name)
}

fn load(dir: &Path) -> Result<(), String> {
    if !Path::new(PROFILES).exists() {
        return Err(format!(
            "{PROFILES} not found: mount securityfs at /sys/kernel/security"
        ));
    }
    let loaded = parse(dir, &parser());
    match loaded {
        // Loaded by an earlier start, or by the host's policy.
        Err(problem) if is_loaded(DEFAULT_PROFILE) => {
            tracing::warn!(
                "AppArmor: using the kernel's profile {DEFAULT_PROFILE}: cannot load ours: {problem}"
            );
            Ok(())
        }
        Ok(()) if !is_loaded(DEFAULT_PROFILE) => Err(format!(
            "{PARSER} loaded {DEFAULT_PROFILE}, but the kernel does not list it"
        )),
        other => other,
    }
}

fn parser() -> PathBuf {
    let dirs = PARSER_DIRS.iter().map(Path::new);
    let there = dirs.map(|dir| dir.join(PARSER)).find(|path| path.exists());
    there.unwrap_or_else(|| PARSER.into())
}

fn parse(dir: &Path, parser: &Path) -> Result<(), String> {
    let file = dir.join(DEFAULT_PROFILE);
    let own = fs::read_to_string("/proc/self/attr/apparmor/current").unwrap_or_default();
    let written = write_if_changed(dir, &file, &profile_for(&own));
    written.map_err(|error| format!("write {}: {error}", file.display()))?;
    let output = Command::new(parser)
        .args(["--replace", "--write-cache", "--cache-loc"])
        .arg(dir.join("cache"))
        .arg(&file)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!("{PARSER} is not installed (Debian package: apparmor)")
            }
            _ => format!("{}: {error}", parser.display()),
        })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
    Err(format!(
        "{PARSER} ended with {}: {}",
        output.status,
        last.unwrap_or("no error output").trim()
    ))
}

/// The profile for containers of a daemon with this label (`name (mode)`): a confined daemon's
/// monitors are confined too, and must signal containers.
fn profile_for(own_label: &str) -> String {
    let own = own_label.trim_end();
    let own = own.rsplit_once(" (").map_or(own, |(name, _)| name);
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let rules = if own.is_empty() || own == "unconfined" || !own.chars().all(plain) {
        String::new()
    } else {
        format!("  signal (receive) peer={own},\n  ptrace (readby, tracedby) peer={own},\n")
    };
    PROFILE_TEXT.replace(OWN_LABEL, &rules)
}

/// Keeps an unchanged file: the parser's cache compares its time. Both are private to the daemon.
fn write_if_changed(dir: &Path, file: &Path, text: &str) -> io::Result<()> {
    store::make_private(dir, None).map_err(io::Error::other)?;
    fs::create_dir_all(dir.join("cache"))?;
    if own_file::read(file).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    replace::file(file, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_profile_is_found_by_its_full_name() {
        let list = "cairn-default (enforce)\n/usr/bin/man (enforce)\na b (complain)\nx//y (kill)\n";
        for name in ["cairn-default", "/usr/bin/man", "a b", "x//y"] {
            assert!(has(list, name), "{name}");
        }
        for name in ["cairn", "cairn-default (enforce)", "a", "", "y"] {
            assert!(!has(list, name), "{name}");
        }
    }

    #[test]
    fn a_parser_that_is_missing_or_fails_is_reported_in_one_line() {
        let dir = tempfile::tempdir().expect("dir");
        let missing = parse(dir.path(), Path::new("/nowhere/apparmor_parser"));
        assert!(missing.expect_err("missing").contains("is not installed"));
        let failed = parse(dir.path(), Path::new("/bin/false")).expect_err("fails");
        assert!(
            failed.contains("no error output") && !failed.contains('\n'),
            "{failed}"
        );
    }

    #[test]
    fn the_profile_is_written_once_for_the_parsers_cache_in_a_private_directory() {
        let dir = tempfile::tempdir().expect("dir");
        let file = dir.path().join(DEFAULT_PROFILE);
        let changed = || {
            write_if_changed(dir.path(), &file, PROFILE_TEXT).expect("written");
            fs::metadata(&file)
                .and_then(|meta| meta.modified())
                .expect("a time")
        };
        let first = changed();
        assert_eq!(changed(), first);
        let mode = fs::metadata(dir.path()).expect("there").permissions();
        assert_eq!(mode.mode() & 0o777, 0o700);
        fs::write(&file, "tampered").expect("written");
        changed();
        assert_eq!(fs::read_to_string(&file).expect("there"), PROFILE_TEXT);
        assert!(PROFILE_TEXT.contains(&format!("profile {DEFAULT_PROFILE} ")));
    }

    #[test]
    fn the_profile_names_a_daemon_that_is_confined() {
        for none in ["", "unconfined\n", "odd name (enforce)"] {
            let text = profile_for(none);
            assert!(!text.contains(OWN_LABEL) && !text.contains("odd"), "{none}");
        }
        let text = profile_for("/usr/bin/cairn (enforce)\n");
        assert!(text.contains("  signal (receive) peer=/usr/bin/cairn,\n"));
    }
}
