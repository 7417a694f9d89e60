//! Findings of the preflight, and their severity.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// Pods run; some requests are refused or cost more.
    Limited,
    /// No pod can run.
    Fails,
}

#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub what: &'static str,
    pub state: State,
    /// The finding.
    pub found: String,
    /// Consequence and remedy; may be empty.
    pub cost: String,
}

/// All findings, in the order in which a pod needs them.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub version: &'static str,
    /// As printed by `uname -r`.
    pub kernel: String,
    pub findings: Vec<Finding>,
    /// The reason if pods cannot have a user namespace.
    #[serde(skip)]
    pub no_user_namespaces: Option<String>,
}

impl Finding {
    pub fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self::new(what, State::Ok, found, "")
    }

    pub fn limited(what: &'static str, found: impl Into<String>, cost: impl Into<String>) -> Self {
        Self::new(what, State::Limited, found, cost)
    }

    pub fn fails(what: &'static str, found: impl Into<String>, cost: impl Into<String>) -> Self {
        Self::new(what, State::Fails, found, cost)
    }

    fn new(
        what: &'static str,
        state: State,
        found: impl Into<String>,
        cost: impl Into<String>,
    ) -> Self {
        let (found, cost) = (found.into(), cost.into());
        Self {
            what,
            state,
            found,
            cost,
        }
    }
}

impl Report {
    /// The worst state.
    pub fn state(&self) -> State {
        let states = self.findings.iter().map(|finding| finding.state);
        states.max().unwrap_or(State::Ok)
    }

    /// Logs one line for all that is fine, and one for each problem.
    pub fn log(&self) {
        let fine = self.findings.iter().filter(|f| f.state == State::Ok);
        let fine: Vec<_> = fine.map(|f| format!("{}: {}", f.what, f.found)).collect();
        tracing::info!(kernel = self.kernel, "host: {}", fine.join("; "));
        for Finding {
            what,
            state,
            found,
            cost,
        } in &self.findings
        {
            match state {
                State::Ok => {}
                State::Limited => tracing::warn!("host: {what}: {found}: {cost}"),
                State::Fails => tracing::error!("host: {what}: {found}: {cost}"),
            }
        }
    }
}
