//! The report of `cairn status` from a daemon's answers. Pure.

use std::collections::BTreeMap;

use proto_cairn::v1::{Directory, HeldObject, Plugin};
use proto_cri::v1::RuntimeCondition;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    check_table::{lines, painted},
    text::{age, short_id, size},
};
use crate::preflight::{Finding, State};

/// Less free space than this is insufficient for the records of a pod.
const NOTHING: u64 = 16 << 20;
/// The default eviction threshold of a kubelet: percent of a file system and of its inodes.
const LITTLE: u64 = 10;
const FEW_INODES: u64 = 5;

/// The answers; an `Err` is the reason of a missing one.
pub(super) struct Answers {
    pub name: String,
    pub version: String,
    pub conditions: Vec<RuntimeCondition>,
    /// From verbose Status.
    pub info: BTreeMap<String, String>,
    pub plugins: Result<Vec<Plugin>, String>,
    pub held: Result<Vec<HeldObject>, String>,
    pub directories: Result<Vec<Directory>, String>,
}

/// A running pull, from Status.
#[derive(Debug, Serialize, Deserialize)]
struct Pull {
    image: String,
    bytes: u64,
    of: u64,
    seconds: u64,
}

/// A sandbox with a pause process of an older version, from Status.
#[derive(Debug, Serialize, Deserialize)]
struct Exposed {
    id: String,
    namespace: String,
    name: String,
}

pub(super) struct Report {
    endpoint: String,
    findings: Vec<Finding>,
    pulls: Vec<Pull>,
    directories: Vec<Directory>,
}

impl Report {
    /// `answers`: an `Err` if the daemon does not answer at all.
    pub(super) fn new(endpoint: String, answers: Result<Answers, String>) -> Self {
        let answers = match answers {
            Ok(answers) => answers,
            Err(why) => {
                let remedy = "is the daemon running, and is this its endpoint? `systemctl status cairn`, \
                              `journalctl -u cairn`; --connect names another endpoint";
                return Self {
                    endpoint,
                    findings: vec![Finding::fails("runtime", why, remedy)],
                    pulls: Vec::new(),
                    directories: Vec::new(),
                };
            }
        };
        let mut findings = vec![runtime(&answers), network(&answers)];
        match &answers.plugins {
            Ok(all) => findings.extend(plugins(all)),
            Err(why) => findings.push(Finding::limited("plugins", why, "")),
        }
        findings.push(match &answers.held {
            Ok(all) => records(all),
            Err(why) => Finding::limited("records", why, ""),
        });
        match &answers.directories {
            Ok(all) => findings.extend(all.iter().map(directory)),
            Err(why) => findings.push(Finding::limited("space", why, "")),
        }
        findings.extend(exposed(&listed(&answers, "exposedSandboxes")));
        let pulls = listed(&answers, "pulls");
        findings.push(pulling(&pulls));
        Self {
            endpoint,
            findings,
            pulls,
            directories: answers.directories.unwrap_or_default(),
        }
    }

    /// The worst state of all findings.
    pub(super) fn state(&self) -> State {
        let states = self.findings.iter().map(|finding| finding.state);
        states.max().unwrap_or(State::Fails)
    }

    /// The table for people.
    pub(super) fn table(&self, width: usize, color: bool) -> String {
        let verdict = match self.state() {
            State::Ok => "ready",
            State::Limited => "ready, but for what the lines marked \"limited\" say",
            State::Fails => "not ready: see the lines marked \"fails\"",
        };
        let lines = lines(&self.findings, width, color);
        format!("{lines}\n{}\n", painted(verdict, self.state(), color))
    }

    /// The JSON form.
    pub(super) fn json(&self) -> Value {
        json!({
            "ready": self.state() != State::Fails,
            "state": self.state(),
            "endpoint": self.endpoint,
            "findings": self.findings,
            "pulls": self.pulls,
            "directories": self.directories,
        })
    }
}

/// A list of verbose Status; empty if the runtime has no such key.
fn listed<T: DeserializeOwned>(answers: &Answers, key: &str) -> Vec<T> {
    let text = answers.info.get(key).map_or("", String::as_str);
    serde_json::from_str(text).unwrap_or_default()
}

/// Reason and message of the condition of this kind, if it is not met.
fn unmet(answers: &Answers, kind: &str) -> Option<(String, String)> {
    match answers.conditions.iter().find(|c| c.r#type == kind) {
        Some(condition) if condition.status => None,
        Some(condition) => Some((condition.reason.clone(), condition.message.clone())),
        None => Some((String::new(), format!("Status has no condition {kind}"))),
    }
}

fn runtime(answers: &Answers) -> Finding {
    let Answers { name, version, .. } = answers;
    match unmet(answers, "RuntimeReady") {
        None => Finding::ok("runtime", format!("{name} {version}")),
        Some((reason, message)) => {
            let found = format!("{name} {version}: {reason}: {message}");
            Finding::fails("runtime", found, "`journalctl -u cairn` has more")
        }
    }
}

fn network(answers: &Answers) -> Finding {
    let Some((reason, message)) = unmet(answers, "NetworkReady") else {
        return Finding::ok("network", "pods get one");
    };
    let config = answers.info.get("cniconfig").map_or("", String::as_str);
    let config: Value = serde_json::from_str(config).unwrap_or_default();
    let dir = config["confDir"].as_str().unwrap_or("the CNI directory");
    let remedy = match reason.as_str() {
        "InvalidCniConfiguration" => format!("repair or remove the file in {dir}"),
        "NetworkNotConfigured" => {
            format!(
                "put a CNI configuration into {dir}, or name a bridge in cairn.toml (network.bridge)"
            )
        }
        _ => "`journalctl -u cairn` has more".to_owned(),
    };
    let message = message
        .strip_prefix("Network plugin returns error: ")
        .unwrap_or(&message);
    let cost = format!("only pods on the host's network start: {remedy}");
    Finding::fails("network", message, cost)
}

/// A line per plugin with a problem, or one for all.
fn plugins(all: &[Plugin]) -> Vec<Finding> {
    let wrong: Vec<_> = all.iter().filter_map(plugin).collect();
    if !wrong.is_empty() {
        return wrong;
    }
    let active = all.iter().filter(|p| p.state == "active");
    let names: Vec<_> = active.map(|p| format!("{}-{}", p.index, p.name)).collect();
    let found = match names.len() {
        0 => "none connected, none required".to_owned(),
        _ => format!("connected: {}", names.join(", ")),
    };
    vec![Finding::ok("plugins", found)]
}

fn plugin(plugin: &Plugin) -> Option<Finding> {
    let id = format!("{}-{}", plugin.index, plugin.name);
    let since = age(plugin.since_ns);
    let last = if plugin.last_error.is_empty() {
        String::new()
    } else {
        format!(" ({})", plugin.last_error)
    };
    let finding = match plugin.state.as_str() {
        "absent" if plugin.required => Finding::fails(
            "plugins",
            format!("{id} has been MISSING for {since}{last}"),
            format!(
                "no pod and no container is created without it: start it, or take `required` off [nri.plugin.\"{id}\"] in cairn.toml"
            ),
        ),
        "absent" => Finding::limited(
            "plugins",
            format!("{id} has been missing for {since}{last}"),
            "Stop and Remove events are kept for it: start it",
        ),
        "overdue" if plugin.required => Finding::fails(
            "plugins",
            format!("{id} has not answered for {since}{last}"),
            "no pod and no container is created until it answers: restart it",
        ),
        "overdue" => Finding::limited(
            "plugins",
            format!("{id} has not answered for {since}{last}"),
            "it gets no event until it answers: restart it",
        ),
        "gone" => Finding::limited(
            "plugins",
            format!("{id} was closed {since} ago{last}"),
            "pods are made without it: start it again if it is to see them; `cairn plugins` has more",
        ),
        _ => return None,
    };
    Some(finding)
}

/// Objects with unreadable records that are named; others are counted.
const NAMED: usize = 5;

fn records(held: &[HeldObject]) -> Finding {
    if held.is_empty() {
        return Finding::ok("records", "every one could be read");
    }
    let mut found = String::from("cannot be read:");
    for one in held.iter().take(NAMED) {
        let HeldObject {
            kind,
            name,
            record,
            reason,
            ..
        } = one;
        found += &format!(
            " {kind} {name} ({}): {record}: {reason};",
            short_id(&one.id)
        );
    }
    match held.len().saturating_sub(NAMED) {
        0 => drop(found.pop()),
        more => found += &format!(" and {more} more"),
    }
    let cost = "they run on, listed NOTREADY and UNKNOWN, and cannot be stopped: repair the records, or \
                install the version that wrote them, and restart cairn; or remove them: cairn rm ID";
    Finding::limited("records", found, cost)
}

fn exposed(all: &[Exposed]) -> Option<Finding> {
    let names = all
        .iter()
        .map(|one| format!("{}/{} ({})", one.namespace, one.name, short_id(&one.id)));
    let names: Vec<_> = names.collect();
    let found = format!(
        "created by an older version, whose pause processes let a container take over the node: {}",
        names.join(", ")
    );
    let cost = "delete these pods and create them anew (`kubectl delete pod`, or `crictl rmp --force`); \
                see SECURITY.md, Advisories";
    (!names.is_empty()).then(|| Finding::limited("pods", found, cost))
}

fn directory(directory: &Directory) -> Finding {
    let what = match directory.key.as_str() {
        "root" => "root",
        "state" => "state",
        _ => "space",
    };
    let path = &directory.path;
    if !directory.problem.is_empty() {
        let found = format!("{path}: {}", directory.problem);
        return Finding::fails(
            what,
            found,
            "the daemon cannot work there: `journalctl -u cairn` has more",
        );
    }
    let (free, all) = (directory.free_bytes, directory.size_bytes);
    let found = format!("{path}: {} of {} free", size(free), size(all));
    let counted = directory.inodes != 0;
    let nothing = free < NOTHING || counted && directory.free_inodes == 0;
    let of = |part: u64, whole: u64| u128::from(part) * 100 / u128::from(whole.max(1));
    let few = counted && of(directory.free_inodes, directory.inodes) < FEW_INODES.into();
    let little = of(free, all) < LITTLE.into();
    let found = if few {
        format!("{found}, {} inodes", directory.free_inodes)
    } else {
        found
    };
    let remedy = match what {
        "state" => {
            "free it, or make it larger: it holds sockets, namespaces and the directories of monitors"
        }
        _ => "remove unused images (`crictl rmi --prune`) and ended pods, or make it larger",
    };
    if nothing {
        return Finding::fails(what, found, format!("no pod can be recorded: {remedy}"));
    }
    if few || little {
        let cost = format!("pulls may fail soon, and a kubelet evicts pods: {remedy}");
        return Finding::limited(what, found, cost);
    }
    Finding::ok(what, found)
}

fn pulling(pulls: &[Pull]) -> Finding {
    let reported = pulls.iter().map(|pull| {
        // The announced size grows while manifests are read.
        let of = match pull.of {
            0 => String::new(),
            of => format!(" of {}", size(of)),
        };
        let so_far = format!("{}{of}", size(pull.bytes));
        format!("{}, {so_far} in {} s", pull.image, pull.seconds)
    });
    let reported: Vec<_> = reported.collect();
    match reported.len() {
        0 => Finding::ok("pulls", "none under way"),
        _ => Finding::ok("pulls", reported.join("; ")),
    }
}

#[cfg(test)]
#[path = "status_report_tests.rs"]
mod tests;
