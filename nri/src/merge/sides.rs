//! Merging the adjustments of a container being created: table 5.2, row by row.
//!
//! The patterns name every field and have no `..`: a field added to the wire does not compile
//! until it has a row here.

use std::collections::{BTreeMap, BTreeSet};

use proto_nri::{
    CdiDevice, Container, ContainerAdjustment, Field, Hooks, KeyValue, LinuxContainer,
    LinuxContainerAdjustment, LinuxNamespace, LinuxRdt, LinuxResources, PosixRlimit,
};

use super::{error::MergeError, keyed, resources};
use crate::{
    adjust::extend_hooks,
    owners::{ContainerOwners, PluginId, removal},
};

/// Both sides of the merge while one plugin's adjustment goes in: the request that later plugins
/// see, and the reply that the runtime gets. Each row writes both, or says why not.
pub(super) struct Sides<'a> {
    pub(super) plugin: &'a PluginId,
    pub(super) owners: &'a mut ContainerOwners,
    pub(super) pristine: &'a Container,
    pub(super) request: &'a mut Container,
    pub(super) reply: &'a mut ContainerAdjustment,
}

impl Sides<'_> {
    pub(super) fn adjust(&mut self, adjust: ContainerAdjustment) -> Result<(), MergeError> {
        let ContainerAdjustment {
            annotations,
            mounts,
            env,
            hooks,
            linux,
            rlimits,
            cdi_devices,
            args,
        } = adjust;
        keyed::take_map(
            self.owners,
            self.plugin,
            Field::Annotations,
            annotations,
            &mut self.request.annotations,
            &mut self.reply.annotations,
        )?;
        let mounts = keyed::take(self.owners, self.plugin, mounts)?;
        keyed::drop_keys(&mut self.request.mounts, &mounts.keys);
        self.request.mounts.extend(mounts.set().cloned());
        keyed::drop_keys(&mut self.reply.mounts, &mounts.keys);
        self.reply.mounts.extend(mounts.reply);
        self.env(env)?;
        self.args(args)?;
        self.hooks(hooks.unwrap_or_default());
        self.linux(linux.unwrap_or_default())?;
        self.rlimits(rlimits)?;
        self.cdi_devices(cdi_devices)
    }

    fn env(&mut self, mut env: Vec<KeyValue>) -> Result<(), MergeError> {
        // A variable without a name cannot be set; runtimes ignore it (7).
        env.retain(|var| !removal(&var.key).unwrap_or(&var.key).is_empty());
        let env = keyed::take(self.owners, self.plugin, env)?;
        self.request.env.retain(|var| {
            let name = var.split_once('=').map_or(var.as_str(), |(name, _)| name);
            !env.keys.contains(name)
        });
        let set = env.set().map(|var| format!("{}={}", var.key, var.value));
        self.request.env.extend(set);
        keyed::drop_keys(&mut self.reply.env, &env.keys);
        self.reply.env.extend(env.reply);
        Ok(())
    }

    /// A first argument "" says: I know that I overwrite. With nothing after it the original
    /// arguments stand (NRI-517), and later plugins are shown them.
    fn args(&mut self, mut args: Vec<String>) -> Result<(), MergeError> {
        let Some(first) = args.first() else {
            return Ok(());
        };
        if first.is_empty() {
            self.owners.clear(self.plugin, Field::Args);
            args.remove(0);
        }
        self.owners.claim(self.plugin, Field::Args)?;
        self.request.args = match args.is_empty() {
            true => self.pristine.args.clone(),
            false => args.clone(),
        };
        self.reply.args = args;
        Ok(())
    }

    fn hooks(&mut self, hooks: Hooks) {
        if hooks == Hooks::default() {
            return;
        }
        self.owners.share(self.plugin, Field::OciHooks);
        extend_hooks(self.request.hooks.get_or_insert_default(), hooks.clone());
        extend_hooks(self.reply.hooks.get_or_insert_default(), hooks);
    }

    fn linux(&mut self, linux: LinuxContainerAdjustment) -> Result<(), MergeError> {
        let LinuxContainerAdjustment {
            devices,
            resources,
            cgroups_path,
            oom_score_adj,
            io_priority,
            seccomp_policy,
            namespaces,
            sysctl,
            net_devices,
            scheduler,
            rdt,
            memory_policy,
        } = linux;
        let (request, reply) = linux_sides(self.request, self.reply);
        let devices = keyed::take(self.owners, self.plugin, devices)?;
        keyed::drop_keys(&mut request.devices, &devices.keys);
        request.devices.extend(devices.set().cloned());
        keyed::drop_keys(&mut reply.devices, &devices.keys);
        reply.devices.extend(devices.reply);
        self.resources(resources.unwrap_or_default())?;

        let (request, reply) = linux_sides(self.request, self.reply);
        if !cgroups_path.is_empty() {
            self.owners.claim(self.plugin, Field::CgroupsPath)?;
            request.cgroups_path.clone_from(&cgroups_path);
            reply.cgroups_path = cgroups_path;
        }
        let mut whole = Whole(self.owners, self.plugin);
        let sides = (&mut request.oom_score_adj, &mut reply.oom_score_adj);
        whole.take(Field::OomScoreAdj, oom_score_adj, sides)?;
        let sides = (&mut request.io_priority, &mut reply.io_priority);
        whole.take(Field::IoPriority, io_priority, sides)?;
        let sides = (&mut request.seccomp_policy, &mut reply.seccomp_policy);
        whole.take(Field::SeccompPolicy, seccomp_policy, sides)?;
        self.namespaces(namespaces)?;

        let (request, reply) = linux_sides(self.request, self.reply);
        keyed::take_map(
            self.owners,
            self.plugin,
            Field::Sysctl,
            sysctl,
            &mut request.sysctl,
            &mut reply.sysctl,
        )?;
        keyed::take_map(
            self.owners,
            self.plugin,
            Field::LinuxNetDevices,
            net_devices,
            &mut request.net_devices,
            &mut reply.net_devices,
        )?;
        let mut whole = Whole(self.owners, self.plugin);
        let sides = (&mut request.scheduler, &mut reply.scheduler);
        whole.take(Field::LinuxSched, scheduler, sides)?;
        self.rdt(rdt.unwrap_or_default())?;
        // LinuxContainer has no field for it: later plugins cannot be shown it (NRI-520).
        if memory_policy.is_some() {
            self.owners.claim(self.plugin, Field::MemoryPolicy)?;
            linux_sides(self.request, self.reply).1.memory_policy = memory_policy;
        }
        Ok(())
    }

    fn resources(&mut self, wanted: LinuxResources) -> Result<(), MergeError> {
        resources::claim(self.owners, self.plugin, &wanted)?;
        let (request, reply) = linux_sides(self.request, self.reply);
        let shown = request.resources.get_or_insert_default();
        resources::overlay(shown, wanted.clone());
        resources::overlay(reply.resources.get_or_insert_default(), wanted);
        Ok(())
    }

    /// A removal claims the type as a setting does: two plugins at one type always conflict.
    fn namespaces(&mut self, namespaces: Vec<LinuxNamespace>) -> Result<(), MergeError> {
        let mut types = BTreeSet::new();
        for namespace in &namespaces {
            let kind = removal(&namespace.r#type).unwrap_or(&namespace.r#type);
            self.owners.claim_key(self.plugin, Field::Namespace, kind)?;
            types.insert(kind);
        }
        let (request, reply) = linux_sides(self.request, self.reply);
        request
            .namespaces
            .retain(|have| !types.contains(have.r#type.as_str()));
        let set = namespaces.iter().filter(|n| removal(&n.r#type).is_none());
        request.namespaces.extend(set.cloned());
        reply.namespaces.extend(namespaces);
        Ok(())
    }

    /// The three fields are owned one by one; `remove` clears all three and drops what earlier
    /// plugins had set. A set value takes `remove` back.
    fn rdt(&mut self, rdt: LinuxRdt) -> Result<(), MergeError> {
        let LinuxRdt {
            clos_id,
            schemata,
            enable_monitoring,
            remove,
        } = &rdt;
        let set = [
            (Field::RdtClosId, clos_id.is_some()),
            (Field::RdtSchemata, schemata.is_some()),
            (Field::RdtEnableMonitoring, enable_monitoring.is_some()),
        ];
        let any = set.iter().any(|(_, is_set)| *is_set);
        if !any && !remove {
            return Ok(());
        }
        for (field, is_set) in set {
            if *remove {
                self.owners.clear(self.plugin, field);
            }
            if is_set {
                self.owners.claim(self.plugin, field)?;
            }
        }
        let (request, reply) = linux_sides(self.request, self.reply);
        let merged = match (*remove, reply.rdt.take()) {
            (false, Some(earlier)) => overlay_rdt(earlier, rdt),
            _ => rdt,
        };
        let merged = LinuxRdt {
            remove: !any,
            ..merged
        };
        let original = self.pristine.linux.as_ref().and_then(|l| l.rdt.clone());
        request.rdt = match merged.remove {
            true => None,
            false => Some(overlay_rdt(original.unwrap_or_default(), merged.clone())),
        };
        reply.rdt = Some(merged);
        Ok(())
    }

    /// The wire keeps the plugin's spelling; `nofile` and `RLIMIT_NOFILE` are owned as one.
    fn rlimits(&mut self, rlimits: Vec<PosixRlimit>) -> Result<(), MergeError> {
        let owned = self.owners.keys(Field::Rlimits);
        let mut names: BTreeMap<String, String> = owned
            .map(|(key, _)| (rlimit_name(key), key.to_owned()))
            .collect();
        for rlimit in &rlimits {
            let name = rlimit_name(&rlimit.r#type);
            let key = names.entry(name).or_insert_with(|| rlimit.r#type.clone());
            self.owners.claim_key(self.plugin, Field::Rlimits, key)?;
        }
        self.request.rlimits.extend(rlimits.iter().cloned());
        self.reply.rlimits.extend(rlimits);
        Ok(())
    }

    fn cdi_devices(&mut self, devices: Vec<CdiDevice>) -> Result<(), MergeError> {
        for device in &devices {
            self.owners
                .claim_key(self.plugin, Field::CdiDevices, &device.name)?;
        }
        self.request.cdi_devices.extend(devices.iter().cloned());
        self.reply.cdi_devices.extend(devices);
        Ok(())
    }
}

/// Simple fields that are replaced as a whole where present.
struct Whole<'a>(&'a mut ContainerOwners, &'a PluginId);

impl Whole<'_> {
    fn take<T: Clone>(
        &mut self,
        field: Field,
        value: Option<T>,
        (request, reply): (&mut Option<T>, &mut Option<T>),
    ) -> Result<(), MergeError> {
        if value.is_some() {
            self.0.claim(self.1, field)?;
            request.clone_from(&value);
            *reply = value;
        }
        Ok(())
    }
}

fn linux_sides<'a>(
    request: &'a mut Container,
    reply: &'a mut ContainerAdjustment,
) -> (&'a mut LinuxContainer, &'a mut LinuxContainerAdjustment) {
    (
        request.linux.get_or_insert_default(),
        reply.linux.get_or_insert_default(),
    )
}

fn overlay_rdt(base: LinuxRdt, top: LinuxRdt) -> LinuxRdt {
    LinuxRdt {
        clos_id: top.clos_id.or(base.clos_id),
        schemata: top.schemata.or(base.schemata),
        enable_monitoring: top.enable_monitoring.or(base.enable_monitoring),
        remove: false,
    }
}

/// `NOFILE` for each of `nofile`, `RLIMIT_NOFILE`, `rlimit_nofile`.
fn rlimit_name(name: &str) -> String {
    let upper = name.to_ascii_uppercase();
    match upper.strip_prefix("RLIMIT_") {
        Some(bare) => bare.to_owned(),
        None => upper,
    }
}
