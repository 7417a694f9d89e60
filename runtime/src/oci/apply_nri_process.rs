//! The fields of an adjustment that change annotations, the process and the OCI hooks (NRI-702,
//! NRI-703, NRI-708).

use std::collections::BTreeMap;

use oci_spec::runtime::{Hook, Spec};
use proto_nri::{self as nri, Field};

use super::{
    base::process_of,
    error::SpecError,
    facts::{HostFacts, HostView},
    process::name_of,
    rlimits::rlimit,
};
use ::nri::owners::removal;

/// Applies all removals, then all values (NRI-702).
pub(super) fn annotations(
    spec: &mut Spec,
    asked: &BTreeMap<String, String>,
) -> Result<(), SpecError> {
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
                (Field::Annotations, ""),
                "an annotation without a name",
            ));
        }
        annotations.insert(key.clone(), value.clone());
    }
    Ok(())
}

/// Existing variables keep their order: each stays, is removed or gets its new value. New ones
/// follow. A repeated name is set once, its duplicates are dropped (NRI-703).
pub(super) fn env(spec: &mut Spec, asked: &[nri::KeyValue]) -> Result<(), SpecError> {
    if asked.is_empty() {
        return Ok(());
    }
    // A value wins over a removal of the same name: the pair means "replace" (NRI-510).
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
    let process = process_of(spec);
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

/// The error never contains the value.
fn check_variable(entry: &nri::KeyValue) -> Result<(), SpecError> {
    let subject = (Field::Env, &*entry.key);
    if entry.key.contains(['=', '\0']) {
        return Err(SpecError::invalid(subject, "invalid variable name"));
    }
    if entry.value.contains('\0') {
        return Err(SpecError::invalid(subject, "the value contains a NUL byte"));
    }
    Ok(())
}

/// Replaces the arguments, unless the list is empty. An empty first element is a marker (NRI-517).
pub(super) fn args(spec: &mut Spec, asked: &[String]) -> Result<(), SpecError> {
    let args = match asked {
        [marker, rest @ ..] if marker.is_empty() => rest,
        all => all,
    };
    if args.is_empty() {
        return Ok(());
    }
    if args[0].is_empty() || args.iter().any(|a| a.contains('\0')) {
        return Err(SpecError::invalid(
            Field::Args,
            "an empty program name or a NUL byte",
        ));
    }
    let process = process_of(spec);
    process.set_args(Some(args.to_vec()));
    Ok(())
}

/// Checks that the programs of OCI hooks exist on the host, where all but startContainer run.
pub(super) fn hook_programs(
    asked: Option<&nri::Hooks>,
    view: &dyn HostView,
) -> Result<(), SpecError> {
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
            Field::OciHooks,
            format!("program {:?} does not exist on this host", hook.path),
        )),
    }
}

/// Appends the OCI hooks to those of their kind.
pub(super) fn hooks(spec: &mut Spec, asked: Option<&nri::Hooks>) -> Result<(), SpecError> {
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
        let path = &hook.path;
        let wrong = |cause: String| Err(SpecError::invalid(Field::OciHooks, cause));
        if !path.starts_with('/') || path.contains('\0') {
            return wrong(format!("{path:?} must be absolute"));
        }
        let mut texts = hook.args.iter().chain(&hook.env);
        if texts.any(|text| text.contains('\0')) {
            return wrong(format!("{path}: a NUL byte in its arguments or variables"));
        }
        let nameless = |text: &String| text.find('=').is_none_or(|at| at == 0);
        if hook.env.iter().any(nameless) {
            return wrong(format!("{path}: a variable must be of the form NAME=value"));
        }
        let timeout = hook.timeout.as_ref().map(|t| t.value);
        if timeout.is_some_and(|t| t <= 0) {
            return wrong(format!("{path}: a timeout must be above zero"));
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

/// Sets the score, which may exceed the kubelet's but not the kernel's range.
pub(super) fn oom_score_adj(
    spec: &mut Spec,
    asked: Option<&nri::OptionalInt>,
    host: &HostFacts,
) -> Result<(), SpecError> {
    let Some(asked) = asked else {
        return Ok(());
    };
    let score = super::process::oom_score_adj(asked.value, host)
        .map_err(|_| out_of_range(Field::OomScoreAdj, asked.value, -1000, 1000))?;
    process_of(spec).set_oom_score_adj(Some(score));
    Ok(())
}

/// Replaces a limit of the same type: OCI forbids a second one (NRI-708).
pub(super) fn rlimits(
    spec: &mut Spec,
    asked: &[nri::PosixRlimit],
    view: &dyn HostView,
) -> Result<(), SpecError> {
    if asked.is_empty() {
        return Ok(());
    }
    let process = process_of(spec);
    let mut list = process.rlimits().clone().unwrap_or_default();
    for limit in asked {
        let new = rlimit(&limit.r#type, limit.soft, limit.hard, view.max_open_files())
            .map_err(|cause| SpecError::invalid((Field::Rlimits, &*limit.r#type), cause))?;
        match list.iter_mut().find(|l| l.typ() == new.typ()) {
            Some(place) => *place = new,
            None => list.push(new),
        }
    }
    process.set_rlimits(Some(list));
    Ok(())
}

pub(super) fn out_of_range(field: Field, value: i64, low: i64, high: i64) -> SpecError {
    SpecError::invalid(field, format!("{value} is out of range ({low} to {high})"))
}
