//! Commands of a daemon, and its log.

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
};

use tokio::process::Command;

use super::Daemon;
use crate::{bins, image::Image, output::shown};

impl Daemon {
    /// `cairn <args> --connect <this daemon>`.
    pub async fn cairn(&self, args: &[&str]) -> Output {
        Command::new(bins::cairn())
            .args(args)
            .arg("--connect")
            .arg(format!("unix://{}", self.socket().display()))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("cairn runs")
    }

    /// The list of `cairn plugins --output json`.
    ///
    /// # Panics
    /// If it fails, or its output is invalid.
    pub async fn plugins(&self) -> Vec<serde_json::Value> {
        let output = self.cairn(&["plugins", "--output", "json"]).await;
        assert!(output.status.success(), "{}", shown(&output));
        let mut all: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("it is JSON");
        let plugins = all["plugins"].take();
        serde_json::from_value(plugins).expect("a list")
    }

    /// `crictl -r <this daemon> <args>`.
    pub async fn crictl(&self, args: &[&str]) -> Output {
        let endpoint = format!("unix://{}", self.socket().display());
        Command::new(bins::peer("crictl"))
            // Ignores the machine's configuration file. A busy machine may exceed 2 s, the default.
            .args(["--config", "/dev/null", "--timeout", "60s"])
            .args([
                "--runtime-endpoint",
                &endpoint,
                "--image-endpoint",
                &endpoint,
            ])
            .args(args)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("crictl runs")
    }

    /// Imports an image by `cairn image import`; returns its id.
    ///
    /// # Panics
    /// If the import fails.
    pub async fn import(&self, image: &Image) -> String {
        let file = self.path(&format!("image-{}.tar", self.yard.next()));
        let blobs = image.write(&file);
        let done = self.import_file(&file).await;
        assert!(done.status.success(), "import: {}", shown(&done));
        fs::remove_file(file).expect("the archive was ours");
        blobs.id
    }
    /// `cairn image import FILE`, with any result.
    pub async fn import_file(&self, file: &Path) -> Output {
        self.cairn(&["image", "import", &file.display().to_string()])
            .await
    }

    /// The end of the daemon's log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
    /// The complete log of the daemon so far.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.path("daemon.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
