//! Shows the changes of other plugins to pods and containers: connects once for each of its
//! indices, and compares the objects of each event with those seen at the index before.
//!
//! ```text
//!   event ─► 00-differ: keep ─► 10-other ─► 20-other ─► 99-differ: compare with what 00 kept
//! ```
//!
//! Every event has the same handler, and each connection its own table, so it is not a
//! [`nri::Plugin`].
//!
//! Objects are kept by event, pod and container, so that events of several pods may mix. If a
//! plugin between vetoes, the next index never takes the kept object; the oldest are dropped.

use std::{collections::BTreeMap, sync::Arc};

use nri::{Handlers, HookRequest, proto::*};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use crate::{
    cli::{Args, Flag, Usage},
    dump,
    log::Log,
};

/// Objects kept for the next index, at most.
const KEPT: usize = 1024;

pub const NAME: &str = "differ";
pub const USAGE: Usage = [
    "Shows what the plugins between its indices change, event by event.",
    "differ  # connects as 00 and 99: what do all others change? It cannot be launched",
    "differ -indices 10,20,30 -yaml -verbose-level 1 -log-file /run/changes",
];
pub const FLAGS: &[Flag] = &[
    Flag::value(
        "indices",
        "NN,NN,...",
        "where to look, two at least (default: 00,99)",
    ),
    Flag::switch("yaml", "show changes as YAML"),
    Flag::value(
        "verbose-level",
        "0..3",
        "1: the original too, 2: each version, 3: Synchronize too",
    ),
    Flag::value("log-file", "PATH", "where to log (default: standard error)"),
];

/// One observation of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Look {
    /// Position in the list of indices.
    at: usize,
    event: &'static str,
    pod: String,
    container: String,
}

#[derive(Debug, Default)]
struct Kept {
    objects: BTreeMap<Look, (u64, Value)>,
    count: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Differ {
    indices: Vec<String>,
    yaml: bool,
    level: u8,
    log: Log,
    kept: Mutex<Kept>,
}

impl Differ {
    pub fn new(args: &Args, log: Log) -> Result<Arc<Self>, String> {
        if let Some(path) = args.get("log-file") {
            log.to_file(path)?;
        }
        let level = args.get("verbose-level").unwrap_or("0");
        let level = level.parse().ok().filter(|level| *level <= 3);
        Ok(Arc::new(Self {
            indices: indices(args.get("indices").unwrap_or("00,99"))?,
            yaml: args.is("yaml"),
            level: level.ok_or("verbose-level: must be 0, 1, 2 or 3")?,
            log,
            kept: Mutex::default(),
        }))
    }

    /// The indices to connect with, lowest first.
    pub fn indices(&self) -> &[String] {
        &self.indices
    }

    /// The handlers of one of the connections.
    pub fn handlers(self: &Arc<Self>, at: usize) -> Handlers {
        let this = self.clone();
        let handlers = Handlers::new().synchronize(move |pods, containers| {
            if this.level >= 3 {
                let all = BTreeMap::from([
                    ("pods", dump::value(&pods)),
                    ("containers", dump::value(&containers)),
                ]);
                this.print(at, "Synchronize", &dump::value(&all));
            }
            async { Ok(Vec::new()) }
        });
        handlers
            .on(self.look::<RunPodSandboxRequest>(at))
            .on(self.look::<StopPodSandboxRequest>(at))
            .on(self.look::<RemovePodSandboxRequest>(at))
            .on(self.look::<CreateContainerRequest>(at))
            .on(self.look::<PostCreateContainerRequest>(at))
            .on(self.look::<StartContainerRequest>(at))
            .on(self.look::<PostStartContainerRequest>(at))
            .on(self.look::<UpdateContainerRequest>(at))
            .on(self.look::<PostUpdateContainerRequest>(at))
            .on(self.look::<StopContainerRequest>(at))
            .on(self.look::<RemoveContainerRequest>(at))
    }

    fn look<R: HookRequest + Serialize>(
        self: &Arc<Self>,
        at: usize,
    ) -> impl Fn(R) -> std::future::Ready<nri::Result<R::Reply>> + Send + Sync + 'static {
        let this = self.clone();
        move |request| {
            let look = Look {
                at,
                event: nri::mask::event_name(R::EVENT),
                pod: request.pod().map_or_else(String::new, |pod| pod.id.clone()),
                container: request
                    .container()
                    .map_or_else(String::new, |c| c.id.clone()),
            };
            this.compare(look, dump::value(&request));
            std::future::ready(Ok(R::Reply::default()))
        }
    }

    /// Compares with the object kept by the index before, and keeps this one for the next.
    fn compare(&self, look: Look, now: Value) {
        let name = format!("{} {} {}", look.event, look.pod, look.container);
        let name = name.trim_end();
        let at = look.at;
        if self.level >= 2 || (self.level == 1 && at == 0) {
            self.print(at, name, &now);
        }
        let before = {
            let mut kept = self.kept.lock();
            let before = kept.take(&look);
            if at + 1 < self.indices.len() {
                kept.keep(Look { at: at + 1, ..look }, now.clone());
            }
            before
        };
        match before {
            _ if at == 0 => {}
            None => self.log.info(format_args!(
                "{name}: index {} saw it, index {} did not",
                self.indices[at],
                self.indices[at - 1]
            )),
            Some(before) => self.report(at, name, &before, &now),
        }
    }

    fn report(&self, at: usize, name: &str, before: &Value, now: &Value) {
        let between = format!("{}..{}", self.indices[at - 1], self.indices[at]);
        let changes = changes(before, now);
        if changes.is_empty() {
            self.log.info(format_args!("{name}: {between}: no changes"));
        }
        for Change { path, before, now } in changes {
            if !self.yaml {
                let (before, now) = (show(before), show(now));
                self.log
                    .info(format_args!("{name}: {between}: {path}: {before} -> {now}"));
                continue;
            }
            let sides = [("before", before), ("now", now)];
            let sides: BTreeMap<_, _> = sides
                .into_iter()
                .filter_map(|(k, v)| Some((k, v?)))
                .collect();
            let change = BTreeMap::from([(path, sides)]);
            for line in dump::yaml(&change).lines() {
                self.log.info(format_args!("{name}: {between}: {line}"));
            }
        }
    }

    fn print(&self, at: usize, name: &str, value: &Value) {
        for line in dump::yaml(value).lines() {
            self.log
                .info(format_args!("{name}: {}: {line}", self.indices[at]));
        }
    }
}

impl Kept {
    fn take(&mut self, look: &Look) -> Option<Value> {
        self.objects.remove(look).map(|(_, value)| value)
    }

    fn keep(&mut self, look: Look, value: Value) {
        self.count += 1;
        self.objects.insert(look, (self.count, value));
        if self.objects.len() > KEPT {
            let oldest = self.objects.iter().min_by_key(|(_, (age, _))| *age);
            if let Some(oldest) = oldest.map(|(look, _)| look.clone()) {
                self.objects.remove(&oldest);
            }
        }
    }
}

/// At least two numbers of one or two digits, in rising order once padded.
fn indices(text: &str) -> Result<Vec<String>, String> {
    let one = |text: &str| -> Result<String, String> {
        let text = text.trim();
        let digits = (1..=2).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        if digits {
            Ok(format!("{text:0>2}"))
        } else {
            Err(format!("indices: {text:?} is not an index"))
        }
    };
    let mut indices: Vec<String> = text.split(',').map(one).collect::<Result<_, _>>()?;
    indices.sort();
    indices.dedup();
    match indices.len() {
        0 | 1 => Err("indices: two different ones are needed at least".into()),
        _ => Ok(indices),
    }
}

/// The change at one place.
#[derive(Debug, Clone, PartialEq)]
pub struct Change<'a> {
    /// As `container.env[2]`.
    pub path: String,
    pub before: Option<&'a Value>,
    pub now: Option<&'a Value>,
}

/// The places at which two values differ, as deep as possible.
pub fn changes<'a>(before: &'a Value, now: &'a Value) -> Vec<Change<'a>> {
    let mut found = Vec::new();
    descend(String::new(), Some(before), Some(now), &mut found);
    found
}

fn descend<'a>(
    path: String,
    before: Option<&'a Value>,
    now: Option<&'a Value>,
    found: &mut Vec<Change<'a>>,
) {
    if before == now {
        return;
    }
    match (before, now) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let dot = if path.is_empty() { "" } else { "." };
                descend(format!("{path}{dot}{key}"), a.get(key), b.get(key), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for n in 0..a.len().max(b.len()) {
                descend(format!("{path}[{n}]"), a.get(n), b.get(n), found);
            }
        }
        _ => found.push(Change { path, before, now }),
    }
}

fn show(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changes_are_told_at_the_place_where_they_are() {
        let before = json!({"a": 1, "b": {"c": [1, 2], "d": "x"}});
        let now = json!({"b": {"c": [1, 3, 4], "d": "x"}, "e": true});
        let all = changes(&before, &now);
        let reported: Vec<_> = all
            .iter()
            .map(|c| format!("{} {} {}", c.path, show(c.before), show(c.now)))
            .collect();
        assert_eq!(
            reported,
            [
                "a 1 nothing",
                "b.c[1] 2 3",
                "b.c[2] nothing 4",
                "e nothing true"
            ]
        );
        assert_eq!(changes(&now, &now), []);
    }

    #[test]
    fn indices_are_padded_sorted_and_at_least_two() {
        assert_eq!(indices("99, 0"), Ok(vec!["00".to_owned(), "99".to_owned()]));
        for bad in ["", "1", "1,01", "1,x", "1,100", "1,,2", "1,-2"] {
            assert!(indices(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_nobody_asks_for_is_forgotten() {
        let mut kept = Kept::default();
        let look = |pod: usize| Look {
            at: 1,
            event: "RunPodSandbox",
            pod: pod.to_string(),
            container: String::new(),
        };
        for pod in 0..KEPT + 10 {
            kept.keep(look(pod), Value::Null);
        }
        assert_eq!(kept.objects.len(), KEPT);
        assert_eq!(kept.take(&look(9)), None);
        assert_eq!(kept.take(&look(10)), Some(Value::Null));
    }
}
