//! The scheduler, I/O priority and memory policy of an adjustment (NRI-700). Values that the kernel
//! would refuse at start are refused here.

use oci_spec::runtime::{
    IOPriorityClass, LinuxIOPriorityBuilder, LinuxMemoryPolicy, LinuxNamespaceType,
    LinuxSchedulerFlag, LinuxSchedulerPolicy, MemoryPolicyFlagType, MemoryPolicyModeType,
    Scheduler, Spec,
};
use proto_nri::{self as nri, Field};

use super::{
    apply_nri_linux::has_namespace,
    apply_nri_process::out_of_range,
    base::{linux_of, process_of},
    error::SpecError,
    facts::{ApplyContext, HostFacts},
    limits::nodes_of,
};

/// Sets the I/O priority; class NONE removes it.
pub(super) fn io_priority(
    spec: &mut Spec,
    asked: Option<&nri::LinuxIoPriority>,
) -> Result<(), SpecError> {
    const FIELD: Field = Field::IoPriority;
    let Some(asked) = asked else {
        return Ok(());
    };
    let class = nri::IoPrioClass::try_from(asked.class).ok();
    if class == Some(nri::IoPrioClass::IoprioClassNone) {
        process_of(spec).set_io_priority(None);
        return Ok(());
    }
    let class: IOPriorityClass = class
        .and_then(|class| class.as_str_name().parse().ok())
        .ok_or_else(|| SpecError::invalid(FIELD, format!("unknown class {}", asked.class)))?;
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
    process_of(spec).set_io_priority(Some(priority));
    Ok(())
}

/// Sets the scheduler; policy NONE removes it.
pub(super) fn scheduler(
    spec: &mut Spec,
    asked: Option<&nri::LinuxScheduler>,
) -> Result<(), SpecError> {
    const FIELD: Field = Field::LinuxSched;
    let Some(asked) = asked else {
        return Ok(());
    };
    let unknown =
        |what: &str, value: i32| SpecError::invalid(FIELD, format!("unknown {what} {value}"));
    let policy = nri::LinuxSchedulerPolicy::try_from(asked.policy)
        .map_err(|_| unknown("policy", asked.policy))?;
    if policy == nri::LinuxSchedulerPolicy::SchedNone {
        process_of(spec).set_scheduler(None);
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
        let flag =
            scheduler_flag(policy, known).map_err(|cause| SpecError::unsupported(FIELD, cause))?;
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
    process_of(spec).set_scheduler(Some(scheduler));
    Ok(())
}

/// Refuses a real-time policy without `realtime_runtime` on a host that assigns real-time per
/// cgroup: a new cgroup has none, and the kernel would refuse the policy at start.
pub(super) fn check_realtime(spec: &Spec, host: &HostFacts) -> Result<(), SpecError> {
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
                Field::LinuxSched,
                format!("{policy} requires linux.resources.cpu.realtime_runtime on this host"),
            ))
        }
        _ => Ok(()),
    }
}

/// Refuses values that no kernel supports, or that it would refuse at start.
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
        return if times.iter().all(|t| *t == 0) {
            Ok(())
        } else {
            Err("runtime, deadline and period require SCHED_DEADLINE")
        };
    }
    // A period of 0 means the deadline.
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
        // The kernel would read the absent values as 0 and keep the container at the lowest speed.
        Nri::SchedFlagUtilClampMin | Nri::SchedFlagUtilClampMax => {
            Err("utilization clamps cannot be set by an adjustment")
        }
    }
}

/// Replaces the complete policy; `MPOL_DEFAULT` stays a mode of its own.
pub(super) fn memory_policy(
    spec: &mut Spec,
    asked: Option<&nri::LinuxMemoryPolicy>,
    context: &ApplyContext<'_>,
) -> Result<(), SpecError> {
    const FIELD: Field = Field::MemoryPolicy;
    let Some(asked) = asked else {
        return Ok(());
    };
    let unknown =
        |what: &str, value: i32| SpecError::invalid(FIELD, format!("unknown {what} {value}"));
    let mode: MemoryPolicyModeType = nri::MpolMode::try_from(asked.mode)
        .ok()
        .and_then(|mode| mode.as_str_name().parse().ok())
        .ok_or_else(|| unknown("mode", asked.mode))?;
    let mut flags: Vec<MemoryPolicyFlagType> = Vec::new();
    for flag in &asked.flags {
        let name = nri::MpolFlag::try_from(*flag).map_err(|_| unknown("flag", *flag))?;
        flags.push(
            name.as_str_name()
                .parse()
                .map_err(|_| unknown("flag", *flag))?,
        );
    }
    let nodes = match asked.nodes.as_str() {
        "" => None,
        nodes => Some(
            nodes_of(nodes, context)
                .map_err(|cause| SpecError::invalid(FIELD, format!("nodes: {cause}")))?,
        ),
    };
    check_memory_policy(mode, nodes.as_deref(), &flags)
        .map_err(|cause| SpecError::invalid(FIELD, cause))?;
    let mut policy = LinuxMemoryPolicy::default();
    policy.set_mode(mode);
    policy.set_nodes(nodes);
    policy.set_flags(Some(flags).filter(|list| !list.is_empty()));
    linux_of(spec).set_memory_policy(Some(policy));
    Ok(())
}

/// Refuses policies that set_mempolicy(2) would refuse at start.
fn check_memory_policy(
    mode: MemoryPolicyModeType,
    nodes: Option<&str>,
    flags: &[MemoryPolicyFlagType],
) -> Result<(), String> {
    use MemoryPolicyFlagType::{MpolFNumaBalancing, MpolFRelativeNodes, MpolFStaticNodes};
    use MemoryPolicyModeType::{MpolBind, MpolDefault, MpolLocal, MpolPreferred};
    let bare = matches!(mode, MpolDefault | MpolLocal);
    if bare && (nodes.is_some() || !flags.is_empty()) {
        return Err(format!("{mode} takes neither nodes nor flags"));
    }
    if nodes.is_none() && !bare && (mode != MpolPreferred || !flags.is_empty()) {
        return Err(format!("{mode} needs nodes"));
    }
    if flags.contains(&MpolFStaticNodes) && flags.contains(&MpolFRelativeNodes) {
        return Err("nodes are static or relative, not both".to_owned());
    }
    if flags.contains(&MpolFNumaBalancing) && mode != MpolBind {
        return Err("MPOL_F_NUMA_BALANCING requires MPOL_BIND".to_owned());
    }
    Ok(())
}

fn in_user_namespace(field: Field) -> SpecError {
    SpecError::unsupported(
        field,
        "requires a privilege that a container in a user namespace lacks",
    )
}
