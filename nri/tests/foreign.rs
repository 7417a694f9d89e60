//! The merges of the Go module's own suite, done again here and compared field by field.
//!
//! `hack/foreign nri` records them (`tests/foreign/record.go`), names the recording in `NRI_MERGES`
//! and compares the printed lines with what is expected.

use std::{collections::BTreeMap, env, fmt::Debug, fs};

use nri::{
    PluginId,
    merge::{CreateMerge, StopMerge, UpdateMerge},
    proto::*,
};
use prost::Message;

/// One merge of the Go runtime.
#[derive(Default)]
struct Recorded {
    name: String,
    kind: String,
    request: Vec<u8>,
    answers: Vec<Answer>,
    finish: Option<Vec<u8>>,
}

struct Answer {
    plugin: PluginId,
    bytes: Vec<u8>,
    taken: bool,
    /// The request for the next plugin.
    next: Option<Vec<u8>>,
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = (0..hex.len()).step_by(2);
    let byte = |n| u8::from_str_radix(&hex[n..n + 2], 16).expect("two digits of hex");
    digits.map(byte).collect()
}

fn decoded<M: Message + Default>(bytes: &[u8]) -> M {
    M::decode(bytes).expect("what Go encoded")
}

/// The merges of a recording, by number, each under the name of its test.
fn read(recording: &str) -> BTreeMap<u32, Recorded> {
    let mut merges = BTreeMap::<u32, Recorded>::new();
    let (mut test, mut counts) = (String::new(), BTreeMap::<String, u32>::new());
    for line in recording.lines() {
        if let Some(name) = line.strip_prefix("=== RUN   ") {
            name.clone_into(&mut test);
        }
        let Some(step) = line.strip_prefix("@merge ") else {
            continue;
        };
        let fields: Vec<_> = step.split('\t').collect();
        let [n, step, what, hex] = fields[..] else {
            panic!("four fields: {line}")
        };
        let merge = merges.entry(n.parse().expect("a number")).or_default();
        match step {
            "new" => {
                let count = counts.entry(test.clone()).or_default();
                *count += 1;
                merge.name = format!("{test}#{count}");
                merge.kind = what.to_owned();
                merge.request = bytes(hex);
            }
            "apply" => merge.answers.push(Answer {
                plugin: what.parse().expect("a plugin's name"),
                bytes: bytes(hex),
                taken: false,
                next: None,
            }),
            "taken" => merge.answers.last_mut().expect("an answer").taken = what == "true",
            "next" => merge.answers.last_mut().expect("an answer").next = Some(bytes(hex)),
            "finish" => merge.finish = Some(bytes(hex)),
            _ => panic!("unknown step: {line}"),
        }
    }
    merges
}

/// `Err` names the first field that differs.
fn same<T: Debug>(what: &str, go: &T, ours: &T) -> Result<(), String> {
    let (go, ours) = (format!("{go:#?}"), format!("{ours:#?}"));
    let mut path = Vec::new();
    let mut lines = (go.lines(), ours.lines());
    loop {
        match (lines.0.next(), lines.1.next()) {
            (None, None) => return Ok(()),
            (a, b) if a == b => {
                let line = a.unwrap_or_default();
                let depth = (line.len() - line.trim_start().len()) / 4;
                path.truncate(depth);
                path.push(line.trim().trim_end_matches([' ', '{', '[', '(', ':']));
            }
            (a, b) => {
                let line = a.or(b).unwrap_or_default();
                path.truncate((line.len() - line.trim_start().len()) / 4);
                let (a, b) = (a.unwrap_or("nothing"), b.unwrap_or("nothing"));
                let path = path.join(" ");
                return Err(format!(
                    "{what}: {path}: Go {}, ours {}",
                    a.trim(),
                    b.trim()
                ));
            }
        }
    }
}

fn taken(answer: &Answer, ours: Result<(), String>) -> Result<bool, String> {
    match (answer.taken, ours) {
        (true, Ok(())) => Ok(true),
        (false, Err(_)) => Ok(false),
        (true, Err(why)) => Err(format!("Go takes what is refused here: {why}")),
        (false, Ok(())) => Err("Go refuses what is taken here".to_owned()),
    }
}

/// An empty message equals none: Go sends `memory`, `cpu` and `rdt` always.
fn tidy(resources: Option<LinuxResources>) -> Option<LinuxResources> {
    resources.map(|mut resources| {
        resources.memory = resources.memory.filter(|m| *m != LinuxMemory::default());
        resources.cpu = resources.cpu.filter(|c| *c != LinuxCpu::default());
        resources
    })
}

fn tidy_adjustment(mut adjust: ContainerAdjustment) -> ContainerAdjustment {
    if let Some(linux) = &mut adjust.linux {
        linux.resources = tidy(linux.resources.take());
        linux.rdt = linux.rdt.take().filter(|rdt| *rdt != LinuxRdt::default());
    }
    adjust
}

/// Updates by container. Go sends an empty one where no plugin updates the target.
fn updates(updates: Vec<ContainerUpdate>) -> BTreeMap<String, ContainerUpdate> {
    let set = updates
        .into_iter()
        .filter(|u| *u != ContainerUpdate::default());
    let by_id = set.map(|mut update| {
        if let Some(linux) = &mut update.linux {
            linux.resources = tidy(linux.resources.take());
        }
        (update.container_id.clone(), update)
    });
    by_id.collect()
}

fn create(merge: &Recorded) -> Result<(), String> {
    let mut ours = CreateMerge::new(decoded(&merge.request));
    for answer in &merge.answers {
        let result = ours.apply(&answer.plugin, decoded(&answer.bytes));
        if !taken(answer, result.map_err(|e| e.to_string()))? {
            return Ok(());
        }
        if let Some(next) = &answer.next {
            same("request of the next", &decoded(next), ours.request())?;
        }
    }
    let Some(go) = &merge.finish else {
        return Ok(());
    };
    let (go, ours) = (decoded::<CreateContainerResponse>(go), ours.finish());
    let adjust = go.adjust.map(tidy_adjustment);
    same("adjust", &adjust, &Some(tidy_adjustment(ours.adjust)))?;
    same("update", &updates(go.update), &updates(ours.update))
}

fn update(merge: &Recorded) -> Result<(), String> {
    let request: UpdateContainerRequest = decoded(&merge.request);
    let id = request.container.as_ref().map(|c| c.id.clone());
    let mut ours = UpdateMerge::new(request);
    for answer in &merge.answers {
        let result = ours.apply(&answer.plugin, decoded(&answer.bytes));
        if !taken(answer, result.map_err(|e| e.to_string()))? {
            return Ok(());
        }
    }
    let Some(go) = &merge.finish else {
        return Ok(());
    };
    let mut go = updates(decoded::<UpdateContainerResponse>(go).update);
    let ours = ours.finish();
    let target = go.remove(&id.unwrap_or_default()).and_then(|u| u.linux);
    let target = target.and_then(|linux| linux.resources);
    same("target", &target, &tidy(ours.target))?;
    same("update", &go, &updates(ours.others))
}

fn stop(merge: &Recorded) -> Result<(), String> {
    let mut ours = StopMerge::new();
    for answer in &merge.answers {
        let update = decoded::<StopContainerResponse>(&answer.bytes).update;
        let left_out = ours.apply(&answer.plugin, update);
        let result = left_out.first().map_or(Ok(()), |e| Err(e.to_string()));
        if !taken(answer, result)? {
            return Ok(());
        }
    }
    let Some(go) = &merge.finish else {
        return Ok(());
    };
    let go = updates(decoded::<StopContainerResponse>(go).update);
    same("update", &go, &updates(ours.finish().update))
}

#[test]
#[ignore = "needs a recording: hack/foreign nri"]
fn merges_of_the_go_suite_come_out_the_same() {
    let recording = env::var_os("NRI_MERGES").expect("NRI_MERGES names a recording");
    let recording = fs::read_to_string(recording).expect("the recording can be read");
    let merges = read(&recording);
    assert!(!merges.is_empty(), "the recording has merges");
    for merge in merges.values() {
        let result = match merge.kind.as_str() {
            "create" => create(merge),
            "update" => update(merge),
            _ => stop(merge),
        };
        let (state, why) =
            result.map_or_else(|why| ("failed", why), |()| ("passed", String::new()));
        println!("\n@case {}\t{state}\t{why}", merge.name);
    }
}
