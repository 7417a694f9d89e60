//! UpdateContainerResources (CRI-137).

use nri::Requester;
use proto_cri::v1 as cri;
use proto_nri::LinuxResources;
use std::sync::Arc;

use super::{
    error::{AtStep as _, Error, Result},
    event_log,
    pods::Pods,
    resources, side_effects,
    state::{Container, Pod},
};
use crate::{
    fault, oci,
    trace::{Action, Values},
};

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
    let until = resources::deadline();
    side_effects::apply(cx, pod, container, &answer.others, until).await;
    let own = answer.own.take();
    let (nri, plugins) = own.map(|own| (own.resources, own.plugins)).unzip();
    let ended = recorded(
        cx,
        pod,
        container,
        wanted,
        nri.clone(),
        Arc::clone(&answer.others.by),
    );
    let written = resources::write(
        &cx.node,
        container,
        Some(wanted),
        nri.as_ref(),
        resources::deadline(),
        ended,
    );
    let written = written.await;
    // The turn ends when the update is applied.
    drop(answer);
    written.map_err(|error| match plugins {
        Some(by) => error.at(&format!("{what}, with values of {}", by.join(", "))),
        None => error.at(&what),
    })?;
    hooks.post_update_container(pod, container).await;
    Ok(())
}

/// Records the changes of the request, if possible, and the plugins' changes to the request, when
/// both are written.
fn recorded(
    cx: &Pods,
    pod: &Pod,
    container: &Container,
    request: &cri::LinuxContainerResources,
    merged: Option<LinuxResources>,
    by: Arc<Requester>,
) -> impl FnOnce(Option<&LinuxResources>, &Result<()>) + Send + use<> {
    let subject = event_log::subject(pod, Some(container));
    let (log, id) = (cx.notices.log.clone(), container.id.clone());
    let requested = oci::cri_to_nri(request);
    move |before, result| {
        if result.is_ok() {
            let values = Values::of_update(before, &requested, |_, _| true);
            log.record(subject.clone(), Action::Updated { values });
        }
        if let Some(merged) = merged {
            let mut before = before.cloned().unwrap_or_default();
            nri::merge::overlay(&mut before, requested);
            let error = result.as_ref().err().map(|error| error.text.as_str());
            for plugin in by.of_update(&id) {
                let is_theirs = |field, key: Option<&str>| by.has_set(&plugin, &id, field, key);
                let values = Values::of_update(Some(&before), &merged, is_theirs);
                side_effects::updated(&log, by.call, &plugin, &subject, (&id, values), error);
            }
        }
    }
}
