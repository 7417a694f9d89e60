//! systemd's manager: transient scopes and slices (org.freedesktop.systemd1(5)).
//!
//! The connection is made when it is first needed, and again after the bus went away or systemd was executed anew; a call
//! that was under way fails. The end of a job that was missed meanwhile shows in the state of its unit.

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

/// How long a systemd that is just being executed anew is waited for.
const CONNECT: Duration = Duration::from_secs(5);
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Between two looks at a unit whose job is under way.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// A container that ignores SIGTERM is killed after this when the machine is shut down.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// The bus that the machine's systemd is on. Its own socket, `/run/systemd/private`, would need no bus daemon; but what
/// comes from there has a sender that zbus takes for none.
pub const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

/// systemd, as the owner of our cgroups. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Systemd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Stands in the description of each unit, so that two daemons on a machine leave each other's alone.
    owner: String,
    /// What runs in a scope for as long as it shall be there.
    hold: PathBuf,
    bus: PathBuf,
    link: Mutex<Option<Link>>,
    /// Written while a slice is looked at and stopped: nothing may be started in it meanwhile.
    slices: RwLock<()>,
}

/// A unit of ours that systemd has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    pub name: String,
    /// The container or pod it was made for; empty for a slice that several pods may share.
    pub id: String,
}

type Properties<'a> = Vec<(&'a str, Variant<'a>)>;

/// Of ListUnitsByPatterns: name, description, how it is loaded, how active, how in detail, whom it follows, object, and
/// the job under way: number, kind, object.
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

/// What a job makes of its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Started,
    Stopped,
}

impl Systemd {
    /// Nothing is asked yet. `hold` is the program that is run as `<hold> --hold` in each scope.
    pub fn new(owner: &Path, hold: PathBuf, bus: PathBuf) -> Self {
        Self(Arc::new(Inner {
            owner: owner.display().to_string(),
            hold,
            bus,
            link: Mutex::default(),
            slices: RwLock::default(),
        }))
    }

    /// Whether somebody answers.
    ///
    /// # Errors
    /// `NoSystemd`.
    pub async fn check(&self) -> Result<()> {
        self.link().await.map(drop)
    }

    /// A scope with one process of ours in it, delegated to us. The process runs until it is killed.
    ///
    /// # Errors
    /// What systemd says; nothing is left then.
    pub async fn start_scope(&self, scope: &Scope, id: &str) -> Result<u32> {
        let _slices = self.0.slices.read().await;
        let (mut hold, pid) = self.spawn_hold(&scope.name)?;
        let description = self.description("container", id);
        let properties = vec![
            ("Description", Variant::from(description)),
            ("Slice", scope.slice.as_str().into()),
            ("PIDs", vec![pid].into()),
            ("Delegate", true.into()),
            // Or a unit that failed would stay until somebody resets it.
            ("CollectMode", "inactive-or-failed".into()),
            ("CPUAccounting", true.into()),
            ("IOAccounting", true.into()),
            ("MemoryAccounting", true.into()),
            ("TasksAccounting", true.into()),
            // Bounds are written below the scope; systemd's default of 15 % of all pids must not be one.
            ("TasksMax", u64::MAX.into()),
            ("TimeoutStopUSec", micros(STOP_TIMEOUT).into()),
        ];
        match self.start_transient(&scope.name, properties).await {
            Ok(()) => {
                // Reaps it, whenever it ends.
                tokio::spawn(async move { hold.wait().await });
                Ok(pid)
            }
            Err(error) => {
                // It may have ended already.
                let _ = hold.kill().await;
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

    /// A slice of ours, unless it is there already. True: it was not.
    ///
    /// # Errors
    /// What systemd says.
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

    /// Stops a slice if `is_empty` says so, while nothing is started in it by us.
    ///
    /// # Errors
    /// What systemd says; a slice that it does not know is stopped.
    pub async fn stop_slice_if(&self, name: &str, is_empty: impl FnOnce() -> bool) -> Result<bool> {
        let _slices = self.0.slices.write().await;
        if !is_empty() {
            return Ok(false);
        }
        self.stop(name).await.map(|()| true)
    }

    /// Kills what is in a unit, and ends it. One that systemd does not know has ended.
    ///
    /// # Errors
    /// What systemd says.
    pub async fn kill(&self, name: &str) -> Result<()> {
        let link = self.link().await?;
        // Refused where nothing is left to kill; what is alive all the same, the stop ends.
        let _ = link.call("KillUnit", &(name, "all", libc::SIGKILL)).await;
        self.stop(name).await
    }

    /// Ends a unit in which nothing runs. One that systemd does not know has ended.
    ///
    /// # Errors
    /// What systemd says.
    pub async fn stop(&self, name: &str) -> Result<()> {
        let body = (name, "replace");
        let job = self.job("StopUnit", &body, name, Goal::Stopped).await?;
        gone_is_fine(job).map_err(|cause| unit_error(name, "stop", &cause))
    }

    /// Changes properties of a unit that runs, until it ends.
    ///
    /// # Errors
    /// What systemd says; nothing has changed then.
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

    /// All scopes and slices that this daemon, or an earlier one on the same directory, has made.
    ///
    /// # Errors
    /// What systemd says.
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

    /// A method that starts a job for a unit, and the end of the job. Where that was missed, the unit shows it.
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

    /// The connection that stands, or a new one.
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

fn gone_is_fine(result: zbus::Result<()>) -> zbus::Result<()> {
    match result {
        Err(error) if is_named(&error, "org.freedesktop.systemd1.NoSuchUnit") => Ok(()),
        other => other,
    }
}

#[cfg(test)]
#[path = "systemd_tests.rs"]
mod tests;
