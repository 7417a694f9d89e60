//! A runtime's known deviations: which points fail there, and why, in one sentence each.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

use crate::point::{Point, matches};

/// One entry; its key is the id of a point, or a glob of several.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deviation {
    /// What the runtime does instead, and why: one sentence its maintainers can act on.
    pub because: String,
    /// The steps that show it without this suite.
    #[serde(default)]
    pub steps: String,
    /// It does not always show: a pass is no surprise.
    #[serde(default)]
    pub sometimes: bool,
}

impl Deviation {
    /// The sentence, and how to see it.
    pub(crate) fn told(&self) -> String {
        match self.steps.as_str() {
            "" => self.because.clone(),
            steps => format!("{} (to see it: {steps})", self.because),
        }
    }
}

/// The whole file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deviations(BTreeMap<String, Deviation>);

impl Deviations {
    /// # Errors
    /// One line: the file, and what is wrong in it.
    pub(crate) fn read(path: &Path, points: &[Point]) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let all = Self(toml::from_str(&text).map_err(|e| {
            let line = e.to_string();
            format!("{}: {}", path.display(), line.replace('\n', " "))
        })?);
        for key in all.0.keys() {
            if !points.iter().any(|point| matches(key, &point.id)) {
                return Err(format!("{}: no point is called {key}", path.display()));
            }
        }
        Ok(all)
    }

    /// Why this point is expected to fail, if it is.
    pub(crate) fn of(&self, id: &str) -> Option<&Deviation> {
        let exact = self.0.get(id);
        exact.or_else(|| {
            let mut by_glob = self.0.iter().filter(|(key, _)| matches(key, id));
            by_glob.next().map(|(_, deviation)| deviation)
        })
    }
}
