//! The permission to set a field (NRI-1400): which fields an answer sets, of any message that a plugin
//! answers with. Checked before the merge.
//!
//! Pure: no I/O, no clock. Device rules of a cgroup have no field of their own and count as
//! `Devices`. The patterns name every field without `..`, so that a field added to the wire cannot
//! bypass the check.

use proto_nri::{
    ContainerAdjustment, ContainerEviction, ContainerUpdate, CreateContainerResponse, Field, Hooks,
    LinuxContainerAdjustment, LinuxRdt, LinuxResources, PodSandboxAdjustment, PodSandboxNetwork,
    RunPodSandboxResponse, StopContainerResponse, UpdateContainerResponse,
};

use crate::{
    fields::{self, Visitor},
    mask::FieldMask,
};

/// An answer, or a part of one.
pub trait Sets {
    /// The fields that it sets. A field at its default is unset.
    fn sets(&self) -> FieldMask;
}

impl Sets for RunPodSandboxResponse {
    fn sets(&self) -> FieldMask {
        let Self { adjust } = self;
        let Some(PodSandboxAdjustment { network }) = adjust else {
            return FieldMask::NONE;
        };
        match network {
            Some(PodSandboxNetwork { ips }) if !ips.is_empty() => FieldMask::POD_IPS,
            _ => FieldMask::NONE,
        }
    }
}

impl Sets for CreateContainerResponse {
    fn sets(&self) -> FieldMask {
        let Self {
            adjust,
            update,
            evict,
        } = self;
        adjust.sets() | update.sets() | evict.sets()
    }
}

impl Sets for UpdateContainerResponse {
    fn sets(&self) -> FieldMask {
        let Self { update, evict } = self;
        update.sets() | evict.sets()
    }
}

impl Sets for StopContainerResponse {
    fn sets(&self) -> FieldMask {
        let Self { update } = self;
        update.sets()
    }
}

impl<T: Sets> Sets for Option<T> {
    fn sets(&self) -> FieldMask {
        self.as_ref().map_or(FieldMask::NONE, Sets::sets)
    }
}

impl<T: Sets> Sets for Vec<T> {
    fn sets(&self) -> FieldMask {
        let each = self.iter().map(Sets::sets);
        each.fold(FieldMask::NONE, |all, one| all | one)
    }
}

impl Sets for ContainerUpdate {
    fn sets(&self) -> FieldMask {
        let linux = self.linux.as_ref();
        let resources = linux.and_then(|linux| linux.resources.as_ref());
        resources.map_or(FieldMask::NONE, Sets::sets)
    }
}

impl Sets for ContainerEviction {
    fn sets(&self) -> FieldMask {
        FieldMask::EVICT
    }
}

impl Sets for ContainerAdjustment {
    fn sets(&self) -> FieldMask {
        let Self {
            annotations,
            mounts,
            env,
            hooks,
            linux,
            rlimits,
            cdi_devices,
            args,
        } = self;
        let mut found = Found::default();
        found.field(Field::Annotations, annotations);
        found.field(Field::Mounts, mounts);
        found.field(Field::Env, env);
        let hooks = hooks.as_ref().filter(|hooks| **hooks != Hooks::default());
        found.field(Field::OciHooks, &hooks);
        found.field(Field::Rlimits, rlimits);
        found.field(Field::CdiDevices, cdi_devices);
        found.field(Field::Args, args);
        found.0 | linux.sets()
    }
}

impl Sets for LinuxContainerAdjustment {
    fn sets(&self) -> FieldMask {
        let Self {
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
        } = self;
        let mut found = Found::default();
        found.field(Field::Devices, devices);
        found.field(Field::CgroupsPath, cgroups_path);
        found.field(Field::OomScoreAdj, oom_score_adj);
        found.field(Field::IoPriority, io_priority);
        found.field(Field::SeccompPolicy, seccomp_policy);
        found.field(Field::Namespace, namespaces);
        found.field(Field::Sysctl, sysctl);
        found.field(Field::LinuxNetDevices, net_devices);
        found.field(Field::LinuxSched, scheduler);
        found.field(Field::MemoryPolicy, memory_policy);
        found.0 | resources.sets() | rdt.sets()
    }
}

impl Sets for LinuxRdt {
    /// `remove` clears all three fields, so it needs the permission for all three.
    fn sets(&self) -> FieldMask {
        let Self {
            clos_id,
            schemata,
            enable_monitoring,
            remove,
        } = self;
        if *remove {
            return FieldMask::RDT;
        }
        let mut found = Found::default();
        found.field(Field::RdtClosId, clos_id);
        found.field(Field::RdtSchemata, schemata);
        found.field(Field::RdtEnableMonitoring, enable_monitoring);
        found.0
    }
}

impl Sets for LinuxResources {
    fn sets(&self) -> FieldMask {
        let mut found = Found::default();
        fields::visit(&mut self.clone(), &mut Self::default(), &mut found);
        found.field(Field::HugepageLimits, &self.hugepage_limits);
        found.field(Field::CgroupsUnified, &self.unified);
        found.field(Field::Devices, &self.devices);
        found.0
    }
}

/// The fields found so far.
struct Found(FieldMask);

impl Default for Found {
    fn default() -> Self {
        Self(FieldMask::NONE)
    }
}

impl Found {
    fn field<T: Default + PartialEq>(&mut self, field: Field, value: &T) {
        if *value != T::default() {
            self.0 = self.0 | FieldMask::of(field);
        }
    }
}

impl Visitor for Found {
    fn field<T: Default + PartialEq>(&mut self, field: Field, value: &mut T, _: &mut T) {
        Self::field(self, field, value);
    }
}
