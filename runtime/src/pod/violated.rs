//! What plugins are sent and what of their answers counts, as `cairn serve --violate` breaks it; without the feature
//! `fault` each is what it was.

use std::net::IpAddr;

use proto_nri::{Container, ContainerAdjustment, PodSandbox};

use super::side_effects::SideEffects;
use crate::violate;

/// C-01's message.
pub(super) fn run(mut message: PodSandbox) -> PodSandbox {
    if violate::is("run-without-ips") {
        message.ips.clear();
    }
    if violate::is("run-with-wrong-pid") {
        // Above every pid that a kernel gives, so that it is nobody's.
        message.pid = message.pid.wrapping_add(1 << 22);
    }
    if let Some(linux) = &mut message.linux {
        if violate::is("run-without-namespaces") {
            linux.namespaces.clear();
        }
        if violate::is("run-without-cgroup") {
            linux.cgroup_parent.clear();
        }
    }
    message
}

/// What C-01 brought.
pub(super) fn addresses(ips: Vec<IpAddr>) -> Vec<IpAddr> {
    match violate::is("run-drops-addresses") {
        true => Vec::new(),
        false => ips,
    }
}

/// C-03's message.
pub(super) fn remove(mut message: PodSandbox) -> PodSandbox {
    if violate::is("remove-without-labels") {
        message.labels.clear();
        message.annotations.clear();
    }
    if violate::is("remove-with-gone-paths")
        && let Some(linux) = &mut message.linux
    {
        linux.namespaces.push(proto_nri::LinuxNamespace {
            r#type: "network".into(),
            path: format!("/run/netns/{}", message.id),
        });
    }
    message
}

/// C-06's message.
pub(super) fn start(mut message: Container) -> Container {
    if violate::is("start-without-pid") {
        message.pid = 0;
    }
    message
}

/// What of an adjustment reaches the container.
pub(super) fn adjustment(mut adjust: ContainerAdjustment) -> ContainerAdjustment {
    if violate::is("adjust-drops-env") {
        adjust.env.clear();
    }
    if violate::is("adjust-drops-mounts") {
        adjust.mounts.clear();
    }
    if violate::is("adjust-drops-rlimits") {
        adjust.rlimits.clear();
    }
    if violate::is("adjust-drops-hooks") {
        adjust.hooks = None;
    }
    let resources = adjust.linux.as_mut().and_then(|l| l.resources.as_mut());
    if violate::is("adjust-drops-memory-limit")
        && let Some(memory) = resources.and_then(|r| r.memory.as_mut())
    {
        memory.limit = None;
    }
    adjust
}

/// What C-04's answers want of other containers.
pub(super) fn others_at_create(mut others: SideEffects) -> SideEffects {
    if violate::is("create-updates-dropped") {
        others.updates.clear();
    }
    if violate::is("create-evictions-dropped") {
        others.evictions.clear();
    }
    others
}
