//! What is played: one connection of a recording, as the calls that its runtime made, in order. Pure.

use std::{collections::BTreeMap, time::Duration};

use nri::{
    Code, is_plain,
    mask::event_name,
    proto::Event,
    record::{Failure, Line, Recording, Side, Values, What},
};
use serde_json::{Value, json};

const BETA: &str = "nri.pkg.api.v1beta1.";
/// What an old plugin is told by StateChange.
const STATE_CHANGE: &str = "StateChange";

/// One connection, from Configure to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    /// `NN-name`, as it registered.
    pub plugin: String,
    pub connection: u64,
    /// It registered as v1beta1.
    pub beta: bool,
    /// The recorded runtime was seen to serve v1beta1.
    pub serves_beta: bool,
    /// The recorded runtime was seen to make calls of their own for what is else a StateChange.
    pub dedicated: bool,
    pub env: Values,
    pub acts: Vec<Act>,
    /// What its reader should know.
    pub notes: Vec<String>,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// The runtime called the plugin.
    Call(Call),
    /// The plugin called UpdateContainers of its own accord.
    Update(Call),
}

impl Act {
    pub fn call(&self) -> &Call {
        match self {
            Self::Call(call) | Self::Update(call) => call,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub at: f64,
    /// Of an event, its own call: a StateChange has become it.
    pub method: String,
    pub message: Value,
    pub timeout: Option<Duration>,
    pub answer: Answer,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Message(Value),
    Error(Failure),
    /// None is in the recording.
    Missing,
    /// There was one that is not on file, or cannot be read.
    Unread,
}

impl Answer {
    /// As the message that it is compared as; `None` where there is nothing to compare with.
    pub fn as_value(&self) -> Option<Value> {
        match self {
            Self::Message(message) => Some(message.clone()),
            Self::Error(failure) => Some(of_failure(failure)),
            Self::Missing => Some(json!({"error": "no answer"})),
            Self::Unread => None,
        }
    }
}

/// An error as a message.
pub fn of_failure(failure: &Failure) -> Value {
    json!({"error": {"code": failure.code, "message": failure.message}})
}

/// The connections of the plugin that is asked for: `NN-name`, or `name`; of the only one if none is.
///
/// # Errors
/// There is none such, or there are several and none is asked for; with their names.
pub fn scripts(recording: &Recording, plugin: Option<&str>) -> Result<Vec<Script>, String> {
    let mut all = all(recording);
    all.retain(|script| script.acts.iter().any(|a| a.call().method == "Configure"));
    let mut ids: Vec<String> = all.iter().map(|script| script.plugin.clone()).collect();
    ids.sort();
    ids.dedup();
    let listed = ids.join(", ");
    let is =
        |id: &str, name: &str| id == name || id.split_once('-').is_some_and(|(_, n)| n == name);
    if let Some(name) = plugin {
        all.retain(|script| is(&script.plugin, name));
        return match all.is_empty() {
            true => Err(format!(
                "no plugin {name} in this recording: it has {}",
                or_none(&listed)
            )),
            false => Ok(all),
        };
    }
    match ids.as_slice() {
        [] => Err("nothing to play: no plugin of this recording was configured".to_owned()),
        [_] => Ok(all),
        _ => Err(format!(
            "this recording has {listed}: name one with --plugin"
        )),
    }
}

fn or_none(listed: &str) -> &str {
    match listed {
        "" => "none that was configured",
        listed => listed,
    }
}

/// A connection while it is read.
struct Reading {
    script: Script,
    /// Calls without an answer, by who made them and their id; where they stand.
    open: BTreeMap<(Side, u32), usize>,
}

fn all(recording: &Recording) -> Vec<Script> {
    let mut readings = BTreeMap::<u64, Reading>::new();
    let mut serves_beta = false;
    let mut notes = recording.notes.clone();
    for line in &recording.lines {
        if let What::Dropped { lines } = line.what {
            notes.push(format!("{lines} lines are missing in the recording"));
            continue;
        }
        let reading = readings.entry(line.connection).or_insert_with(|| Reading {
            script: Script {
                plugin: String::new(),
                connection: line.connection,
                beta: false,
                serves_beta: false,
                dedicated: false,
                env: recording.header.env,
                acts: Vec::new(),
                notes: Vec::new(),
            },
            open: BTreeMap::new(),
        });
        if let Some(plugin) = &line.plugin {
            reading.script.plugin.clone_from(plugin);
        }
        serves_beta |= reading.registered_as_beta(line);
        reading.take(line);
    }
    let scripts = readings.into_values().map(|reading| reading.script);
    let finished = scripts.map(|mut script| {
        script.serves_beta = serves_beta;
        script.notes.extend(notes.iter().cloned());
        if script.env == Values::Redacted {
            let note = "values of environment variables are redacted: what depends on them cannot be judged";
            script.notes.push(note.to_owned());
        }
        script
    });
    finished.collect()
}

impl Reading {
    fn registered_as_beta(&mut self, line: &Line) -> bool {
        let registered = match &line.what {
            What::Answer {
                method,
                service,
                error: None,
                ..
            } => method == "RegisterPlugin" && service.starts_with(BETA),
            _ => false,
        };
        self.script.beta |= registered;
        registered
    }

    fn take(&mut self, line: &Line) {
        match &line.what {
            What::Request {
                from,
                id,
                method,
                timeout,
                message,
                ..
            } => {
                let Some(message) = message else {
                    let note =
                        format!("{method} of the {from} cannot be played: NRI has no such call");
                    return self.script.notes.push(note);
                };
                let seconds = timeout.filter(|s| s.is_finite() && (0.0..1e6).contains(s));
                let call = Call {
                    at: line.at,
                    method: method.clone(),
                    message: message.clone(),
                    timeout: seconds.map(Duration::from_secs_f64),
                    answer: Answer::Missing,
                };
                self.request(*from, *id, call);
            }
            What::Answer {
                from,
                id,
                message,
                error,
                ..
            } => {
                let caller = match from {
                    Side::Plugin => Side::Runtime,
                    Side::Runtime => Side::Plugin,
                };
                let Some(at) = self.open.remove(&(caller, *id)) else {
                    return;
                };
                let answer = match (message, error) {
                    (_, Some(failure)) => Answer::Error(failure.clone()),
                    (Some(message), None) => Answer::Message(message.clone()),
                    (None, None) => Answer::Unread,
                };
                if let Some(Act::Call(call) | Act::Update(call)) = self.script.acts.get_mut(at) {
                    call.answer = answer;
                }
            }
            _ => {}
        }
    }

    fn request(&mut self, from: Side, id: u32, mut call: Call) {
        match (from, call.method.as_str()) {
            (Side::Plugin, "UpdateContainers") => self.add(from, id, Act::Update(call)),
            (Side::Plugin, _) => {}
            (Side::Runtime, STATE_CHANGE) => {
                let event = call.message.get("event").and_then(Value::as_i64);
                let event = event.and_then(|e| Event::try_from(i32::try_from(e).ok()?).ok());
                let Some(event) = event else {
                    return;
                };
                call.method = event_name(event).to_owned();
                if let Some(fields) = call.message.as_object_mut() {
                    fields.remove("event");
                }
                // The answer to its own call was that there is no such call.
                if let Some(Act::Call(last)) = self.script.acts.last()
                    && last.method == call.method
                    && matches!(&last.answer, Answer::Error(f) if f.code == Code::Unimplemented as i32)
                {
                    self.script.acts.pop();
                    self.script.dedicated = true;
                }
                self.add(from, id, Act::Call(call));
            }
            (Side::Runtime, method) => {
                self.script.dedicated |= is_plain(method);
                self.add(from, id, Act::Call(call));
            }
        }
    }

    fn add(&mut self, from: Side, id: u32, act: Act) {
        self.open.insert((from, id), self.script.acts.len());
        self.script.acts.push(act);
    }
}

#[cfg(test)]
mod tests;
