//! Chooses the seccomp profile of a process and builds its OCI value (CRI-219).

use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder,
    LinuxSeccompOperator, LinuxSyscall,
};
use proto_cri::v1::{SecurityProfile, security_profile::ProfileType};

use super::{
    capabilities::CapMask,
    error::SpecError,
    facts::{HostFacts, SeccompKind},
    seccomp_profile::{
        ALWAYS, BY_CAPABILITY, CLONE_NAMESPACES, ENOSYS, EPERM, PERSONALITIES, SOCKET_FAMILIES,
        of_architecture,
    },
};

const FIELD: &str = "linux.security_context.seccomp";

/// A longer localhost profile is refused.
const MAX_PROFILE: usize = 1024 * 1024;

/// Chooses the profile: the field, else the old string, else the policy's for absent ones. A
/// privileged container is always unconfined.
pub fn choose(
    field: Option<&SecurityProfile>,
    old: &str,
    privileged: bool,
    when_absent: &SeccompKind,
) -> Result<SeccompKind, SpecError> {
    let chosen = match field {
        Some(profile) => from_field(profile)?,
        None if old.is_empty() => when_absent.clone(),
        None => from_old(old)?,
    };
    Ok(if privileged {
        SeccompKind::Unconfined
    } else {
        chosen
    })
}

fn from_field(profile: &SecurityProfile) -> Result<SeccompKind, SpecError> {
    match profile_type(profile, FIELD)? {
        ProfileType::Localhost => localhost(&profile.localhost_ref),
        ProfileType::Unconfined => Ok(SeccompKind::Unconfined),
        ProfileType::RuntimeDefault => Ok(SeccompKind::RuntimeDefault),
    }
}

/// The type of a seccomp or AppArmor profile; only Localhost takes a `localhost_ref`.
pub(super) fn profile_type(
    profile: &SecurityProfile,
    field: &str,
) -> Result<ProfileType, SpecError> {
    let kind = ProfileType::try_from(profile.profile_type)
        .map_err(|_| SpecError::invalid(field, format!("unknown type {}", profile.profile_type)))?;
    if kind != ProfileType::Localhost && !profile.localhost_ref.is_empty() {
        return Err(SpecError::invalid(
            field,
            "localhost_ref with a type other than Localhost",
        ));
    }
    Ok(kind)
}

fn from_old(text: &str) -> Result<SeccompKind, SpecError> {
    match text {
        "runtime/default" | "docker/default" => Ok(SeccompKind::RuntimeDefault),
        "unconfined" => Ok(SeccompKind::Unconfined),
        other => match other.strip_prefix("localhost/") {
            Some(path) => localhost(path),
            None => Err(SpecError::invalid(
                "linux.security_context.seccomp_profile_path",
                format!("unknown profile {other:?}"),
            )),
        },
    }
}

fn localhost(path: &str) -> Result<SeccompKind, SpecError> {
    if path.starts_with('/') {
        return Ok(SeccompKind::Localhost(path.to_owned()));
    }
    Err(SpecError::invalid(
        FIELD,
        format!("localhost_ref {path:?} must be absolute"),
    ))
}

/// The filter for a process with these capabilities. `text`: the file of a localhost profile, if
/// the caller could read it.
pub fn filter(
    kind: &SeccompKind,
    text: Option<&str>,
    granted: CapMask,
    host: &HostFacts,
) -> Result<Option<LinuxSeccomp>, SpecError> {
    match kind {
        SeccompKind::Unconfined => Ok(None),
        // The default profile is best effort: without seccomp in the kernel it is dropped.
        SeccompKind::RuntimeDefault if !host.seccomp => Ok(None),
        SeccompKind::RuntimeDefault => Ok(Some(default_profile(granted, std::env::consts::ARCH))),
        SeccompKind::Localhost(path) if !host.seccomp => Err(SpecError::unsupported(
            FIELD,
            format!("profile {path:?} was requested, but this kernel has no seccomp"),
        )),
        SeccompKind::Localhost(path) => {
            let text = text.ok_or_else(|| {
                SpecError::not_found(FIELD, format!("profile {path:?} cannot be read"))
            })?;
            parse(path, text).map(Some)
        }
    }
}

/// Parses a profile in the OCI form.
pub fn parse(path: &str, text: &str) -> Result<LinuxSeccomp, SpecError> {
    let wrong = |cause: String| SpecError::invalid(FIELD, format!("profile {path:?}: {cause}"));
    if text.len() > MAX_PROFILE {
        return Err(wrong(format!("longer than {MAX_PROFILE} bytes")));
    }
    let profile: LinuxSeccomp = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    check(&profile).map_err(wrong)?;
    Ok(profile)
}

/// Refuses listeners for system calls, which are not supported, and malformed rules.
pub(super) fn check(profile: &LinuxSeccomp) -> Result<(), String> {
    let notify = LinuxSeccompAction::ScmpActNotify;
    let rules = profile.syscalls().as_deref().unwrap_or_default();
    if profile.default_action() == notify
        || profile.listener_path().is_some()
        || rules.iter().any(|rule| rule.action() == notify)
    {
        return Err("SCMP_ACT_NOTIFY and listenerPath are not supported".to_owned());
    }
    if rules.iter().any(|rule| rule.names().is_empty()) {
        return Err("a rule without names".to_owned());
    }
    if rules
        .iter()
        .flat_map(|r| r.args().iter().flatten())
        .any(|arg| arg.index() > 5)
    {
        return Err("a system call has six arguments, index above 5".to_owned());
    }
    Ok(())
}

/// The RuntimeDefault profile for these capabilities and this `std::env::consts::ARCH`. Equal
/// inputs give equal values, so that a compiled filter can be cached.
pub fn default_profile(granted: CapMask, arch: &str) -> LinuxSeccomp {
    use LinuxSeccompOperator::{ScmpCmpEq, ScmpCmpMaskedEq};
    let mut names: Vec<&str> = ALWAYS
        .iter()
        .flat_map(|list| list.split_whitespace())
        .collect();
    names.extend(of_architecture(arch).split_whitespace());
    for (capability, list) in BY_CAPABILITY {
        if granted.contains(capability) {
            names.extend(list.split_whitespace());
        }
    }
    names.sort_unstable();
    names.dedup();
    let mut rules = vec![allow(&names)];
    for value in PERSONALITIES {
        let same = argument(0, *value, None, ScmpCmpEq);
        rules.push(allow_with("personality", same));
    }
    for (mask, result) in SOCKET_FAMILIES {
        let family = argument(0, *mask, Some(*result), ScmpCmpMaskedEq);
        rules.push(allow_with("socket", family));
    }
    // Its family is in memory. Libraries try `socket` and so on first, and this on ENOSYS. Not
    // EPERM: libseccomp allows `socketcall` with each call that it stands for, and the action of
    // a rule is overridden only by another one than the default.
    rules.push(absent("socketcall"));
    if !granted.contains("SYS_ADMIN") {
        // No namespace flag may be set. s390x has the flags in the second argument.
        let index = usize::from(arch == "s390x");
        let flags = argument(index, CLONE_NAMESPACES, Some(0), ScmpCmpMaskedEq);
        rules.push(allow_with("clone", flags));
        // A filter cannot read its flags in memory; libraries fall back to clone on ENOSYS.
        rules.push(absent("clone3"));
    }
    let mut profile = LinuxSeccomp::default();
    profile.set_default_action(LinuxSeccompAction::ScmpActErrno);
    profile.set_default_errno_ret(Some(EPERM));
    profile.set_architectures(Some(architectures(arch)));
    profile.set_syscalls(Some(rules));
    profile
}

fn architectures(arch: &str) -> Vec<Arch> {
    match arch {
        "x86_64" => vec![Arch::ScmpArchX86_64, Arch::ScmpArchX86, Arch::ScmpArchX32],
        "aarch64" => vec![Arch::ScmpArchAarch64, Arch::ScmpArchArm],
        "powerpc64" => vec![Arch::ScmpArchPpc64le],
        "s390x" => vec![Arch::ScmpArchS390x, Arch::ScmpArchS390],
        "riscv64" => vec![Arch::ScmpArchRiscv64],
        _ => vec![Arch::ScmpArchNative],
    }
}

fn allow(names: &[&str]) -> LinuxSyscall {
    rule(names, LinuxSeccompAction::ScmpActAllow)
}

/// Refuses a call as a kernel that lacks it.
fn absent(name: &str) -> LinuxSyscall {
    let mut rule = rule(&[name], LinuxSeccompAction::ScmpActErrno);
    rule.set_errno_ret(Some(ENOSYS));
    rule
}

fn rule(names: &[&str], action: LinuxSeccompAction) -> LinuxSyscall {
    let mut rule = LinuxSyscall::default();
    rule.set_names(names.iter().map(|n| (*n).to_owned()).collect());
    rule.set_action(action);
    rule
}

fn allow_with(name: &str, argument: LinuxSeccompArg) -> LinuxSyscall {
    let mut rule = allow(&[name]);
    rule.set_args(Some(vec![argument]));
    rule
}

/// A condition on one argument of a system call.
pub(super) fn argument(
    index: usize,
    value: u64,
    value_two: Option<u64>,
    op: LinuxSeccompOperator,
) -> LinuxSeccompArg {
    let mut builder = LinuxSeccompArgBuilder::default()
        .index(index)
        .value(value)
        .op(op);
    if let Some(two) = value_two {
        builder = builder.value_two(two);
    }
    builder.build().expect("every field has a default")
}
