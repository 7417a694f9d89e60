//! AppArmor on this host: is it there, which profiles has the kernel, and our own profile, loaded at start.
//!
//! The profile is handed to the host's `apparmor_parser`, which keeps the compiled policy below `<root>/apparmor`, so
//! that only the first start of a version compiles it. It is loaded anew at each start: whoever changed it in the
//! kernel does not change what `runtime/default` means.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{replace, store};

/// The name under which the kernel has our profile.
const DEFAULT_PROFILE: &str = "cairn-default";
const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
const PARSER: &str = "apparmor_parser";
/// Where the parser is, whatever PATH a unit has.
const PARSER_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// What the kernel enforces for a container that asks for nothing else: everything that a container has by its
/// capabilities, namespaces and mounts, but for the kernel's own switches.
const PROFILE_TEXT: &str = include_str!("cairn-default.apparmor");
/// The line of it that stands for rules about the daemon itself.
const OWN_LABEL: &str = "  # (cairn's own label)\n";

/// `None` where the kernel has no AppArmor. Loads our profile; where that fails, says why.
pub fn facts(dir: &Path) -> Option<Result<String, String>> {
    let enabled = fs::read_to_string(ENABLED).ok()?;
    let loaded = || load(dir).map(|()| DEFAULT_PROFILE.to_owned());
    enabled.starts_with('Y').then(loaded)
}

/// Whether the kernel has a profile of this name now.
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
            "{PROFILES} is not there: securityfs is not mounted"
        ));
    }
    let loaded = parse(dir, &parser());
    match loaded {
        // Loaded by an earlier start, or by the host's own policy.
        Err(problem) if is_loaded(DEFAULT_PROFILE) => {
            tracing::warn!(
                "AppArmor: profile {DEFAULT_PROFILE} is used as the kernel has it: {problem}"
            );
            Ok(())
        }
        Ok(()) if !is_loaded(DEFAULT_PROFILE) => Err(format!(
            "{PARSER} has loaded {DEFAULT_PROFILE}, but the kernel does not list it"
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
                format!("{PARSER} is not installed (Debian has it in the package apparmor)")
            }
            _ => format!("{}: {error}", parser.display()),
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().rev().find(|line| !line.trim().is_empty());
    Err(format!(
        "{PARSER} ended with {}: {}",
        output.status,
        said.unwrap_or("it says nothing").trim()
    ))
}

/// The profile for containers of a daemon with this label (`name (mode)`): where the daemon is confined itself, so are
/// the monitors that must signal containers.
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

/// The parser's cache goes by the file's time. Nobody else has business with either.
fn write_if_changed(dir: &Path, file: &Path, text: &str) -> io::Result<()> {
    store::make_private(dir, None).map_err(io::Error::other)?;
    fs::create_dir_all(dir.join("cache"))?;
    if fs::read(file).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    replace::file(file, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_profile_is_found_by_its_whole_name() {
        let list = "cairn-default (enforce)\n/usr/bin/man (enforce)\na b (complain)\nx//y (kill)\n";
        for name in ["cairn-default", "/usr/bin/man", "a b", "x//y"] {
            assert!(has(list, name), "{name}");
        }
        for name in ["cairn", "cairn-default (enforce)", "a", "", "y"] {
            assert!(!has(list, name), "{name}");
        }
    }

    #[test]
    fn a_parser_that_is_missing_or_fails_is_told_in_one_line() {
        let dir = tempfile::tempdir().expect("dir");
        let missing = parse(dir.path(), Path::new("/nowhere/apparmor_parser"));
        assert!(missing.expect_err("missing").contains("is not installed"));
        let failed = parse(dir.path(), Path::new("/bin/false")).expect_err("fails");
        assert!(
            failed.contains("it says nothing") && !failed.contains('\n'),
            "{failed}"
        );
    }

    #[test]
    fn the_profile_is_written_once_for_the_parsers_cache_where_nobody_else_enters() {
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
    fn the_profile_knows_the_daemon_that_is_confined_itself() {
        for none in ["", "unconfined\n", "odd name (enforce)"] {
            let text = profile_for(none);
            assert!(!text.contains(OWN_LABEL) && !text.contains("odd"), "{none}");
        }
        let text = profile_for("/usr/bin/cairn (enforce)\n");
        assert!(text.contains("  signal (receive) peer=/usr/bin/cairn,\n"));
    }
}
