//! Restarts of the runtime, by the command that `--restart-cmd` gives.

use std::{collections::HashMap, path::PathBuf, process::Stdio, time::Duration};

use testkit::{client::Client, until::poll_within};

use crate::cri;

/// What the command exits with where it cannot do what the variables of [`With`] ask for.
const CANNOT: i32 = 77;

/// What the runtime is started with, for one point, beside what it always has: variables of the command's environment,
/// empty where nothing is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct With {
    /// `REQUIRED`: the plugin without which no pod and no container is made.
    pub required: String,
    /// `TOLERATE`: pods with this annotation set to true are let through without it.
    pub tolerate: String,
    /// `PLUGIN` and `SETTINGS`: a plugin, and lines of its table in CONTRACT.md, "Per plugin".
    pub plugin: String,
    pub settings: String,
    /// `TROUBLE`: what fails once, by itself: `record-after-run`, the write of a pod's record when all plugins have
    /// agreed to it; `network-at-stop`, the release of a pod's network.
    pub trouble: &'static str,
}

impl With {
    fn variables(&self) -> [(&'static str, &str); 5] {
        [
            ("REQUIRED", &self.required),
            ("TOLERATE", &self.tolerate),
            ("PLUGIN", &self.plugin),
            ("SETTINGS", &self.settings),
            ("TROUBLE", self.trouble),
        ]
    }
}

/// How the runtime is killed and started again.
#[derive(Clone, Debug)]
pub(crate) struct Restart {
    /// Run by `sh -c`. It returns when the runtime was started; whether it answers is asked here.
    pub command: String,
    pub endpoint: String,
    /// The NRI socket.
    pub nri: PathBuf,
}

impl Restart {
    /// Kills and starts the runtime, with what is asked for until it is started again. Answers the new connection;
    /// `None` where the command cannot have it so.
    ///
    /// # Errors
    /// One line: the command failed, or the runtime does not answer.
    pub(crate) async fn again(&self, with: &With) -> Result<Option<Client>, String> {
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", &self.command]).stdin(Stdio::null());
        let asked = with.variables();
        shell.envs(asked);
        let output = shell.output().await.map_err(|e| format!("sh: {e}"))?;
        match output.status.code() {
            Some(0) => {}
            Some(CANNOT) if asked.iter().any(|(_, value)| !value.is_empty()) => return Ok(None),
            _ => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(format!(
                    "the restart command failed ({}): {said}",
                    output.status
                ));
            }
        }
        let client = self.answers().await?;
        let listens = || async { tokio::net::UnixStream::connect(&self.nri).await.ok() };
        let listening = poll_within(Duration::from_secs(30), listens).await;
        listening
            .map(|_| Some(client))
            .ok_or_else(|| "the NRI socket does not answer after the restart".to_owned())
    }

    async fn answers(&self) -> Result<Client, String> {
        let asked = || async {
            let client = cri::connect(&self.endpoint).await.ok()?;
            cri::version(&client).await.ok()?;
            // Containerd answers Version before its CRI service is ready.
            client.pods(HashMap::new()).await.ok()?;
            Some(client)
        };
        let answered = poll_within(Duration::from_secs(60), asked).await;
        answered.ok_or_else(|| "the runtime does not answer after the restart".to_owned())
    }
}
