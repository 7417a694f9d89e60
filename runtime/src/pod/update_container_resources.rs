//! UpdateContainerResources (CRI-137).

use proto_cri::v1 as cri;
use std::sync::Arc;

use super::{
    error::{AtStep as _, Error, Result},
    event_log::did,
    hooks::Hooks,
    side_effects::Others,
    state::{Container, Pod},
};
use crate::{
    fault,
    trace::{Action, EventLog},
};

pub struct UpdateContainerResources {
    pub hooks: Arc<Hooks>,
    pub others: Others,
    pub log: EventLog,
}

impl UpdateContainerResources {
    /// # Errors
    /// A plugin's refusal, or the first value that could not be applied, with the plugins that set values; the old values
    /// hold then.
    pub async fn run(
        &self,
        pod: &Pod,
        container: &Arc<Container>,
        request: cri::UpdateContainerResourcesRequest,
    ) -> Result<()> {
        let what = format!("container {}: update resources", container.id);
        if request.windows.is_some() {
            return Err(Error::invalid(format!(
                "{what}: windows: this is a Linux runtime"
            )));
        }
        if !request.annotations.is_empty() {
            return Err(Error::invalid(format!(
                "{what}: annotations: cairn changes no resource by an annotation"
            )));
        }
        let wanted = request
            .linux
            .ok_or_else(|| Error::invalid(format!("{what}: linux is missing")))?;
        fault::pass("container.update.hook").await.step(&what)?;
        let answer = self.hooks.update_container(pod, container, &wanted).await;
        let mut answer = answer.map_err(|error| error.at(&what))?;
        let others = (&self.others, &answer.others);
        self.hooks.carry_out(pod, container, others).await;
        let own = answer.own.take();
        let (nri, plugins) = own.map(|own| (own.resources, own.plugins)).unzip();
        let resources = &self.others.resources;
        let written = resources.write(container, Some(&wanted), nri.as_ref());
        let written = written.await;
        // The turn ends when the update is applied.
        drop(answer);
        written.map_err(|error| match plugins {
            Some(by) => error.at(&format!("{what}, with values of {}", by.join(", "))),
            None => error.at(&what),
        })?;
        did(&self.log, pod, Some(container), Action::Updated);
        self.hooks.post_update_container(pod, container).await;
        Ok(())
    }
}
