//! Restarts of the runtime by the command in `--restart-cmd`.

use std::{collections::HashMap, path::PathBuf, process::Stdio, time::Duration};

use testkit::{client::Client, until::poll_within};

use crate::cri;

/// The exit code of a command that does not support the variables of [`With`].
const CANNOT: i32 = 77;

/// Values for one point with which the runtime is started, as variables of the command's
/// environment. An empty variable requests nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct With {
    /// `REQUIRED`: the plugin that pods and containers require.
    pub required: String,
    /// `TOLERATE`: the annotation that, if true, exempts a pod from the requirement.
    pub tolerate: String,
    /// `PLUGIN` and `SETTINGS`: a plugin, and lines of its table in CONTRACT.md, "Per plugin".
    pub plugin: String,
    pub settings: String,
    /// `TROUBLE`: the step that fails once. `record-after-run` is the write of a pod's record after
    /// all plugins have accepted it; `network-at-stop` is the release of a pod's network.
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

/// The way to kill and restart the runtime.
#[derive(Clone, Debug)]
pub(crate) struct Restart {
    /// Run by `sh -c`. It returns after the start; this module waits until the runtime answers.
    pub command: String,
    pub endpoint: String,
    /// The NRI socket.
    pub nri: PathBuf,
}

impl Restart {
    /// Kills and starts the runtime with these values, which hold until the next start. Returns the
    /// new connection, or `None` if the command does not support the values.
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
                let printed = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(format!(
                    "the restart command failed ({}): {printed}",
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
            // containerd answers Version before its CRI service is ready.
            client.pods(HashMap::new()).await.ok()?;
            Some(client)
        };
        let answered = poll_within(Duration::from_secs(60), asked).await;
        answered.ok_or_else(|| "the runtime does not answer after the restart".to_owned())
    }
}
