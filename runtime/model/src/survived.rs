//! Whether what the daemon has answered survives it.

use cairn::pod::{
    record::{ContainerPhase, ContainerRecord},
    registry::Registry,
};

use crate::{acknowledged::Known, memory::Memory, rule::Rule, values::number_of};

impl Memory {
    /// After a kill, or a power cut, and the recovery from it.
    pub(crate) fn check_acknowledged(&self, registry: &Registry) {
        let known = self.0.lock().acknowledged.0.clone();
        for (id, known) in &known {
            let pod = registry.any(id);
            let found = registry.all().into_iter().find_map(|pod| pod.container(id));
            let fault = |what: &str| self.fault(Rule::PowerCut, format!("{id}: {what}"));
            match (known, &pod, &found) {
                (Known { removed: true, .. }, None, None) => {}
                (Known { removed: true, .. }, ..) => fault("is back after its removal"),
                (Known { removing: true, .. }, ..) | (Known { made: false, .. }, ..) => {}
                (_, None, None) => fault("is lost"),
                (_, _, Some(container)) => self.check_kept(id, known, &container.cell.get()),
                (_, Some(_), None) => {}
            }
        }
    }

    fn check_kept(&self, id: &str, known: &Known, record: &ContainerRecord) {
        let fault = |what: String| self.fault(Rule::PowerCut, format!("{id}: {what}"));
        if known.started && record.phase == ContainerPhase::Created {
            fault(format!("was started, and is {:?}", record.phase));
        }
        let recorded = (record.exit.code, record.exit.reason.clone());
        if let Some(stopped) = &known.stopped
            && *stopped != recorded
        {
            fault(format!(
                "was stopped with {stopped:?}, and has {recorded:?}"
            ));
        }
        let linux = &record.resources;
        let value = number_of(linux.memory_limit_in_bytes, linux.cpu_quota);
        let inner = self.0.lock();
        if let Ok(number) = value
            && !inner.values.allow(id, number)
        {
            let known = inner.values.acknowledged(id);
            drop(inner);
            fault(format!(
                "has the values of {number}; acknowledged: {known:?}"
            ));
        }
    }
}
