//! Finds invalid parts of an adjustment. Pure, except for a check whether a namespace's path
//! exists.
//!
//! Removal markers (`-key`) are ignored: they name removed entries.

mod host;
mod known;

use std::path::Path;

use nri::{
    adjust::RLIMITS,
    owners::removal,
    proto::{
        Container, ContainerAdjustment, Hook, IoPrioClass, LinuxContainerAdjustment, LinuxDevice,
        LinuxResources, Mount, PodSandbox, PosixRlimit,
    },
};

pub(crate) use host::Host;
use host::{is_within, ranges};
use known::{NAMESPACES, SYSCTLS, is_mount_option};

/// Minimum memory of a process: CRI-O rejects less than 500 KiB for crun, and than 12 MiB for runc.
const LEAST_MEMORY: i64 = 500 << 10;

/// All errors, one per line. `namespaces`: existing paths, from [`namespaces_of`].
pub(crate) fn wrong(
    adjust: &ContainerAdjustment,
    host: &Host,
    namespaces: &[String],
) -> Vec<String> {
    let mut all = Vec::new();
    for mount in adjust.mounts.iter().filter(|m| kept(&m.destination)) {
        mount_wrong(mount, &mut all);
    }
    for env in adjust.env.iter().filter(|e| kept(&e.key)) {
        if env.key.is_empty() || env.key.contains(['=', '\0']) || env.value.contains('\0') {
            all.push(nameless(&env.key));
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
        linux_wrong(linux, host, namespaces, &mut all);
    }
    all
}

/// A variable whose key or value no process can have.
pub(crate) fn nameless(key: &str) -> String {
    format!("variable {key:?}: no name, or a character that none can have")
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
    if mount.r#type.is_empty() && !binds {
        all.push(format!(
            "mount {at:?}: needs a type, or the option bind or rbind"
        ));
    }
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

fn linux_wrong(
    linux: &LinuxContainerAdjustment,
    host: &Host,
    namespaces: &[String],
    all: &mut Vec<String>,
) {
    for device in linux.devices.iter().filter(|d| kept(&d.path)) {
        device_wrong(device, all);
    }
    for namespace in linux.namespaces.iter().filter(|n| kept(&n.r#type)) {
        if !NAMESPACES.contains(&namespace.r#type.as_str()) {
            all.push(format!("namespace {:?}: no such type", namespace.r#type));
        }
        let path = Path::new(&namespace.path);
        if !namespace.path.is_empty() && !path.is_absolute() {
            all.push(format!(
                "namespace {:?}: {path:?} must be an absolute path",
                namespace.r#type
            ));
        } else if !namespaces.contains(&namespace.path)
            && !namespace.path.is_empty()
            && !path.exists()
        {
            all.push(format!(
                "namespace {:?}: {path:?} is neither on this host nor in the pod",
                namespace.r#type
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
        all.extend(resources_wrong(resources, host));
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

/// Errors of resources, of an adjustment or an update.
pub(crate) fn resources_wrong(resources: &LinuxResources, host: &Host) -> Vec<String> {
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
        if let Some(limit) = memory.limit.as_ref().map(|l| l.value)
            && (1..LEAST_MEMORY).contains(&limit)
        {
            all.push(format!(
                "memory limit {limit}: no process starts with less than {LEAST_MEMORY}"
            ));
        }
    }
    if let Some(cpu) = &resources.cpu {
        // 0 is unset; a quota below 0 is unlimited. The kernel takes from 1 ms to 1 s.
        if let Some(period) = cpu.period.as_ref().map(|p| p.value)
            && period != 0
            && !(1000..=1_000_000).contains(&period)
        {
            all.push(format!(
                "cpu period {period}: must be from 1000 to 1000000 microseconds"
            ));
        }
        if let Some(quota) = cpu.quota.as_ref().map(|q| q.value)
            && (1..1000).contains(&quota)
        {
            all.push(format!(
                "cpu quota {quota}: must be 1000 microseconds or more"
            ));
        }
        let lists = [
            ("cpus", &cpu.cpus, &host.cpus),
            ("mems", &cpu.mems, &host.mems),
        ];
        for (name, list, there) in lists {
            if !is_list(list) {
                all.push(format!("cpu {name} {list:?}: must be a list such as 0-3,7"));
            } else if let Some(there) = there
                && !list.is_empty()
                && !is_within(list, there)
            {
                all.push(format!("cpu {name} {list:?}: the host has {there}"));
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

/// Whether it is a list such as `0-3,7`, or empty.
pub(crate) fn is_list(list: &str) -> bool {
    list.is_empty() || ranges(list).is_some()
}

/// Paths of namespaces that the runtime itself sends to plugins: these exist.
pub(crate) fn namespaces_of(pod: Option<&PodSandbox>, container: &Container) -> Vec<String> {
    let of_pod = pod
        .and_then(|pod| pod.linux.as_ref())
        .map(|l| &l.namespaces);
    let of_container = container.linux.as_ref().map(|l| &l.namespaces);
    let all = of_pod.into_iter().chain(of_container).flatten();
    all.map(|namespace| namespace.path.clone()).collect()
}

#[cfg(test)]
mod tests {
    use nri::adjust::{Adjust, SetResources};

    use super::*;

    fn of(change: impl FnOnce(&mut ContainerAdjustment)) -> Vec<String> {
        let mut adjust = ContainerAdjustment::default();
        change(&mut adjust);
        let host = Host {
            cpus: Some("0-1,4".to_owned()),
            mems: None,
        };
        wrong(&adjust, &host, &["/run/netns/of-the-pod".to_owned()])
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
            adjust.cpuset_cpus("1,4").cpuset_mems("7");
            add_namespace(adjust, "/run/netns/of-the-pod");
            add_namespace(adjust, "/proc/self/ns/net");
        });
        assert_eq!(all, Vec::<String>::new());
    }

    fn add_namespace(adjust: &mut ContainerAdjustment, path: &str) {
        let namespaces = &mut adjust.linux.get_or_insert_default().namespaces;
        namespaces.push(nri::proto::LinuxNamespace {
            r#type: "network".into(),
            path: path.into(),
        });
    }

    #[test]
    fn what_this_host_cannot_do_is_named() {
        for (all, part) in [
            (
                of(|a| _ = a.cpuset_cpus("0-4")),
                "cpus \"0-4\": the host has 0-1,4",
            ),
            (of(|a| _ = a.cpuset_cpus("64-65")), "the host has 0-1,4"),
            (of(|a| _ = a.memory_limit(4096)), "memory limit 4096"),
            (
                of(|a| add_namespace(a, "/run/netns/nope")),
                "\"/run/netns/nope\" is neither on this host nor in the pod",
            ),
            (of(|a| _ = a.add_env("", "x")), "variable \"\": no name"),
        ] {
            assert_eq!(all.len(), 1, "{all:?}");
            assert!(all[0].contains(part), "{part} is not in {all:?}");
        }
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
            adjust.cpu_quota(1).cpu_period(5);
            adjust.mounts.push(Mount {
                destination: "/typeless".into(),
                source: "/a".into(),
                ..Mount::default()
            });
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
            "cpu quota 1:",
            "cpu period 5:",
            "\"/typeless\": needs a type",
        ] {
            assert!(
                all.iter().any(|line| line.contains(part)),
                "{part} is not in {all:#?}"
            );
        }
        assert_eq!(all.len(), 12, "{all:#?}");
    }
}
