//! UpdateRuntimeConfig (CRI-109): kubelet sends the node's pod CIDR. The built-in bridge and CNI
//! configurations have their own subnets, so the value is only logged.

use proto_cri::v1 as cri;

pub fn update_runtime_config(
    request: &cri::UpdateRuntimeConfigRequest,
) -> cri::UpdateRuntimeConfigResponse {
    let cidr = request
        .runtime_config
        .as_ref()
        .and_then(|config| config.network_config.as_ref())
        .map_or("", |network| network.pod_cidr.as_str());
    if !cidr.is_empty() {
        tracing::info!(%cidr, "received the node's pod CIDR; the network configuration decides");
    }
    cri::UpdateRuntimeConfigResponse {}
}
