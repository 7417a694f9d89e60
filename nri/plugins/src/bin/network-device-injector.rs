//! Usage of `network-device-injector`:
//!
//! ```text
//! network-device-injector -idx 10  # started in the network namespace of the host
//! pod annotation: netdevice.noderesource.dev: '[{name: eth1, new_name: net0, address: 10.0.0.2, prefix: 24, mtu: 1400}]'
//! needs CAP_NET_ADMIN and CAP_SYS_ADMIN
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::network_device_injector::NetworkDeviceInjector>()
}
