//! Merging the answers to RunPodSandbox: pod addresses (experimental; containerd/nri pull request
//! 295).

use core::net::IpAddr;

use proto_nri::{PodSandboxAdjustment, RunPodSandboxRequest, RunPodSandboxResponse};

use super::error::MergeError;
use crate::plugin_id::PluginId;

/// Of one pod, by all plugins.
const MOST: usize = 32;

/// The merge of one RunPodSandbox.
#[derive(Debug)]
pub struct RunMerge {
    request: RunPodSandboxRequest,
    ips: Vec<IpAddr>,
}

impl RunMerge {
    pub fn new(request: RunPodSandboxRequest) -> Self {
        Self {
            request,
            ips: Vec::new(),
        }
    }

    /// The request for the next plugin: the pod with its addresses so far.
    pub fn request(&self) -> &RunPodSandboxRequest {
        &self.request
    }

    /// Merges the answer of `plugin`; returns its new addresses, without those the pod already has.
    ///
    /// # Errors
    /// An address that a pod cannot have; then nothing of the answer is merged.
    pub fn apply(
        &mut self,
        plugin: &PluginId,
        answer: RunPodSandboxResponse,
    ) -> Result<Vec<IpAddr>, MergeError> {
        let asked = asked(&answer).iter().take(MOST + 1).map(|text| {
            address(text).map_err(|why| MergeError::BadIp {
                plugin: plugin.clone(),
                ip: text.clone(),
                why,
            })
        });
        let asked = asked.collect::<Result<Vec<_>, _>>()?;
        // Every later message about the pod contains them.
        let named = asked.len() + self.ips.len();
        if named > MOST {
            return Err(MergeError::TooManyIps {
                plugin: plugin.clone(),
                named,
            });
        }
        let pod = self.request.pod.get_or_insert_default();
        let mut given = Vec::new();
        for ip in asked {
            let text = ip.to_string();
            if !pod.ips.contains(&text) {
                pod.ips.push(text);
                given.push(ip);
            }
        }
        self.ips.extend(&given);
        Ok(given)
    }

    /// In the order of the plugins; the first is primary if the pod's network gave none.
    pub fn finish(self) -> Vec<IpAddr> {
        self.ips
    }
}

/// The addresses that an answer names.
pub(crate) fn asked(answer: &RunPodSandboxResponse) -> &[String] {
    let network = answer.adjust.as_ref();
    let network = network.and_then(|PodSandboxAdjustment { network }| network.as_ref());
    network.map_or(&[], |network| &network.ips)
}

fn address(text: &str) -> Result<IpAddr, &'static str> {
    let ip: IpAddr = text
        .parse()
        .map_err(|_| "must be an IP address without a prefix")?;
    match ip.to_canonical() {
        ip if ip.is_unspecified() => Err("is the unspecified address"),
        ip if ip.is_loopback() => Err("is a loopback address"),
        ip if ip.is_multicast() => Err("is a multicast address"),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Err("is a link-local address"),
        IpAddr::V4(ip) if ip.is_broadcast() => Err("is the broadcast address"),
        ip => Ok(ip),
    }
}

#[cfg(test)]
mod tests {
    use proto_nri::{PodSandbox, PodSandboxNetwork};

    use super::*;

    fn answer(ips: &[&str]) -> RunPodSandboxResponse {
        let ips = ips.iter().map(ToString::to_string).collect();
        let network = Some(PodSandboxNetwork { ips });
        RunPodSandboxResponse {
            adjust: Some(PodSandboxAdjustment { network }),
        }
    }

    fn merge(ips: &[&str]) -> RunMerge {
        RunMerge::new(RunPodSandboxRequest {
            pod: Some(PodSandbox {
                ips: ips.iter().map(ToString::to_string).collect(),
                ..PodSandbox::default()
            }),
        })
    }

    fn id(name: &str) -> PluginId {
        PluginId::new("10", name).expect("an id")
    }

    #[test]
    fn addresses_follow_each_other_in_the_order_of_the_plugins_each_once() {
        let mut merge = merge(&["10.88.0.2"]);
        let first = merge.apply(&id("a"), answer(&["192.0.2.7", "10.88.0.2", "192.0.2.7"]));
        assert_eq!(first.unwrap().len(), 1);
        let second = merge.apply(&id("b"), answer(&["2001:DB8:0::1", "192.0.2.7"]));
        assert_eq!(second.unwrap().len(), 1);
        let pod = merge.request().pod.clone().unwrap();
        assert_eq!(pod.ips, ["10.88.0.2", "192.0.2.7", "2001:db8::1"]);
        let given: Vec<_> = merge.finish().iter().map(ToString::to_string).collect();
        assert_eq!(given, ["192.0.2.7", "2001:db8::1"]);
    }

    #[test]
    fn an_address_is_known_in_whatever_form_and_there_are_not_too_many() {
        let mut merge = merge(&["192.0.2.7"]);
        let mapped = merge.apply(&id("a"), answer(&["::ffff:192.0.2.7", "2001:db8::0:1"]));
        assert_eq!(mapped.unwrap().len(), 1);
        let many: Vec<_> = (0..=MOST).map(|n| format!("2001:db8:1::{n:x}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let too_many = |merge: &mut RunMerge, ips: &[&str]| {
            let refused = merge.apply(&id("b"), answer(ips)).unwrap_err();
            assert!(refused.to_string().contains("more than 32"), "{refused}");
        };
        too_many(&mut RunMerge::new(RunPodSandboxRequest::default()), &many);
        too_many(&mut merge, &many[..MOST]);
        let taken = merge.apply(&id("c"), answer(&many[..MOST - 2]));
        assert_eq!(taken.unwrap().len(), MOST - 2);
        let last = merge.apply(&id("d"), answer(&many[MOST - 1..MOST]));
        assert_eq!(last.unwrap().len(), 1);
        too_many(&mut merge, &many[MOST..]);
        assert_eq!(merge.finish().len(), MOST);
    }

    #[test]
    fn what_is_no_address_of_a_pod_is_refused_by_name_and_nothing_of_the_answer_is_taken() {
        for (text, why) in [
            ("", "must be an IP address without a prefix"),
            ("10.0.0.1/24", "must be an IP address without a prefix"),
            ("fe80::1%eth0", "must be an IP address without a prefix"),
            ("0.0.0.0", "is the unspecified address"),
            ("::ffff:127.0.0.1", "is a loopback address"),
            ("ff02::1", "is a multicast address"),
            ("255.255.255.255", "is the broadcast address"),
            ("fe80::1", "is a link-local address"),
        ] {
            let mut merge = merge(&[]);
            let refused = merge.apply(&id("a"), answer(&["192.0.2.7", text]));
            assert_eq!(
                refused.unwrap_err().to_string(),
                format!("plugin 10-a sets adjust.network.ips {text:?}: {why}")
            );
            assert!(merge.finish().is_empty(), "{text}");
        }
    }
}
