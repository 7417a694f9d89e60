//! OCI runtime specs from CRI values, image configuration and NRI adjustments. No I/O, no clock.
//!
//! ```text
//!  PodSandboxConfig ──sandbox::plan──► SandboxPlan          (the pod's request for its sandbox)
//!  ContainerConfig, SandboxFacts, HostFacts, ImageFacts
//!        │ container_spec                 pause_spec         (only for a shared PID namespace)
//!        ▼
//!  ContainerSpec { spec, user, seccomp, stop signal, ... }
//!        │ nri_container ──► plugins ──► ContainerAdjustment
//!        ▼ apply_adjustment
//!  Spec ──► the create helper;  apply_update / apply_nri_update for a change later
//! ```
//!
//! Look-ups (a bind source, a device node, the mount of a path) come through [`HostView`], which
//! the caller implements; this module opens nothing (invariant 5). A value that cannot be honoured
//! is refused with an error that names its field. No environment value enters an error or a `Debug`
//! output.

pub mod annotations;
pub mod apparmor;
pub mod apply_nri;
mod apply_nri_linux;
mod apply_nri_mounts;
mod apply_nri_process;
mod apply_nri_scheduling;
mod apply_nri_seccomp;
pub mod base;
pub mod capabilities;
pub mod cdi;
mod cdi_apply;
pub mod cgroups_path;
#[cfg(any(test, feature = "fuzzing"))]
pub mod checks;
pub mod devices;
pub mod error;
pub mod facts;
pub mod from_cri;
pub mod limits;
mod masks;
pub mod mounts;
pub mod namespaces;
mod nri_limits;
pub mod nri_resources;
pub mod pause;
pub mod process;
pub mod resources;
mod rlimits;
pub mod sandbox;
pub mod seccomp;
mod seccomp_profile;
pub mod selinux;
pub mod signal;
pub mod to_nri;
mod together;
pub mod user;

pub use apply_nri::apply_adjustment;
pub use cdi::{CdiFile, CdiRegistry, cdi_names};
pub use error::{ErrorKind, SpecError};
pub use facts::{
    ApplyContext, BindSource, CgroupDriver, HostDevice, HostFacts, HostView, IdMap, ImageFacts,
    Policies, Policy, Propagation, SandboxFacts, SandboxFiles, SandboxNamespaces, SeccompKind,
    SelinuxFacts, SelinuxLabels,
};
pub use from_cri::{ContainerSpec, Inputs, container_spec, image_volumes, log_path};
pub use mounts::check_volumes;
pub use nri_resources::{apply_nri_update, cri_to_nri, resources_to_nri};
pub use pause::{PauseInputs, pause_spec};
pub use resources::{apply_update, resources_from_cri, resources_to_cri};
pub use sandbox::{PidSharing, SandboxPlan, plan};
pub use signal::StopSignal;
pub use to_nri::{NriContainerFacts, nri_container, nri_pod};
pub use user::{ResolvedUser, UserRequest};
