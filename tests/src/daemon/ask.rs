//! What a daemon is asked by command lines, and what it logs.

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

    /// What `cairn plugins --output json` lists.
    ///
    /// # Panics
    /// If it fails, or says something else.
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
            // A configuration file of the machine must not be read, and a busy one may need more than the usual two seconds.
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

    /// Imports an image by `cairn image import`; answers its id.
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
    /// `cairn image import FILE`, whatever comes of it.
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
    /// All that the daemon logged so far.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.path("daemon.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
