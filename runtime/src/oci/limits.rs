//! Merges requested limits into those of a spec (CRI-230 to CRI-232, NRI-706). Limits of CRI are
//! converted to NRI's form first.
//!
//! Zero and absent both keep the old value. Some plugins send the zeros of CRI back (NRI-1231).

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
};

use ::nri::place::path;
use oci_spec::runtime::{
    LinuxCpu, LinuxDeviceCgroup, LinuxDeviceType, LinuxHugepageLimit, LinuxMemory, LinuxPids,
    LinuxResources, Spec,
};
use proto_nri::{self as nri, Field};

use super::{
    devices::rule,
    error::{SpecError, Subject},
    facts::{ApplyContext, HostFacts},
};

/// The least memory of a container. In trials one starts with 512 KiB at times and with 704 KiB
/// always, with and without a seccomp profile, masks and a joined PID namespace.
pub const LEAST_MEMORY: i64 = 1 << 20;
/// Periods of CPU time that the kernel accepts, and the least quota, in microseconds.
const PERIODS: RangeInclusive<u64> = 1_000..=1_000_000;
const LEAST_QUOTA: i64 = 1_000;
/// The longest list of processors or nodes for a cgroup, in bytes.
const LIST_MAX: usize = 4096;

/// The requester of limits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Requester {
    Cri,
    /// A plugin's update of an existing container.
    Update,
    /// A plugin's adjustment of a new container.
    Adjustment,
}

impl Requester {
    fn prefix(self) -> &'static str {
        match self {
            Self::Cri => "",
            Self::Update => "update.",
            Self::Adjustment => "adjust.",
        }
    }

    /// The field by the requester's name.
    fn subject(self, field: Field, key: Option<&str>) -> Subject {
        let of_cri = match field {
            Field::CpuShares => "cpu_shares",
            Field::CpuQuota => "cpu_quota",
            Field::CpuPeriod => "cpu_period",
            Field::CpuSetCpUs => "cpuset_cpus",
            Field::CpuSetMems => "cpuset_mems",
            Field::MemLimit => "memory_limit_in_bytes",
            Field::MemSwapLimit => "memory_swap_limit_in_bytes",
            _ => "",
        };
        match (self, of_cri) {
            (Self::Adjustment, _) => (field, key).into(),
            (Self::Cri, name) if !name.is_empty() => format!("linux.resources.{name}").into(),
            (Self::Cri | Self::Update, _) => {
                format!("{}{}", self.prefix(), path(field, key)).into()
            }
        }
    }

    fn invalid(self, field: Field, cause: String) -> SpecError {
        SpecError::invalid(self.subject(field, None), cause)
    }

    pub(super) fn out_of_range(self, field: Field, value: i64) -> SpecError {
        self.invalid(field, format!("{value} is out of range"))
    }
}

/// The limits of a spec, if any.
pub fn current(spec: &Spec) -> Option<&LinuxResources> {
    spec.linux().as_ref()?.resources().as_ref()
}

/// Merges everything but the classes.
pub(super) fn merge(
    resources: &mut LinuxResources,
    asked: &nri::LinuxResources,
    context: &ApplyContext<'_>,
    by: Requester,
) -> Result<(), SpecError> {
    let host = context.host;
    if let Some(asked) = &asked.cpu {
        let mut cpu = resources.cpu().clone().unwrap_or_default();
        merge_cpu(&mut cpu, asked, context, by)?;
        resources.set_cpu(Some(cpu).filter(|c| *c != LinuxCpu::default()));
    }
    if let Some(asked) = &asked.memory {
        let mut memory = (*resources.memory()).unwrap_or_default();
        merge_memory(&mut memory, asked, host, by)?;
        resources.set_memory(Some(memory).filter(|m| *m != LinuxMemory::default()));
    }
    put_hugepages(resources, &asked.hugepage_limits, context, by)?;
    put_unified(resources, &asked.unified, context, by)?;
    match asked.pids.as_ref().map(|p| p.limit) {
        None => {}
        Some(limit) if limit < 0 => {
            resources.set_pids(None);
        }
        Some(limit) => {
            let mut pids = LinuxPids::default();
            pids.set_limit(limit);
            resources.set_pids(Some(pids));
        }
    }
    for asked in &asked.devices {
        let wrong =
            |cause| SpecError::invalid(format!("{}linux.resources.devices", by.prefix()), cause);
        let rule = device_rule(asked).map_err(wrong)?;
        resources.devices_mut().get_or_insert_default().push(rule);
    }
    Ok(())
}

fn merge_cpu(
    cpu: &mut LinuxCpu,
    asked: &nri::LinuxCpu,
    context: &ApplyContext<'_>,
    by: Requester,
) -> Result<(), SpecError> {
    let number = |value: &Option<nri::OptionalUInt64>| {
        let value = value.as_ref().map(|v| v.value);
        value.filter(|v| *v != 0)
    };
    let runtime = asked.realtime_runtime.as_ref().map(|v| v.value);
    let runtime = runtime.filter(|v| *v != 0);
    let quota = limit_of(&asked.quota, by, Field::CpuQuota)?;
    let period = number(&asked.period);
    check_bandwidth(quota, period, by)?;
    let check = |list: &str, field: Field, check: ListCheck| match list {
        "" => Ok(None),
        list => check(list, context)
            .map(Some)
            .map_err(|cause| by.invalid(field, cause)),
    };
    let cpus = check(&asked.cpus, Field::CpuSetCpUs, cpus_of)?;
    let mems = check(&asked.mems, Field::CpuSetMems, nodes_of)?;
    cpu.set_shares(number(&asked.shares).or(cpu.shares()));
    cpu.set_period(period.or(cpu.period()));
    cpu.set_quota(quota.or(cpu.quota()));
    cpu.set_realtime_runtime(runtime.or(cpu.realtime_runtime()));
    cpu.set_realtime_period(number(&asked.realtime_period).or(cpu.realtime_period()));
    cpu.set_cpus(cpus.or(cpu.cpus().clone()));
    cpu.set_mems(mems.or(cpu.mems().clone()));
    Ok(())
}

/// Swap is the total of memory and swap. Without its own value it equals the memory limit (no swap)
/// and follows it in an update; an adjustment's memory limit replaces a swap limit.
fn merge_memory(
    memory: &mut LinuxMemory,
    asked: &nri::LinuxMemory,
    host: &HostFacts,
    by: Requester,
) -> Result<(), SpecError> {
    let limit = limit_of(&asked.limit, by, Field::MemLimit)?;
    if let Some(cause) = limit.and_then(too_little_memory) {
        return Err(by.invalid(Field::MemLimit, cause));
    }
    let swap = limit_of(&asked.swap, by, Field::MemSwapLimit)?;
    let reservation = limit_of(&asked.reservation, by, Field::MemReservation)?;
    let kernel = limit_of(&asked.kernel, by, Field::MemKernelLimit)?;
    let kernel_tcp = limit_of(&asked.kernel_tcp, by, Field::MemTcpLimit)?;
    let swappiness = asked.swappiness.as_ref().map(|v| v.value);
    if let Some(above) = swappiness.filter(|v| *v > 200) {
        return Err(by.invalid(Field::MemSwappiness, format!("{above} is above 200")));
    }
    let flag = |value: &Option<nri::OptionalBool>| value.as_ref().map(|v| v.value);
    let followed = memory.swap().is_none() || memory.swap() == memory.limit();
    let follows = limit.filter(|_| host.swap && (followed || by == Requester::Adjustment));
    memory.set_limit(limit.or(memory.limit()));
    memory.set_swap(swap.or(follows).or(memory.swap()));
    memory.set_reservation(reservation.or(memory.reservation()));
    memory.set_kernel(kernel.or(memory.kernel()));
    memory.set_kernel_tcp(kernel_tcp.or(memory.kernel_tcp()));
    memory.set_swappiness(swappiness.or(memory.swappiness()));
    memory.set_disable_oom_killer(flag(&asked.disable_oom_killer).or(memory.disable_oom_killer()));
    memory.set_use_hierarchy(flag(&asked.use_hierarchy).or(memory.use_hierarchy()));
    match (memory.limit(), memory.swap()) {
        (Some(limit), Some(swap)) if swap != -1 && (limit == -1 || limit > swap) => {
            let cause = format!(
                "{swap} is below the memory limit {limit}, but counts memory and swap together"
            );
            Err(by.invalid(Field::MemSwapLimit, cause))
        }
        _ => Ok(()),
    }
}

fn too_little_memory(limit: i64) -> Option<String> {
    (0..LEAST_MEMORY).contains(&limit).then(|| {
        format!("{limit} is below the {LEAST_MEMORY} bytes that a container takes to start")
    })
}

/// The limit, if present and not zero; -1 means unlimited.
fn limit_of(
    value: &Option<nri::OptionalInt64>,
    by: Requester,
    field: Field,
) -> Result<Option<i64>, SpecError> {
    match value.as_ref().map_or(0, |v| v.value) {
        0 => Ok(None),
        value if value < -1 => Err(by.invalid(field, format!("{value} must be -1 or more"))),
        value => Ok(Some(value)),
    }
}

fn check_bandwidth(
    quota: Option<i64>,
    period: Option<u64>,
    by: Requester,
) -> Result<(), SpecError> {
    if let Some(cause) = period.and_then(wrong_period) {
        return Err(by.invalid(Field::CpuPeriod, cause));
    }
    match quota.and_then(wrong_quota) {
        None => Ok(()),
        Some(cause) => Err(by.invalid(Field::CpuQuota, cause)),
    }
}

fn wrong_period(period: u64) -> Option<String> {
    let (least, most) = (PERIODS.start(), PERIODS.end());
    (!PERIODS.contains(&period))
        .then(|| format!("{period} is out of range ({least} to {most} microseconds)"))
}

fn wrong_quota(quota: i64) -> Option<String> {
    let is_wrong = (0..LEAST_QUOTA).contains(&quota);
    is_wrong.then(|| format!("{quota} is below {LEAST_QUOTA} microseconds"))
}

type ListCheck = fn(&str, &ApplyContext<'_>) -> Result<String, String>;

/// The list, if all of its processors are online.
fn cpus_of(text: &str, context: &ApplyContext<'_>) -> Result<String, String> {
    among(text, &context.view.online_cpus(), "CPU", "online are")
}

/// The list, if all of its nodes have memory.
pub(super) fn nodes_of(text: &str, context: &ApplyContext<'_>) -> Result<String, String> {
    among(text, &context.view.memory_nodes(), "memory node", "it has")
}

/// Checks `text` against `there`, the kernel's list; if that is empty, the kernel decides.
fn among(text: &str, there: &str, what: &str, which: &str) -> Result<String, String> {
    let list = text.trim();
    if list.len() > LIST_MAX {
        return Err(format!("a list longer than {LIST_MAX} bytes"));
    }
    let asked = ranges(list).ok_or_else(|| format!("invalid list {text:?} (example: 0-3,7)"))?;
    let there = there.trim();
    let Some(known) = ranges(there) else {
        return Ok(list.to_owned());
    };
    let is_there = |number: &u32| known.iter().any(|range| range.contains(number));
    match asked.into_iter().flatten().find(|number| !is_there(number)) {
        None => Ok(list.to_owned()),
        Some(number) => Err(format!(
            "{list:?}: this host has no {what} {number} ({which} {there})"
        )),
    }
}

/// A list such as `0-3,7`; `None` if invalid.
fn ranges(list: &str) -> Option<Vec<RangeInclusive<u32>>> {
    let number = |part: &str| part.parse::<u32>().ok().filter(|_| part.len() <= 6);
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let range = number(first)?..=number(last)?;
        (!range.is_empty()).then_some(range)
    };
    list.split(',').map(range).collect()
}

/// Sets limits by page size. Without the controller they are ignored (CRI-231).
fn put_hugepages(
    resources: &mut LinuxResources,
    limits: &[nri::HugepageLimit],
    context: &ApplyContext<'_>,
    by: Requester,
) -> Result<(), SpecError> {
    if limits.is_empty() || !context.host.hugetlb {
        return Ok(());
    }
    let mut list = resources.hugepage_limits().clone().unwrap_or_default();
    for limit in limits {
        put_hugepage(&mut list, limit, by)?;
    }
    resources.set_hugepage_limits(Some(list));
    Ok(())
}

/// Sets the limit of a page size, replacing an earlier one.
fn put_hugepage(
    list: &mut Vec<LinuxHugepageLimit>,
    asked: &nri::HugepageLimit,
    by: Requester,
) -> Result<(), SpecError> {
    let page_size = asked.page_size.as_str();
    let digits = page_size.trim_end_matches(|c: char| c.is_ascii_uppercase());
    let unit = &page_size[digits.len()..];
    let sane = !digits.is_empty()
        && digits.chars().all(|c| c.is_ascii_digit())
        && ["B", "KB", "MB", "GB"].contains(&unit);
    if !sane {
        let cause = format!("invalid page size {page_size:?} (example: 2MB)");
        let subject = by.subject(Field::HugepageLimits, Some(page_size));
        return Err(SpecError::invalid(subject, cause));
    }
    let mut entry = LinuxHugepageLimit::default();
    entry.set_page_size(page_size.to_owned());
    entry.set_limit(i64::try_from(asked.limit).unwrap_or(i64::MAX));
    match list.iter_mut().find(|l| l.page_size() == page_size) {
        Some(place) => *place = entry,
        None => list.push(entry),
    }
    Ok(())
}

/// Sets the values of single cgroup files.
fn put_unified(
    resources: &mut LinuxResources,
    unified: &BTreeMap<String, String>,
    context: &ApplyContext<'_>,
    by: Requester,
) -> Result<(), SpecError> {
    if unified.is_empty() {
        return Ok(());
    }
    let mut all: HashMap<String, String> = resources.unified().clone().unwrap_or_default();
    for (key, value) in unified {
        let subject = by.subject(Field::CgroupsUnified, Some(key));
        if context.host.cgroup_v1 {
            let cause = "requires cgroup v2, this host limits by v1";
            return Err(SpecError::unsupported(subject, cause));
        }
        check_unified(key, value)
            .and_then(|()| check_file(key, value.trim(), context))
            .map_err(|cause| SpecError::invalid(subject, cause))?;
        all.insert(key.clone(), value.clone());
    }
    resources.set_unified(Some(all));
    Ok(())
}

/// A key must be the name of one limit file in the container's cgroup.
fn check_unified(key: &str, value: &str) -> Result<(), String> {
    let name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !key.contains('.') || key.starts_with('.') || !key.chars().all(name) {
        return Err("invalid name of a cgroup file".to_owned());
    }
    if key.starts_with("cgroup.") {
        return Err("not a limit".to_owned());
    }
    if value.contains('\0') {
        return Err("the value contains a NUL byte".to_owned());
    }
    Ok(())
}

/// Checks files of limits with fields of their own. Other forms of lists are left to the kernel.
fn check_file(key: &str, value: &str, context: &ApplyContext<'_>) -> Result<(), String> {
    let wrong = match key {
        "cpuset.cpus" if ranges(value).is_some() => cpus_of(value, context).err(),
        "cpuset.mems" if ranges(value).is_some() => nodes_of(value, context).err(),
        "memory.max" => bytes_of(value).and_then(too_little_memory),
        "cpu.max" => {
            let mut words = value.split_whitespace();
            let quota = words.next().and_then(|word| word.parse().ok());
            let period = words.next().and_then(|word| word.parse().ok());
            let wrong = quota.and_then(wrong_quota);
            wrong.or_else(|| period.and_then(wrong_period))
        }
        _ => None,
    };
    wrong.map_or(Ok(()), Err)
}

/// A number of bytes in the kernel's forms: also octal or hexadecimal, and with a suffix.
fn bytes_of(text: &str) -> Option<i64> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (radix, text) = match hex {
        Some(digits) => (16, digits),
        None if text.starts_with('0') => (8, text),
        None => (10, text),
    };
    let end = text.find(|c: char| !c.is_digit(radix));
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        "E" => 60,
        _ => return None,
    };
    let number = i64::from_str_radix(number, radix).ok()?;
    number.checked_mul(1 << shift)
}

fn device_rule(asked: &nri::LinuxDeviceCgroup) -> Result<LinuxDeviceCgroup, String> {
    let kind = match asked.r#type.as_str() {
        "" | "a" => None,
        "b" => Some(LinuxDeviceType::B),
        "c" | "u" => Some(LinuxDeviceType::C),
        other => return Err(format!("unknown type of device rule {other:?}")),
    };
    let access = asked.access.as_str();
    if access.is_empty() || !access.chars().all(|c| "rwm".contains(c)) {
        return Err(format!("invalid access {access:?} (must be of \"rwm\")"));
    }
    // A negative or absent number means all.
    let number =
        |value: &Option<nri::OptionalInt64>| value.as_ref().map(|v| v.value).filter(|v| *v >= 0);
    let (major, minor) = (number(&asked.major), number(&asked.minor));
    Ok(rule(asked.allow, kind, major, minor, access))
}

#[cfg(test)]
mod tests {
    use super::bytes_of;

    #[test]
    fn bytes_are_read_as_the_kernel_reads_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1000", Some(1000)),
            ("512K", Some(512 << 10)),
            ("1m", Some(1 << 20)),
            ("2G", Some(2 << 30)),
            ("0x1e", Some(30)),
            ("010K", Some(8 << 10)),
            ("9E", None),
            ("K", None),
            ("1KB", None),
            ("max", None),
            ("", None),
        ] {
            assert_eq!(bytes_of(text), expected, "{text:?}");
        }
    }
}
