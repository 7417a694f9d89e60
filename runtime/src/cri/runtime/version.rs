//! Version (CRI-103).

use proto_cri::v1 as cri;

pub fn version() -> cri::VersionResponse {
    cri::VersionResponse {
        // Kubelet rejects any other value.
        version: "0.1.0".into(),
        runtime_name: "cairn".into(),
        runtime_version: env!("CARGO_PKG_VERSION").into(),
        runtime_api_version: "v1".into(),
    }
}
