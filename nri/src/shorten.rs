//! Shortens messages that are too long to be sent: optional fields are left out, the largest first.
//! So as few fields as possible are missing.
//!
//! A field is left out completely, because a part of a list would pass for the list. Ids, state,
//! pid, times and exit code are always kept.
//!
//! Pure: no I/O, no clock.

use std::{borrow::Cow, cmp::Reverse, fmt, mem::swap};

use prost::Message;
use proto_nri::{Container, PodSandbox};
use serde::{Deserialize, Serialize};

/// The fields of a pod or container that were not sent to a plugin, because the message would have
/// been too long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub struct LeftOut {
    /// `pod` or `container`, and its id.
    pub object: String,
    /// Names of the fields, such as `env` or `linux.devices`.
    pub fields: Vec<Cow<'static, str>>,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.fields.join(", "))
    }
}

/// Metadata key by which a call names its missing fields; one value per object.
pub(crate) const KEY: &str = "nri-left-out";
/// Bytes for that metadata of a pod and a container: ids of 64 characters, and the names of all
/// fields.
pub(crate) const NAMES: usize = 1024;

/// A field: its name, and a function that swaps it between two messages.
type Field<M> = (&'static str, fn(&mut M, &mut M));

macro_rules! field {
    ($name:ident) => {
        (stringify!($name), |a, b| swap(&mut a.$name, &mut b.$name))
    };
    (linux.$name:ident) => {
        (concat!("linux.", stringify!($name)), |a, b| {
            if let Some(linux) = &mut a.linux {
                let other = b.linux.get_or_insert_default();
                swap(&mut linux.$name, &mut other.$name);
            }
        })
    };
}

const OF_POD: &[Field<PodSandbox>] = &[
    field!(labels),
    field!(annotations),
    field!(linux.pod_overhead),
    field!(linux.pod_resources),
    field!(linux.resources),
];
const OF_CONTAINER: &[Field<Container>] = &[
    field!(labels),
    field!(annotations),
    field!(args),
    field!(env),
    field!(mounts),
    field!(hooks),
    field!(rlimits),
    field!(cdi_devices),
    field!(user),
    field!(linux.devices),
    field!(linux.resources),
    field!(linux.sysctl),
    field!(linux.net_devices),
    field!(linux.seccomp_policy),
];
/// Fields that are usually short, such as names.
const REST_OF_POD: &[Field<PodSandbox>] = &[
    field!(name),
    field!(uid),
    field!(namespace),
    field!(runtime_handler),
    field!(linux),
    field!(ips),
];
const REST_OF_CONTAINER: &[Field<Container>] = &[
    field!(name),
    field!(status_reason),
    field!(status_message),
    field!(image),
    field!(linux),
];

/// Leaves out fields until the two are `excess` bytes shorter; returns them.
pub(crate) fn shorten(
    mut pod: Option<&mut PodSandbox>,
    mut container: Option<&mut Container>,
    excess: usize,
) -> Vec<LeftOut> {
    let (mut of_pod, mut of_container) = (Vec::new(), Vec::new());
    let whole = length(pod.as_deref(), container.as_deref());
    let all = [(OF_POD, OF_CONTAINER), (REST_OF_POD, REST_OF_CONTAINER)];
    for (pods, containers) in all {
        let mut found: Vec<(Reverse<usize>, bool, usize)> = Vec::new();
        let pod_sizes = pod.as_deref_mut().map(|pod| sizes(pod, pods));
        let container_sizes = container.as_deref_mut().map(|c| sizes(c, containers));
        for (is_pod, sizes) in [(true, pod_sizes), (false, container_sizes)] {
            let sizes = sizes.unwrap_or_default().into_iter().enumerate();
            found.extend(sizes.map(|(at, size)| (Reverse(size), is_pod, at)));
        }
        found.sort_unstable();
        for (Reverse(size), is_pod, at) in found {
            let now = length(pod.as_deref(), container.as_deref());
            if now + excess <= whole || size == 0 {
                break;
            }
            match (&mut pod, &mut container) {
                (Some(pod), _) if is_pod => {
                    (pods[at].1)(pod, &mut PodSandbox::default());
                    of_pod.push(pods[at].0.into());
                }
                (_, Some(container)) => {
                    (containers[at].1)(container, &mut Container::default());
                    of_container.push(containers[at].0.into());
                }
                (_, None) => {}
            }
        }
    }
    let pod = pod.map(|pod| (format!("pod {}", pod.id), of_pod));
    let container = container.map(|c| (format!("container {}", c.id), of_container));
    let some = pod.into_iter().chain(container);
    some.filter(|(_, fields)| !fields.is_empty())
        .map(|(object, fields)| LeftOut { object, fields })
        .collect()
}

fn length(pod: Option<&PodSandbox>, container: Option<&Container>) -> usize {
    pod.map_or(0, Message::encoded_len) + container.map_or(0, Message::encoded_len)
}

/// The length of each field.
fn sizes<M: Message + Default>(message: &mut M, fields: &[Field<M>]) -> Vec<usize> {
    let mut alone = M::default();
    let mut size = |exchange: fn(&mut M, &mut M)| {
        exchange(message, &mut alone);
        let with = alone.encoded_len();
        exchange(message, &mut alone);
        with - alone.encoded_len()
    };
    fields.iter().map(|(_, exchange)| size(*exchange)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto_nri::{LinuxContainer, LinuxDevice, LinuxPodSandbox};

    use super::*;

    fn long(n: usize) -> Vec<String> {
        vec!["x".repeat(n)]
    }

    fn names(of: &[LeftOut]) -> Vec<String> {
        of.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_largest_fields_go_first_and_no_more_than_need_be() {
        let whole = Container {
            id: "c".into(),
            args: long(50),
            env: long(100),
            ..Default::default()
        };
        for (excess, left_out) in [
            (0, &[][..]),
            (1, &["container c: env"]),
            (102, &["container c: env"]),
            (103, &["container c: env, args"]),
        ] {
            let mut container = whole.clone();
            let of = shorten(None, Some(&mut container), excess);
            assert_eq!(names(&of), left_out, "{excess}");
            assert!(container.encoded_len() + excess <= whole.encoded_len());
        }
    }

    #[test]
    fn a_pod_and_its_container_are_shortened_together() {
        let mut pod = PodSandbox {
            id: "p".into(),
            annotations: [("a".to_owned(), "x".repeat(500))].into(),
            ..Default::default()
        };
        let mut container = Container {
            id: "c".into(),
            env: long(300),
            mounts: vec![Default::default()],
            ..Default::default()
        };
        let of = shorten(Some(&mut pod), Some(&mut container), 600);
        assert_eq!(names(&of), ["pod p: annotations", "container c: env"]);
        assert_eq!(container.mounts.len(), 1);
    }

    proptest! {
        #[test]
        fn whatever_is_long_the_rest_is_short_and_says_who_it_was(
            sizes in prop::collection::vec(0usize..3000, 9), excess in 0usize..30_000,
        ) {
            let text = |n: usize| "x".repeat(sizes[n]);
            let mut pod = PodSandbox {
                id: "p".into(),
                name: text(0),
                labels: [("l".into(), text(1))].into(),
                linux: Some(LinuxPodSandbox { cgroup_parent: text(2), ..Default::default() }),
                ..Default::default()
            };
            let device = LinuxDevice { path: text(3), ..Default::default() };
            let mut container = Container {
                id: "c".into(),
                pod_sandbox_id: "p".into(),
                name: text(4),
                env: vec![text(5)],
                status_message: text(6),
                pid: 7,
                exit_code: 8,
                linux: Some(LinuxContainer {
                    devices: vec![device],
                    cgroups_path: text(7),
                    sysctl: [("s".into(), text(8))].into(),
                    ..Default::default()
                }),
                ..Default::default()
            };
            let before = pod.encoded_len() + container.encoded_len();
            let of = shorten(Some(&mut pod), Some(&mut container), excess);
            let after = pod.encoded_len() + container.encoded_len();
            prop_assert!(after + excess <= before || after < 50);
            prop_assert_eq!(of.is_empty(), after == before);
            let answers: usize = of.iter().map(|of| KEY.len() + of.to_string().len() + 64 + 16).sum();
            prop_assert!(answers < NAMES);
            prop_assert_eq!((pod.id.as_str(), container.id.as_str()), ("p", "c"));
            prop_assert_eq!((container.pid, container.exit_code), (7, 8));
        }
    }
}
