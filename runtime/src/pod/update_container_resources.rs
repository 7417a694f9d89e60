//! UpdateContainerResources (CRI-137).

use proto_cri::v1 as cri;
use std::sync::Arc;

use super::{
    error::{AtStep as _, Error, Result},
    pods::Pods,
    resources, side_effects,
    state::{Container, Pod},
};
use crate::{fault, trace::Action};

/// # Errors
/// A plugin's veto, or the first value that could not be applied, with the plugins that set values;
/// the old values then stay.
pub async fn run(
    cx: &Pods,
    pod: &Pod,
    container: &Arc<Container>,
    request: &cri::UpdateContainerResourcesRequest,
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
        .as_ref()
        .ok_or_else(|| Error::invalid(format!("{what}: linux is missing")))?;
    fault::pass("container.update.hook").await.step(&what)?;
    let hooks = &cx.notices.hooks;
    let answer = hooks.update_container(pod, container, wanted).await;
    let mut answer = answer.map_err(|error| error.at(&what))?;
    side_effects::apply(cx, pod, container, &answer.others).await;
    let own = answer.own.take();
    let (nri, plugins) = own.map(|own| (own.resources, own.plugins)).unzip();
    let written = resources::write(&cx.node, container, Some(wanted), nri.as_ref()).await;
    // The turn ends when the update is applied.
    drop(answer);
    written.map_err(|error| match plugins {
        Some(by) => error.at(&format!("{what}, with values of {}", by.join(", "))),
        None => error.at(&what),
    })?;
    cx.notices.became(pod, Some(container), Action::Updated);
    hooks.post_update_container(pod, container).await;
    Ok(())
}
