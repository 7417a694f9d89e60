//! The rows of NRI section 7 that change annotations, the process and the OCI hooks.

use std::collections::BTreeMap;

use oci_spec::runtime::{
    Hook, IOPriorityClass, LinuxIOPriorityBuilder, LinuxNamespaceType, LinuxSchedulerFlag,
    LinuxSchedulerPolicy, Process, Scheduler, Spec,
};
use proto_nri as nri;

use super::{
    apply_nri_linux::has_namespace,
    base::empty_process,
    error::SpecError,
    facts::{HostFacts, HostView, Policy},
    from_cri::rlimit,
    process::name_of,
};
use ::nri::owners::removal;

/// First all removals, then all values (NRI-702).
pub fn annotations(spec: &mut Spec, asked: &BTreeMap<String, String>) -> Result<(), SpecError> {
    if asked.is_empty() {
        return Ok(());
    }
    let annotations = spec.annotations_mut().get_or_insert_default();
    for key in asked.keys().filter_map(|key| removal(key)) {
        annotations.remove(key);
    }
    for (key, value) in asked.iter().filter(|(key, _)| removal(key).is_none()) {
        if key.is_empty() {
            return Err(SpecError::invalid(
                "adjust.annotations",
                "an annotation without a name",
            ));
        }
        annotations.insert(key.clone(), value.clone());
    }
    Ok(())
}

/// Existing variables keep their places: each is kept, removed, or given its new value; new ones
/// follow. A name that the container has twice is changed once and the rest dropped (NRI-703).
pub fn env(spec: &mut Spec, asked: &[nri::KeyValue]) -> Result<(), SpecError> {
    if asked.is_empty() {
        return Ok(());
    }
    // A value beats a removal of the same name: that pair means "replace" (NRI-510).
    let mut values: Vec<(&str, &str)> = Vec::new();
    let mut removed: Vec<&str> = Vec::new();
    for entry in asked {
        match removal(&entry.key) {
            Some(name) => removed.push(name),
            None if entry.key.is_empty() => {}
            None => {
                check_variable(entry)?;
                values.retain(|(name, _)| *name != entry.key);
                values.push((&entry.key, &entry.value));
            }
        }
    }
    let process = spec.process_mut().get_or_insert_with(empty_process);
    let mut result = Vec::new();
    let mut placed: Vec<&str> = Vec::new();
    for old in process.env().iter().flatten() {
        let name = name_of(old);
        if !old.contains('=') {
            result.push(old.clone());
        } else if let Some((name, value)) = values.iter().find(|(n, _)| *n == name) {
            if !placed.contains(name) {
                placed.push(name);
                result.push(format!("{name}={value}"));
            }
        } else if !removed.contains(&name) {
            result.push(old.clone());
        }
    }
    for (name, value) in values.iter().filter(|(name, _)| !placed.contains(name)) {
        result.push(format!("{name}={value}"));
    }
    process.set_env(Some(result));
    Ok(())
}

/// Never shows the value.
fn check_variable(entry: &nri::KeyValue) -> Result<(), SpecError> {
    if entry.key.contains(['=', '\0']) {
        return Err(SpecError::invalid(
            "adjust.env",
            format!("invalid variable name {:?}", entry.key),
        ));
    }
    if entry.value.contains('\0') {
        return Err(SpecError::invalid(
            "adjust.env",
            format!("the value of {} contains a NUL byte", entry.key),
        ));
    }
    Ok(())
}

/// A list that is not empty replaces the arguments; an empty first element is a marker (5.2).
pub fn args(spec: &mut Spec, asked: &[String]) -> Result<(), SpecError> {
    let args = match asked {
        [marker, rest @ ..] if marker.is_empty() => rest,
        all => all,
    };
    if args.is_empty() {
        return Ok(());
    }
    if args[0].is_empty() || args.iter().any(|a| a.contains('\0')) {
        return Err(SpecError::invalid(
            "adjust.args",
            "an empty program name or a NUL byte",
        ));
    }
    let process = spec.process_mut().get_or_insert_with(empty_process);
    process.set_args(Some(args.to_vec()));
    Ok(())
}

/// All but those of startContainer are programs of the host: they must be there.
pub fn hook_programs(asked: Option<&nri::Hooks>, view: &dyn HostView) -> Result<(), SpecError> {
    let Some(asked) = asked else {
        return Ok(());
    };
    let kinds = [
        &asked.prestart,
        &asked.create_runtime,
        &asked.create_container,
        &asked.poststart,
        &asked.poststop,
    ];
    let missing = |hook: &&nri::Hook| {
        let found = view.bind_source(&hook.path);
        found.is_none_or(|found| found.is_dir)
    };
    match kinds.into_iter().flatten().find(missing) {
        None => Ok(()),
        Some(hook) => Err(SpecError::not_found(
            "adjust.hooks",
            format!("there is no program {:?} on this host", hook.path),
        )),
    }
}

/// Appended per kind.
pub fn hooks(spec: &mut Spec, asked: Option<&nri::Hooks>) -> Result<(), SpecError> {
    let Some(asked) = asked.filter(|h| **h != nri::Hooks::default()) else {
        return Ok(());
    };
    let hooks = spec.hooks_mut().get_or_insert_default();
    append(hooks.prestart_mut(), &asked.prestart)?;
    append(hooks.poststart_mut(), &asked.poststart)?;
    append(hooks.poststop_mut(), &asked.poststop)?;
    append(hooks.create_runtime_mut(), &asked.create_runtime)?;
    append(hooks.create_container_mut(), &asked.create_container)?;
    append(hooks.start_container_mut(), &asked.start_container)
}

fn append(list: &mut Option<Vec<Hook>>, asked: &[nri::Hook]) -> Result<(), SpecError> {
    for hook in asked {
        if !hook.path.starts_with('/') || hook.path.contains('\0') {
            return Err(SpecError::invalid(
                "adjust.hooks",
                format!("{:?} must be absolute", hook.path),
            ));
        }
        let mut texts = hook.args.iter().chain(&hook.env);
        if texts.any(|text| text.contains('\0')) {
            return Err(SpecError::invalid(
                "adjust.hooks",
                format!("{}: a NUL byte in its arguments or variables", hook.path),
            ));
        }
        let variable = |text: &&String| text.find('=').is_none_or(|at| at == 0);
        if hook.env.iter().any(|text| variable(&text)) {
            return Err(SpecError::invalid(
                "adjust.hooks",
                format!("{}: a variable that is not NAME=value", hook.path),
            ));
        }
        let timeout = hook.timeout.as_ref().map(|t| t.value);
        if timeout.is_some_and(|t| t <= 0) {
            return Err(SpecError::invalid(
                "adjust.hooks",
                format!("{}: a timeout must be above zero", hook.path),
            ));
        }
        let mut oci = Hook::default();
        oci.set_path(hook.path.clone().into());
        oci.set_args(Some(hook.args.clone()).filter(|list| !list.is_empty()));
        oci.set_env(Some(hook.env.clone()).filter(|list| !list.is_empty()));
        oci.set_timeout(timeout);
        list.get_or_insert_default().push(oci);
    }
    Ok(())
}

/// May exceed what the kubelet gave, but not the kernel's range.
pub fn oom_score_adj(
    spec: &mut Spec,
    asked: Option<&nri::OptionalInt>,
    host: &HostFacts,
    policy: &Policy,
) -> Result<(), SpecError> {
    let Some(asked) = asked else {
        return Ok(());
    };
    let score = super::process::oom_score_adj(asked.value, host, policy)
        .map_err(|_| out_of_range("adjust.linux.oom_score_adj", asked.value, -1000, 1000))?;
    process(spec).set_oom_score_adj(Some(score));
    Ok(())
}

/// Class NONE removes the priority.
pub fn io_priority(spec: &mut Spec, asked: Option<&nri::LinuxIoPriority>) -> Result<(), SpecError> {
    const FIELD: &str = "adjust.linux.io_priority";
    let Some(asked) = asked else {
        return Ok(());
    };
    let class = match nri::IoPrioClass::try_from(asked.class) {
        Ok(nri::IoPrioClass::IoprioClassNone) => {
            process(spec).set_io_priority(None);
            return Ok(());
        }
        Ok(nri::IoPrioClass::IoprioClassRt) => IOPriorityClass::IoprioClassRt,
        Ok(nri::IoPrioClass::IoprioClassBe) => IOPriorityClass::IoprioClassBe,
        Ok(nri::IoPrioClass::IoprioClassIdle) => IOPriorityClass::IoprioClassIdle,
        Err(_) => {
            return Err(SpecError::invalid(
                FIELD,
                format!("unknown class {}", asked.class),
            ));
        }
    };
    if !(0..=7).contains(&asked.priority) {
        return Err(out_of_range(FIELD, asked.priority.into(), 0, 7));
    }
    if class == IOPriorityClass::IoprioClassRt && has_namespace(spec, LinuxNamespaceType::User) {
        return Err(in_user_namespace(FIELD));
    }
    let priority = LinuxIOPriorityBuilder::default()
        .class(class)
        .priority(i64::from(asked.priority))
        .build()
        .expect("every field has a default");
    process(spec).set_io_priority(Some(priority));
    Ok(())
}

/// Policy NONE removes the scheduler. What the kernel would refuse is refused here, by name.
pub fn scheduler(spec: &mut Spec, asked: Option<&nri::LinuxScheduler>) -> Result<(), SpecError> {
    const FIELD: &str = "adjust.linux.scheduler";
    let Some(asked) = asked else {
        return Ok(());
    };
    let unknown =
        |what: &str, value: i32| SpecError::invalid(FIELD, format!("unknown {what} {value}"));
    let policy = nri::LinuxSchedulerPolicy::try_from(asked.policy)
        .map_err(|_| unknown("policy", asked.policy))?;
    if policy == nri::LinuxSchedulerPolicy::SchedNone {
        process(spec).set_scheduler(None);
        return Ok(());
    }
    let policy: LinuxSchedulerPolicy = policy
        .as_str_name()
        .parse()
        .map_err(|_| unknown("policy", asked.policy))?;
    check_scheduler(policy, asked).map_err(|cause| SpecError::invalid(FIELD, cause))?;
    let privileged = !matches!(
        policy,
        LinuxSchedulerPolicy::SchedOther
            | LinuxSchedulerPolicy::SchedBatch
            | LinuxSchedulerPolicy::SchedIdle
    );
    if (privileged || asked.nice < 0) && has_namespace(spec, LinuxNamespaceType::User) {
        return Err(in_user_namespace(FIELD));
    }
    let mut flags: Vec<LinuxSchedulerFlag> = Vec::new();
    for flag in &asked.flags {
        let known = nri::LinuxSchedulerFlag::try_from(*flag).map_err(|_| unknown("flag", *flag))?;
        let flag = scheduler_flag(policy, known)
            .map_err(|cause| SpecError::unsupported("adjust.linux.scheduler.flags", cause))?;
        flags.push(flag);
    }
    let mut scheduler = Scheduler::default();
    scheduler.set_policy(policy);
    scheduler.set_nice(Some(asked.nice));
    scheduler.set_priority(Some(asked.priority));
    scheduler.set_flags(Some(flags).filter(|list| !list.is_empty()));
    scheduler.set_runtime(Some(asked.runtime));
    scheduler.set_deadline(Some(asked.deadline));
    scheduler.set_period(Some(asked.period));
    process(spec).set_scheduler(Some(scheduler));
    Ok(())
}

/// Where real-time processes get their time per cgroup, a new cgroup has none: the kernel would refuse the policy once the
/// container starts.
pub fn check_realtime(spec: &Spec, host: &HostFacts) -> Result<(), SpecError> {
    use LinuxSchedulerPolicy::{SchedFifo, SchedRr};
    let scheduler = spec.process().as_ref().and_then(|p| p.scheduler().as_ref());
    let cpu = spec
        .linux()
        .as_ref()
        .and_then(|l| l.resources().as_ref())
        .and_then(|r| r.cpu().as_ref());
    let runtime = cpu.and_then(|c| c.realtime_runtime()).unwrap_or(0);
    match scheduler.map(|s| *s.policy()) {
        Some(policy @ (SchedFifo | SchedRr)) if host.realtime && runtime == 0 => {
            Err(SpecError::unsupported(
                "adjust.linux.scheduler",
                format!("{policy} requires linux.resources.cpu.realtime_runtime on this host"),
            ))
        }
        _ => Ok(()),
    }
}

/// What no kernel does, or refuses once the container starts.
fn check_scheduler(
    policy: LinuxSchedulerPolicy,
    asked: &nri::LinuxScheduler,
) -> Result<(), &'static str> {
    use LinuxSchedulerPolicy::{SchedDeadline, SchedFifo, SchedIso, SchedRr};
    let realtime = matches!(policy, SchedFifo | SchedRr);
    if policy == SchedIso {
        return Err("SCHED_ISO is not implemented by Linux");
    }
    if !(-20..=19).contains(&asked.nice) {
        return Err("nice must be -20 to 19");
    }
    if realtime != (1..=99).contains(&asked.priority) || (!realtime && asked.priority != 0) {
        return Err("priority must be 1 to 99 with SCHED_FIFO and SCHED_RR, and 0 otherwise");
    }
    let times = [asked.runtime, asked.deadline, asked.period];
    if policy != SchedDeadline {
        return match times.iter().all(|t| *t == 0) {
            true => Ok(()),
            false => Err("runtime, deadline and period require SCHED_DEADLINE"),
        };
    }
    // A period of 0 is the deadline.
    let period = if asked.period == 0 {
        asked.deadline
    } else {
        asked.period
    };
    if asked.runtime < DEADLINE_LEAST || asked.runtime > asked.deadline || asked.deadline > period {
        return Err("SCHED_DEADLINE needs 1024 <= runtime <= deadline <= period, in nanoseconds");
    }
    Ok(())
}

/// The least runtime of SCHED_DEADLINE, in nanoseconds.
const DEADLINE_LEAST: u64 = 1024;

fn scheduler_flag(
    policy: LinuxSchedulerPolicy,
    flag: nri::LinuxSchedulerFlag,
) -> Result<LinuxSchedulerFlag, &'static str> {
    use nri::LinuxSchedulerFlag as Nri;
    match flag {
        Nri::SchedFlagReclaim | Nri::SchedFlagDlOverrun
            if policy != LinuxSchedulerPolicy::SchedDeadline =>
        {
            Err("SCHED_FLAG_RECLAIM and SCHED_FLAG_DL_OVERRUN require SCHED_DEADLINE")
        }
        Nri::SchedFlagResetOnFork => Ok(LinuxSchedulerFlag::SchedResetOnFork),
        Nri::SchedFlagReclaim => Ok(LinuxSchedulerFlag::SchedFlagReclaim),
        Nri::SchedFlagDlOverrun => Ok(LinuxSchedulerFlag::SchedFlagDLOverrun),
        Nri::SchedFlagKeepPolicy => Ok(LinuxSchedulerFlag::SchedFlagKeepPolicy),
        Nri::SchedFlagKeepParams => Ok(LinuxSchedulerFlag::SchedFlagKeepParams),
        // The kernel would take the absent values for zeros: a container held at the lowest speed.
        Nri::SchedFlagUtilClampMin | Nri::SchedFlagUtilClampMax => {
            Err("utilization clamps cannot be set by an adjustment")
        }
    }
}

/// A type that is there already is replaced: OCI forbids a second one (NRI-708).
pub fn rlimits(spec: &mut Spec, asked: &[nri::PosixRlimit]) -> Result<(), SpecError> {
    if asked.is_empty() {
        return Ok(());
    }
    let process = process(spec);
    let mut list = process.rlimits().clone().unwrap_or_default();
    for limit in asked {
        let new = rlimit(&limit.r#type, limit.soft, limit.hard)
            .map_err(|error| error.of_field(&format!("adjust.rlimits[{:?}]", limit.r#type)))?;
        match list.iter_mut().find(|l| l.typ() == new.typ()) {
            Some(place) => *place = new,
            None => list.push(new),
        }
    }
    process.set_rlimits(Some(list));
    Ok(())
}

fn process(spec: &mut Spec) -> &mut Process {
    spec.process_mut().get_or_insert_with(empty_process)
}

fn in_user_namespace(field: &str) -> SpecError {
    SpecError::unsupported(
        field,
        "a container in a user namespace has no privilege for more than ordinary time",
    )
}

fn out_of_range(field: &str, value: i64, low: i64, high: i64) -> SpecError {
    SpecError::invalid(field, format!("{value} is out of range ({low} to {high})"))
}
