//! Fault points: named places at which a test makes the daemon fail.
//!
//! `CAIRN_FAULT=name=error|hang|abort` (several by comma) arms them; only with the feature
//! `fault`, which the release build does not have. A name with `@n` fires at the n-th pass.

/// A test armed this point of an async way; shown as its name.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fired(String);

/// What an armed point does.
#[derive(Clone, Copy, PartialEq)]
#[cfg_attr(not(feature = "fault"), expect(dead_code, reason = "none is armed"))]
enum Act {
    Error,
    Hang,
    Abort,
}

#[cfg(not(feature = "fault"))]
fn fires(_: &str) -> Option<Act> {
    None
}

#[cfg(feature = "fault")]
use armed::fires;

#[cfg(feature = "fault")]
mod armed {
    use std::{collections::HashMap, env, process, sync::OnceLock};

    use parking_lot::Mutex;

    use super::Act;

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
                    _ => return None,
                };
                let passes_left = nth.parse().ok()?;
                Some((name.to_owned(), Fault { act, passes_left }))
            })
            .collect()
    }

    /// What to do at this pass, if anything. Each armed fault fires once.
    pub(super) fn fires(name: &str) -> Option<Act> {
        let faults =
            FAULTS.get_or_init(|| Mutex::new(parse(&env::var("CAIRN_FAULT").unwrap_or_default())));
        let mut faults = faults.lock();
        let fault = faults.get_mut(name)?;
        fault.passes_left = fault.passes_left.checked_sub(1)?;
        if fault.passes_left > 0 {
            return None;
        }
        let act = fault.act;
        if act == Act::Abort {
            process::abort();
        }
        Some(act)
    }
}

/// A place in blocking code. `hang` is an error here: a thread that never returns would keep
/// the daemon from ending.
///
/// # Errors
/// The name, when a test armed this point.
pub fn point(name: &str) -> Result<(), String> {
    match fires(name) {
        Some(_) => Err(name.to_owned()),
        None => Ok(()),
    }
}

/// A place in async code.
///
/// # Errors
/// The name, when a test armed this point.
pub async fn pass(name: &str) -> Result<(), Fired> {
    match fires(name) {
        Some(Act::Hang) => std::future::pending().await,
        Some(_) => Err(Fired(name.to_owned())),
        None => Ok(()),
    }
}
