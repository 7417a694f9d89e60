//! The daemon's answers to clients, which must survive a power cut.

use std::collections::BTreeMap;

/// The acknowledged part of an object's life.
#[derive(Debug, Default, Clone)]
pub(crate) struct Known {
    pub made: bool,
    pub started: bool,
    /// The recorded code and reason.
    pub stopped: Option<(i32, String)>,
    /// A removal has begun, of it or of its pod.
    pub removing: bool,
    pub removed: bool,
    pub pod: String,
}

/// By id of a pod or a container.
#[derive(Default)]
pub(crate) struct Acknowledged(pub(crate) BTreeMap<String, Known>);

impl Acknowledged {
    pub(crate) fn of(&mut self, id: &str) -> &mut Known {
        self.0.entry(id.to_owned()).or_default()
    }

    /// A removal of a pod begins or is acknowledged, with its containers.
    pub(crate) fn of_pod(&mut self, pod: &str, mut each: impl FnMut(&mut Known)) {
        let of = |(id, known): &(&String, &mut Known)| *id == pod || known.pod == pod;
        let all = self.0.iter_mut().filter(of);
        all.for_each(|(_, known)| each(known));
    }
}
