//! Fault points: named places at which a test makes the daemon fail.
//!
//! `CAIRN_FAULT=name=error|hang|abort` (comma-separated) arms them, only with the feature `fault`.
//! A name with `@n` fires at the n-th pass. `name=gate:FILE` holds each pass while `FILE` exists, and
//! makes `FILE.reached`. A seeded run decides about each point itself. Without the feature a point
//! compiles to nothing.

#[cfg(feature = "fault")]
pub use armed::{Fired, pass, point};
#[cfg(not(feature = "fault"))]
pub use unarmed::{Fired, pass, point};

#[cfg(not(feature = "fault"))]
mod unarmed {
    use std::fmt::Display;

    #[derive(Debug, thiserror::Error)]
    pub enum Fired {}

    /// # Errors
    /// None.
    #[inline(always)]
    pub fn point(_: impl Display) -> Result<(), Fired> {
        Ok(())
    }

    /// # Errors
    /// None.
    #[inline(always)]
    pub async fn pass(_: &str) -> Result<(), Fired> {
        Ok(())
    }
}

#[cfg(feature = "fault")]
mod armed {
    use std::{
        collections::HashMap, env, fmt::Display, future, path::PathBuf, process, sync::OnceLock,
        time::Duration,
    };

    use parking_lot::Mutex;

    use crate::seeded::{self, Fate};

    /// A test armed this point; shown as its name.
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    pub struct Fired(String);

    /// The effect of an armed point.
    #[derive(Clone, PartialEq)]
    enum Act {
        Error,
        Hang,
        Abort,
        Gate(PathBuf),
    }

    struct Fault {
        act: Act,
        passes_left: u32,
    }

    static FAULTS: OnceLock<Mutex<HashMap<String, Fault>>> = OnceLock::new();

    fn parse(text: &str) -> HashMap<String, Fault> {
        text.split(',')
            .filter_map(|entry| {
                let (name, act) = entry.split_once('=')?;
                let (name, nth) = name.split_once('@').unwrap_or((name, "1"));
                let act = match act {
                    "error" => Act::Error,
                    "hang" => Act::Hang,
                    "abort" => Act::Abort,
                    act => Act::Gate(act.strip_prefix("gate:")?.into()),
                };
                let passes_left = nth.parse().ok()?;
                Some((name.to_owned(), Fault { act, passes_left }))
            })
            .collect()
    }

    /// The action at this pass, if any. Each armed fault fires once.
    fn fires(name: &str) -> Option<Act> {
        let faults =
            FAULTS.get_or_init(|| Mutex::new(parse(&env::var("CAIRN_FAULT").unwrap_or_default())));
        let mut faults = faults.lock();
        let fault = faults.get_mut(name)?;
        if let Act::Gate(_) = fault.act {
            return Some(fault.act.clone());
        }
        fault.passes_left = fault.passes_left.checked_sub(1)?;
        if fault.passes_left > 0 {
            return None;
        }
        let act = fault.act.clone();
        if act == Act::Abort {
            process::abort();
        }
        Some(act)
    }

    /// A place in blocking code. `hang` is an error here: a thread that never returns would keep
    /// the daemon from ending.
    ///
    /// # Errors
    /// A test armed this point.
    pub fn point(name: impl Display) -> Result<(), Fired> {
        let name = name.to_string();
        if let Some(Fate::Fails) = seeded::fate(&name) {
            return Err(Fired(name));
        }
        match fires(&name) {
            Some(_) => Err(Fired(name)),
            None => Ok(()),
        }
    }

    /// A place in async code.
    ///
    /// # Errors
    /// A test armed this point.
    pub async fn pass(name: &str) -> Result<(), Fired> {
        match seeded::fate(name) {
            Some(Fate::Waits(time)) => tokio::time::sleep(time).await,
            Some(Fate::Fails) => return Err(Fired(name.to_owned())),
            None => {}
        }
        match fires(name) {
            Some(Act::Hang) => future::pending().await,
            Some(Act::Gate(gate)) => {
                hold(gate).await;
                Ok(())
            }
            Some(_) => Err(Fired(name.to_owned())),
            None => Ok(()),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "in a test")]
    async fn hold(gate: PathBuf) {
        let mut reached = gate.clone().into_os_string();
        reached.push(".reached");
        while gate.exists() {
            let _ = std::fs::write(&reached, ""); // the test would time out
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
