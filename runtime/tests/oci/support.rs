//! A container on a fictional host, and the comparison with golden files.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use cairn::oci::{
    BindSource, CdiRegistry, ContainerSpec, HostDevice, HostFacts, HostView, ImageFacts, Inputs,
    Policy, Propagation, SandboxFacts, SandboxFiles, SandboxNamespaces, SpecError, container_spec,
};
use proto_cri::v1::{
    ContainerConfig, ContainerMetadata, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, PodSandboxMetadata,
};
use serde_json::Value;

/// The inputs of a spec, with values of a typical pod.
pub(crate) struct Fixture {
    pub config: ContainerConfig,
    pub sandbox: SandboxFacts,
    pub host: HostFacts,
    pub policy: Policy,
    pub image: ImageFacts,
    pub view: View,
    pub passwd: Option<String>,
    pub group: Option<String>,
    pub seccomp_profile: Option<String>,
    pub target: Option<PathBuf>,
    pub volumes: BTreeMap<String, PathBuf>,
    pub image_mounts: BTreeMap<String, PathBuf>,
}

/// A host where every path below `/shared`, `/slave` and `/private` exists with that propagation,
/// and programs below `/h`.
#[derive(Default)]
pub(crate) struct View {
    pub devices: Vec<HostDevice>,
    pub cdi: CdiRegistry,
}

impl HostView for View {
    fn bind_source(&self, host_path: &str) -> Option<BindSource> {
        let propagation = match host_path.split('/').nth(1)? {
            "shared" => Propagation::Shared,
            "slave" => Propagation::Slave,
            "private" | "link" | "h" => Propagation::Private,
            _ => return None,
        };
        Some(BindSource {
            resolved: host_path.replace("/link/", "/private/").into(),
            is_dir: !host_path.starts_with("/h/"),
            propagation,
            is_procfs: host_path.ends_with("/procfs"),
        })
    }

    fn devices(&self, host_path: &str) -> Vec<HostDevice> {
        let below = |d: &&HostDevice| d.path.starts_with(host_path);
        self.devices.iter().filter(below).cloned().collect()
    }

    fn has_apparmor_profile(&self, name: &str) -> bool {
        name == "ours"
    }

    fn cdi(&self) -> CdiRegistry {
        self.cdi.clone()
    }

    fn namespace(&self, path: &str) -> Option<String> {
        let kind = path.strip_prefix("/ns/")?;
        Some(
            kind.trim_end_matches(|c: char| c.is_ascii_digit())
                .to_owned(),
        )
    }

    fn online_cpus(&self) -> String {
        "0-3\n".to_owned()
    }

    fn memory_nodes(&self) -> String {
        "0-1,3\n".to_owned()
    }

    fn max_open_files(&self) -> u64 {
        1 << 20
    }
}

impl Default for Fixture {
    fn default() -> Self {
        Self {
            config: ContainerConfig {
                metadata: Some(ContainerMetadata {
                    name: "web".to_owned(),
                    attempt: 0,
                }),
                command: vec!["/bin/serve".to_owned()],
                log_path: "web/0.log".to_owned(),
                linux: Some(LinuxContainerConfig {
                    resources: Some(LinuxContainerResources::default()),
                    security_context: Some(LinuxContainerSecurityContext::default()),
                }),
                ..ContainerConfig::default()
            },
            sandbox: sandbox(),
            host: HostFacts {
                capabilities: u64::MAX,
                oom_score_adj: -1000,
                hugetlb: true,
                swap: true,
                seccomp: true,
                recursive_readonly: true,
                ..HostFacts::default()
            },
            policy: Policy::default(),
            image: ImageFacts {
                name: "example/web:1".to_owned(),
                env: vec!["PATH=/usr/bin:/bin".to_owned()],
                ..ImageFacts::default()
            },
            view: View::default(),
            passwd: Some("root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000::/srv:\n".to_owned()),
            group: Some("root:x:0:\nextra:x:50000:web\n".to_owned()),
            seccomp_profile: None,
            target: None,
            volumes: BTreeMap::new(),
            image_mounts: BTreeMap::new(),
        }
    }
}

fn sandbox() -> SandboxFacts {
    SandboxFacts {
        id: "pod1".to_owned(),
        metadata: PodSandboxMetadata {
            name: "web-0".to_owned(),
            uid: "u-1".to_owned(),
            namespace: "shop".to_owned(),
            attempt: 0,
        },
        cgroup_parent: "/kubepods/podu-1".to_owned(),
        namespaces: SandboxNamespaces {
            net: Some("/ns/net".into()),
            ipc: Some("/ns/ipc".into()),
            uts: Some("/ns/uts".into()),
            pid: Some("/ns/pid".into()),
            user: None,
        },
        hostname: "web-0".to_owned(),
        files: SandboxFiles {
            hostname: "/state/hostname".into(),
            hosts: "/state/hosts".into(),
            resolv_conf: "/state/resolv.conf".into(),
            shm: "/state/shm".into(),
        },
        log_directory: "/var/log/pods/web".to_owned(),
        ..SandboxFacts::default()
    }
}

impl Fixture {
    pub(crate) fn build(&self) -> Result<ContainerSpec, SpecError> {
        container_spec(&Inputs {
            id: "c1",
            config: &self.config,
            sandbox: &self.sandbox,
            host: &self.host,
            policy: &self.policy,
            image: &self.image,
            view: &self.view,
            rootfs: Path::new("/state/c1/rootfs"),
            passwd: self.passwd.as_deref(),
            group: self.group.as_deref(),
            seccomp_profile: self.seccomp_profile.as_deref(),
            target_pid_namespace: self.target.as_deref(),
            volumes: &self.volumes,
            image_mounts: &self.image_mounts,
        })
    }

    pub(crate) fn spec(&self) -> ContainerSpec {
        self.build().expect("a valid container")
    }

    /// Returns the text of the error.
    pub(crate) fn refusal(&self) -> String {
        self.build().expect_err("refused").to_string()
    }

    pub(crate) fn linux(&mut self) -> &mut LinuxContainerConfig {
        self.config.linux.get_or_insert_default()
    }

    pub(crate) fn context(&mut self) -> &mut LinuxContainerSecurityContext {
        self.linux().security_context.get_or_insert_default()
    }

    pub(crate) fn resources(&mut self) -> &mut LinuxContainerResources {
        self.linux().resources.get_or_insert_default()
    }
}

/// Compares a value with `tests/golden/oci/<name>.json`. With `UPDATE_GOLDEN=1` it is written.
pub(crate) fn assert_golden(name: &str, value: &impl serde::Serialize) {
    let mut value = serde_json::to_value(value).expect("serialisable");
    sort_sets(&mut value);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/oci/{name}.json"));
    let mut text = serde_json::to_string_pretty(&value).expect("serialisable");
    text.push('\n');
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, text).expect("golden file written");
        return;
    }
    let golden = fs::read_to_string(&path).expect("a golden file; UPDATE_GOLDEN=1 writes it");
    assert_eq!(
        golden, text,
        "{name}: UPDATE_GOLDEN=1 rewrites it if the change is meant"
    );
}

/// Returns the text of a spec; equal specs have equal texts.
pub(crate) fn sorted(mut value: Value) -> String {
    sort_sets(&mut value);
    value.to_string()
}

/// Sorts capability sets, which have no order.
fn sort_sets(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::Object(sets)) = map.get_mut("capabilities") {
                for set in sets.values_mut().filter_map(Value::as_array_mut) {
                    set.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
                }
            }
            map.values_mut().for_each(sort_sets);
        }
        Value::Array(list) => list.iter_mut().for_each(sort_sets),
        _ => {}
    }
}
