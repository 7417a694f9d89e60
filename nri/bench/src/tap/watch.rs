//! Decides on the messages that pass the tap. Pure except for the clock that is passed in.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use nri::{
    is_plain,
    owners::removal,
    proto::{ConfigureRequest, ConfigureResponse, CreateContainerResponse},
    wire::frame::{Message, Request, TO_PLUGIN, TO_RUNTIME},
};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::time::Instant;

use crate::{
    adjustment::nameless,
    rules::{Finding, Rule},
    scenario::Speaks,
};

/// Changes of messages by the tap; the same for all links.
#[derive(Debug, Default)]
pub(crate) struct Manner {
    pub speaks: Speaks,
    pub config: String,
    /// Delay of messages to the plugin.
    pub slow: Duration,
}

/// State shared by all links.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub manner: Mutex<Manner>,
    pub seen: Mutex<Seen>,
}

/// Treatment of a message of the runtime.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass(Message),
    /// It is returned to its sender, as the answer.
    Answer(Message),
}

/// One call to the plugin without an answer yet.
#[derive(Debug)]
struct Call {
    method: String,
    since: Instant,
}

/// State of one link.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    calls: BTreeMap<u32, Call>,
    /// UpdateContainers of the plugin without an answer yet.
    asking: BTreeSet<u32>,
    /// It has answered Shutdown.
    sent_goodbye: bool,
}

impl LinkState {
    /// Whether a call to the plugin is unanswered.
    pub(crate) fn is_asked(&self) -> bool {
        !self.calls.is_empty()
    }

    pub(crate) fn asked(&self) -> String {
        let methods: Vec<_> = self.calls.values().map(|c| c.method.as_str()).collect();
        methods.join(", ")
    }
}

/// Records of all links.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub findings: Vec<Finding>,
    /// Longest answer to each method.
    pub longest: BTreeMap<String, Duration>,
    /// Of the last plugin that connected by itself.
    pub pid: Option<u32>,
    /// StateChange was called and answered.
    pub state_changes: u64,
    /// UpdateContainers without an answer, on all links.
    pub asking: usize,
}

impl Seen {
    pub(crate) fn found(&mut self, rule: Rule, what: impl Into<String>) {
        let finding = Finding::new(rule, what);
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// A link has ended.
    pub(crate) fn ended(&mut self, link: &LinkState) {
        self.asking -= link.asking.len();
    }

    /// A message of the runtime.
    pub(crate) fn runtime_says(
        &mut self,
        link: &mut LinkState,
        manner: &Manner,
        message: Message,
        now: Instant,
    ) -> Fate {
        if message.connection != TO_PLUGIN {
            self.asking -= usize::from(link.asking.remove(&message.stream));
            return Fate::Pass(message);
        }
        let Some(mut request) = message.request() else {
            return Fate::Pass(message);
        };
        if manner.speaks == Speaks::StateChange && is_plain(&request.method) {
            // The runtime side then takes the plugin for an old one, and calls it by StateChange.
            return Fate::Answer(message.unimplemented("nri-bench: spoken as an old runtime"));
        }
        link.calls.insert(
            message.stream,
            Call {
                method: request.method.clone(),
                since: now,
            },
        );
        self.state_changes += u64::from(request.method == "StateChange");
        if request.method == "Configure" && configure(manner, &mut request) {
            return Fate::Pass(message.with(&request));
        }
        Fate::Pass(message)
    }

    /// A message of the plugin. True for an UpdateContainers during a call to the plugin: it is
    /// delayed until the handler has answered, or the limit.
    pub(crate) fn plugin_says(
        &mut self,
        link: &mut LinkState,
        message: &Message,
        now: Instant,
    ) -> bool {
        match message.connection {
            TO_PLUGIN => self.answered(link, message, now),
            TO_RUNTIME => return self.asked(link, message),
            other => {
                let what = format!("a message on connection {other}, which NRI does not have");
                self.found(Rule::Garbage, what);
            }
        }
        false
    }

    fn answered(&mut self, link: &mut LinkState, message: &Message, now: Instant) {
        let Some(call) = link.calls.remove(&message.stream) else {
            let what = format!("an answer to call {}, which was never made", message.stream);
            return self.found(Rule::Garbage, what);
        };
        let Some(response) = message.response() else {
            let what = format!("the answer to {} cannot be decoded", call.method);
            return self.found(Rule::Garbage, what);
        };
        let took = now.duration_since(call.since);
        let longest = self.longest.entry(call.method.clone()).or_default();
        *longest = took.max(*longest);
        match call.method.as_str() {
            "Shutdown" => link.sent_goodbye = true,
            "Configure" if response.status.as_ref().is_none_or(|s| s.code == 0) => {
                let reply = ConfigureResponse::decode(response.payload.as_slice());
                if reply.is_ok_and(|reply| reply.events == 0) {
                    self.found(
                        Rule::SubscribesToAll,
                        "events = 0 in the answer to Configure",
                    );
                }
            }
            "CreateContainer" => {
                let reply = CreateContainerResponse::decode(response.payload.as_slice());
                let adjust = reply.unwrap_or_default().adjust.unwrap_or_default();
                // A runtime drops such a variable, so the result of the step does not show it.
                let mut names = adjust.env.iter().map(|env| env.key.as_str());
                if let Some(key) = names.find(|key| removal(key).unwrap_or(key).is_empty()) {
                    self.found(Rule::BadAdjustment, nameless(key));
                }
            }
            _ => {}
        }
        // A plugin without dedicated calls answers this until it is called by StateChange.
        let settles = is_plain(&call.method) && self.state_changes == 0;
        if response.is_unimplemented() && !settles {
            let what = format!("{} is answered with UNIMPLEMENTED", call.method);
            self.found(Rule::UnhandledEvent, what);
        }
    }

    fn asked(&mut self, link: &mut LinkState, message: &Message) -> bool {
        let Some(request) = message.request() else {
            return false;
        };
        if request.method == "RegisterPlugin" {
            return false;
        }
        if link.sent_goodbye {
            let what = format!("{} after Shutdown", request.method);
            self.found(Rule::AnswerAfterShutdown, what);
        }
        let updates = request.method == "UpdateContainers";
        if updates {
            self.asking += usize::from(link.asking.insert(message.stream));
        }
        updates && link.is_asked()
    }
}

/// Adds data to Configure; true if there was any.
fn configure(manner: &Manner, request: &mut Request) -> bool {
    let old = manner.speaks == Speaks::StateChange;
    if manner.config.is_empty() && !old {
        return false;
    }
    let Ok(mut configure) = ConfigureRequest::decode(request.payload.as_slice()) else {
        return false;
    };
    configure.config.clone_from(&manner.config);
    if old {
        configure.nri_version = String::new();
        (configure.registration_timeout, configure.request_timeout) = (0, 0);
    }
    request.payload = configure.encode_to_vec();
    true
}
