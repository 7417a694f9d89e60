//! SELinux labels of the processes and files of pods and their containers (CRI-221).
//!
//! The types come from the host's policy. The level is the pod's own: two categories that no other
//! pod has, so that an escaped process cannot touch another pod's files. All containers of a pod
//! share its level.

use std::collections::BTreeSet;

use proto_cri::v1::{
    LinuxContainerSecurityContext, LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption,
    SeLinuxOption,
};

use super::{
    error::SpecError,
    facts::{HostFacts, HostView, SandboxFacts, SelinuxLabels},
    namespaces::{self, PidNamespace},
};

const FIELD: &str = "linux.security_context.selinux_options";
/// Categories of a policy, `c0` to `c1023`.
const CATEGORIES: u64 = 1024;
/// The longest label that a mount accepts, in bytes.
const LABEL_MAX: usize = 255;

/// A pod's labels, or `None` if none are set. `taken`: levels that must not be chosen.
///
/// # Errors
/// For options that are invalid, or that this host cannot serve.
pub fn pod(
    options: Option<&SeLinuxOption>,
    id: &str,
    taken: &BTreeSet<String>,
    host: &HostFacts,
    view: &dyn HostView,
) -> Result<Option<SelinuxLabels>, SpecError> {
    let level = || free_level(id, taken);
    labels(options, level, host, view)
}

/// A container's labels: its pod's, changed by its own options.
///
/// # Errors
/// As [`pod`].
pub fn container(
    options: Option<&SeLinuxOption>,
    pod: Option<&SelinuxLabels>,
    host: &HostFacts,
    view: &dyn HostView,
) -> Result<Option<SelinuxLabels>, SpecError> {
    let Some(options) = given(options) else {
        return Ok(pod.cloned());
    };
    let level = || pod.and_then(|pod| level_of(&pod.file)).unwrap_or_default();
    let own = labels(Some(options), || level().to_owned(), host, view)?;
    let enforcing = host.selinux.as_ref().is_some_and(|s| s.enforcing);
    match (pod, own) {
        // It would share its files with every pod, and could not read those of its own pod.
        (None, Some(_)) if enforcing => Err(SpecError::unsupported(
            FIELD,
            "SELinux is enforcing, and the pod was made without labels",
        )),
        (None, _) => Ok(None),
        (Some(_), own) => Ok(own),
    }
}

/// The options, unless empty: a kubelet sends empty ones for `{}` in a pod's spec.
fn given(options: Option<&SeLinuxOption>) -> Option<&SeLinuxOption> {
    options.filter(|options| **options != SeLinuxOption::default())
}

/// Whether a container's processes get their label. Never with privilege; with the host's processes
/// or IPC only if labels are requested.
///
/// # Errors
/// For namespaces that the container cannot have.
pub fn confines(
    context: &LinuxContainerSecurityContext,
    sandbox: &SandboxFacts,
) -> Result<bool, SpecError> {
    let none = NamespaceOption::default();
    let options = context.namespace_options.as_ref().unwrap_or(&none);
    let of_host = namespaces::pid(options, sandbox)? == PidNamespace::Host
        || sandbox.namespace_options.ipc() == NamespaceMode::Node;
    let asked = given(context.selinux_options.as_ref()).is_some();
    Ok(!context.privileged && (asked || !of_host))
}

/// The same for the pause process of a pod. A kubelet marks a pod privileged for one container of
/// it; its other containers are still confined.
#[must_use]
pub fn confines_pause(context: &LinuxSandboxSecurityContext) -> bool {
    let none = NamespaceOption::default();
    let options = context.namespace_options.as_ref().unwrap_or(&none);
    let of_host = [options.pid(), options.ipc()].contains(&NamespaceMode::Node);
    let asked = given(context.selinux_options.as_ref()).is_some();
    !context.privileged && (asked || !of_host)
}

fn labels(
    options: Option<&SeLinuxOption>,
    level: impl FnOnce() -> String,
    host: &HostFacts,
    view: &dyn HostView,
) -> Result<Option<SelinuxLabels>, SpecError> {
    let none = SeLinuxOption::default();
    let options = options.unwrap_or(&none);
    check(options)?;
    let Some(selinux) = &host.selinux else {
        return Ok(None);
    };
    let contexts = match &selinux.contexts {
        Ok(contexts) => contexts,
        // An enforcing host must not run a pod unconfined.
        Err(why) if selinux.enforcing => {
            let why = format!("SELinux is enforcing, and no label can be set: {why}");
            return Err(SpecError::unsupported(FIELD, why));
        }
        Err(_) => return Ok(None),
    };
    let made = compose(contexts, options, level);
    if made.process.len().max(made.file.len()) > LABEL_MAX {
        return Err(SpecError::invalid(
            FIELD,
            format!("a label must not be longer than {LABEL_MAX} bytes"),
        ));
    }
    let unknown = [&made.process, &made.file]
        .into_iter()
        .find(|label| !view.knows_selinux_label(label));
    match unknown {
        None => Ok(Some(made)),
        Some(label) if selinux.enforcing => Err(SpecError::invalid(
            FIELD,
            format!("the loaded policy has no label {label:?}"),
        )),
        // A permissive host cannot set it, and denies nothing without it.
        Some(_) => Ok(None),
    }
}

fn compose(
    contexts: &SelinuxLabels,
    options: &SeLinuxOption,
    level: impl FnOnce() -> String,
) -> SelinuxLabels {
    let mut process: Vec<&str> = contexts.process.splitn(4, ':').collect();
    let mut file: Vec<&str> = contexts.file.splitn(4, ':').collect();
    for (at, option) in [&options.user, &options.role, &options.r#type]
        .into_iter()
        .enumerate()
    {
        if let Some(part) = process.get_mut(at).filter(|_| !option.is_empty()) {
            *part = option;
        }
    }
    // Files keep the policy's role and type, but get the same user.
    if let Some(user) = file.first_mut().filter(|_| !options.user.is_empty()) {
        *user = &options.user;
    }
    // A policy without levels has three parts.
    let level = match &options.level {
        asked if !asked.is_empty() => asked.clone(),
        _ => level(),
    };
    for label in [&mut process, &mut file] {
        if let Some(part) = label.get_mut(3).filter(|_| !level.is_empty()) {
            *part = &level;
        }
    }
    SelinuxLabels {
        process: process.join(":"),
        file: file.join(":"),
    }
}

/// The fourth part of a context.
#[must_use]
pub fn level_of(context: &str) -> Option<&str> {
    context.splitn(4, ':').nth(3)
}

/// Two categories that no other pod has, from the pod's id: `s0:c12,c345`. Once all half a million
/// pairs are taken, one is used twice.
fn free_level(id: &str, taken: &BTreeSet<String>) -> String {
    const PAIRS: u64 = CATEGORIES * (CATEGORIES - 1) / 2;
    let first = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let level = |n: u64| pair(n.wrapping_add(first) % PAIRS);
    let taken: BTreeSet<_> = taken.iter().map(|level| in_order(level)).collect();
    let free = (0..PAIRS).map(level).find(|level| !taken.contains(level));
    free.unwrap_or_else(|| level(0))
}

/// A level of two categories with the smaller first, as the kernel writes it.
fn in_order(level: &str) -> String {
    let number = |category: &str| category.strip_prefix('c')?.parse::<u64>().ok();
    let parts = level.split_once(':').and_then(|(sensitivity, pair)| {
        let (one, other) = pair.split_once(',')?;
        Some((sensitivity, number(one)?, number(other)?))
    });
    parts.map_or_else(
        || level.to_owned(),
        |(sensitivity, one, other)| {
            format!("{sensitivity}:c{},c{}", one.min(other), one.max(other))
        },
    )
}

/// The nth of all pairs of categories, the smaller first.
fn pair(mut n: u64) -> String {
    let mut low = 0;
    while n >= CATEGORIES - 1 - low {
        n -= CATEGORIES - 1 - low;
        low += 1;
    }
    format!("s0:c{low},c{}", low + 1 + n)
}

/// Checks the options independently of the host.
pub(super) fn check(options: &SeLinuxOption) -> Result<(), SpecError> {
    for (name, value) in [
        ("user", &options.user),
        ("role", &options.role),
        ("type", &options.r#type),
    ] {
        let word = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if !value.chars().all(word) {
            return Err(SpecError::invalid(
                format!("{FIELD}.{name}"),
                format!("invalid identifier {value:?}"),
            ));
        }
    }
    if !options.level.is_empty() && !is_level(&options.level) {
        return Err(SpecError::invalid(
            format!("{FIELD}.level"),
            format!("invalid level {:?} (example: s0:c1,c2)", options.level),
        ));
    }
    Ok(())
}

/// `s0`, `s0-s1`, each with optional categories: `s0:c1,c2`, `s0:c0.c1023`.
fn is_level(text: &str) -> bool {
    let mut sides = text.splitn(2, '-');
    sides.all(|side| {
        let parts = side.split_once(':');
        let (sensitivity, categories) = parts.map_or((side, None), |(s, c)| (s, Some(c)));
        numbered(sensitivity, 's')
            && categories.is_none_or(|list| {
                list.split(',').all(|item| {
                    item.split('.').count() <= 2 && item.split('.').all(|c| numbered(c, 'c'))
                })
            })
    })
}

fn numbered(text: &str, letter: char) -> bool {
    text.strip_prefix(letter)
        .is_some_and(|n| !n.is_empty() && n.len() <= 4 && n.chars().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
#[path = "selinux_tests.rs"]
mod tests;
