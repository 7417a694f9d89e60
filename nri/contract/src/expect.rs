//! The known deviations of a runtime: the points that fail there, and the reason in one sentence
//! each.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

use crate::point::{Point, matches};

/// One entry. Its key is the id of a point, or a glob of several ids.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deviation {
    /// The runtime's actual behaviour and its cause, in one sentence that its maintainers can act
    /// on.
    pub because: String,
    /// Steps that reproduce it without this suite.
    #[serde(default)]
    pub steps: String,
    /// The deviation does not always occur: a pass is not reported as unexpected.
    #[serde(default)]
    pub sometimes: bool,
}

impl Deviation {
    /// Returns the sentence, followed by the steps.
    pub(crate) fn reported(&self) -> String {
        match self.steps.as_str() {
            "" => self.because.clone(),
            steps => format!("{} (to see it: {steps})", self.because),
        }
    }
}

/// All entries of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deviations(BTreeMap<String, Deviation>);

impl Deviations {
    /// # Errors
    /// One line with the file and the fault.
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

    /// Returns the deviation that makes this point fail, if there is one.
    pub(crate) fn of(&self, id: &str) -> Option<&Deviation> {
        let exact = self.0.get(id);
        exact.or_else(|| {
            let mut by_glob = self.0.iter().filter(|(key, _)| matches(key, id));
            by_glob.next().map(|(_, deviation)| deviation)
        })
    }
}
