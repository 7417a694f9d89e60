//! The CRI client: the crate `k8s-cri` over the daemon's Unix socket, with the types of
//! `proto-cri` only for what that crate lacks.

use std::{path::Path, sync::Arc};

use k8s_cri::v1::{
    image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient,
};
use tonic::transport::{Channel, Endpoint};

/// Replies may hold many objects (CRI-002).
const MESSAGE_LIMIT: usize = 16 << 20;

/// One connection; clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    /// Pods and containers.
    pub runtime: RuntimeServiceClient<Channel>,
    /// Images.
    pub image: ImageServiceClient<Channel>,
    /// The RPCs and fields that `k8s-cri` lacks.
    pub newer: proto_cri::v1::runtime_service_client::RuntimeServiceClient<Channel>,
}

impl Client {
    /// Connects, once, without waiting for a socket to appear.
    ///
    /// # Errors
    /// As the transport says.
    pub async fn connect(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
        let channel = endpoint.connect().await?;
        Ok(Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_LIMIT)
                .max_encoding_message_size(MESSAGE_LIMIT),
            image: ImageServiceClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_LIMIT),
            newer: proto_cri::v1::runtime_service_client::RuntimeServiceClient::new(channel),
        })
    }
}

/// A client of one daemon, with what its requests have in common. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Cri {
    pub client: Client,
    pub(crate) dir: Arc<Path>,
    pub(crate) cgroup_parent: Arc<str>,
}

impl Cri {
    /// Of a runtime that serves `client`; logs go below `dir`, cgroups below `cgroup_parent`.
    pub fn new(client: Client, dir: &Path, cgroup_parent: &str) -> Self {
        Self {
            client,
            dir: dir.into(),
            cgroup_parent: cgroup_parent.into(),
        }
    }
}
