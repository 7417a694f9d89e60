//! A script to replay: one connection of a recording, as the calls that its runtime made, in order.
//! Pure.

use std::{collections::BTreeMap, time::Duration};

use nri::{Code, is_plain, mask::event_name, proto::Event};
use nri_record::{Failure, Line, Recording, Side, Values, What};
use serde_json::{Value, json};

/// The call for events to an old plugin.
const STATE_CHANGE: &str = "StateChange";

/// One connection, from Configure to its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Script {
    /// `NN-name`, as registered.
    pub plugin: String,
    pub connection: u64,
    /// The recorded runtime made dedicated calls for events that otherwise are a StateChange.
    pub dedicated: bool,
    pub env: Values,
    /// The calls of both sides, in order.
    pub calls: Vec<Call>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A call of the runtime, or an unsolicited UpdateContainers of the plugin.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub at: f64,
    pub from: Side,
    /// The dedicated method of an event, also for a StateChange.
    pub method: String,
    pub message: Value,
    pub timeout: Option<Duration>,
    pub answer: Answer,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Message(Value),
    Error(Failure),
    /// The recording has none.
    Missing,
    /// It was not recorded, or cannot be parsed.
    Unread,
}

impl Answer {
    /// The message to compare; `None` if nothing is comparable.
    pub(crate) fn as_value(&self) -> Option<Value> {
        match self {
            Self::Message(message) => Some(message.clone()),
            Self::Error(failure) => Some(of_failure(failure)),
            Self::Missing => Some(json!({"error": "no answer"})),
            Self::Unread => None,
        }
    }
}

/// An error as a message.
pub(super) fn of_failure(failure: &Failure) -> Value {
    json!({"error": {"code": failure.code, "message": failure.message}})
}

/// The connections of the requested plugin: `NN-name`, or `name`; the only one by default.
///
/// # Errors
/// It does not exist, or several exist and none is requested; with their names.
pub(crate) fn scripts(recording: &Recording, plugin: Option<&str>) -> Result<Vec<Script>, String> {
    let mut all = all(recording);
    all.retain(|script| script.calls.iter().any(|call| call.method == "Configure"));
    let mut ids: Vec<String> = all.iter().map(|script| script.plugin.clone()).collect();
    ids.sort();
    ids.dedup();
    let listed = ids.join(", ");
    let is =
        |id: &str, name: &str| id == name || id.split_once('-').is_some_and(|(_, n)| n == name);
    if let Some(name) = plugin {
        all.retain(|script| is(&script.plugin, name));
        return if all.is_empty() {
            Err(format!(
                "no plugin {name} in this recording: it has {}",
                or_none(&listed)
            ))
        } else {
            Ok(all)
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

/// A connection being read.
struct Reading {
    script: Script,
    /// Unanswered calls, by caller and id, with their positions.
    open: BTreeMap<(Side, u32), usize>,
}

fn all(recording: &Recording) -> Vec<Script> {
    let mut readings = BTreeMap::<u64, Reading>::new();
    let mut notes = recording.notes.clone();
    for line in &recording.lines {
        if let What::Dropped { lines } = line.what {
            notes.push(format!("{lines} lines are missing in the recording"));
            continue;
        }
        let reading = readings.entry(line.connection).or_insert_with(|| Reading {
            script: Script {
                connection: line.connection,
                env: recording.header.env,
                ..Script::default()
            },
            open: BTreeMap::new(),
        });
        if let Some(plugin) = &line.plugin {
            reading.script.plugin.clone_from(plugin);
        }
        reading.take(line);
    }
    let scripts = readings.into_values().map(|reading| reading.script);
    let finished = scripts.map(|mut script| {
        script.notes.extend(notes.iter().cloned());
        if script.env == Values::Redacted {
            let note = "values of environment variables are redacted: calls that depend on them cannot be compared";
            script.notes.push(note.to_owned());
        }
        script
    });
    finished.collect()
}

impl Reading {
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
                    from: *from,
                    method: method.clone(),
                    message: message.clone(),
                    timeout: seconds.map(Duration::from_secs_f64),
                    answer: Answer::Missing,
                };
                self.request(*id, call);
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
                if let Some(call) = self.script.calls.get_mut(at) {
                    call.answer = match (message, error) {
                        (_, Some(failure)) => Answer::Error(failure.clone()),
                        (Some(message), None) => Answer::Message(message.clone()),
                        (None, None) => Answer::Unread,
                    };
                }
            }
            _ => {}
        }
    }

    fn request(&mut self, id: u32, mut call: Call) {
        match (call.from, call.method.as_str()) {
            (Side::Plugin, "UpdateContainers") => self.add(id, call),
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
                // The answer to the dedicated call was UNIMPLEMENTED.
                if let Some(last) = self.script.calls.last()
                    && last.from == Side::Runtime
                    && last.method == call.method
                    && matches!(&last.answer, Answer::Error(f) if f.code == Code::Unimplemented as i32)
                {
                    self.script.calls.pop();
                    self.script.dedicated = true;
                }
                self.add(id, call);
            }
            (Side::Runtime, method) => {
                self.script.dedicated |= is_plain(method);
                self.add(id, call);
            }
        }
    }

    fn add(&mut self, id: u32, call: Call) {
        self.open.insert((call.from, id), self.script.calls.len());
        self.script.calls.push(call);
    }
}

#[cfg(test)]
mod tests;
