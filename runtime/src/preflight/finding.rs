//! What was found, and how well it serves.

use serde::Serialize;

/// State of one finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// Pods run; some of what they may ask for is refused, or costs more.
    Limited,
    /// No pod runs.
    Fails,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub what: &'static str,
    pub state: State,
    /// The finding.
    pub found: String,
    /// Consequences, and the remedy; empty where there are none.
    pub cost: String,
}

/// All that was looked at, in the order of a pod's way.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub version: &'static str,
    /// As `uname -r` says it.
    pub kernel: String,
    pub findings: Vec<Finding>,
    /// Reason why pods cannot have a user namespace, if so.
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
    /// The worst of all.
    pub fn state(&self) -> State {
        let states = self.findings.iter().map(|finding| finding.state);
        states.max().unwrap_or(State::Ok)
    }

    /// One line for what is there, one for each thing that is not as it should be.
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
