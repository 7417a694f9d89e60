//! Merges the adjustments of a container being created, field by field (NRI-500…520).
//!
//! The patterns name every field and have no `..`: a field added to the wire does not compile until
//! it is merged here.

use std::collections::{BTreeMap, BTreeSet};

use proto_nri::{
    CdiDevice, Container, ContainerAdjustment, Field, Hooks, KeyValue, LinuxContainerAdjustment,
    LinuxNamespace, LinuxRdt, PosixRlimit,
};

use super::{
    error::MergeError,
    keyed::{self, Both, Claims, both},
    resources,
};
use crate::{adjust::extend_hooks, owners::removal};

/// Both sides of the merge while one plugin's adjustment goes in: the request that later plugins
/// see, and the reply that the runtime gets. Each row writes both, or says why not.
pub(super) struct Sides<'a> {
    pub(super) claims: Claims<'a>,
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
        let (request, reply) = (&mut *self.request, &mut *self.reply);
        let sides = both(&mut request.annotations, &mut reply.annotations);
        self.claims.map(Field::Annotations, annotations, sides)?;
        let sides = both(&mut request.mounts, &mut reply.mounts);
        self.claims.list(mounts, sides)?;
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
        let env = self.claims.take(env)?;
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

    /// A first argument "" means that the plugin replaces them knowingly. If no other argument
    /// follows, the original arguments are kept (NRI-517), and later plugins see them.
    fn args(&mut self, mut args: Vec<String>) -> Result<(), MergeError> {
        let Some(first) = args.first() else {
            return Ok(());
        };
        if first.is_empty() {
            self.claims.owners.clear(self.claims.plugin, Field::Args);
            args.remove(0);
        }
        self.claims.claim(Field::Args)?;
        self.request.args = if args.is_empty() {
            self.pristine.args.clone()
        } else {
            args.clone()
        };
        self.reply.args = args;
        Ok(())
    }

    fn hooks(&mut self, hooks: Hooks) {
        if hooks == Hooks::default() {
            return;
        }
        let Claims { owners, plugin, .. } = &mut self.claims;
        owners.share(plugin, Field::OciHooks);
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
        let claims = &mut self.claims;
        let request = self.request.linux.get_or_insert_default();
        let reply = self.reply.linux.get_or_insert_default();
        claims.list(devices, both(&mut request.devices, &mut reply.devices))?;
        let resources = resources.unwrap_or_default();
        resources::claim(claims.owners, claims.plugin, &resources)?;
        let shown = request.resources.get_or_insert_default();
        resources::overlay(shown, resources.clone());
        resources::overlay(reply.resources.get_or_insert_default(), resources);
        if !cgroups_path.is_empty() {
            claims.claim(Field::CgroupsPath)?;
            request.cgroups_path.clone_from(&cgroups_path);
            reply.cgroups_path = cgroups_path;
        }
        let sides = both(&mut request.oom_score_adj, &mut reply.oom_score_adj);
        claims.whole(Field::OomScoreAdj, oom_score_adj, sides)?;
        let sides = both(&mut request.io_priority, &mut reply.io_priority);
        claims.whole(Field::IoPriority, io_priority, sides)?;
        let sides = both(&mut request.seccomp_policy, &mut reply.seccomp_policy);
        claims.whole(Field::SeccompPolicy, seccomp_policy, sides)?;
        let sides = both(&mut request.namespaces, &mut reply.namespaces);
        claims.namespaces(namespaces, sides)?;
        let sides = both(&mut request.sysctl, &mut reply.sysctl);
        claims.map(Field::Sysctl, sysctl, sides)?;
        let sides = both(&mut request.net_devices, &mut reply.net_devices);
        claims.map(Field::LinuxNetDevices, net_devices, sides)?;
        let sides = both(&mut request.scheduler, &mut reply.scheduler);
        claims.whole(Field::LinuxSched, scheduler, sides)?;
        let original = self.pristine.linux.as_ref().and_then(|l| l.rdt.as_ref());
        let sides = both(&mut request.rdt, &mut reply.rdt);
        claims.rdt(rdt.unwrap_or_default(), original, sides)?;
        // LinuxContainer has no field for it: later plugins cannot be shown it (NRI-520).
        let mut hidden = None;
        let sides = both(&mut hidden, &mut reply.memory_policy);
        claims.whole(Field::MemoryPolicy, memory_policy, sides)
    }

    /// The wire keeps the plugin's spelling; `nofile` and `RLIMIT_NOFILE` are owned as one.
    fn rlimits(&mut self, rlimits: Vec<PosixRlimit>) -> Result<(), MergeError> {
        let owned = self.claims.owners.keys(Field::Rlimits);
        let mut names: BTreeMap<String, String> = owned
            .map(|(key, _)| (rlimit_name(key), key.to_owned()))
            .collect();
        for rlimit in &rlimits {
            let name = rlimit_name(&rlimit.r#type);
            let key = names.entry(name).or_insert_with(|| rlimit.r#type.clone());
            self.claims.claim_key(Field::Rlimits, key)?;
        }
        self.request.rlimits.extend(rlimits.iter().cloned());
        self.reply.rlimits.extend(rlimits);
        Ok(())
    }

    fn cdi_devices(&mut self, devices: Vec<CdiDevice>) -> Result<(), MergeError> {
        for device in &devices {
            self.claims.claim_key(Field::CdiDevices, &device.name)?;
        }
        self.request.cdi_devices.extend(devices.iter().cloned());
        self.reply.cdi_devices.extend(devices);
        Ok(())
    }
}

impl Claims<'_> {
    /// A removal claims the type as a setting does: two plugins at one type always conflict.
    fn namespaces(
        &mut self,
        namespaces: Vec<LinuxNamespace>,
        both: Both<'_, Vec<LinuxNamespace>>,
    ) -> Result<(), MergeError> {
        let Both { request, reply } = both;
        let mut types = BTreeSet::new();
        for namespace in &namespaces {
            let kind = removal(&namespace.r#type).unwrap_or(&namespace.r#type);
            self.claim_key(Field::Namespace, kind)?;
            types.insert(kind);
        }
        request.retain(|have| !types.contains(have.r#type.as_str()));
        let set = namespaces.iter().filter(|n| removal(&n.r#type).is_none());
        request.extend(set.cloned());
        reply.extend(namespaces);
        Ok(())
    }

    /// The three fields are owned one by one; `remove` clears all three and drops what earlier
    /// plugins had set. A set value takes `remove` back.
    fn rdt(
        &mut self,
        rdt: LinuxRdt,
        original: Option<&LinuxRdt>,
        both: Both<'_, Option<LinuxRdt>>,
    ) -> Result<(), MergeError> {
        let Both { request, reply } = both;
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
                self.claim(field)?;
            }
        }
        let merged = match (*remove, reply.take()) {
            (false, Some(earlier)) => overlay_rdt(earlier, rdt),
            _ => rdt,
        };
        let merged = LinuxRdt {
            remove: !any,
            ..merged
        };
        *request = if merged.remove {
            None
        } else {
            let original = original.cloned().unwrap_or_default();
            Some(overlay_rdt(original, merged.clone()))
        };
        *reply = Some(merged);
        Ok(())
    }
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
