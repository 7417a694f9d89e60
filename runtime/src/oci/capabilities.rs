//! Capability sets (CRI-217): names to bits, the algebra of add and drop, bits to the OCI sets.

use oci_spec::runtime::{Capabilities, Capability, LinuxCapabilities};

use super::error::SpecError;

/// Names in the order of the kernel's numbers, without `CAP_`.
const NAMES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

const DEFAULT: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// A set of capabilities as the kernel's bit mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapMask(pub u64);

impl CapMask {
    /// All capabilities with a name in this file.
    pub const KNOWN: Self = Self((1 << NAMES.len()) - 1);

    /// Default capabilities of a container (CRI-217).
    fn default_set() -> Self {
        Self(
            DEFAULT
                .iter()
                .filter_map(|name| bit(name))
                .fold(0, |a, b| a | b),
        )
    }

    pub fn contains(self, name: &str) -> bool {
        bit(name).is_some_and(|b| self.0 & b != 0)
    }

    /// Names without `CAP_`, in kernel order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES
            .iter()
            .enumerate()
            .filter(move |(n, _)| self.0 & (1 << n) != 0)
            .map(|(_, name)| *name)
    }

    fn to_oci(self) -> Capabilities {
        // The OCI crate knows all of these names; a test checks it.
        self.names()
            .filter_map(|name| name.parse::<Capability>().ok())
            .collect()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapSets {
    /// Bounding, permitted and effective.
    pub granted: CapMask,
    /// Ambient, and therefore also inheritable.
    pub ambient: CapMask,
}

impl CapSets {
    /// The OCI form; inheritable equals ambient.
    pub fn to_oci(self) -> LinuxCapabilities {
        let mut sets = LinuxCapabilities::default();
        sets.set_bounding(Some(self.granted.to_oci()));
        sets.set_permitted(Some(self.granted.to_oci()));
        sets.set_effective(Some(self.granted.to_oci()));
        sets.set_inheritable(Some(self.ambient.to_oci()));
        sets.set_ambient(Some(self.ambient.to_oci()));
        sets
    }
}

/// The sets of a container (CRI-217, CRI-218). `held`: the capabilities of the daemon.
///
/// `ALL` is applied before single names, on each side; dropping a name wins over adding it. Unknown
/// names are refused. Adding a capability that the daemon lacks is refused, dropping it is not.
pub fn sets(
    request: Option<&proto_cri::v1::Capability>,
    privileged: bool,
    held: u64,
) -> Result<CapSets, SpecError> {
    let held = CapMask(held & CapMask::KNOWN.0);
    if privileged {
        return Ok(CapSets {
            granted: held,
            ambient: CapMask::default(),
        });
    }
    let mut granted = CapMask::default_set().0 & held.0;
    let Some(request) = request else {
        return Ok(CapSets {
            granted: CapMask(granted),
            ambient: CapMask::default(),
        });
    };
    let add = side(&request.add_capabilities, "add_capabilities")?;
    let drop = side(&request.drop_capabilities, "drop_capabilities")?;
    let ambient = side(
        &request.add_ambient_capabilities,
        "add_ambient_capabilities",
    )?;
    if add.all {
        granted = held.0;
    }
    if drop.all {
        granted = 0;
    }
    granted |= add.names;
    let mut ambient_set = ambient.names | if ambient.all { held.0 } else { 0 };
    granted |= ambient_set;
    granted &= !drop.names;
    ambient_set &= granted;
    if let Some(name) = CapMask(granted & !held.0).names().next() {
        return Err(SpecError::unsupported(
            "linux.security_context.capabilities",
            format!("CAP_{name} cannot be granted: the daemon does not hold it"),
        ));
    }
    Ok(CapSets {
        granted: CapMask(granted),
        ambient: CapMask(ambient_set),
    })
}

#[derive(Default)]
struct Side {
    all: bool,
    names: u64,
}

fn side(names: &[String], field: &str) -> Result<Side, SpecError> {
    let mut side = Side::default();
    for name in names {
        let upper = name.to_ascii_uppercase();
        if upper == "ALL" {
            side.all = true;
            continue;
        }
        side.names |= bit(upper.strip_prefix("CAP_").unwrap_or(&upper)).ok_or_else(|| {
            SpecError::invalid(
                format!("linux.security_context.capabilities.{field}"),
                format!("unknown capability {name:?}"),
            )
        })?;
    }
    Ok(side)
}

fn bit(name: &str) -> Option<u64> {
    NAMES.iter().position(|n| *n == name).map(|n| 1 << n)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto_cri::v1::Capability as Request;

    use super::*;

    fn request(add: &[&str], drop: &[&str], ambient: &[&str]) -> Request {
        let own = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        Request {
            add_capabilities: own(add),
            drop_capabilities: own(drop),
            add_ambient_capabilities: own(ambient),
        }
    }

    fn granted(add: &[&str], drop: &[&str]) -> Vec<&'static str> {
        let request = request(add, drop, &[]);
        let sets = sets(Some(&request), false, CapMask::KNOWN.0).expect("valid");
        sets.granted.names().collect()
    }

    #[test]
    fn our_names_and_those_of_the_oci_crate_are_the_same() {
        assert_eq!(CapMask::KNOWN.to_oci().len(), NAMES.len());
    }

    #[test]
    fn without_a_request_there_are_the_fourteen_defaults() {
        let sets = sets(None, false, u64::MAX).expect("valid");
        assert_eq!(sets.granted.names().count(), 14);
        assert_eq!(sets.ambient, CapMask::default());
    }

    #[test]
    fn names_come_with_or_without_prefix_in_any_case() {
        for name in ["NET_ADMIN", "CAP_NET_ADMIN", "cap_net_admin", "Net_Admin"] {
            assert!(granted(&[name], &[]).contains(&"NET_ADMIN"), "{name}");
        }
    }

    #[test]
    fn all_is_taken_before_single_names() {
        assert_eq!(granted(&["CHOWN"], &["ALL"]), ["CHOWN"]);
        assert!(!granted(&["ALL"], &["CHOWN"]).contains(&"CHOWN"));
        assert_eq!(granted(&["ALL"], &["CHOWN"]).len(), NAMES.len() - 1);
        assert_eq!(granted(&["ALL"], &["ALL"]), [""; 0]);
    }

    #[test]
    fn a_name_both_added_and_dropped_is_dropped() {
        assert!(!granted(&["NET_ADMIN"], &["NET_ADMIN"]).contains(&"NET_ADMIN"));
    }

    #[test]
    fn what_is_asked_for_twice_is_granted() {
        let of = |add: &[&str], ambient: &[&str]| {
            let request = request(add, &["ALL"], ambient);
            sets(Some(&request), false, CapMask::KNOWN.0).expect("valid")
        };
        let both = of(&["CHOWN"], &["CHOWN"]);
        assert_eq!(both.granted.names().collect::<Vec<_>>(), ["CHOWN"]);
        let all = of(&[], &["ALL", "CHOWN"]).ambient;
        assert_eq!(all, of(&[], &["ALL"]).ambient);
        assert!(all.contains("CHOWN"));
    }

    #[test]
    fn ambient_capabilities_are_in_all_five_sets() {
        let request = request(&[], &["ALL"], &["CAP_NET_ADMIN"]);
        let oci = sets(Some(&request), false, u64::MAX)
            .expect("valid")
            .to_oci();
        let expected: Capabilities = [Capability::NetAdmin].into_iter().collect();
        for set in [
            oci.bounding(),
            oci.permitted(),
            oci.effective(),
            oci.inheritable(),
            oci.ambient(),
        ] {
            assert_eq!(set.as_ref(), Some(&expected));
        }
    }

    #[test]
    fn unknown_names_are_refused_also_where_they_are_dropped() {
        for (add, drop, ambient) in [
            (&["X"][..], &[][..], &[][..]),
            (&[], &["X"], &[]),
            (&[], &[], &["X"]),
        ] {
            let error =
                sets(Some(&request(add, drop, ambient)), false, u64::MAX).expect_err("unknown");
            assert!(error.to_string().contains("\"X\""), "{error}");
        }
    }

    #[test]
    fn what_the_daemon_does_not_hold_cannot_be_added_but_all_means_what_it_holds() {
        let held = CapMask::KNOWN.0 & !bit("SYS_RESOURCE").expect("known");
        let error =
            sets(Some(&request(&["SYS_RESOURCE"], &[], &[])), false, held).expect_err("not held");
        assert!(error.to_string().contains("CAP_SYS_RESOURCE"), "{error}");
        let all = sets(Some(&request(&["ALL"], &[], &[])), false, held).expect("valid");
        assert_eq!(all.granted.0, held);
        assert_eq!(sets(None, true, held).expect("privileged").granted.0, held);
    }

    proptest! {
        #[test]
        fn nothing_is_granted_beyond_what_is_held_and_nothing_dropped_remains(
            held in any::<u64>(),
            add in proptest::collection::vec(proptest::sample::select(NAMES), 0..6),
            drop in proptest::collection::vec(proptest::sample::select(NAMES), 0..6),
            ambient in proptest::collection::vec(proptest::sample::select(NAMES), 0..4),
        ) {
            if let Ok(sets) = sets(Some(&request(&add, &drop, &ambient)), false, held) {
                prop_assert_eq!(sets.granted.0 & !held, 0);
                prop_assert_eq!(sets.ambient.0 & !sets.granted.0, 0);
                for name in drop {
                    prop_assert!(!sets.granted.contains(name));
                }
            }
        }
    }
}
