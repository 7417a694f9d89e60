//! Addresses that only this machine or its link can reach, and names for them. A remote registry
//! must not send the daemon there by a redirect or a token realm.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Cloud metadata services outside the link-local ranges.
const METADATA: [IpAddr; 8] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// The range from which an address can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reach {
    /// Loopback, and the unspecified address, which the kernel treats as loopback.
    Machine,
    /// Link-local addresses, and metadata services.
    Link,
    Network,
}

impl Reach {
    pub(crate) fn of(address: IpAddr) -> Self {
        let address = address.to_canonical();
        let link = match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        if address.is_loopback() || address.is_unspecified() {
            Reach::Machine
        } else if link || METADATA.contains(&address) {
            Reach::Link
        } else {
            Reach::Network
        }
    }

    /// The reach of `host[:port]`, if it names an address or this machine.
    pub(crate) fn named(host: &str) -> Option<Self> {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => name,
            _ => host,
        };
        if name.eq_ignore_ascii_case("localhost") {
            return Some(Reach::Machine);
        }
        let address = name.trim_start_matches('[').trim_end_matches(']');
        address.parse().ok().map(Self::of)
    }

    /// The reach behind a hop of reach `other`: a remote hop may not name addresses here.
    pub(crate) fn behind(self, other: Reach) -> Self {
        if other == self { self } else { Reach::Network }
    }

    /// Whether a registry with this reach may send the daemon to an address with that one.
    fn may_name(self, other: Reach) -> bool {
        other == Reach::Network || other == self
    }

    /// Whether a registry with this reach may send the daemon to `url`, as far as the URL shows.
    pub(crate) fn may_send_to(self, url: &Url) -> Result<(), OutOfReach> {
        let host = url.host_str().unwrap_or_default();
        match Self::named(host) {
            Some(other) if !self.may_name(other) => Err(OutOfReach::new(host, other)),
            _ => Ok(()),
        }
    }
}

/// Refusal of an address that a registry names.
#[derive(Debug, thiserror::Error)]
#[error("{name:?} is {} address: only a registry at such an address may name it", match reach {
    Reach::Machine => "a loopback",
    Reach::Link => "a link-local or metadata",
    Reach::Network => "another",
})]
pub(crate) struct OutOfReach {
    name: String,
    reach: Reach,
}

impl OutOfReach {
    fn new(name: &str, reach: Reach) -> Self {
        let name = name.to_owned();
        Self { name, reach }
    }
}

/// Resolves names to addresses that a registry may name; a name without such an address fails.
pub(crate) struct Within {
    pub registry: Reach,
    /// Hosts of the configured proxies, which are always allowed.
    pub proxies: Vec<String>,
}

impl Resolve for Within {
    fn resolve(&self, name: Name) -> Resolving {
        let registry = self.registry;
        let name = name.as_str().to_owned();
        let any = self.proxies.contains(&name);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let (may, others): (Vec<_>, Vec<_>) = found
                .map(|address| (address, Reach::of(address.ip())))
                .partition(|(_, reach)| any || registry.may_name(*reach));
            match others.first() {
                Some((_, reach)) if may.is_empty() => Err(OutOfReach::new(&name, *reach).into()),
                _ => Ok(Box::new(may.into_iter().map(|(address, _)| address)) as Addrs),
            }
        })
    }
}

/// The reach of the response's sender. A proxy's address does not show it.
pub(crate) fn of_answer(answer: &reqwest::Response) -> Reach {
    let address = answer.remote_addr().filter(|_| proxies().is_empty());
    address.map_or(Reach::Network, |address| Reach::of(address.ip()))
}

/// Hosts of the proxies in the environment.
pub(crate) fn proxies() -> Vec<String> {
    let keys = ["http_proxy", "https_proxy", "all_proxy"];
    let keys = keys
        .iter()
        .flat_map(|key| [(*key).to_owned(), key.to_ascii_uppercase()]);
    let hosts = keys.filter_map(|key| {
        let value = std::env::var(key).ok()?;
        let url = if value.contains("://") {
            value
        } else {
            format!("http://{value}")
        };
        Some(url.parse::<Url>().ok()?.host_str()?.to_owned())
    });
    hosts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(registry: Reach, url: &str) -> bool {
        registry.may_send_to(&url.parse().unwrap()).is_err()
    }

    #[test]
    fn a_registry_of_the_network_names_no_address_of_the_machine_or_its_link() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1:8080/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0.0.0.0/",
            "http://LOCALHOST:1/",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://169.254.169.254/latest",
            "http://[::ffff:a9fe:a9fe]/",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
            "http://100.100.100.200/",
        ] {
            assert!(refused(Reach::Network, url), "{url}");
        }
        for url in [
            "https://auth.example/token",
            "http://10.0.0.1/",
            "http://[fd00::1]:5000/",
            "http://192.168.1.1/",
        ] {
            assert!(!refused(Reach::Network, url), "{url}");
        }
    }

    #[test]
    fn a_registry_of_the_machine_or_the_link_names_its_like() {
        let (machine, link) = ("http://127.0.0.2/token", "http://169.254.1.1/token");
        assert!(!refused(Reach::Machine, machine) && refused(Reach::Machine, link));
        assert!(!refused(Reach::Link, link) && refused(Reach::Link, machine));
    }

    #[tokio::test]
    async fn a_name_that_leads_only_to_this_machine_is_refused() {
        let resolve = |registry, proxies| async move {
            let within = Within { registry, proxies };
            let found = within.resolve("localhost".parse().unwrap()).await;
            found.map(Iterator::count)
        };
        let error = resolve(Reach::Network, vec![]).await.unwrap_err();
        assert!(error.downcast_ref::<OutOfReach>().is_some(), "{error}");
        assert!(resolve(Reach::Machine, vec![]).await.unwrap() > 0);
        let proxy = vec!["localhost".to_owned()];
        assert!(resolve(Reach::Network, proxy).await.unwrap() > 0);
    }
}
