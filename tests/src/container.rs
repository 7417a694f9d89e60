//! A container as a client sees it.

use std::{fs, path::PathBuf, time::Duration};

use k8s_cri::v1::{self as cri, ContainerState};
use testkit::until::until;
use tonic::Status;

use crate::{
    client::Cri,
    criclog::{self, Record},
};

/// The output of a command in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// A created container.
#[derive(Clone, Debug)]
pub struct Container {
    pub cri: Cri,
    pub id: String,
    /// Its log file.
    pub log: PathBuf,
}

impl Container {
    /// # Errors
    /// The daemon's.
    pub async fn start(&self) -> Result<(), Status> {
        self.cri.client.start_container(&self.id).await
    }

    /// # Errors
    /// The daemon's.
    pub async fn stop(&self, grace: Duration) -> Result<(), Status> {
        let client = &self.cri.client;
        client.stop_container(&self.id, grace.as_secs()).await
    }

    /// # Errors
    /// The daemon's.
    pub async fn remove(&self) -> Result<(), Status> {
        self.cri.client.remove_container(&self.id).await
    }

    /// Reopens the log, after a rotation.
    ///
    /// # Errors
    /// The daemon's.
    pub async fn reopen_log(&self) -> Result<(), Status> {
        let container_id = self.id.clone();
        let request = cri::ReopenContainerLogRequest { container_id };
        let mut runtime = self.cri.client.runtime.clone();
        runtime.reopen_container_log(request).await.map(drop)
    }

    /// Changes the memory limit, in bytes, by UpdateContainerResources.
    ///
    /// # Errors
    /// The daemon's.
    pub async fn limit_memory(&self, bytes: i64) -> Result<(), Status> {
        let linux = cri::LinuxContainerResources {
            memory_limit_in_bytes: bytes,
            ..Default::default()
        };
        self.cri.client.update_container(&self.id, linux).await
    }

    /// # Errors
    /// The daemon's.
    pub async fn try_status(&self) -> Result<cri::ContainerStatusResponse, Status> {
        self.cri.client.container_status(&self.id, true).await
    }

    /// # Panics
    /// With the daemon's error.
    pub async fn status(&self) -> cri::ContainerStatus {
        let status = self.try_status().await.expect("ContainerStatus");
        status.status.expect("a status holds a status")
    }

    pub async fn state(&self) -> ContainerState {
        self.status().await.state()
    }

    /// Waits until it has exited; returns its final status.
    pub async fn exited(&self) -> cri::ContainerStatus {
        until(&format!("container {} exits", self.id), || async {
            let status = self.status().await;
            (status.state() == ContainerState::ContainerExited).then_some(status)
        })
        .await
    }

    /// Runs a command in the container by ExecSync.
    ///
    /// # Errors
    /// The daemon's.
    pub async fn try_exec(&self, command: &[&str], timeout: i64) -> Result<Ran, Status> {
        let answer = self.cri.client.exec(&self.id, command, timeout).await?;
        Ok(Ran {
            code: answer.exit_code,
            out: String::from_utf8_lossy(&answer.stdout).into_owned(),
            err: String::from_utf8_lossy(&answer.stderr).into_owned(),
        })
    }

    /// Runs a command, which must succeed; returns its standard output without the last newline.
    ///
    /// # Panics
    /// If it fails.
    pub async fn exec(&self, command: &[&str]) -> String {
        let ran = self
            .try_exec(command, 20)
            .await
            .unwrap_or_else(|e| panic!("exec {command:?}: {e}"));
        assert_eq!(ran.code, 0, "exec {command:?}: {ran:?}");
        ran.out.trim_end_matches('\n').to_owned()
    }
    /// Runs a script in the container's shell.
    pub async fn sh(&self, script: &str) -> String {
        self.exec(&["sh", "-c", script]).await
    }

    /// The records of its log so far.
    pub fn records(&self) -> Vec<Record> {
        let bytes = fs::read(&self.log).unwrap_or_default();
        criclog::records(criclog::whole(&bytes))
    }
    /// The lines of its standard output so far.
    pub fn lines(&self) -> Vec<String> {
        criclog::lines(&self.records(), "stdout")
    }
    /// Waits for a line of output.
    pub async fn says(&self, line: &str) {
        until(&format!("the container writes {line:?}"), || async {
            self.lines().iter().any(|l| l == line).then_some(())
        })
        .await;
    }

    /// Pid of its first process in the yard, from the verbose status (CRI-144).
    pub async fn pid(&self) -> Option<u32> {
        let status = self.try_status().await.ok()?;
        let info = status.info.get("info")?;
        let info: serde_json::Value = serde_json::from_str(info).ok()?;
        u32::try_from(info.get("pid")?.as_u64()?).ok()
    }
}

impl Cri {
    /// A container with a known id.
    pub fn container_by_id(&self, id: &str, log: PathBuf) -> Container {
        Container {
            cri: self.clone(),
            id: id.to_owned(),
            log,
        }
    }
}
