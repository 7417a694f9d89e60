//! Held objects: pods and containers whose records are damaged or of a newer schema.
//!
//! ```text
//!   record unreadable ──start of the daemon──► held ──record readable again, next start──► served
//!                                               └─ RemovePodSandbox, RemoveContainer ─► removed
//! ```
//! Processes, monitors, roots, networks and namespaces stay untouched. Held objects are listed
//! NOTREADY and UNKNOWN, with the readable part of their records. Stop requests are rejected,
//! because a kubelet stops pods that are not ready. A container is held with its pod. Recovery
//! fills this list once; only `remove_by_id.rs` removes from it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use proto_cri::v1 as cri;
use serde::Deserialize;

use super::{
    error::{Error, Kind},
    record::{ContainerImage, ContainerRecord, PodRecord},
};
use crate::{
    clock,
    store::{Record as _, Unreadable},
};

/// A held pod or container.
#[derive(Debug, Clone)]
pub struct Held<C> {
    pub id: String,
    /// The known part of its configuration.
    pub config: C,
    pub created_at: i64,
    pub record_path: PathBuf,
    pub reason: String,
    /// The pod of a container, if known.
    pub pod: Option<String>,
    /// The image of a container, as far as its record shows it.
    pub image: ContainerImage,
    /// From the record, if known.
    pub cgroup: Option<String>,
}

pub type HeldPod = Held<cri::PodSandboxConfig>;
pub type HeldContainer = Held<cri::ContainerConfig>;

/// All held objects, by id.
#[derive(Debug, Clone, Default)]
pub struct AllHeld {
    pub pods: BTreeMap<String, HeldPod>,
    pub containers: BTreeMap<String, HeldContainer>,
}

/// The part of a record that is needed here; each field may be missing.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Outline {
    pod: Option<String>,
    config: serde_json::Value,
    created_at: serde_json::Value,
    image: serde_json::Value,
    cgroup: Option<String>,
    cgroup_parent: Option<String>,
}

#[derive(Deserialize)]
struct Envelope {
    record: Outline,
}

#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
fn outline(found: &Unreadable) -> Outline {
    let bytes = cairn_monitor::own_file::read(&found.path).unwrap_or_default();
    serde_json::from_slice::<Envelope>(&bytes).map_or_else(|_| Outline::default(), |all| all.record)
}

fn hold<C: serde::de::DeserializeOwned + Default>(found: Unreadable, outline: Outline) -> Held<C> {
    Held {
        id: found.id,
        config: serde_json::from_value(outline.config).unwrap_or_default(),
        created_at: outline
            .created_at
            .as_i64()
            .filter(|at| *at > 0)
            .unwrap_or_else(|| written(&found.path)),
        record_path: found.path,
        reason: found.reason,
        pod: outline.pod,
        image: serde_json::from_value(outline.image).unwrap_or_default(),
        cgroup: outline.cgroup,
    }
}

/// The record's modification time, for a record without a creation time: clients reject a status
/// without one.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
fn written(record: &Path) -> i64 {
    let time = std::fs::metadata(record).and_then(|file| file.modified());
    let since = time
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since
        .and_then(|since| i64::try_from(since.as_nanos()).ok())
        .unwrap_or_else(clock::now_ns)
}

impl AllHeld {
    pub fn hold_pod(&mut self, found: Unreadable) {
        let mut outline = outline(&found);
        let parent = outline.cgroup_parent.take();
        outline.cgroup = parent.map(|parent| format!("{parent}/{}", found.id));
        let mut held: HeldPod = hold(found, outline);
        // Every CRI client expects metadata.
        held.config
            .metadata
            .get_or_insert_with(|| cri::PodSandboxMetadata {
                name: "unknown".into(),
                namespace: "unknown".into(),
                uid: held.id.clone(),
                attempt: 0,
            });
        self.pods.insert(held.id.clone(), held);
    }

    /// `pod_of` finds the pod of a container whose record does not name it.
    pub fn hold_container(
        &mut self,
        found: Unreadable,
        pod_of: impl FnOnce(&str) -> Option<String>,
    ) {
        let outline = outline(&found);
        let mut held: HeldContainer = hold(found, outline);
        held.pod = held.pod.or_else(|| pod_of(&held.id));
        held.config
            .metadata
            .get_or_insert_with(|| cri::ContainerMetadata {
                name: "unknown".into(),
                attempt: 0,
            });
        self.containers.insert(held.id.clone(), held);
    }

    /// Holds a container with a readable record, because its pod is held.
    pub fn hold_with_its_pod(&mut self, record: ContainerRecord, path: PathBuf) {
        let held = HeldContainer {
            id: record.id.clone(),
            config: record.config,
            created_at: record.created_at,
            record_path: path,
            reason: format!("the {} of its sandbox cannot be read", PodRecord::KIND),
            pod: Some(record.pod),
            image: record.image,
            cgroup: Some(record.cgroup),
        };
        self.containers.insert(held.id.clone(), held);
    }

    /// By id or unique prefix.
    pub fn pod(&self, id: &str) -> Option<&HeldPod> {
        only(&self.pods, id)
    }

    /// By id or unique prefix.
    pub fn container(&self, id: &str) -> Option<&HeldContainer> {
        only(&self.containers, id)
    }

    /// The held containers of this pod, whether the pod is held or not.
    pub fn containers_of(&self, pod: &str) -> Vec<HeldContainer> {
        let all = self.containers.values();
        all.filter(|held| held.pod.as_deref() == Some(pod))
            .cloned()
            .collect()
    }
}

fn only<'a, T>(all: &'a BTreeMap<String, T>, id: &str) -> Option<&'a T> {
    if id.is_empty() {
        return None;
    }
    let from = all.range(id.to_owned()..);
    let mut found = from.take_while(|(key, _)| key.starts_with(id));
    match (found.next(), found.next()) {
        (Some((_, one)), None) => Some(one),
        (Some((key, one)), Some(_)) if key == id => Some(one),
        _ => None,
    }
}

impl<C> Held<C> {
    /// The reason of the rejection, and what to do.
    pub fn refusal(&self, kind: &str) -> Error {
        Error::new(
            Kind::WrongState,
            format!(
                "{kind} {}: its record {}: {}; repair the record and restart cairn, or remove the {kind}: cairn rm {}",
                self.id,
                self.record_path.display(),
                self.reason,
                &self.id
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreadable(dir: &tempfile::TempDir, text: &str) -> Unreadable {
        let path = dir.path().join("abc.json");
        std::fs::write(&path, text).expect("write");
        Unreadable {
            id: "abc".into(),
            path,
            reason: "test".into(),
        }
    }

    #[test]
    fn of_a_newer_record_what_is_known_is_shown() {
        let dir = tempfile::tempdir().expect("tempdir");
        let config = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: "p".into(),
                uid: "u".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let config = serde_json::to_string(&config).expect("json");
        let text = format!(
            "{{\"schema\":9,\"record\":{{\"id\":\"abc\",\"config\":{config},\"created_at\":7,\"cgroup_parent\":\"/x\",\"phase\":\"dreaming\"}}}}"
        );
        let mut held = AllHeld::default();
        held.hold_pod(unreadable(&dir, &text));
        let pod = &held.pods["abc"];
        assert_eq!(pod.config.metadata.as_ref().expect("some").name, "p");
        assert_eq!((pod.created_at, pod.cgroup.as_deref()), (7, Some("/x/abc")));
    }

    #[test]
    fn of_a_torn_record_there_is_the_id() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut held = AllHeld::default();
        held.hold_container(unreadable(&dir, "{\"schema\":1,\"rec"), |id| {
            Some(format!("pod-of-{id}"))
        });
        assert_eq!(held.containers_of("pod-of-abc").len(), 1);
        let refusal = held.containers["abc"].refusal("container").text;
        assert!(refusal.contains("cairn rm abc"), "{refusal}");
    }
}
