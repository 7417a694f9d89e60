//! Synchronize in messages that fit: greedy packing by encoded length (NRI-320, NRI-323).
//!
//! Pure: no I/O, no clock.

use prost::Message;
use proto_nri::SynchronizeRequest;

use crate::source::Snapshot;

/// A list cut into messages that fit (NRI-320, NRI-323).
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Chunks {
    /// In order; all but the last have `more`. At least one.
    pub(crate) messages: Vec<SynchronizeRequest>,
    /// Objects too big for any message.
    pub(crate) too_big: Vec<String>,
}

/// Packs greedily: pods, then containers, until a message would be longer than `max` bytes.
pub(crate) fn chunks(all: Snapshot, max: usize) -> Chunks {
    let mut out = Chunks::default();
    let mut current = SynchronizeRequest::default();
    let mut len = 0;
    let Snapshot { pods, containers } = all;
    let room = |len: &mut usize,
                size: usize,
                id: String,
                current: &mut SynchronizeRequest,
                out: &mut Chunks| {
        if size > max {
            out.too_big.push(id);
            return false;
        }
        if *len + size > max {
            current.more = true;
            out.messages.push(std::mem::take(current));
            *len = 0;
        }
        *len += size;
        true
    };
    for pod in pods {
        let size = field_len(&pod);
        let name = format!("pod {}", pod.id);
        if room(&mut len, size, name, &mut current, &mut out) {
            current.pods.push(pod);
        }
    }
    for container in containers {
        let size = field_len(&container);
        let name = format!("container {}", container.id);
        if room(&mut len, size, name, &mut current, &mut out) {
            current.containers.push(container);
        }
    }
    out.messages.push(current);
    out
}

/// Bytes of a message as an element of a repeated field: tag, length and itself.
fn field_len<M: Message>(message: &M) -> usize {
    let len = message.encoded_len();
    1 + prost::length_delimiter_len(len) + len
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto_nri::{Container, PodSandbox};

    use super::*;

    fn pod(n: usize, size: usize) -> PodSandbox {
        PodSandbox {
            id: format!("p{n}"),
            name: "x".repeat(size),
            ..Default::default()
        }
    }

    fn container(n: usize, size: usize) -> Container {
        Container {
            id: format!("c{n}"),
            name: "x".repeat(size),
            ..Default::default()
        }
    }

    fn list(pods: &[usize], containers: &[usize]) -> Snapshot {
        Snapshot {
            pods: pods.iter().enumerate().map(|(n, s)| pod(n, *s)).collect(),
            containers: containers
                .iter()
                .enumerate()
                .map(|(n, s)| container(n, *s))
                .collect(),
        }
    }

    proptest! {
        #[test]
        fn parts_fit_carry_everything_in_order_and_are_never_empty(
            pods in prop::collection::vec(0usize..1500, 0..40),
            containers in prop::collection::vec(0usize..1500, 0..40),
        ) {
            let max = 1000;
            let all = list(&pods, &containers);
            let out = chunks(all.clone(), max);
            let last = out.messages.len() - 1;
            for (n, message) in out.messages.iter().enumerate() {
                prop_assert!(message.encoded_len() <= max + 2);
                prop_assert_eq!(message.more, n < last);
                let objects = message.pods.len() + message.containers.len();
                prop_assert!(objects > 0 || out.messages.len() == 1);
            }
            let fits_pod = |p: &PodSandbox| field_len(p) <= max;
            let fits = |c: &Container| field_len(c) <= max;
            let sent: Vec<_> = out.messages.iter().flat_map(|m| m.pods.clone()).collect();
            let expected: Vec<_> = all.pods.iter().filter(|p| fits_pod(p)).cloned().collect();
            prop_assert_eq!(sent, expected);
            let sent: Vec<_> = out.messages.iter().flat_map(|m| m.containers.clone()).collect();
            let expected: Vec<_> = all.containers.iter().filter(|c| fits(c)).cloned().collect();
            let left_out = all.pods.len() + all.containers.len()
                - out.messages.iter().map(|m| m.pods.len() + m.containers.len()).sum::<usize>();
            prop_assert_eq!(sent, expected);
            prop_assert_eq!(left_out, out.too_big.len());
        }
    }

    #[test]
    fn the_shapes_that_break_go_are_sent() {
        // 2 pods and 10 big containers; 1 pod and 30 containers: in Go a panic and an endless loop.
        for (pods, containers) in [(vec![10; 2], vec![900; 10]), (vec![10], vec![300; 30])] {
            let out = chunks(list(&pods, &containers), 1000);
            let sent: usize = out.messages.iter().map(|m| m.containers.len()).sum();
            assert_eq!(sent, containers.len());
            assert!(out.too_big.is_empty());
        }
    }

    #[test]
    fn an_empty_list_is_one_message_and_a_too_big_object_is_named() {
        let empty = chunks(Snapshot::default(), 1000);
        assert_eq!(empty.messages, [SynchronizeRequest::default()]);
        let huge = chunks(list(&[5000], &[10]), 1000);
        assert_eq!(huge.too_big, ["pod p0"]);
        assert_eq!(huge.messages.len(), 1);
    }
}
