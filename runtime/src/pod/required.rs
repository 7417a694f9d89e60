//! Records which plugins are required. If the configuration lists such a plugin no longer, each
//! start logs that, until the configuration has a table for the plugin. Without a record nothing is
//! logged.

use std::{collections::BTreeSet, io, path::Path};

use cairn_monitor::own_file;

use crate::{config::Nri, store::Unsynced};

/// Logs the plugins that are no longer required, one line each, and records the required ones.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
pub(super) fn compare_with_last_start(path: &Path, nri: &Nri, unsynced: &Unsynced) {
    let text = match own_file::read_to_string(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "NRI: cannot read which plugins were required");
            return;
        }
        text => text.unwrap_or_default(),
    };
    let (required, dropped) = compare(text.lines().map(str::to_owned).collect(), nri);
    for line in dropped {
        tracing::warn!("NRI: {line}");
    }
    let mut now: String = required.into_iter().collect::<Vec<_>>().join("\n");
    if !now.is_empty() {
        now.push('\n');
    }
    if now != text
        && let Err(error) = unsynced.replace(path, now.as_bytes())
    {
        tracing::warn!(%error, "NRI: which plugins are required is not on disk");
    }
}

/// The plugins to record, and a line for each one that pods are now created without.
fn compare(was: BTreeSet<String>, nri: &Nri) -> (BTreeSet<String>, Vec<String>) {
    let named = nri.plugin.iter();
    let mut required: BTreeSet<_> = named
        .filter(|(_, table)| table.required)
        .map(|(id, _)| id.clone())
        .collect();
    let is_there = |id: &String| nri.plugin.contains_key(id);
    required.extend(was.into_iter().filter(|id| !is_there(id)));
    let mut dropped = Vec::new();
    for id in &required {
        let why = if !nri.enable {
            "nri.enable is false"
        } else if is_there(id) {
            continue;
        } else {
            "it has no table any more (one with required = false ends this warning)"
        };
        dropped.push(format!(
            "plugin {id} is required, and pods and containers are created without it: {why}"
        ));
    }
    (required, dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nri(text: &str) -> Nri {
        toml::from_str(text).expect("a table")
    }

    fn ids(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_required_plugin_that_the_configuration_drops_is_named_until_a_table_says_otherwise() {
        let guard = "[plugin.\"10-guard\"]\nrequired = true";
        assert_eq!(compare(ids(&[]), &nri(guard)), (ids(&["10-guard"]), vec![]));
        let was = || ids(&["10-guard"]);
        for (text, why) in [
            ("", "it has no table any more"),
            ("enable = false", "nri.enable is false"),
            (&format!("enable = false\n{guard}"), "nri.enable is false"),
        ] {
            let (required, dropped) = compare(was(), &nri(text));
            assert_eq!(required, was(), "{text}");
            let named = |line: &String| line.contains("10-guard") && line.contains(why);
            assert!(
                dropped.len() == 1 && dropped.iter().all(named),
                "{dropped:?}"
            );
        }
        for text in [
            "[plugin.\"10-guard\"]",
            "enable = false\n[plugin.\"10-guard\"]",
        ] {
            assert_eq!(compare(was(), &nri(text)), (ids(&[]), vec![]), "{text}");
        }
    }
}
