//! Turns the recording of one plugin's connection into a scenario: its pods and containers, their
//! events, and the plugin's answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use nri_record::{Failure, Side};
use serde_json::Value;

use super::expected::expected;
use crate::{
    line::{inline, key, quoted},
    replay::{Answer, Call, Script},
};

/// Fields that a runtime fills in.
const OF_THE_RUNTIME: [&str; 8] = [
    "created_at",
    "exit_code",
    "finished_at",
    "name",
    "pid",
    "pod_sandbox_id",
    "started_at",
    "state",
];

/// A scenario that repeats the recording.
pub(crate) fn scenario(script: &Script) -> String {
    let mut reported = Reported::default();
    let calls = script.calls.iter().filter(|c| c.from == Side::Runtime);
    calls.for_each(|call| reported.call(call));
    let mut out = String::from(
        "# Run it: nri-bench run THIS -- ./my-plugin      Every key: docs/bench.md of cairn\n",
    );
    for note in &script.notes {
        let _ = writeln!(out, "# {}", one_line(note));
    }
    out.push_str("flavor = \"plain\"\n");
    out.push_str(&reported.head);
    let _ = writeln!(out, "\n[plugin]\nid = {}", quoted(&script.plugin));
    out.push_str(&reported.plugin);
    out.push_str(&reported.objects);
    out.push_str(&reported.steps);
    out
}

/// The recording so far, as text and as the state of the scenario's runtime.
#[derive(Default)]
struct Reported {
    head: String,
    plugin: String,
    objects: String,
    steps: String,
    joined: bool,
    /// Expectations of the plugin's join.
    of_join: String,
    /// The pods and containers of the parts of Synchronize so far.
    listed: (Vec<Value>, Vec<Value>),
    names: BTreeSet<String>,
    /// Names in the scenario, by id.
    pods: BTreeMap<String, Object>,
    containers: BTreeMap<String, Object>,
}

struct Object {
    name: String,
    pod: String,
    there: bool,
}

impl Reported {
    fn call(&mut self, call: &Call) {
        match call.method.as_str() {
            "Configure" => self.configure(call),
            "Synchronize" => self.synchronize(call),
            _ => {
                self.join(&[]);
                self.event(call);
            }
        }
    }

    fn configure(&mut self, call: &Call) {
        let text = |key: &str| {
            call.message
                .get(key)
                .and_then(Value::as_str)
                .filter(|t| !t.is_empty())
        };
        self.head.push_str("\n[runtime]\n");
        for (key, field) in [("name", "runtime_name"), ("version", "runtime_version")] {
            if let Some(value) = text(field) {
                let _ = writeln!(self.head, "{key} = {}", quoted(value));
            }
        }
        let timeout = call.message.get("request_timeout").and_then(Value::as_u64);
        if let Some(millis) = timeout.filter(|millis| *millis > 0) {
            let _ = writeln!(self.head, "request_timeout = \"{millis}ms\"");
        }
        if let Some(config) = text("config") {
            let _ = writeln!(self.plugin, "config = {}", quoted(config));
        }
        if let Answer::Message(answer) = &call.answer
            && let Some(events) = crate::replay::subscribed(answer)
        {
            self.of_join = format!("expect.events = {}\n", quoted(&events.to_string()));
        }
    }

    fn join(&mut self, pods: &[String]) {
        if !std::mem::replace(&mut self.joined, true) {
            self.step("join", &[]);
            if !pods.is_empty() {
                let pods = inline("", &pods.into());
                let _ = writeln!(self.steps, "pods = {pods}");
            }
            self.steps.push_str(&self.of_join);
        }
    }

    /// The objects at the plugin's join, once the last part has arrived.
    fn synchronize(&mut self, call: &Call) {
        let list = |key: &str| {
            let list = call.message.get(key).and_then(Value::as_array);
            list.cloned().unwrap_or_default()
        };
        self.listed.0.extend(list("pods"));
        self.listed.1.extend(list("containers"));
        if call.message.get("more").and_then(Value::as_bool) == Some(true) {
            return;
        }
        let (pods, containers) = std::mem::take(&mut self.listed);
        // A repeated list: the plugin has seen events of each object since.
        if self.joined {
            return;
        }
        let mut names = Vec::new();
        for pod in &pods {
            let Some(id) = self.known_pod(pod) else {
                continue;
            };
            let mut of_pod = Vec::new();
            for container in &containers {
                if container.get("pod_sandbox_id").and_then(Value::as_str) == Some(&id) {
                    of_pod.push((self.name(container), container));
                }
            }
            let listed: Vec<_> = of_pod.iter().map(|(name, _)| name.clone()).collect();
            if !listed.is_empty() {
                let _ = writeln!(self.objects, "containers = {}", inline("", &listed.into()));
            }
            for (name, container) in of_pod {
                self.table("container", &name, container);
                // A plain one runs.
                if let Some(state) = container.get("state").filter(|state| **state != 3) {
                    let _ = writeln!(self.objects, "state = {}", inline("", state));
                }
                let object = Object {
                    name,
                    pod: id.clone(),
                    there: true,
                };
                self.containers
                    .insert(self::id(container).to_owned(), object);
            }
            if let Some(object) = self.pods.get_mut(&id) {
                object.there = true;
                names.push(object.name.clone());
            }
        }
        self.join(&names);
        if let Answer::Message(answer) = &call.answer
            && !names.is_empty()
        {
            self.expect(answer, None);
        }
    }

    fn event(&mut self, call: &Call) {
        let nothing = Value::Null;
        let pod = call.message.get("pod").unwrap_or(&nothing);
        let container = call.message.get("container").unwrap_or(&nothing);
        match call.method.as_str() {
            "RunPodSandbox" => {
                if let Some(id) = self.known_pod(pod) {
                    self.ran(&id);
                    self.refused(call, |reported| reported.gone(&id));
                }
            }
            "UpdatePodSandbox" => {
                if let Some(name) = self.pod(pod) {
                    self.step("update-pod", &[("pod", &name)]);
                    self.message(call, "overhead_linux_resources", "overhead");
                    self.message(call, "linux_resources", "resources");
                    self.refused(call, |_| ());
                }
            }
            "StopPodSandbox" => self.of_pod("stop-pod", pod),
            "RemovePodSandbox" => {
                self.of_pod("remove-pod", pod);
                self.gone(id(pod));
            }
            "CreateContainer" => self.create(call, pod, container),
            "StartContainer" => self.asked("start", call, pod, container),
            "UpdateContainer" => self.asked("update", call, pod, container),
            "StopContainer" => {
                if self.of_container("stop", pod, container)
                    && let Answer::Message(answer) = &call.answer
                    && answer.get("update").is_some()
                {
                    self.expect(answer, None);
                }
            }
            "RemoveContainer" => {
                self.of_container("remove", pod, container);
                if let Some(object) = self.containers.get_mut(id(container)) {
                    object.there = false;
                }
            }
            // The others follow from these.
            _ => {}
        }
    }

    /// A step that the plugin may reject.
    fn asked(&mut self, what: &str, call: &Call, pod: &Value, container: &Value) {
        if self.of_container(what, pod, container) {
            self.message(call, "linux_resources", "resources");
            match &call.answer {
                Answer::Message(answer) if what == "update" => {
                    self.expect(answer, Some(id(container)));
                }
                _ => self.refused(call, |_| ()),
            }
        }
    }

    fn create(&mut self, call: &Call, pod: &Value, container: &Value) {
        let there = self.containers.get(id(container)).is_some_and(|c| c.there);
        if there || self.container(pod, container).is_none() {
            return;
        }
        match &call.answer {
            Answer::Message(answer) => self.expect(answer, None),
            _ => self.refused(call, |reported| {
                reported.containers.remove(id(container));
            }),
        }
    }

    fn expect(&mut self, answer: &Value, own: Option<&str>) {
        let named = |id: &str| Some(self.containers.get(id)?.name.clone());
        let lines = expected(answer, own, named);
        self.steps.push_str(&lines);
    }

    /// A step that the plugin rejected.
    fn refused(&mut self, call: &Call, then: impl FnOnce(&mut Self)) {
        if let Answer::Error(Failure { message, .. }) = &call.answer {
            let _ = writeln!(self.steps, "expect.error = {}", quoted(message));
            then(self);
        }
    }

    fn message(&mut self, call: &Call, field: &str, name: &str) {
        if let Some(value) = call.message.get(field) {
            let _ = writeln!(self.steps, "{name} = {}", inline(name, value));
        }
    }

    fn step(&mut self, what: &str, keys: &[(&str, &str)]) {
        let _ = write!(self.steps, "\n[[step]]\ndo = {}\n", quoted(what));
        for (key, value) in keys {
            let _ = writeln!(self.steps, "{key} = {}", quoted(value));
        }
    }

    fn of_pod(&mut self, what: &str, pod: &Value) {
        let gone = self.pods.get(id(pod)).is_some_and(|pod| !pod.there);
        if gone {
            return;
        }
        if let Some(name) = self.pod(pod) {
            self.step(what, &[("pod", &name)]);
        }
    }

    /// False: it was removed already.
    fn of_container(&mut self, what: &str, pod: &Value, container: &Value) -> bool {
        if self.containers.get(id(container)).is_some_and(|c| !c.there) {
            return false;
        }
        let name = self.container(pod, container);
        if let Some(name) = &name {
            self.step(what, &[("container", name)]);
        }
        name.is_some()
    }

    /// The name of a running pod, which is added if it was unknown.
    fn pod(&mut self, pod: &Value) -> Option<String> {
        let id = self.known_pod(pod)?;
        if !self.pods[&id].there {
            self.ran(&id);
        }
        Some(self.pods[&id].name.clone())
    }

    fn ran(&mut self, id: &str) {
        if let Some(pod) = self.pods.get_mut(id) {
            pod.there = true;
            let name = pod.name.clone();
            self.step("run-pod", &[("pod", &name)]);
        }
    }

    fn gone(&mut self, pod: &str) {
        if let Some(object) = self.pods.get_mut(pod) {
            object.there = false;
        }
        let of_it = self.containers.values_mut().filter(|c| c.pod == pod);
        of_it.for_each(|container| container.there = false);
    }

    /// The id of a pod that has its table.
    fn known_pod(&mut self, pod: &Value) -> Option<String> {
        let id = id(pod).to_owned();
        if id.is_empty() {
            return None;
        }
        if !self.pods.contains_key(&id) {
            let name = self.name(pod);
            self.table("pod", &name, pod);
            let object = Object {
                name,
                pod: String::new(),
                there: false,
            };
            self.pods.insert(id.clone(), object);
        }
        Some(id)
    }

    /// The name of an existing container, which is created if it was unknown.
    fn container(&mut self, pod: &Value, container: &Value) -> Option<String> {
        let (of, id) = (id(pod).to_owned(), id(container).to_owned());
        if let Some(known) = self.containers.get(&id) {
            return Some(known.name.clone());
        }
        let pod = self.pod(pod)?;
        if id.is_empty() {
            return None;
        }
        let name = self.name(container);
        self.table("container", &name, container);
        self.step("create", &[("pod", &pod), ("container", &name)]);
        let object = Object {
            name: name.clone(),
            pod: of,
            there: true,
        };
        self.containers.insert(id, object);
        Some(name)
    }

    /// Its own name, if unique: a scenario identifies its objects by name only.
    fn name(&mut self, object: &Value) -> String {
        let own = object
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or("unnamed");
        let numbered = (2..).map(|n| format!("{own}-{n}"));
        let mut free = std::iter::once(own.to_owned()).chain(numbered);
        let name = free
            .find(|name| !self.names.contains(name))
            .unwrap_or_default();
        self.names.insert(name.clone());
        name
    }

    fn table(&mut self, kind: &str, name: &str, object: &Value) {
        let _ = writeln!(self.objects, "\n[{kind}.{}]", key(name));
        for (field, value) in object.as_object().into_iter().flatten() {
            if OF_THE_RUNTIME.contains(&field.as_str()) {
                continue;
            }
            match value.as_object().filter(|_| field == "linux") {
                Some(fields) => {
                    for (below, value) in fields {
                        let _ = writeln!(
                            self.objects,
                            "linux.{} = {}",
                            key(below),
                            inline(below, value)
                        );
                    }
                }
                None => {
                    let _ = writeln!(self.objects, "{} = {}", key(field), inline(field, value));
                }
            }
        }
    }
}

fn id(object: &Value) -> &str {
    object.get("id").and_then(Value::as_str).unwrap_or_default()
}

fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}
