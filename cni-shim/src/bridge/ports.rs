//! Tracks which sandbox has which host port. Pure; filled from the records at start.

use super::error::BridgeError;
use crate::types::PortMapping;

#[derive(Debug, Default)]
pub(crate) struct Ports {
    reserved: Vec<(String, PortMapping)>,
}

impl Ports {
    /// Reserves all of a sandbox's ports or none.
    pub(crate) fn reserve(
        &mut self,
        sandbox_id: &str,
        ports: &[PortMapping],
    ) -> Result<(), BridgeError> {
        for (position, port) in ports.iter().enumerate() {
            let others = self
                .reserved
                .iter()
                .map(|(_, port)| port)
                .chain(&ports[..position]);
            if others.clone().any(|other| clash(other, port)) {
                return Err(BridgeError::HostPortTaken(port.to_string()));
            }
        }
        self.claim(sandbox_id, ports);
        Ok(())
    }

    /// Adds ports of a record.
    pub(crate) fn claim(&mut self, sandbox_id: &str, ports: &[PortMapping]) {
        self.reserved
            .extend(ports.iter().map(|port| (sandbox_id.to_owned(), *port)));
    }

    pub(crate) fn release(&mut self, sandbox_id: &str) {
        self.reserved.retain(|(holder, _)| holder != sandbox_id);
    }
}

/// Whether one packet could match both.
fn clash(one: &PortMapping, other: &PortMapping) -> bool {
    let overlap = match (one.host_ip, other.host_ip) {
        (None, _) | (_, None) => true,
        (Some(a), Some(b)) if a.is_ipv4() != b.is_ipv4() => false,
        (Some(a), Some(b)) => a == b || a.is_unspecified() || b.is_unspecified(),
    };
    one.protocol == other.protocol && one.host_port == other.host_port && overlap
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Protocol;

    fn port(host_port: u16, protocol: Protocol, ip: Option<&str>) -> PortMapping {
        let host_ip = ip.map(|ip| ip.parse().expect("an address"));
        PortMapping {
            host_port,
            container_port: 80,
            protocol,
            host_ip,
        }
    }

    #[test]
    fn a_host_port_belongs_to_one_sandbox_until_it_is_released() {
        let mut ports = Ports::default();
        let web = port(8080, Protocol::Tcp, None);
        ports.reserve("a", &[web]).expect("free");
        let error = ports
            .reserve("b", &[port(8080, Protocol::Tcp, Some("127.0.0.1"))])
            .expect_err("is taken");
        assert_eq!(
            error.to_string(),
            "host port 8080/tcp at 127.0.0.1 is taken by another sandbox"
        );
        ports
            .reserve("b", &[port(8080, Protocol::Udp, None)])
            .expect("another protocol");
        ports.release("a");
        ports.reserve("c", &[web]).expect("free again");
    }

    #[test]
    fn addresses_of_one_family_do_not_clash_with_the_others() {
        let mut ports = Ports::default();
        ports
            .reserve("a", &[port(53, Protocol::Udp, Some("0.0.0.0"))])
            .expect("free");
        ports
            .reserve("b", &[port(53, Protocol::Udp, Some("::"))])
            .expect("the other family");
        assert!(
            ports
                .reserve("c", &[port(53, Protocol::Udp, Some("::1"))])
                .is_err()
        );
    }

    #[test]
    fn one_request_with_the_same_port_twice_takes_none() {
        let mut ports = Ports::default();
        let web = port(80, Protocol::Tcp, None);
        assert!(ports.reserve("a", &[web, web]).is_err());
        ports.reserve("b", &[web]).expect("nothing was taken");
    }
}
