//! systemd's manager: transient scopes and slices (org.freedesktop.systemd1(5)).
//!
//! The connection is made at first use, and again after the bus is lost or systemd is re-executed;
//! calls in progress then fail. If the signal of a job's end was missed, the state of its unit
//! shows the end.

use super::bus::{ANSWER, Job, Link, is_named};
use super::error::{Error, Result};
use super::unit::Scope;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, RwLock};
use tokio::time::Instant;
use zbus::zvariant::DynamicType;
use zbus::{OwnedObjectPath, Variant};

/// The longest wait for a systemd that is being re-executed.
const CONNECT: Duration = Duration::from_secs(5);
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Between two looks at a unit with a running job.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// At shutdown of the machine, a container that ignores SIGTERM is killed after this time.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// The bus of the machine's systemd. systemd's own socket, `/run/systemd/private`, would need no
/// bus daemon, but zbus does not recognise the sender of its messages.
pub const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

/// systemd as the owner of our cgroups. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Systemd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Part of each unit's description: two daemons on a machine ignore each other's units.
    owner: String,
    /// The program that keeps a scope by running in it.
    hold: PathBuf,
    bus: PathBuf,
    link: Mutex<Option<Link>>,
    /// Write-locked while a slice is checked and stopped: nothing may be started in it meanwhile.
    slices: RwLock<()>,
}

/// A unit of ours in systemd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    pub name: String,
    /// Its container or pod; empty for a slice that several pods may share.
    pub id: String,
}

type Properties<'a> = Vec<(&'a str, Variant<'a>)>;

/// Of ListUnitsByPatterns: name, description, load state, active state, sub state, followed unit,
/// object; id, type and object of the running job.
type Row = (
    String,
    String,
    String,
    String,
    String,
    String,
    OwnedObjectPath,
    u32,
    String,
    OwnedObjectPath,
);

/// The intended effect of a job on its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Started,
    Stopped,
}

impl Systemd {
    /// Does not connect yet. `hold`: the program that runs as `<hold> --hold` in each scope.
    pub fn new(owner: &Path, hold: PathBuf, bus: PathBuf) -> Self {
        Self(Arc::new(Inner {
            owner: owner.display().to_string(),
            hold,
            bus,
            link: Mutex::default(),
            slices: RwLock::default(),
        }))
    }

    /// Checks that systemd answers.
    ///
    /// # Errors
    /// `NoSystemd`.
    pub async fn check(&self) -> Result<()> {
        self.link().await.map(drop)
    }

    /// Starts a scope, delegated to us, with one process of ours that runs until it is killed.
    ///
    /// # Errors
    /// systemd refuses; nothing is left then.
    pub async fn start_scope(&self, scope: &Scope, id: &str) -> Result<u32> {
        let _slices = self.0.slices.read().await;
        let (mut hold, pid) = self.spawn_hold(&scope.name)?;
        let description = self.description("container", id);
        let properties = vec![
            ("Description", Variant::from(description)),
            ("Slice", scope.slice.as_str().into()),
            ("PIDs", vec![pid].into()),
            ("Delegate", true.into()),
            // Otherwise a failed unit would stay until it is reset.
            ("CollectMode", "inactive-or-failed".into()),
            ("CPUAccounting", true.into()),
            ("IOAccounting", true.into()),
            ("MemoryAccounting", true.into()),
            ("TasksAccounting", true.into()),
            // The bound is below the scope; systemd's default of 15 % of all pids must not apply.
            ("TasksMax", u64::MAX.into()),
            ("TimeoutStopUSec", micros(STOP_TIMEOUT).into()),
        ];
        match self.start_transient(&scope.name, properties).await {
            Ok(()) => {
                // Reaps it when it ends.
                tokio::spawn(async move { hold.wait().await });
                Ok(pid)
            }
            Err(error) => {
                let _ = hold.kill().await; // it may have ended already
                Err(error)
            }
        }
    }

    fn spawn_hold(&self, name: &str) -> Result<(tokio::process::Child, u32)> {
        use std::process::Stdio;
        let spawned = tokio::process::Command::new(&self.0.hold)
            .arg0("cairn-monitor")
            .arg("--hold")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let failed = |cause: &dyn std::fmt::Display| {
            let cause = format!("{}: {cause}", self.0.hold.display());
            unit_error(name, "start the process that keeps it", &cause)
        };
        let child = spawned.map_err(|error| failed(&error))?;
        let pid = child.id().ok_or_else(|| failed(&"it has ended"))?;
        Ok((child, pid))
    }

    /// Starts a slice of ours; false if it exists already.
    ///
    /// # Errors
    /// systemd refuses.
    pub async fn start_slice(&self, name: &str, id: &str) -> Result<bool> {
        let _slices = self.0.slices.read().await;
        let properties = vec![
            ("Description", Variant::from(self.description("slice", id))),
            ("CollectMode", "inactive-or-failed".into()),
        ];
        match self.start_transient(name, properties).await {
            Ok(()) => Ok(true),
            Err(Error::UnitExists { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Stops a slice if `is_empty` returns true; cairn starts nothing in it meanwhile.
    ///
    /// # Errors
    /// systemd refuses; an unknown slice counts as stopped.
    pub async fn stop_slice_if(&self, name: &str, is_empty: impl FnOnce() -> bool) -> Result<bool> {
        let _slices = self.0.slices.write().await;
        if !is_empty() {
            return Ok(false);
        }
        self.stop(name).await.map(|()| true)
    }

    /// Kills all processes of a unit and ends it. An unknown unit counts as ended.
    ///
    /// # Errors
    /// systemd refuses.
    pub async fn kill(&self, name: &str) -> Result<()> {
        let link = self.link().await?;
        // Refused if no process is left; the stop ends any that is still alive.
        let _ = link.call("KillUnit", &(name, "all", libc::SIGKILL)).await;
        self.stop(name).await
    }

    /// Ends a unit without processes. An unknown unit counts as ended.
    ///
    /// # Errors
    /// systemd refuses.
    pub async fn stop(&self, name: &str) -> Result<()> {
        let body = (name, "replace");
        let job = self.job("StopUnit", &body, name, Goal::Stopped).await?;
        ignore_unknown_unit(job).map_err(|cause| unit_error(name, "stop", &cause))
    }

    /// Changes properties of a running unit, until it ends.
    ///
    /// # Errors
    /// systemd refuses; nothing has changed then.
    pub async fn set(&self, name: &str, values: &[(&'static str, u64)]) -> Result<()> {
        let link = self.link().await?;
        let values = values
            .iter()
            .map(|(key, value)| (*key, Variant::from(*value)));
        let body = (name, true, values.collect::<Properties<'_>>());
        let set = link.call("SetUnitProperties", &body).await;
        set.map(drop)
            .map_err(|cause| unit_error(name, "set its properties", &cause))
    }

    /// All scopes and slices that this daemon, or an earlier one on the same directory, made.
    ///
    /// # Errors
    /// systemd refuses.
    pub async fn units(&self) -> Result<Vec<Unit>> {
        let rows = self.list(&["*.scope", "*.slice"]).await?;
        let ours = rows.into_iter().filter_map(|(name, description, ..)| {
            let id = self.id_in(&description)?.to_owned();
            Some(Unit { name, id })
        });
        Ok(ours.collect())
    }

    /// The loaded units whose names match one of the patterns.
    async fn list(&self, patterns: &[&str]) -> Result<Vec<Row>> {
        let link = self.link().await?;
        let states: &[&str] = &[];
        let body = (states, patterns);
        let listed = link.call("ListUnitsByPatterns", &body).await;
        let rows = listed.and_then(|answer| answer.body().deserialize());
        rows.map_err(|cause| unit_error(&patterns.join(" "), "list", &cause))
    }

    /// Calls a method that starts a job for a unit, and waits for its end or for the unit's state.
    async fn job<B: Serialize + DynamicType>(
        &self,
        method: &str,
        body: &B,
        unit: &str,
        goal: Goal,
    ) -> Result<zbus::Result<()>> {
        let deadline = Instant::now() + ANSWER;
        let failed = |text| Ok(Err(zbus::Error::Failure(text)));
        let job = match self.link().await?.job(method, body).await {
            Ok(Job::Ended(result)) if result == "done" => return Ok(Ok(())),
            Ok(Job::Ended(result)) => return failed(format!("its job ended as {result}")),
            Ok(Job::Unknown(job)) => job,
            Err(error) => return Ok(Err(error)),
        };
        loop {
            let row = self.list(&[unit]).await?.into_iter().next();
            let (state, under_way) = row.map_or(("inactive".to_owned(), false), |row| {
                let (_, _, _, state, .., own) = row;
                (state, own == job)
            });
            match (goal, state.as_str()) {
                _ if under_way && Instant::now() < deadline => {}
                _ if under_way => return failed(format!("its job has not ended after {ANSWER:?}")),
                (Goal::Started, "active") | (Goal::Stopped, "inactive" | "failed") => {
                    return Ok(Ok(()));
                }
                _ => return failed(format!("its job ended and left it {state}")),
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    fn description(&self, kind: &str, id: &str) -> String {
        format!("cairn {kind} {id} of {}", self.0.owner)
    }

    fn id_in<'a>(&self, description: &'a str) -> Option<&'a str> {
        let inside = description.strip_prefix("cairn ")?;
        let inside = inside.strip_suffix(self.0.owner.as_str())?;
        let (_, id) = inside.strip_suffix(" of ")?.split_once(' ')?;
        Some(id)
    }

    async fn start_transient(&self, name: &str, properties: Properties<'_>) -> Result<()> {
        let none: Vec<(&str, Properties<'_>)> = Vec::new();
        let body = (name, "fail", properties, none);
        self.job("StartTransientUnit", &body, name, Goal::Started)
            .await?
            .map_err(|cause| {
                if is_named(&cause, "org.freedesktop.systemd1.UnitExists") {
                    return Error::UnitExists {
                        unit: name.to_owned(),
                    };
                }
                unit_error(name, "start", &cause)
            })
    }

    /// The open connection, or a new one.
    #[expect(clippy::await_holding_invalid_type, reason = "guards no closure")]
    async fn link(&self) -> Result<Link> {
        let mut link = self.0.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        let new = self.connect().await?;
        *link = Some(new.clone());
        Ok(new)
    }

    async fn connect(&self) -> Result<Link> {
        let deadline = tokio::time::Instant::now() + CONNECT;
        loop {
            let cause = match tokio::time::timeout_at(deadline, Link::open(&self.0.bus)).await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it does not answer".to_owned(),
            };
            if tokio::time::Instant::now() + CONNECT_PAUSE >= deadline {
                let bus = self.0.bus.display();
                return Err(Error::NoSystemd {
                    cause: format!("{bus}: {cause}"),
                });
            }
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn unit_error(unit: &str, step: &'static str, cause: &dyn std::fmt::Display) -> Error {
    Error::Unit {
        unit: unit.to_owned(),
        step,
        cause: cause.to_string().replace('\n', " "),
    }
}

fn ignore_unknown_unit(result: zbus::Result<()>) -> zbus::Result<()> {
    match result {
        Err(error) if is_named(&error, "org.freedesktop.systemd1.NoSuchUnit") => Ok(()),
        other => other,
    }
}

#[cfg(test)]
#[path = "systemd_tests.rs"]
mod tests;
