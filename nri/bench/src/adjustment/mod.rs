//! What no runtime can carry out in an adjustment. Pure.
//!
//! Removal markers (`-key`) are left alone: they name what goes.

mod known;

use std::path::Path;

use nri::{
    adjust::RLIMITS,
    owners::removal,
    proto::{
        ContainerAdjustment, Hook, IoPrioClass, LinuxContainerAdjustment, LinuxDevice,
        LinuxResources, Mount, PosixRlimit,
    },
};

use known::{NAMESPACES, SYSCTLS, is_mount_option};

/// Everything wrong, a line each.
pub(crate) fn wrong(adjust: &ContainerAdjustment) -> Vec<String> {
    let mut all = Vec::new();
    for mount in adjust.mounts.iter().filter(|m| kept(&m.destination)) {
        mount_wrong(mount, &mut all);
    }
    for env in adjust.env.iter().filter(|e| kept(&e.key)) {
        if env.key.is_empty() || env.key.contains(['=', '\0']) || env.value.contains('\0') {
            all.push(format!(
                "variable {:?}: no name, or a character that none can have",
                env.key
            ));
        }
    }
    for rlimit in &adjust.rlimits {
        rlimit_wrong(rlimit, &mut all);
    }
    for device in &adjust.cdi_devices {
        let (class, name) = device.name.split_once('=').unwrap_or_default();
        if name.is_empty() || !class.contains('/') {
            all.push(format!(
                "CDI device {:?}: must be vendor/class=name",
                device.name
            ));
        }
    }
    if let Some(hooks) = &adjust.hooks {
        let kinds = [
            &hooks.prestart,
            &hooks.create_runtime,
            &hooks.create_container,
            &hooks.start_container,
            &hooks.poststart,
            &hooks.poststop,
        ];
        for hook in kinds.into_iter().flatten() {
            hook_wrong(hook, &mut all);
        }
    }
    if let Some(linux) = &adjust.linux {
        linux_wrong(linux, &mut all);
    }
    all
}

fn kept(key: &str) -> bool {
    removal(key).is_none()
}

fn mount_wrong(mount: &Mount, all: &mut Vec<String>) {
    let at = &mount.destination;
    if !Path::new(at).is_absolute() {
        all.push(format!(
            "mount {at:?}: the destination must be an absolute path"
        ));
    }
    let binds = mount.options.iter().any(|o| o == "bind" || o == "rbind");
    if (binds || mount.r#type == "bind") && !Path::new(&mount.source).is_absolute() {
        all.push(format!(
            "mount {at:?}: the source {:?} must be an absolute path",
            mount.source
        ));
    }
    let unknown = |o: &&String| !o.contains('=') && !is_mount_option(o);
    for option in mount.options.iter().filter(unknown) {
        all.push(format!("mount {at:?}: option {option:?} is not known"));
    }
    for (one, other) in [
        ("ro", "rw"),
        ("bind", "rbind"),
        ("exec", "noexec"),
        ("suid", "nosuid"),
        ("dev", "nodev"),
    ] {
        let has = |option: &str| mount.options.iter().any(|o| o == option);
        if has(one) && has(other) {
            all.push(format!(
                "mount {at:?}: options {one:?} and {other:?} exclude each other"
            ));
        }
    }
}

fn rlimit_wrong(rlimit: &PosixRlimit, all: &mut Vec<String>) {
    let name = &rlimit.r#type;
    let known = name
        .strip_prefix("RLIMIT_")
        .is_some_and(|n| RLIMITS.contains(&n));
    if !known {
        all.push(format!(
            "rlimit {name:?}: must be RLIMIT_NOFILE or another of that form"
        ));
    }
    if rlimit.soft > rlimit.hard {
        all.push(format!(
            "rlimit {name:?}: soft {} is more than hard {}",
            rlimit.soft, rlimit.hard
        ));
    }
}

fn hook_wrong(hook: &Hook, all: &mut Vec<String>) {
    if !Path::new(&hook.path).is_absolute() {
        all.push(format!("hook {:?}: must be an absolute path", hook.path));
    }
    if hook.timeout.as_ref().is_some_and(|t| t.value <= 0) {
        all.push(format!(
            "hook {:?}: the timeout must be more than 0",
            hook.path
        ));
    }
}

fn linux_wrong(linux: &LinuxContainerAdjustment, all: &mut Vec<String>) {
    for device in linux.devices.iter().filter(|d| kept(&d.path)) {
        device_wrong(device, all);
    }
    for namespace in linux.namespaces.iter().filter(|n| kept(&n.r#type)) {
        if !NAMESPACES.contains(&namespace.r#type.as_str()) {
            all.push(format!("namespace {:?}: no such type", namespace.r#type));
        }
        if !namespace.path.is_empty() && !Path::new(&namespace.path).is_absolute() {
            all.push(format!(
                "namespace {:?}: {:?} must be an absolute path",
                namespace.r#type, namespace.path
            ));
        }
    }
    for key in linux.sysctl.keys().filter(|k| kept(k)) {
        if !SYSCTLS.iter().any(|start| key.starts_with(start)) {
            all.push(format!(
                "sysctl {key:?}: belongs to no namespace: it would change the host"
            ));
        }
    }
    if let Some(score) = linux.oom_score_adj.as_ref().map(|s| s.value)
        && !(-1000..=1000).contains(&score)
    {
        all.push(format!("oom_score_adj {score}: must be from -1000 to 1000"));
    }
    if let Some(io) = &linux.io_priority
        && io.class != IoPrioClass::IoprioClassNone as i32
        && !(0..=7).contains(&io.priority)
    {
        all.push(format!("io_priority {}: must be from 0 to 7", io.priority));
    }
    if let Some(resources) = &linux.resources {
        all.extend(resources_wrong(resources));
    }
}

fn device_wrong(device: &LinuxDevice, all: &mut Vec<String>) {
    if !Path::new(&device.path).is_absolute() {
        all.push(format!(
            "device {:?}: must be an absolute path",
            device.path
        ));
    }
    if !["b", "c", "u", "p"].contains(&device.r#type.as_str()) {
        all.push(format!(
            "device {:?}: type {:?} must be b, c, u or p",
            device.path, device.r#type
        ));
    }
}

/// What is wrong with resources, of an adjustment or an update.
pub(crate) fn resources_wrong(resources: &LinuxResources) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(memory) = &resources.memory {
        let limits = [
            ("limit", &memory.limit),
            ("reservation", &memory.reservation),
            ("swap", &memory.swap),
        ];
        for (name, limit) in limits {
            if let Some(value) = limit.as_ref().map(|l| l.value)
                && value < -1
            {
                all.push(format!("memory {name} {value}: must be -1 or more"));
            }
        }
    }
    if let Some(cpu) = &resources.cpu {
        for (name, list) in [("cpus", &cpu.cpus), ("mems", &cpu.mems)] {
            if !is_list(list) {
                all.push(format!("cpu {name} {list:?}: must be a list such as 0-3,7"));
            }
        }
    }
    for limit in &resources.hugepage_limits {
        let size = limit
            .page_size
            .trim_start_matches(|c: char| c.is_ascii_digit());
        if size == limit.page_size || !["KB", "MB", "GB"].contains(&size) {
            all.push(format!(
                "hugepage limit {:?}: must be such as 2MB",
                limit.page_size
            ));
        }
    }
    for key in resources.unified.keys() {
        if !key.contains('.') || key.contains('/') {
            all.push(format!(
                "unified {key:?}: must be a file of a cgroup, such as memory.high"
            ));
        }
    }
    all
}

/// `0-3,7`, as the kernel reads lists.
fn is_list(list: &str) -> bool {
    let number = |text: &str| text.parse::<u32>().ok();
    list.is_empty()
        || list.split(',').all(|range| match range.split_once('-') {
            Some((from, to)) => matches!((number(from), number(to)), (Some(a), Some(b)) if a <= b),
            None => number(range).is_some(),
        })
}

#[cfg(test)]
mod tests {
    use nri::adjust::{Adjust, SetResources};

    use super::*;

    fn of(change: impl FnOnce(&mut ContainerAdjustment)) -> Vec<String> {
        let mut adjust = ContainerAdjustment::default();
        change(&mut adjust);
        wrong(&adjust)
    }

    fn mount(destination: &str, source: &str, options: &[&str]) -> Mount {
        Mount {
            destination: destination.into(),
            source: source.into(),
            r#type: "bind".into(),
            options: options.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_sound_adjustment_is_let_through() {
        let all = of(|adjust| {
            adjust
                .mounts
                .push(mount("/a", "/b", &["rbind", "ro", "rprivate"]));
            adjust.mounts.push(mount("-/gone", "", &[]));
            adjust.add_env("A", "1").memory_limit(-1);
            adjust.add_rlimit("RLIMIT_NOFILE", 10, 5);
        });
        assert_eq!(all, Vec::<String>::new());
    }

    #[test]
    fn what_no_runtime_can_do_is_named() {
        let all = of(|adjust| {
            adjust
                .mounts
                .push(mount("relative", "b", &["ro", "rw", "readonly"]));
            adjust.add_rlimit("NOFILE", 1, 5);
            adjust.env.push(nri::proto::KeyValue {
                key: "A=B".into(),
                value: String::new(),
            });
            adjust
                .linux
                .get_or_insert_default()
                .sysctl
                .insert("vm.swappiness".into(), "1".into());
            let resources = adjust
                .linux
                .get_or_insert_default()
                .resources
                .get_or_insert_default();
            resources.cpu.get_or_insert_default().cpus = "3-1".into();
        });
        for part in [
            "\"relative\": the destination",
            "the source \"b\"",
            "\"readonly\" is not known",
            "\"ro\" and \"rw\" exclude",
            "rlimit \"NOFILE\": must be",
            "soft 5 is more than hard 1",
            "variable \"A=B\"",
            "sysctl \"vm.swappiness\"",
            "cpus \"3-1\"",
        ] {
            assert!(
                all.iter().any(|line| line.contains(part)),
                "{part} is not in {all:#?}"
            );
        }
        assert_eq!(all.len(), 9, "{all:#?}");
    }
}
