//! The output of `cairn network`. Pure: the daemon's answers in, text out.

use proto_cairn::v1::{CollectedNetwork, HostPort, PodNetwork};
use serde_json::{Value, json};

use super::text::{clean, lines, short_id, with};

const HEAD: [&str; 7] = [
    "POD",
    "ID",
    "NETWORK",
    "INTERFACE",
    "ADDRESSES",
    "HOST PORTS",
    "NETNS",
];

/// The table for people: a line per pod.
pub(super) fn networks(networks: &[PodNetwork]) -> String {
    if networks.is_empty() {
        return "no pod has a network\n".to_owned();
    }
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(networks.iter().map(|network| {
        let ports: Vec<_> = network.host_ports.iter().map(port).collect();
        let of = match network.kind.as_str() {
            "host" => "(the node's)".to_owned(),
            _ if !network.problem.is_empty() => format!("? {}", clean(&network.problem)),
            "cni" => format!("{} (CNI)", clean(&network.network)),
            _ => clean(&network.network),
        };
        [
            named(&network.name),
            short_id(&network.pod).to_owned(),
            of,
            clean(&network.interface),
            clean(&network.addresses.join(", ")),
            ports.join(", "),
            clean(&network.netns),
        ]
    }));
    lines(&rows)
}

/// The table for people: a line per object.
pub(super) fn collected(collected: &[CollectedNetwork], dry_run: bool) -> String {
    let of_pods = collected.iter().any(|one| !one.pod.is_empty());
    let mut rows: Vec<_> = collected
        .iter()
        .map(|one| {
            let asked = one.pod.is_empty();
            let state = match (one.problem.as_str(), dry_run) {
                ("", true) if asked => "would be asked".to_owned(),
                ("", false) if asked => "asked".to_owned(),
                ("", true) => "would go".to_owned(),
                ("", false) => "gone".to_owned(),
                (problem, _) => format!("LEFT: {}", clean(problem)),
            };
            [
                clean(&one.what),
                short_id(&one.pod).to_owned(),
                clean(&one.network),
                state,
            ]
        })
        .collect();
    rows.sort_by_key(|row| row[1].is_empty());
    let nothing = if of_pods {
        ""
    } else {
        "nothing is left of pods that are gone\n"
    };
    nothing.to_owned() + &lines(&rows)
}

/// The JSON form.
pub(super) fn collected_json(collected: &[CollectedNetwork], dry_run: bool) -> Value {
    let all = collected.iter();
    let all = all.map(|one| with(one, "gone", !dry_run && one.problem.is_empty()));
    json!({ "dry_run": dry_run, "collected": all.collect::<Vec<_>>() })
}

/// `8080/tcp->80`, `[fd00::1]:8080/tcp->80`.
fn port(port: &HostPort) -> String {
    let at = match port.host_ip.as_str() {
        "" => String::new(),
        v6 if v6.contains(':') => format!("[{v6}]:"),
        v4 => format!("{v4}:"),
    };
    let HostPort {
        host_port,
        container_port,
        protocol,
        ..
    } = port;
    format!("{at}{host_port}/{protocol}->{container_port}")
}

fn named(name: &str) -> String {
    match name {
        "" => "(unknown)".to_owned(),
        name => clean(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web() -> PodNetwork {
        PodNetwork {
            pod: "0123456789abcdef".into(),
            name: "default/web".into(),
            kind: "bridge".into(),
            network: "cairn0".into(),
            interface: "eth0".into(),
            addresses: vec!["10.88.0.2".into(), "fd00::2".into()],
            host_ports: vec![
                HostPort {
                    host_port: 8080,
                    container_port: 80,
                    protocol: "tcp".into(),
                    host_ip: String::new(),
                },
                HostPort {
                    host_port: 53,
                    container_port: 53,
                    protocol: "udp".into(),
                    host_ip: "::1".into(),
                },
            ],
            netns: "/run/cairn/ns/0/net".into(),
            problem: String::new(),
        }
    }

    #[test]
    fn a_line_has_all_of_a_pods_network_and_nothing_that_a_terminal_obeys() {
        let held = PodNetwork {
            pod: "f".repeat(64),
            problem: "torn\x1b[2J".into(),
            ..PodNetwork::default()
        };
        let text = networks(&[web(), held]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[1]
                .split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect::<Vec<_>>(),
            [
                "default/web",
                "0123456789abc",
                "cairn0",
                "eth0",
                "10.88.0.2, fd00::2",
                "8080/tcp->80, [::1]:53/udp->53",
                "/run/cairn/ns/0/net"
            ]
        );
        assert!(
            lines[2].starts_with("(unknown)") && !text.contains('\x1b'),
            "{text}"
        );
        assert_eq!(networks(&[]), "no pod has a network\n");
    }

    #[test]
    fn what_went_and_what_would_go_are_told_apart() {
        let one = |pod: &str, problem: &str| CollectedNetwork {
            what: "attachment".into(),
            pod: pod.into(),
            network: "cairn0".into(),
            problem: problem.into(),
        };
        let all = [one("a", ""), one("b", "busy")];
        assert!(collected(&all, true).contains("would go"));
        let gone = collected(&all, false);
        assert!(
            gone.contains("gone") && gone.contains("LEFT: busy"),
            "{gone}"
        );
        assert_eq!(
            collected(&[], false),
            "nothing is left of pods that are gone\n"
        );
        let json = collected_json(&all, false);
        assert_eq!(
            (&json["collected"][0]["gone"], &json["collected"][1]["gone"]),
            (&true.into(), &false.into())
        );
    }
}
