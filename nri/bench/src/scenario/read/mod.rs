//! Parses and checks the text of a scenario.

mod steps;
mod values;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    ops::Range,
    str::FromStr,
    time::Duration,
};

use nri::{
    proto::{Container, PodSandbox},
    validate::DefaultValidator,
};
use nri_testing::{Flavor, container, pod};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    model::{Act, Other, Scenario, Speaks, unnamed},
    shape,
};
use crate::{adjustment, rules::Rule};
use values::{DurationText, duration, lay_over, not_a_duration};

/// An error of a scenario, with its line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Bad {
    pub line: usize,
    pub why: String,
}

type Result<T, E = Bad> = std::result::Result<T, E>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    name: String,
    #[serde(default)]
    flavor: Flavor,
    #[serde(default)]
    speaks: Speaks,
    #[serde(default)]
    allow: Vec<Spanned<String>>,
    growth: Option<Spanned<String>>,
    #[serde(default)]
    runtime: RuntimeTable,
    #[serde(default)]
    plugin: PluginTable,
    #[serde(default)]
    validator: DefaultValidator,
    #[serde(default)]
    other: Vec<OtherTable>,
    #[serde(default)]
    pod: BTreeMap<String, Value>,
    #[serde(default)]
    container: BTreeMap<String, Value>,
    #[serde(default)]
    step: Vec<Spanned<StepTable>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RuntimeTable {
    name: String,
    version: String,
    request_timeout: Option<Spanned<DurationText>>,
    join_timeout: Option<Spanned<DurationText>>,
    cpus: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PluginTable {
    id: Option<Spanned<String>>,
    config: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherTable {
    id: Spanned<String>,
    #[serde(default)]
    adjust: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepTable {
    r#do: String,
    pods: Option<Pods>,
    containers: Option<u32>,
    plugins: Option<Vec<String>>,
    pod: Option<String>,
    container: Option<String>,
    resources: Option<Value>,
    overhead: Option<Value>,
    by: Option<DurationText>,
    times: Option<u32>,
    with: Option<Vec<String>>,
    expect: Option<ExpectTable>,
}

/// The pods of a `join`: a number of plain ones, or those of these names.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "must be a number, or a list of names of pods")]
enum Pods {
    Plain(u32),
    Named(Vec<String>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ExpectTable {
    error: Option<String>,
    adjust: Option<Value>,
    exact: Option<bool>,
    unchanged: Option<bool>,
    updates: Option<Vec<Value>>,
    evictions: Option<Vec<Value>>,
    resources: Option<Value>,
    events: Option<Spanned<String>>,
    prints: Option<Vec<String>>,
    within: Option<Spanned<DurationText>>,
    late: Option<bool>,
    lost: Option<bool>,
    exit: Option<Exit>,
}

/// End of a plugin: a status, or a signal such as `SIGKILL`.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "must be an exit status, or the name of a signal"
)]
enum Exit {
    Status(u8),
    Signal(String),
}

/// Parses a scenario; `name` is its default name.
pub fn read(name: &str, text: &str) -> Result<Scenario> {
    let lines = Lines(text);
    let bad = |e: toml::de::Error| Bad {
        line: e.span().map_or(1, |span| lines.of(&span)),
        why: in_file(e.message()),
    };
    let file: File = toml::from_str(text).map_err(bad)?;
    let whole = DeValue::Table(DeTable::parse(text).map_err(bad)?.into_inner());
    let existing = BTreeMap::new();
    let mut reader = Reader {
        lines,
        whole,
        existing,
    };
    reader.scenario(name, file)
}

/// Adds a remedy for a key of the file that is below a table, and so belongs to the table.
fn in_file(why: &str) -> String {
    let unknown = why.strip_prefix("unknown field `");
    let key = unknown.and_then(|rest| rest.split('`').next());
    let keys = [
        "allow",
        "flavor",
        "growth",
        "name",
        "plugin",
        "runtime",
        "speaks",
        "validator",
    ];
    match key.filter(|key| keys.contains(key)) {
        Some(key) => format!("{why}; `{key}` of the scenario must be above the first [table]"),
        None => why.to_owned(),
    }
}

struct Lines<'a>(&'a str);

impl Lines<'_> {
    fn of(&self, span: &Range<usize>) -> usize {
        let before = self.0.get(..span.start).unwrap_or(self.0);
        before.matches('\n').count() + 1
    }
}

struct Reader<'a> {
    lines: Lines<'a>,
    whole: DeValue<'a>,
    /// The containers that pods have at `join`, by the pod's name.
    existing: BTreeMap<String, Vec<String>>,
}

impl Reader<'_> {
    fn bad(&self, span: &Range<usize>, why: impl Into<String>) -> Bad {
        Bad {
            line: self.lines.of(span),
            why: why.into(),
        }
    }

    /// Line of the deepest existing key of this path.
    fn line(&self, path: &[String]) -> usize {
        let (mut line, mut value) = (1, &self.whole);
        for key in path {
            let next = match (value, key.parse::<usize>()) {
                (DeValue::Table(table), _) => table
                    .get_key_value(key.as_str())
                    .map(|(key, value)| (key.span(), value)),
                (DeValue::Array(array), Ok(at)) => array.get(at).map(|v| (v.span(), v)),
                _ => None,
            };
            let Some((span, below)) = next else {
                break;
            };
            (line, value) = (self.lines.of(&span), below.get_ref());
        }
        line
    }

    /// A value as a message; `path` is its position.
    fn message<T: DeserializeOwned + Serialize>(
        &self,
        path: &[&str],
        given: &Value,
    ) -> Result<(T, Value)> {
        shape::read(given).map_err(|misfit| {
            let mut whole: Vec<String> = path.iter().map(ToString::to_string).collect();
            whole.extend(misfit.path);
            let at = whole.join(".");
            Bad {
                line: self.line(&whole),
                why: format!("{at}: {}", in_file(&misfit.why)),
            }
        })
    }

    /// A pod or container of this name: the given fields over the defaults.
    fn object<T: DeserializeOwned + Serialize>(
        &self,
        kind: &str,
        name: &str,
        usual: &T,
        given: &Value,
    ) -> Result<T> {
        let (_, given) = self.message::<T>(&[kind, name], given)?;
        let mut whole = serde_json::to_value(usual).unwrap_or_default();
        lay_over(&mut whole, given);
        serde_json::from_value(whole).map_err(|e| Bad {
            line: self.line(&[kind.to_owned(), name.to_owned()]),
            why: e.to_string(),
        })
    }

    fn scenario(&mut self, name: &str, mut file: File) -> Result<Scenario> {
        let mut pods = BTreeMap::new();
        for (name, given) in &mut file.pod {
            // Not a field of the message: the containers that exist before the plugin.
            if let Some(containers) = given
                .as_object_mut()
                .and_then(|pod| pod.remove("containers"))
            {
                let names = serde_json::from_value(containers).map_err(|_| Bad {
                    line: self.line(&["pod", name, "containers"].map(str::to_owned)),
                    why: format!("pod.{name}.containers: must be a list of names"),
                })?;
                self.existing.insert(name.clone(), names);
            }
            let usual = PodSandbox::from(pod(name));
            pods.insert(name.clone(), self.object("pod", name, &usual, given)?);
        }
        let mut containers = BTreeMap::new();
        for (name, given) in &file.container {
            let usual = Container::from(container(name));
            let made = self.object("container", name, &usual, given)?;
            containers.insert(name.clone(), made);
        }
        let mut others = Vec::new();
        for (at, other) in file.other.iter().enumerate() {
            let path = ["other", &at.to_string(), "adjust"];
            let adjust = other.adjust.clone().unwrap_or_else(|| Map::new().into());
            others.push(Other {
                id: self.parsed(&other.id)?,
                adjust: self.message(&path, &adjust)?.0,
            });
        }
        let mut allow = Vec::new();
        for rule in &file.allow {
            let known = Rule::named(rule.get_ref());
            allow.push(known.ok_or_else(|| {
                let why = format!(
                    "no rule is called {:?}; nri-bench rules lists them",
                    rule.get_ref()
                );
                self.bad(&rule.span(), why)
            })?);
        }
        let plugin = match &file.plugin.id {
            Some(id) => self.parsed(id)?,
            None => unnamed(),
        };
        let mut scenario = Scenario {
            name: match file.name.as_str() {
                "" => name.to_owned(),
                given => given.to_owned(),
            },
            file: String::new(),
            flavor: file.flavor,
            speaks: file.speaks,
            identity: (file.runtime.name, file.runtime.version),
            request_timeout: self.duration(file.runtime.request_timeout, Duration::from_secs(2))?,
            join_timeout: self.duration(file.runtime.join_timeout, Duration::from_secs(10))?,
            cpus: self.cpus(file.runtime.cpus)?,
            plugin,
            config: file.plugin.config,
            validator: file.validator,
            allow,
            growth: self.bytes(file.growth)?,
            others,
            pods,
            containers,
            steps: Vec::new(),
        };
        scenario.validator.verify().map_err(|why| Bad {
            line: self.line(&["validator".to_owned()]),
            why,
        })?;
        for (at, step) in file.step.into_iter().enumerate() {
            let line = self.lines.of(&step.span());
            let step = self.step(at, line, step.into_inner())?;
            if let Act::Slow(by) = step.act
                && by >= scenario.request_timeout
            {
                let why = format!(
                    "by {by:?}: must be less than request_timeout ({:?}), or every answer is late",
                    scenario.request_timeout
                );
                return Err(Bad { line, why });
            }
            scenario.steps.push(step);
        }
        self.each_is_listed(&scenario)?;
        self.each_is_used(&scenario)?;
        Ok(scenario)
    }

    /// A pod's containers from before the plugin exist only if a `join` lists the pod.
    fn each_is_listed(&self, scenario: &Scenario) -> Result<()> {
        let listed: &[(String, Vec<String>)] = match scenario.steps.first().map(|s| &s.act) {
            Some(Act::Join { pods, .. }) => pods,
            _ => &[],
        };
        let mut unlisted = self.existing.keys();
        let is_listed = |name: &&String| !listed.iter().any(|(pod, _)| pod == *name);
        match unlisted.find(is_listed) {
            Some(name) => Err(Bad {
                line: self.line(&["pod", name, "containers"].map(str::to_owned)),
                why: format!("pod.{name}.containers: `pods` of the `join` must list {name:?}"),
            }),
            None => Ok(()),
        }
    }

    /// A table of a pod or container that no step names is a misspelt name.
    fn each_is_used(&self, scenario: &Scenario) -> Result<()> {
        let mut used = [BTreeSet::new(), BTreeSet::new()];
        for step in &scenario.steps {
            let [pods, containers] = &mut used;
            step.act.names(pods, containers);
        }
        let tables = [
            ("pod", scenario.pods.keys().collect::<Vec<_>>()),
            ("container", scenario.containers.keys().collect()),
        ];
        for ((kind, tables), used) in tables.into_iter().zip(used) {
            let unused = tables
                .into_iter()
                .find(|name| !used.contains(name.as_str()));
            if let Some(name) = unused.filter(|_| !scenario.steps.is_empty()) {
                let used: Vec<_> = used.iter().map(|name| format!("{name:?}")).collect();
                let used = if used.is_empty() {
                    "none".to_owned()
                } else {
                    used.join(", ")
                };
                return Err(Bad {
                    line: self.line(&[kind.to_owned(), name.clone()]),
                    why: format!("no step has the {kind} {name:?}; the steps have {used}"),
                });
            }
        }
        Ok(())
    }

    fn cpus(&self, given: Option<Spanned<String>>) -> Result<Option<String>> {
        let Some(given) = given else {
            return Ok(None);
        };
        let (span, list) = (given.span(), given.into_inner());
        if adjustment::is_list(&list) && !list.is_empty() {
            Ok(Some(list))
        } else {
            Err(self.bad(
                &span,
                format!("cpus {list:?}: must be a list such as 0-3,7"),
            ))
        }
    }

    fn parsed<T: FromStr<Err: Display>>(&self, given: &Spanned<String>) -> Result<T> {
        let read = given.get_ref().parse();
        read.map_err(|e: T::Err| self.bad(&given.span(), e.to_string()))
    }

    fn duration(&self, given: Option<Spanned<DurationText>>, usual: Duration) -> Result<Duration> {
        let Some(given) = given else {
            return Ok(usual);
        };
        let text = &given.get_ref().0;
        duration(text).ok_or_else(|| self.bad(&given.span(), not_a_duration(text)))
    }

    fn bytes(&self, given: Option<Spanned<String>>) -> Result<u64> {
        let Some(given) = given else {
            return Ok(8 << 20);
        };
        let text = given.get_ref();
        let end = text.find(|c: char| !c.is_ascii_digit());
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        let shift = match unit {
            "" => Some(0),
            "KiB" => Some(10),
            "MiB" => Some(20),
            _ => None,
        };
        let bytes = shift.and_then(|shift| Some(number.parse::<u64>().ok()? << shift));
        bytes.ok_or_else(|| {
            self.bad(
                &given.span(),
                format!("{text:?}: must be a number and KiB or MiB"),
            )
        })
    }
}
