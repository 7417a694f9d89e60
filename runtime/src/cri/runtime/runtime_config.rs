//! RuntimeConfig (CRI-108): static for the daemon's life.

use proto_cri::v1 as cri;

pub fn runtime_config() -> cri::RuntimeConfigResponse {
    cri::RuntimeConfigResponse {
        linux: Some(cri::LinuxRuntimeConfiguration {
            cgroup_driver: cri::CgroupDriver::Cgroupfs.into(),
        }),
    }
}
