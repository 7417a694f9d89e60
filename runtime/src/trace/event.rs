//! The one event type. Its JSON form is the contract of the log file and of `cairn.v1.Timeline`.
//!
//! Adding a field or variant keeps [`SCHEMA`]: readers ignore it. Removing or changing one raises
//! it.

use nri::{Outcome, PluginEvent as Life};
use serde::{Deserialize, Serialize};

use super::values::Values;

/// Version of the JSON form, in every line.
pub const SCHEMA: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub schema: u32,
    /// Increases by one per event, also over restarts: from the last one on disk.
    pub seq: u64,
    /// Time of day in ns since the epoch; never decreases.
    pub wall_ns: i64,
    /// `CLOCK_MONOTONIC` in ns: differences hold over a restart, but not over a reboot.
    pub mono_ns: u64,
    #[serde(flatten)]
    pub subject: Subject,
    #[serde(flatten)]
    pub what: What,
}

/// The affected object; all empty for the daemon or a plugin as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// `namespace/name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod_name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container_name: String,
    /// The CRI call that caused it, such as `RunPodSandbox`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub call: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum What {
    /// A CRI call that changes something arrived; `subject.call` names it.
    CallBegun,
    /// It was answered; `error` is the text of a failure.
    CallEnded {
        took_ns: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    Step {
        #[serde(flatten)]
        step: Action,
    },
    /// A contract point was reached: its hook is called at every plugin, in order.
    Point {
        /// `C-01`; empty if the event is not a contract point.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        point: String,
        hook: String,
    },
    Plugin {
        hook: String,
        plugin: String,
        #[serde(flatten)]
        outcome: Outcome,
        took_ns: u64,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        adjusted: bool,
        /// Paths of what it set, such as `mounts["/data"]` or `env["DEMO"]`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changed: Vec<String>,
        /// The values at these paths, except for environment variables.
        #[serde(flatten)]
        values: Values,
        #[serde(default, skip_serializing_if = "is_zero")]
        updates: u32,
        #[serde(default, skip_serializing_if = "is_zero")]
        evictions: u32,
        /// Fields left out of an oversized request: `container <id>: env, args`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<String>,
    },
    /// The update of a container that a plugin requested: of the subject, unless `target` is set.
    Update {
        plugin: String,
        /// `Synchronize`, `UpdateContainers`, or the event whose answer requested it.
        hook: String,
        /// A container that does not exist; the subject is the one whose event was answered.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        target: String,
        #[serde(flatten)]
        values: Values,
        /// Why it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// All plugins have answered; `aborted` is the reason to stop the operation.
    Passed {
        hook: String,
        took_ns: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        aborted: Option<String>,
    },
    PluginLife {
        plugin: String,
        #[serde(flatten)]
        life: Life,
    },
    /// This many events are missing: the writer or this subscriber was too slow.
    Lost { events: u64 },
    /// A kind written by a newer daemon.
    #[serde(other)]
    Unknown,
}

/// A step of the runtime between contract points.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Action {
    Namespaces,
    Network {
        ips: Vec<String>,
    },
    Paused {
        pid: u32,
    },
    Ready,
    ContainerMade,
    Created {
        pid: u32,
    },
    Started,
    StartFailed {
        reason: String,
    },
    Exited {
        code: i32,
        reason: String,
        /// The status's message beside the reason: the evicting plugin, and its reason.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// A plugin requests a stop.
    Evicted {
        plugin: String,
        reason: String,
    },
    /// An eviction in a plugin's answer failed.
    #[serde(alias = "wish_failed")]
    RequestFailed {
        plugin: String,
        /// Id of the affected container.
        target: String,
        why: String,
    },
    /// By a CRI call.
    Updated {
        #[serde(flatten)]
        values: Values,
    },
    /// This number of the plugin's events (updates, evictions, connections) is not recorded,
    /// because it causes too many.
    Unrecorded {
        plugin: String,
        requests: u64,
    },
    Removed,
    NetworkGone,
    Stopped,
    SandboxRemoved,
    DaemonStarted {
        version: String,
    },
    DaemonStopping,
}

impl Event {
    /// How many events are missing: such an event concerns every reader.
    pub fn missing(&self) -> u64 {
        match &self.what {
            What::Lost { events } => *events,
            What::Step {
                step: Action::Unrecorded { requests, .. },
            } => *requests,
            _ => 0,
        }
    }
}

impl Subject {
    /// The daemon itself.
    pub fn daemon() -> Self {
        Self::default()
    }

    pub fn pod(id: &str, namespace: &str, name: &str) -> Self {
        Self {
            pod: id.to_owned(),
            pod_name: format!("{namespace}/{name}"),
            ..Self::default()
        }
    }

    /// A container of this pod.
    pub fn container(mut self, id: &str, name: &str) -> Self {
        id.clone_into(&mut self.container);
        name.clone_into(&mut self.container_name);
        self
    }

    /// Adds the CRI call that caused it.
    pub fn during(mut self, call: &str) -> Self {
        call.clone_into(&mut self.call);
        self
    }
}

impl From<Action> for What {
    fn from(step: Action) -> Self {
        Self::Step { step }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks for this shape"
)]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: What) -> Event {
        Event {
            schema: SCHEMA,
            seq: 7,
            wall_ns: 1,
            mono_ns: 2,
            subject: Subject::pod("p1", "default", "web").container("c1", "app"),
            what,
        }
    }

    fn round_trip(what: What) -> String {
        let event = event(what);
        let line = serde_json::to_string(&event).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(
            serde_json::from_str::<Event>(&line).unwrap(),
            event,
            "{line}"
        );
        line
    }

    #[test]
    fn every_kind_survives_the_way_through_the_file() {
        let text = || "why\n\"so\"".to_owned();
        round_trip(What::CallBegun);
        round_trip(What::CallEnded {
            took_ns: 1,
            error: Some(text()),
        });
        round_trip(
            Action::Network {
                ips: vec!["10.0.0.1".to_owned()],
            }
            .into(),
        );
        round_trip(
            Action::Exited {
                code: 137,
                reason: text(),
                message: text(),
            }
            .into(),
        );
        round_trip(What::Point {
            point: "C-01".to_owned(),
            hook: "RunPodSandbox".to_owned(),
        });
        round_trip(What::Plugin {
            hook: "CreateContainer".to_owned(),
            plugin: "10-x".to_owned(),
            outcome: Outcome::TimedOut,
            took_ns: 5,
            adjusted: true,
            changed: vec!["env[\"DEMO\"]".to_owned()],
            values: Values::default(),
            updates: 2,
            evictions: 0,
            left_out: vec!["container c1: env".to_owned()],
        });
        round_trip(What::Lost { events: 3 });
    }

    #[test]
    fn a_line_is_flat_and_names_its_kind() {
        let line = round_trip(Action::Created { pid: 42 }.into());
        assert_eq!(
            line,
            r#"{"schema":1,"seq":7,"wall_ns":1,"mono_ns":2,"pod":"p1","pod_name":"default/web","container":"c1","container_name":"app","kind":"step","step":"created","pid":42}"#
        );
    }

    /// The library's own types: a change of their names is a change of the log.
    #[test]
    fn outcomes_and_lives_of_plugins_are_written_as_ever() {
        let why = || "why".to_owned();
        let outcomes = [
            (Outcome::Answered, r#""outcome":"answered""#),
            (
                Outcome::Refused(why().into()),
                r#""outcome":"refused","reason":"why""#,
            ),
            (
                Outcome::Unsent(why()),
                r#""outcome":"unsent","reason":"why""#,
            ),
            (Outcome::TimedOut, r#""outcome":"timed_out""#),
            (Outcome::Lost(why()), r#""outcome":"lost","reason":"why""#),
            (
                Outcome::Garbled(why()),
                r#""outcome":"garbled","reason":"why""#,
            ),
            (
                Outcome::Conflict(why()),
                r#""outcome":"conflict","reason":"why""#,
            ),
            (
                Outcome::Invalid(why()),
                r#""outcome":"invalid","reason":"why""#,
            ),
            (
                Outcome::Denied(why()),
                r#""outcome":"denied","reason":"why""#,
            ),
            (Outcome::Skipped, r#""outcome":"skipped""#),
            (Outcome::NotSubscribed, r#""outcome":"not_subscribed""#),
            (Outcome::Joining, r#""outcome":"joining""#),
            (Outcome::Absent, r#""outcome":"absent""#),
            (Outcome::Cancelled, r#""outcome":"cancelled""#),
        ];
        for (outcome, json) in outcomes {
            let line = round_trip(What::Plugin {
                hook: "StopContainer".to_owned(),
                plugin: "10-x".to_owned(),
                outcome,
                took_ns: 5,
                adjusted: false,
                changed: Vec::new(),
                values: Values::default(),
                updates: 0,
                evictions: 0,
                left_out: Vec::new(),
            });
            assert!(
                line.contains(&format!(r#","plugin":"10-x",{json},"took_ns":5}}"#)),
                "{line}"
            );
        }
        let left_out = "container c1: env, linux.devices".to_owned().into();
        let second = std::time::Duration::from_secs(1);
        let lives = [
            (Life::Launched, r#""launched""#),
            (
                Life::Registered {
                    nri_version: "v0.12".to_owned(),
                },
                r#""registered","nri_version":"v0.12""#,
            ),
            (
                Life::Configured {
                    events: vec!["StopContainer".to_owned()].into(),
                },
                r#""configured","events":["StopContainer"]"#,
            ),
            (
                Life::Synchronized {
                    pods: 1,
                    containers: 2,
                    took: second,
                },
                r#""synchronized","pods":1,"containers":2,"took_ns":1000000000"#,
            ),
            (
                Life::Shortened { left_out },
                r#""shortened","left_out":"container c1: env, linux.devices""#,
            ),
            (
                Life::Deprecated {
                    event: proto_nri::Event::StopContainer,
                },
                r#""deprecated","hook":"StopContainer""#,
            ),
            (
                Life::Unsolicited {
                    updates: 1,
                    failed: 2,
                    evictions: 3,
                },
                r#""unsolicited","updates":1,"failed":2,"evictions":3"#,
            ),
            (
                Life::RequestFailed {
                    container: "c1".to_owned(),
                    why: why(),
                },
                r#""request_failed","target":"c1","why":"why""#,
            ),
            (
                Life::Rejected { reason: why() },
                r#""rejected","reason":"why""#,
            ),
            (Life::Shadowed, r#""shadowed""#),
            (Life::Closed { reason: why() }, r#""closed","reason":"why""#),
            (
                Life::Restarting { after: second },
                r#""restarting","after_ns":1000000000"#,
            ),
            (
                Life::Dropped {
                    event: proto_nri::Event::StopContainer,
                },
                r#""dropped","hook":"StopContainer""#,
            ),
        ];
        for (life, json) in lives {
            let plugin = "10-x".to_owned();
            let line = round_trip(What::PluginLife { plugin, life });
            assert!(
                line.contains(&format!(r#","plugin":"10-x","life":{json}}}"#)),
                "{line}"
            );
        }
    }

    #[test]
    fn a_kind_from_the_future_is_read_and_its_fields_ignored() {
        let line =
            r#"{"schema":1,"seq":1,"wall_ns":1,"mono_ns":1,"kind":"teleported","to":"mars"}"#;
        let event: Event = serde_json::from_str(line).unwrap();
        assert_eq!(event.what, What::Unknown);
    }
}
