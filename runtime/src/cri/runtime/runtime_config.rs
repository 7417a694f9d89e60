//! RuntimeConfig: static for the daemon's life.

use proto_cri::v1 as cri;

use crate::oci::CgroupDriver;

pub fn runtime_config(driver: CgroupDriver) -> cri::RuntimeConfigResponse {
    cri::RuntimeConfigResponse {
        linux: Some(cri::LinuxRuntimeConfiguration {
            cgroup_driver: match driver {
                CgroupDriver::Cgroupfs => cri::CgroupDriver::Cgroupfs,
                CgroupDriver::Systemd => cri::CgroupDriver::Systemd,
            }
            .into(),
        }),
    }
}
