//! Pure: the place of each owned field in an adjustment.

use proto_nri::Field;

/// JSON pointers into an adjustment; a container has these fields in the same places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Simple(&'static str),
    /// By key.
    Map(&'static str),
    /// By the field that holds the key.
    List(&'static str, &'static str),
}

impl Place {
    pub fn pointer(&self) -> &'static str {
        match self {
            Self::Simple(pointer) | Self::Map(pointer) | Self::List(pointer, _) => pointer,
        }
    }
}

/// The name of a field, or of one of its keys, in errors and reports:
/// `linux.resources.memory.limit`, `env["DEMO"]`. Scenarios of nri-bench use the same names.
pub fn path(field: Field, key: Option<&str>) -> String {
    let name = match place(field) {
        Some(place) => place.pointer().trim_start_matches('/').replace('/', "."),
        None => field.as_str_name().to_owned(),
    };
    match key {
        Some(key) => format!("{name}[{}]", quoted(key)),
        None => name,
    }
}

/// The key as a JSON string. Escapes the characters that Rust's `{:?}` escapes.
fn quoted(key: &str) -> String {
    let mut quoted = String::from('"');
    for c in key.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            _ if c == '\'' || c.escape_debug().len() == 1 => quoted.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    quoted.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    quoted.push('"');
    quoted
}

/// The field of this name, as [`path`] writes it without a key.
pub fn named(name: &str) -> Option<Field> {
    let mut all = (1..).map_while(|number| Field::try_from(number).ok());
    all.find(|field| path(*field, None) == name)
}

/// `None` if it is not a field.
pub fn place(field: Field) -> Option<Place> {
    use Place::{List, Map, Simple};
    Some(match field {
        Field::None => return None,
        Field::Env => List("/env", "key"),
        Field::Annotations => Map("/annotations"),
        Field::Mounts => List("/mounts", "destination"),
        Field::OciHooks => Simple("/hooks"),
        Field::Devices => List("/linux/devices", "path"),
        Field::CdiDevices => List("/cdi_devices", "name"),
        Field::Args => Simple("/args"),
        Field::MemLimit => Simple("/linux/resources/memory/limit"),
        Field::MemReservation => Simple("/linux/resources/memory/reservation"),
        Field::MemSwapLimit => Simple("/linux/resources/memory/swap"),
        Field::MemKernelLimit => Simple("/linux/resources/memory/kernel"),
        Field::MemTcpLimit => Simple("/linux/resources/memory/kernel_tcp"),
        Field::MemSwappiness => Simple("/linux/resources/memory/swappiness"),
        Field::MemDisableOomKiller => Simple("/linux/resources/memory/disable_oom_killer"),
        Field::MemUseHierarchy => Simple("/linux/resources/memory/use_hierarchy"),
        Field::CpuShares => Simple("/linux/resources/cpu/shares"),
        Field::CpuQuota => Simple("/linux/resources/cpu/quota"),
        Field::CpuPeriod => Simple("/linux/resources/cpu/period"),
        Field::CpuRealtimeRuntime => Simple("/linux/resources/cpu/realtime_runtime"),
        Field::CpuRealtimePeriod => Simple("/linux/resources/cpu/realtime_period"),
        Field::CpuSetCpUs => Simple("/linux/resources/cpu/cpus"),
        Field::CpuSetMems => Simple("/linux/resources/cpu/mems"),
        Field::PidsLimit => Simple("/linux/resources/pids/limit"),
        Field::HugepageLimits => List("/linux/resources/hugepage_limits", "page_size"),
        Field::BlockioClass => Simple("/linux/resources/blockio_class"),
        Field::RdtClass => Simple("/linux/resources/rdt_class"),
        Field::CgroupsUnified => Map("/linux/resources/unified"),
        Field::CgroupsPath => Simple("/linux/cgroups_path"),
        Field::OomScoreAdj => Simple("/linux/oom_score_adj"),
        Field::Rlimits => List("/rlimits", "type"),
        Field::IoPriority => Simple("/linux/io_priority"),
        Field::SeccompPolicy => Simple("/linux/seccomp_policy"),
        Field::Namespace => List("/linux/namespaces", "type"),
        Field::Sysctl => Map("/linux/sysctl"),
        Field::LinuxNetDevices => Map("/linux/net_devices"),
        Field::LinuxSched => Simple("/linux/scheduler"),
        Field::RdtClosId => Simple("/linux/rdt/clos_id"),
        Field::RdtSchemata => Simple("/linux/rdt/schemata"),
        Field::RdtEnableMonitoring => Simple("/linux/rdt/enable_monitoring"),
        Field::MemoryPolicy => Simple("/linux/memory_policy"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_written_as_json_without_characters_of_control() {
        assert_eq!(path(Field::Env, Some("DEMO")), r#"env["DEMO"]"#);
        for key in ["it's é", "a\"b\\", "\n\u{9b}\u{202e}", "\u{301}\u{e0001}"] {
            let written = quoted(key);
            assert!(!written.contains(char::is_control), "{written}");
            assert!(!written.contains('\u{202e}'), "{written}");
            assert_eq!(serde_json::from_str::<String>(&written).unwrap(), key);
        }
    }
}
