//! Permitted fields of one plugin: finds, and on request drops, all others (NRI-1400, B-14). Runs
//! on an answer before the merge.
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

/// An answer that can be reduced to the permitted fields.
pub trait Restrict {
    /// Drops all fields outside `permitted` and returns them. An answer that must fail instead
    /// fails if the result is not empty.
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask;
}

impl Restrict for RunPodSandboxResponse {
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
        let Self { adjust } = self;
        let Some(PodSandboxAdjustment { network }) = adjust else {
            return FieldMask::NONE;
        };
        let Some(PodSandboxNetwork { ips }) = network else {
            return FieldMask::NONE;
        };
        if ips.is_empty() || permitted.may_give_ips() {
            return FieldMask::NONE;
        }
        ips.clear();
        FieldMask::POD_IPS
    }
}

impl Restrict for CreateContainerResponse {
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
        let Self {
            adjust,
            update,
            evict,
        } = self;
        adjust.restrict(permitted) | update.restrict(permitted) | evict.restrict(permitted)
    }
}

impl Restrict for UpdateContainerResponse {
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
        let Self { update, evict } = self;
        update.restrict(permitted) | evict.restrict(permitted)
    }
}

impl Restrict for StopContainerResponse {
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
        self.update.restrict(permitted)
    }
}

impl<T: Restrict> Restrict for Option<T> {
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
        self.as_mut()
            .map_or(FieldMask::NONE, |inner| inner.restrict(permitted))
    }
}

impl<T: Restrict> Restrict for Vec<T> {
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
        let denied = self.iter_mut().map(|item| item.restrict(permitted));
        denied.fold(FieldMask::NONE, |all, one| all | one)
    }
}

impl Restrict for ContainerUpdate {
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
        let linux = self.linux.as_mut();
        linux
            .and_then(|linux| linux.resources.as_mut())
            .map_or(FieldMask::NONE, |r| r.restrict(permitted))
    }
}

impl Restrict for Vec<ContainerEviction> {
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
        if self.is_empty() || permitted.may_evict() {
            return FieldMask::NONE;
        }
        self.clear();
        FieldMask::EVICT
    }
}

impl Restrict for ContainerAdjustment {
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
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
        let mut cut = Cut::new(permitted);
        cut.field(Field::Annotations, annotations);
        cut.field(Field::Mounts, mounts);
        cut.field(Field::Env, env);
        if *hooks == Some(Hooks::default()) {
            *hooks = None;
        }
        cut.field(Field::OciHooks, hooks);
        cut.field(Field::Rlimits, rlimits);
        cut.field(Field::CdiDevices, cdi_devices);
        cut.field(Field::Args, args);
        cut.denied | linux.restrict(permitted)
    }
}

impl Restrict for LinuxContainerAdjustment {
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
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
        let mut cut = Cut::new(permitted);
        cut.field(Field::Devices, devices);
        cut.field(Field::CgroupsPath, cgroups_path);
        cut.field(Field::OomScoreAdj, oom_score_adj);
        cut.field(Field::IoPriority, io_priority);
        cut.field(Field::SeccompPolicy, seccomp_policy);
        cut.field(Field::Namespace, namespaces);
        cut.field(Field::Sysctl, sysctl);
        cut.field(Field::LinuxNetDevices, net_devices);
        cut.field(Field::LinuxSched, scheduler);
        cut.field(Field::MemoryPolicy, memory_policy);
        cut.denied | resources.restrict(permitted) | rdt.restrict(permitted)
    }
}

impl Restrict for LinuxRdt {
    /// `remove` clears all three fields, so it needs the right to all three.
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
        let Self {
            clos_id,
            schemata,
            enable_monitoring,
            remove,
        } = self;
        let mut cut = Cut::new(permitted);
        cut.field(Field::RdtClosId, clos_id);
        cut.field(Field::RdtSchemata, schemata);
        cut.field(Field::RdtEnableMonitoring, enable_monitoring);
        let missing = FieldMask::RDT - permitted;
        if *remove && !missing.is_empty() {
            *remove = false;
            cut.denied = cut.denied | missing;
        }
        cut.denied
    }
}

impl Restrict for LinuxResources {
    fn restrict(&mut self, permitted: FieldMask) -> FieldMask {
        let mut cut = Cut::new(permitted);
        fields::visit(self, &mut LinuxResources::default(), &mut cut);
        cut.field(Field::HugepageLimits, &mut self.hugepage_limits);
        cut.field(Field::CgroupsUnified, &mut self.unified);
        cut.field(Field::Devices, &mut self.devices);
        cut.denied
    }
}

/// Clears fields that are not permitted, and records them.
struct Cut {
    permitted: FieldMask,
    denied: FieldMask,
}

impl Cut {
    fn new(permitted: FieldMask) -> Self {
        Self {
            permitted,
            denied: FieldMask::NONE,
        }
    }

    /// A field at its default is unset, so it needs no permission.
    fn field<T: Default + PartialEq>(&mut self, field: Field, value: &mut T) {
        if !self.permitted.has(field) && *value != T::default() {
            *value = T::default();
            self.denied = self.denied | FieldMask::of(field);
        }
    }
}

impl Visitor for Cut {
    fn field<T: Default + PartialEq>(&mut self, field: Field, value: &mut T, _: &mut T) {
        Cut::field(self, field, value);
    }
}
