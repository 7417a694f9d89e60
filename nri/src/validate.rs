//! Validation of a merged CreateContainer (NRI-600…644): the request for the validators, their
//! combined verdict, and the default validator.
//!
//! Pure: no I/O, no clock. The dispatcher calls the validators in parallel and passes the answers;
//! an error, a timeout and a lost connection are rejections too (NRI-602). Most of this file is the
//! default validator.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

use proto_nri::{
    Field, OwningPlugins, PluginInstance, PodSandbox, ValidateContainerAdjustmentRequest,
    ValidateContainerAdjustmentResponse, security_profile::ProfileType,
};

use crate::{
    annotation::{effective_annotation, go_bool},
    mask::FieldMask,
    merge::{MergedCreate, clean_path},
    owners::{ContainerOwners, Owner, Owners, removal},
    plugin_id::PluginId,
};

/// Participation of one active plugin in the CreateContainer that is being validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub plugin: PluginId,
    /// It is subscribed to CreateContainer.
    pub subscribed: bool,
    /// It answered this very request, and its answer was merged.
    pub answered: bool,
}

impl Part {
    /// Whether validators see the plugin: one that did not answer in time counts as absent
    /// (NRI-603, mended).
    pub fn present(&self) -> bool {
        self.answered || !self.subscribed
    }
}

/// The request for the validators (NRI-601). `parts`: every active plugin, in call order.
pub fn request(merged: &MergedCreate, parts: &[Part]) -> ValidateContainerAdjustmentRequest {
    let present = parts.iter().filter(|part| part.present());
    let instance = |part: &Part| PluginInstance {
        name: part.plugin.name.clone(),
        index: part.plugin.index.clone(),
    };
    ValidateContainerAdjustmentRequest {
        pod: merged.pod.clone(),
        container: Some(merged.container.clone()),
        adjust: Some(merged.adjust.clone()),
        update: merged.update.clone(),
        owners: Some(OwningPlugins::from(&merged.owners)),
        plugins: present.map(instance).collect(),
    }
}

/// Rejections of all validators, in order of their ids (NRI-602).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Never empty.
    pub by: Vec<(PluginId, String)>,
}

impl std::error::Error for Rejected {}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.by.iter();
        let by = by.map(|(id, reason)| format!("validator {id} rejected it: {reason}"));
        f.write_str(&by.collect::<Vec<_>>().join("; "))
    }
}

/// Combines the verdicts of all validators. `Err` is a call that failed, with its cause.
pub fn verdict(
    answers: impl IntoIterator<
        Item = (
            PluginId,
            Result<ValidateContainerAdjustmentResponse, String>,
        ),
    >,
) -> Result<(), Rejected> {
    let mut by: Vec<_> = answers
        .into_iter()
        .filter_map(|(validator, answer)| match answer {
            Ok(answer) if !answer.reject => None,
            Ok(answer) if answer.reason.is_empty() => {
                Some((validator, "it gave no reason".to_owned()))
            }
            Ok(answer) => Some((validator, answer.reason)),
            Err(cause) => Some((validator, format!("no verdict: {cause}"))),
        })
        .collect();
    by.sort();
    if by.is_empty() {
        Ok(())
    } else {
        Err(Rejected { by })
    }
}

/// Pod annotation with more plugins that a container requires (NRI-640).
pub const REQUIRED_PLUGINS: &str = "required-plugins.noderesource.dev";

/// File systems that never expose the host, from any mount source. A new proc or sysfs has no
/// masked paths.
const HARMLESS: [&str; 6] = [
    "tmpfs",
    "devpts",
    "mqueue",
    "hugetlbfs",
    "cgroup",
    "cgroup2",
];

/// The default validator and its configuration (NRI-630…643): keys as in containerd's TOML, or as
/// in the stand-alone plugin's YAML. By default everything passes.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DefaultValidator {
    /// False: no default validator. The code that sets it up reads this; [`Self::check`] does not.
    pub enable: bool,
    #[serde(alias = "rejectOCIHookAdjustment")]
    pub reject_oci_hook_adjustment: bool,
    #[serde(alias = "rejectRuntimeDefaultSeccompAdjustment")]
    pub reject_runtime_default_seccomp_adjustment: bool,
    #[serde(alias = "rejectUnconfinedSeccompAdjustment")]
    pub reject_unconfined_seccomp_adjustment: bool,
    #[serde(alias = "rejectCustomSeccompAdjustment")]
    pub reject_custom_seccomp_adjustment: bool,
    #[serde(alias = "rejectNamespaceAdjustment")]
    pub reject_namespace_adjustment: bool,
    #[serde(alias = "rejectSysctlAdjustment")]
    pub reject_sysctl_adjustment: bool,
    /// Ours, like the next three: no plugin may set the command.
    #[serde(alias = "rejectArgsAdjustment")]
    pub reject_args_adjustment: bool,
    /// Includes CDI devices.
    #[serde(alias = "rejectDeviceAdjustment")]
    pub reject_device_adjustment: bool,
    /// Host directories that plugins may mount from; empty: all. If set, only file systems that
    /// never expose the host are allowed besides.
    ///
    /// Paths are compared as text. Resolving links here would prove nothing: the source is looked
    /// up again when the container starts, and users who can create links below these directories
    /// can change them until then. So only root should have that right. Hooks, devices and CDI
    /// devices are not mounts; other switches cover them.
    #[serde(alias = "allowedMountSources")]
    pub allowed_mount_sources: Vec<String>,
    /// By fields or groups as in `fields` of a plugin's settings: the plugins that may adjust them.
    #[serde(alias = "allowedOwners")]
    pub allowed_owners: BTreeMap<String, Vec<String>>,
    /// Bare names or `NN-name`.
    #[serde(alias = "requiredPlugins")]
    pub required_plugins: Vec<String>,
    /// Key of the annotation that exempts a container from required plugins; empty: none.
    #[serde(alias = "tolerateMissingPluginsAnnotation")]
    pub tolerate_missing_plugins_annotation: String,
}

impl DefaultValidator {
    /// Checks the settings: the error names an unknown field or an invalid directory.
    pub fn verify(&self) -> Result<(), String> {
        for fields in self.allowed_owners.keys() {
            fields
                .parse::<FieldMask>()
                .map_err(|e| format!("allowed_owners: {e}"))?;
        }
        match self
            .allowed_mount_sources
            .iter()
            .find(|s| !s.starts_with('/'))
        {
            Some(wrong) => Err(format!(
                "allowed_mount_sources: {wrong:?} must be an absolute path"
            )),
            None => Ok(()),
        }
    }

    /// Accepts, or returns the reason. Hooks, seccomp, namespaces, required plugins, sysctl, as in
    /// Go; then ours: command, devices, sources of mounts, owners. The first failure decides
    /// (NRI-630).
    pub fn check(&self, request: &ValidateContainerAdjustmentRequest) -> Result<(), String> {
        let wire = request.owners.clone().unwrap_or_default();
        let owners = Owners::try_from(&wire).map_err(|e| format!("owners: {e}"))?;
        let id = request.container.as_ref().map_or("", |c| c.id.as_str());
        let nobody = ContainerOwners::new(id);
        let owners = owners.container(id).unwrap_or(&nobody);
        let changes = Changes {
            owners,
            unowned: unowned_removals(request, owners),
        };
        let hooks = self.reject_oci_hook_adjustment;
        changes.refuse(hooks, &[Field::OciHooks], "OCI hooks")?;
        self.check_seccomp(request, &changes)?;
        let namespaces = self.reject_namespace_adjustment;
        changes.refuse(namespaces, &[Field::Namespace], "namespaces")?;
        self.check_required(request)?;
        changes.refuse(self.reject_sysctl_adjustment, &[Field::Sysctl], "sysctls")?;
        changes.refuse(self.reject_args_adjustment, &[Field::Args], "the command")?;
        let devices = &[Field::Devices, Field::CdiDevices];
        changes.refuse(self.reject_device_adjustment, devices, "devices")?;
        self.check_mounts(request, owners)?;
        self.check_owners(&changes)
    }

    fn check_mounts(
        &self,
        request: &ValidateContainerAdjustmentRequest,
        owners: &ContainerOwners,
    ) -> Result<(), String> {
        if self.allowed_mount_sources.is_empty() {
            return Ok(());
        }
        let mounts = request.adjust.iter().flat_map(|adjust| &adjust.mounts);
        for mount in mounts.filter(|m| removal(&m.destination).is_none()) {
            let binds = mount.options.iter().any(|o| o == "bind" || o == "rbind");
            let kind = mount.r#type.as_str();
            let harmless = HARMLESS.contains(&kind);
            let source = clean_path(&mount.source);
            let below = |dir: &String| Path::new(&source).starts_with(clean_path(dir));
            let is_bind = binds || ["bind", "", "none"].contains(&kind);
            let what = match is_bind || (harmless && mount.source.starts_with('/')) {
                true if self.allowed_mount_sources.iter().any(below) => continue,
                true => format!("{source} of the host"),
                false if harmless => continue,
                false => format!("a file system of type {kind:?}"),
            };
            let owner = owners.owner_of(Field::Mounts, &mount.destination);
            let plugins = names(owner.into_iter().flat_map(Owner::plugins));
            return Err(format!("plugin(s) {plugins} may not mount {what}"));
        }
        Ok(())
    }

    fn check_owners(&self, changes: &Changes<'_>) -> Result<(), String> {
        for (fields, allowed) in &self.allowed_owners {
            let fields: FieldMask = fields.parse().map_err(|e| format!("allowed_owners: {e}"))?;
            let may = |p: &PluginId| allowed.iter().any(|a| *a == p.name || *a == p.to_string());
            for field in fields.iter() {
                let others = changes.by(field, |plugin| !may(plugin));
                if !others.is_empty() {
                    let field = field.as_str_name();
                    return Err(format!("plugin(s) {others} may not adjust {field}"));
                }
            }
        }
        Ok(())
    }

    /// The switch depends on the container's previous profile (NRI-631).
    fn check_seccomp(
        &self,
        request: &ValidateContainerAdjustmentRequest,
        changes: &Changes<'_>,
    ) -> Result<(), String> {
        let linux = request.container.as_ref().and_then(|c| c.linux.as_ref());
        let profile = linux.and_then(|l| l.seccomp_profile.as_ref());
        let (rejects, kind) = match profile.map(|p| p.profile_type()) {
            None | Some(ProfileType::Unconfined) => {
                (self.reject_unconfined_seccomp_adjustment, "unconfined")
            }
            Some(ProfileType::RuntimeDefault) => (
                self.reject_runtime_default_seccomp_adjustment,
                "runtime default",
            ),
            Some(ProfileType::Localhost) => (self.reject_custom_seccomp_adjustment, "custom"),
        };
        let what = format!("the {kind} seccomp policy");
        changes.refuse(rejects, &[Field::SeccompPolicy], &what)
    }

    /// NRI-640, NRI-641.
    fn check_required(&self, request: &ValidateContainerAdjustmentRequest) -> Result<(), String> {
        let none = PodSandbox::default();
        let pod = request.pod.as_ref().unwrap_or(&none);
        let container = request.container.as_ref().map_or("", |c| c.name.as_str());
        if self.tolerates_missing(pod, container)? {
            return Ok(());
        }
        let mut required: BTreeSet<String> = self.required_plugins.iter().cloned().collect();
        if let Some(text) = effective_annotation(pod, REQUIRED_PLUGINS, container) {
            let more = string_list(text)
                .ok_or_else(|| format!("annotation {REQUIRED_PLUGINS}: must be a list of names"))?;
            required.extend(more);
        }
        let present = |name: &str| {
            request
                .plugins
                .iter()
                .any(|p| p.name == name || format!("{}-{}", p.index, p.name) == name)
        };
        required.retain(|name| !present(name));
        if required.is_empty() {
            Ok(())
        } else {
            let missing: Vec<_> = required.into_iter().collect();
            Err(format!(
                "required plugin(s) missing: {}",
                missing.join(", ")
            ))
        }
    }

    fn tolerates_missing(&self, pod: &PodSandbox, container: &str) -> Result<bool, String> {
        let key = &self.tolerate_missing_plugins_annotation;
        if key.is_empty() {
            return Ok(false);
        }
        let Some(text) = effective_annotation(pod, key, container) else {
            return Ok(false);
        };
        go_bool(text).ok_or_else(|| format!("annotation {key}: {text:?} is not a boolean"))
    }
}

/// The changes of one container. Removals count: `-P` is owned by P (NRI-632).
struct Changes<'a> {
    owners: &'a ContainerOwners,
    /// Fields with a removal that has no owner.
    unowned: BTreeSet<Field>,
}

impl Changes<'_> {
    fn refuse(&self, rejects: bool, fields: &[Field], what: &str) -> Result<(), String> {
        // A hostile answer has thousands of owners; most switches are off.
        if !rejects {
            return Ok(());
        }
        let by = fields.iter().map(|field| self.by(*field, |_| true));
        let by: BTreeSet<String> = by.filter(|names| !names.is_empty()).collect();
        if by.is_empty() {
            return Ok(());
        }
        let by = by.into_iter().collect::<Vec<_>>().join(", ");
        Err(format!("plugin(s) {by} may not adjust {what}"))
    }

    /// The names of the plugins that changed a field, as far as they count.
    fn by(&self, field: Field, counts: impl Fn(&PluginId) -> bool) -> String {
        let keyed = self.owners.keys(field).map(|(_, owner)| owner);
        let all = self.owners.owner(field).into_iter().chain(keyed);
        let plugins = all.flat_map(Owner::plugins).filter(|p| counts(p));
        let mut all = names(plugins);
        if self.unowned.contains(&field) {
            all.push_str(if all.is_empty() { "" } else { ", " });
            all.push_str(UNKNOWN);
        }
        all
    }
}

/// Stands for a plugin that the runtime did not name.
const UNKNOWN: &str = "(unknown)";

/// The fields in which the adjustment removes a key that has no owner. cairn records one for each
/// removal; runtimes with Go's adaptation do not for an original entry, so it counts as anyone's.
fn unowned_removals(
    request: &ValidateContainerAdjustmentRequest,
    owners: &ContainerOwners,
) -> BTreeSet<Field> {
    let Some(adjust) = &request.adjust else {
        return BTreeSet::new();
    };
    fn of<'a>(
        field: Field,
        keys: impl Iterator<Item = &'a str>,
    ) -> impl Iterator<Item = (Field, &'a str)> {
        keys.filter_map(removal).map(move |key| (field, key))
    }
    let annotations = adjust.annotations.keys().map(String::as_str);
    let mounts = adjust.mounts.iter().map(|m| m.destination.as_str());
    let env = adjust.env.iter().map(|var| var.key.as_str());
    let mut all: Vec<_> = of(Field::Annotations, annotations)
        .chain(of(Field::Mounts, mounts))
        .chain(of(Field::Env, env))
        .collect();
    if let Some(linux) = &adjust.linux {
        let devices = linux.devices.iter().map(|d| d.path.as_str());
        let namespaces = linux.namespaces.iter().map(|n| n.r#type.as_str());
        let sysctl = linux.sysctl.keys().map(String::as_str);
        let net_devices = linux.net_devices.keys().map(String::as_str);
        all.extend(of(Field::Devices, devices));
        all.extend(of(Field::Namespace, namespaces));
        all.extend(of(Field::Sysctl, sysctl));
        all.extend(of(Field::LinuxNetDevices, net_devices));
    }
    let unowned = all
        .into_iter()
        .filter(|(field, key)| owners.owner_of(*field, key).is_none());
    unowned.map(|(field, _)| field).collect()
}

fn names<'a>(plugins: impl IntoIterator<Item = &'a PluginId>) -> String {
    let mut plugins: Vec<String> = plugins.into_iter().map(ToString::to_string).collect();
    plugins.sort();
    plugins.dedup();
    plugins.join(", ")
}

/// Parses a YAML or JSON list of strings: `["a", b]`, or a line `- a` for each. `None` for anything
/// else, including anchors, tags, block scalars and nested lists.
fn string_list(text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    if let Some(inner) = text.strip_prefix('[') {
        return flow_items(inner.strip_suffix(']')?);
    }
    let lines = text.lines().map(str::trim).filter(|line| {
        let document_marks = ["", "---", "..."];
        !document_marks.contains(line) && !line.starts_with('#')
    });
    let items: Option<Vec<String>> = lines
        .map(|line| scalar(line.strip_prefix("- ")?.trim()))
        .collect();
    items.filter(|items| !items.is_empty())
}

/// The items between the brackets; a comma may follow the last.
fn flow_items(inner: &str) -> Option<Vec<String>> {
    let mut items = Vec::new();
    let mut rest = inner.trim();
    while !rest.is_empty() {
        let end = item_end(rest)?;
        items.push(scalar(rest[..end].trim())?);
        rest = rest[end..].strip_prefix(',').unwrap_or("").trim();
    }
    Some(items)
}

/// End of the first item of a flow list: its comma or the end of the text.
fn item_end(text: &str) -> Option<usize> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''));
    let quoted = match quote {
        Some(quote) => 2 + text[1..].find(quote)?,
        None => 0,
    };
    Some(text[quoted..].find(',').map_or(text.len(), |n| quoted + n))
}

/// A string, plain or quoted. Escapes are unsupported, because names of plugins need none.
fn scalar(text: &str) -> Option<String> {
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote) {
            let inner = inner.strip_suffix(quote)?;
            let plain = !inner.contains([quote, '\\']);
            return plain.then(|| inner.to_owned());
        }
    }
    let plain =
        !text.is_empty() && !text.contains(['[', ']', '{', '}', ':', '#', '&', '*', '!', '|', '>']);
    let nested = text == "-" || text.starts_with("- ");
    let null = matches!(text, "~" | "null");
    (plain && !nested && !null).then(|| text.to_owned())
}
