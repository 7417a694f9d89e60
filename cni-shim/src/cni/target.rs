//! One sandbox as plugins see it: their environment, and the result of the last plugin.

use std::io;
use std::path::Path;

use serde_json::Value;

use super::cache::{Entry, KIND};
use super::conflist::{ConfList, Version};
use super::error::CniError;
use super::{capability, result};
use crate::namespaces::is_namespace;
use crate::record::OnCni;
use crate::types::Attachment;

pub(crate) struct Target<'a> {
    pub(crate) sandbox_id: &'a str,
    netns: String,
    pub(crate) endpoint: &'a OnCni,
    pub(crate) list: ConfList,
}

impl<'a> Target<'a> {
    pub(crate) fn new(
        sandbox_id: &'a str,
        netns: &Path,
        endpoint: &'a OnCni,
    ) -> Result<Self, CniError> {
        let list = ConfList::from_value(&endpoint.config).map_err(|reason| CniError::Network {
            network: endpoint.network.clone(),
            reason,
        })?;
        // For plugins an empty path means a removed namespace; other invalid paths are errors.
        let netns = if is_namespace(netns) {
            netns.display().to_string()
        } else {
            String::new()
        };
        Ok(Self {
            sandbox_id,
            netns,
            endpoint,
            list,
        })
    }

    pub(crate) fn environment(&self) -> [(&'static str, String); 4] {
        let args: Vec<String> = self
            .endpoint
            .args
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        [
            ("CNI_CONTAINERID", self.sandbox_id.to_owned()),
            ("CNI_NETNS", self.netns.clone()),
            ("CNI_IFNAME", self.endpoint.interface.clone()),
            ("CNI_ARGS", args.join(";")),
        ]
    }

    pub(crate) fn attachment(&self, result: &Value) -> Result<Attachment, String> {
        let ips = result::addresses(result, &self.endpoint.interface)?;
        let mut warnings = Vec::new();
        let wants_ports = self
            .endpoint
            .capability_args
            .contains_key(capability::PORT_MAPPINGS);
        if wants_ports && !self.list.takes(capability::PORT_MAPPINGS) {
            let network = &self.list.name;
            warnings.push(format!(
                "host ports are not published: no plugin of network {network} has the portMappings capability"
            ));
        }
        Ok(Attachment {
            ips,
            network: self.list.name.clone(),
            result: result.clone(),
            warnings,
        })
    }

    pub(crate) fn entry(&self, result: Value) -> Entry {
        Entry {
            kind: KIND.to_owned(),
            container_id: self.sandbox_id.to_owned(),
            config: Entry::encode_config(&self.endpoint.config),
            if_name: self.endpoint.interface.clone(),
            network_name: self.endpoint.network.clone(),
            netns: self.netns.clone(),
            cni_args: Some(self.endpoint.args.clone()),
            capability_args: Some(self.endpoint.capability_args.clone()),
            result,
        }
    }

    /// The cached result, if plugins of this version get one.
    pub(crate) fn previous(&self, cached: Entry) -> Option<Value> {
        let is_passed = self.list.version >= Version::V0_4_0 && cached.result.is_object();
        is_passed.then_some(cached.result)
    }

    pub(crate) fn wrong(&self, reason: String) -> CniError {
        CniError::Network {
            network: self.endpoint.network.clone(),
            reason,
        }
    }

    pub(crate) fn cache_error(&self, cause: io::Error) -> CniError {
        CniError::Cache {
            network: self.endpoint.network.clone(),
            cause,
        }
    }
}
