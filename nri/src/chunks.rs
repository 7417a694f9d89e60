//! Splits Synchronize into messages within the size limit: greedy packing by encoded length
//! (NRI-320, NRI-323). An object that exceeds a message is shortened.
//!
//! Pure: no I/O, no clock.

use prost::Message;
use proto_nri::SynchronizeRequest;

use crate::{
    shorten::{self, LeftOut, shorten},
    source::Snapshot,
};

/// A message of Synchronize, and the fields missing from its objects.
#[derive(Debug, Default, PartialEq)]
pub struct Chunk {
    pub message: SynchronizeRequest,
    pub left_out: Vec<LeftOut>,
}

/// A list split into messages within the size limit (NRI-320, NRI-323).
struct Chunks {
    max: usize,
    /// Of the last one.
    len: usize,
    /// In order; all but the last have `more`. At least one.
    chunks: Vec<Chunk>,
}

impl Chunks {
    /// The message that has room for an object of this size.
    fn with_room(&mut self, size: usize, left_out: Vec<LeftOut>) -> &mut SynchronizeRequest {
        let size = size + left_out.len() * shorten::NAMES;
        if self.len > 0 && self.len + size > self.max {
            if let Some(full) = self.chunks.last_mut() {
                full.message.more = true;
            }
            self.chunks.push(Chunk::default());
            self.len = 0;
        }
        self.len += size;
        let last = self.chunks.len() - 1;
        self.chunks[last].left_out.extend(left_out);
        &mut self.chunks[last].message
    }

    /// Bytes by which an object of this size exceeds any message, its names included.
    fn excess(&self, size: usize) -> Option<usize> {
        (size > self.max).then(|| size + shorten::NAMES - self.max)
    }
}

/// Packs greedily: pods, then containers, until a message would be longer than `max` bytes.
pub fn chunks(all: Snapshot, max: usize) -> Vec<Chunk> {
    let mut out = Chunks {
        max,
        len: 0,
        chunks: vec![Chunk::default()],
    };
    for mut pod in all.pods {
        let excess = out.excess(field_len(&pod));
        let left_out = excess.map(|excess| shorten(Some(&mut pod), None, excess));
        let message = out.with_room(field_len(&pod), left_out.unwrap_or_default());
        message.pods.push(pod);
    }
    for mut container in all.containers {
        let excess = out.excess(field_len(&container));
        let left_out = excess.map(|excess| shorten(None, Some(&mut container), excess));
        let message = out.with_room(field_len(&container), left_out.unwrap_or_default());
        message.containers.push(container);
    }
    out.chunks
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

    const MAX: usize = 10_000;

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
            env: vec!["x".repeat(size)],
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
            pods in prop::collection::vec(0usize..15_000, 0..40),
            containers in prop::collection::vec(0usize..15_000, 0..40),
        ) {
            let all = list(&pods, &containers);
            let out = chunks(all.clone(), MAX);
            let last = out.len() - 1;
            for (n, Chunk { message, left_out }) in out.iter().enumerate() {
                let names: usize = left_out.iter().map(|of| of.to_string().len()).sum();
                prop_assert!(message.encoded_len() + names <= MAX + 2);
                prop_assert_eq!(message.more, n < last);
                let objects = message.pods.len() + message.containers.len();
                prop_assert!(objects > 0 || out.len() == 1);
            }
            let fits = |len: usize| len <= MAX;
            let mut expected = all.clone();
            let mut left_out = Vec::new();
            for pod in expected.pods.iter_mut().filter(|p| !fits(field_len(*p))) {
                pod.name = String::new();
                left_out.push(format!("pod {}: name", pod.id));
            }
            for container in expected.containers.iter_mut().filter(|c| !fits(field_len(*c))) {
                container.env = Vec::new();
                left_out.push(format!("container {}: env", container.id));
            }
            let sent: Vec<_> = out.iter().flat_map(|c| c.message.pods.clone()).collect();
            prop_assert_eq!(sent, expected.pods);
            let sent: Vec<_> = out.iter().flat_map(|c| c.message.containers.clone()).collect();
            prop_assert_eq!(sent, expected.containers);
            let named: Vec<_> = out.iter().flat_map(|c| &c.left_out).map(ToString::to_string).collect();
            prop_assert_eq!(named, left_out);
        }
    }

    #[test]
    fn the_shapes_that_break_go_are_sent() {
        // 2 pods and 10 big containers; 1 pod and 30 containers: in Go a panic and an endless loop.
        for (pods, containers) in [(vec![10; 2], vec![9000; 10]), (vec![10], vec![3000; 30])] {
            let out = chunks(list(&pods, &containers), MAX);
            let sent: usize = out.iter().map(|c| c.message.containers.len()).sum();
            assert_eq!(sent, containers.len());
        }
    }

    #[test]
    fn an_empty_list_is_one_message() {
        assert_eq!(chunks(Snapshot::default(), MAX), [Chunk::default()]);
    }
}
