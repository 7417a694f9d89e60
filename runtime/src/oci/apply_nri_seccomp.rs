//! The seccomp filter of an adjustment (NRI-705).

use oci_spec::runtime::{
    LinuxSeccomp, LinuxSeccompFilterFlag, LinuxSeccompOperator, LinuxSyscall, Spec,
};
use proto_nri::{self as nri, Field};

use super::{base::linux_of, error::SpecError, seccomp};

/// Replaces the complete filter, including the default errno (NRI-705).
pub(super) fn apply(spec: &mut Spec, asked: Option<&nri::LinuxSeccomp>) -> Result<(), SpecError> {
    let Some(asked) = asked else {
        return Ok(());
    };
    let wrong = |cause: String| SpecError::invalid(Field::SeccompPolicy, cause);
    let unsupported = |cause: String| SpecError::unsupported(Field::SeccompPolicy, cause);
    let listener = [
        (&asked.listener_path, "listener_path"),
        (&asked.listener_metadata, "listener_metadata"),
    ];
    if let Some((_, name)) = listener.iter().find(|(text, _)| !text.is_empty()) {
        return Err(unsupported(format!(
            "{name}: a listener for system calls is not supported"
        )));
    }
    let mut policy = LinuxSeccomp::default();
    policy.set_default_action(constant(&asked.default_action).map_err(wrong)?);
    policy.set_default_errno_ret(asked.default_errno.as_ref().map(|e| e.value));
    policy.set_architectures(list(&asked.architectures).map_err(wrong)?);
    policy.set_flags(list(&asked.flags).map_err(wrong)?);
    let waits = LinuxSeccompFilterFlag::SeccompFilterFlagWaitKillableRecv;
    if policy.flags().iter().flatten().any(|flag| *flag == waits) {
        return Err(unsupported(format!("{waits} requires a listener")));
    }
    let rules: Vec<LinuxSyscall> = asked
        .syscalls
        .iter()
        .map(syscall)
        .collect::<Result<_, _>>()
        .map_err(wrong)?;
    policy.set_syscalls(Some(rules).filter(|rules| !rules.is_empty()));
    seccomp::check(&policy).map_err(wrong)?;
    linux_of(spec).set_seccomp(Some(policy));
    Ok(())
}

fn syscall(asked: &nri::LinuxSyscall) -> Result<LinuxSyscall, String> {
    let mut args = Vec::new();
    for arg in &asked.args {
        let op: LinuxSeccompOperator = constant(&arg.op)?;
        let has_two = arg.value_two != 0 || op == LinuxSeccompOperator::ScmpCmpMaskedEq;
        let two = has_two.then_some(arg.value_two);
        args.push(seccomp::argument(arg.index as usize, arg.value, two, op));
    }
    let mut rule = LinuxSyscall::default();
    rule.set_names(asked.names.clone());
    rule.set_action(constant(&asked.action)?);
    rule.set_errno_ret(asked.errno_ret.as_ref().map(|e| e.value));
    rule.set_args(Some(args).filter(|args| !args.is_empty()));
    Ok(rule)
}

fn list<T: std::str::FromStr>(names: &[String]) -> Result<Option<Vec<T>>, String> {
    let list: Vec<T> = names
        .iter()
        .map(|name| constant(name))
        .collect::<Result<_, _>>()?;
    Ok(Some(list).filter(|list| !list.is_empty()))
}

/// An OCI constant by its name, such as `SCMP_ACT_ERRNO`.
fn constant<T: std::str::FromStr>(name: &str) -> Result<T, String> {
    name.parse().map_err(|_| format!("{name:?} is unknown"))
}
