//! All that pods are served by, made once and handed down: stores, images, network, launcher,
//! cgroups, hooks. Nothing here changes a pod.

use std::{
    ffi::OsString,
    fs,
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    str::FromStr as _,
    time::Duration,
};

use cni_shim::{Attach, BridgeConfig, Cidr, Network, PortMapping, Protocol, namespaces};
use proto_cri::v1 as cri;

use crate::{
    cgroup, clock,
    config::Config,
    host,
    image::Images,
    monitor::{CgroupDir, Launcher, LauncherConfig},
    oci::{HostFacts, Policy, SandboxFacts, SandboxFiles, SandboxNamespaces, SandboxPlan},
    pod::{
        Pod,
        error::{Error, Result, Step as _},
        events::Events,
        files::Files,
        hooks::Hooks,
        journal::Journal,
        record::{ContainerRecord, PodRecord},
        registry::Registry,
        spec::SpecStore,
    },
    stats::{Layers, Sampler},
    store::{self, Store},
    trace::{self, EventLog},
};

/// Longest a CNI ADD may take (CRI-518).
const CNI_ADD: Duration = Duration::from_secs(60);
/// CNI programs at a time, over all sandboxes.
const CNI_PARALLEL: usize = 8;

pub struct Services {
    pub config: Config,
    pub registry: Registry,
    pub pods: Store<PodRecord>,
    pub containers: Store<ContainerRecord>,
    pub specs: SpecStore,
    pub images: Images,
    pub network: Network,
    pub launcher: Launcher,
    pub cgroups: cgroup::Host,
    /// Held from looking whether a cgroup is free until a container's record has it; by
    /// [`pod::container`](crate::pod::container) alone, where a plugin puts a container elsewhere.
    pub moving: tokio::sync::Mutex<()>,
    pub host: HostFacts,
    pub policy: Policy,
    pub hooks: Hooks,
    pub journal: Journal,
    /// Changes of phase, for GetContainerEvents.
    pub events: Events,
    /// CPU rates; [`app`](crate::app) runs it.
    pub sampler: Sampler,
    /// What the writable layers take.
    pub layers: Layers,
    pub boot_id: String,
    /// The node's name, for pods on its network.
    pub node_name: String,
    /// The built-in root of pause processes.
    pub pause_root: PathBuf,
    sandbox_helper: namespaces::HelperCommand,
}

impl Services {
    /// Opens everything; the directories are locked by the caller.
    ///
    /// # Errors
    /// The first thing that is not to be had.
    pub async fn open(config: Config) -> Result<Self> {
        let root = config.root.clone();
        let state = config.state.clone();
        store::make_passage(&state)?;
        for dir in ["pods", "containers", "pause", "pause-root", "ns"] {
            store::make_passage(&state.join(dir))?;
        }
        let program = std::env::current_exe().step("find our own program")?;
        let helpers = program
            .parent()
            .ok_or_else(|| Error::failed("our own program lies nowhere"))?
            .to_owned();
        let cgroups = cgroup::Host::detect().step("cgroups")?;
        let launcher = Launcher::new(LauncherConfig {
            run_dir: state.join("monitor"),
            helpers_dir: helpers.clone(),
        })
        .await
        .step("monitor")?;
        let images =
            Images::open(&root.join("images"), image_options(&config, &program)).step("images")?;
        let network = Network::new(network_config(&config)?).step("network")?;
        let pause_root = make_pause_root(&state, &helpers)?;
        let journal = open_journal(&config)?;
        Ok(Self {
            registry: Registry::default(),
            pods: Store::open(root.join("pods"))?,
            containers: Store::open(root.join("containers"))?,
            specs: SpecStore::open(root.join("specs"))?,
            images,
            network,
            launcher,
            host: host::facts(&cgroups).step("read the host's facts")?,
            cgroups,
            moving: tokio::sync::Mutex::default(),
            policy: Policy {
                default_cgroup_parent: config.cgroup.parent.clone(),
                restrict_oom_score_adj: config.container.restrict_oom_score_adj,
                ..Policy::default()
            },
            hooks: Hooks::default(),
            journal,
            events: Events::default(),
            sampler: Sampler::default(),
            layers: Layers::default(),
            boot_id: host::boot_id().step("read the boot id")?,
            node_name: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            pause_root,
            sandbox_helper: namespaces::HelperCommand {
                program,
                args: vec![OsString::from("sandbox")],
            },
            config,
        })
    }

    /// 64 hexadecimal digits (CRI-009).
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    #[allow(clippy::unused_self, reason = "ids belong to the services' registry")]
    pub fn new_id(&self) -> Result<String> {
        let mut bytes = [0; 32];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .step("random bytes")?;
        if filled < bytes.len() {
            return Err(Error::failed("random bytes: the kernel gave too few"));
        }
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// `(reason, message)` while no pod could get a network (CRI-104).
    ///
    /// # Errors
    /// Reason and message.
    pub async fn network_status(&self) -> std::result::Result<(), (String, String)> {
        self.network.status().await.map_err(|problem| {
            let message = format!("Network plugin returns error: {}", problem.message);
            (problem.reason.to_owned(), message)
        })
    }

    fn pins(&self, id: &str) -> PathBuf {
        self.config.state.join("ns").join(id)
    }

    /// # Errors
    /// What could not be made; nothing is left then.
    pub fn pin(
        &self,
        plan: &SandboxPlan,
        id: &str,
    ) -> std::result::Result<namespaces::Pinned, namespaces::NamespaceError> {
        let mappings = plan.user_mapping.map(|map| {
            let range = namespaces::IdMap {
                container: map.container_id,
                host: map.host_id,
                size: map.length,
            };
            namespaces::Mappings {
                uids: vec![range],
                gids: vec![range],
            }
        });
        let spec = namespaces::PinSpec {
            net: !plan.host_network,
            ipc: !plan.host_ipc,
            uts: !plan.host_network,
            hostname: plan.hostname.clone(),
            sysctls: plan.sysctls.clone().into_iter().collect(),
            userns: mappings,
        };
        namespaces::pin(&spec, &self.pins(id), &self.sandbox_helper)
    }

    /// # Errors
    /// What is left.
    pub fn unpin(&self, id: &str) -> std::result::Result<(), namespaces::NamespaceError> {
        namespaces::unpin(&self.pins(id))
    }

    /// The host's user and group of a user namespace's root.
    #[allow(
        clippy::unused_self,
        reason = "a fact of the pod, asked like the others"
    )]
    pub fn mapped_root(&self, record: &PodRecord) -> Option<(u32, u32)> {
        let mapping = crate::oci::namespaces::user_mapping(&record.namespace_options());
        mapping.ok().flatten().map(|map| (map.host_id, map.host_id))
    }

    /// The hostname containers see: the pod's, or the node's on the node's network (CRI-205).
    pub fn hostname_of(&self, record: &PodRecord) -> String {
        if record.host_network() || record.config.hostname.is_empty() {
            self.node_name.clone()
        } else {
            record.config.hostname.clone()
        }
    }

    /// What the network layer needs to know of a pod.
    ///
    /// # Errors
    /// A port mapping that is none.
    pub fn attach_request(&self, record: &PodRecord, netns: PathBuf) -> Result<Attach> {
        let metadata = record.metadata();
        Ok(Attach {
            sandbox_id: record.id.clone(),
            netns,
            pod_name: metadata.name,
            pod_namespace: metadata.namespace,
            pod_uid: metadata.uid,
            annotations: record.config.annotations.clone(),
            port_mappings: record
                .config
                .port_mappings
                .iter()
                .filter(|mapping| mapping.host_port > 0)
                .map(port_mapping)
                .collect::<Result<_>>()?,
            cgroup_parent: Some(record.cgroup_parent.clone()),
            sysctls: record.linux().sysctls.into_iter().collect(),
            dns: record.config.dns_config.as_ref().map(|dns| cni_shim::Dns {
                servers: dns.servers.clone(),
                searches: dns.searches.clone(),
                options: dns.options.clone(),
            }),
        })
    }

    /// A sandbox as the pure spec builder needs it.
    pub fn sandbox_facts(&self, pod: &Pod) -> SandboxFacts {
        let record = pod.cell.get();
        let linux = record.linux();
        let context = linux.security_context.clone().unwrap_or_default();
        let options = record.namespace_options();
        let files = Files::of(&self.config.state, &pod.id);
        let host_ipc = options.ipc() == cri::NamespaceMode::Node;
        let pause = record.pause.as_ref();
        SandboxFacts {
            id: pod.id.clone(),
            metadata: record.metadata(),
            labels: record.config.labels.clone(),
            annotations: record.config.annotations.clone(),
            runtime_handler: record.runtime_handler.clone(),
            cgroup_parent: record.cgroup_parent.clone(),
            namespaces: SandboxNamespaces {
                net: record.namespaces.net.clone(),
                ipc: record.namespaces.ipc.clone(),
                uts: record.namespaces.uts.clone(),
                pid: pause.map(|pause| format!("/proc/{}/ns/pid", pause.pid).into()),
                user: record.namespaces.user.clone(),
            },
            user_mapping: crate::oci::namespaces::user_mapping(&options).unwrap_or_default(),
            namespace_options: options,
            hostname: self.hostname_of(&record),
            files: SandboxFiles {
                hostname: files.hostname,
                hosts: files.hosts,
                resolv_conf: files.resolv_conf,
                shm: if host_ipc {
                    "/dev/shm".into()
                } else {
                    files.shm
                },
            },
            host_network: record.host_network(),
            log_directory: record.config.log_directory.clone(),
            privileged: context.privileged,
            selinux: context.selinux_options,
            overhead: record.overhead.clone(),
            resources: record.resources.clone(),
            ips: record
                .network
                .as_ref()
                .map(|network| network.ips.clone())
                .unwrap_or_default(),
            pause_pid: pause.map_or(0, |pause| pause.pid),
        }
    }

    /// The directories of a cgroup as the monitor joins them.
    pub fn monitor_dirs(&self, group: &cgroup::Cgroup) -> Vec<CgroupDir> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let v1 = self.cgroups.v1().iter().map(|hierarchy| CgroupDir {
            controller: hierarchy.controllers.join(","),
            path: text(&group.path().below(&hierarchy.mount)),
        });
        let unified = group.unified_dir().map(|dir| CgroupDir {
            controller: String::new(),
            path: text(&dir),
        });
        v1.chain(unified).collect()
    }
}

fn port_mapping(mapping: &cri::PortMapping) -> Result<PortMapping> {
    let port = |name: &str, value: i32| {
        u16::try_from(value)
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| Error::invalid(format!("port_mappings.{name}: {value} is no port")))
    };
    let host_ip = match mapping.host_ip.as_str() {
        "" => None,
        text => Some(IpAddr::from_str(text).map_err(|_| {
            Error::invalid(format!("port_mappings.host_ip: \"{text}\" is no address"))
        })?),
    };
    Ok(PortMapping {
        host_port: port("host_port", mapping.host_port)?,
        container_port: port("container_port", mapping.container_port)?,
        protocol: match mapping.protocol() {
            cri::Protocol::Tcp => Protocol::Tcp,
            cri::Protocol::Udp => Protocol::Udp,
            cri::Protocol::Sctp => Protocol::Sctp,
        },
        host_ip,
    })
}

fn open_journal(config: &Config) -> Result<Journal> {
    let options = trace::Options {
        ring: config.trace.ring,
        max_bytes: config.trace.file_bytes,
        files: config.trace.files,
        ..trace::Options::new(clock::now_ns)
    };
    let log = EventLog::open(&config.root.join("trace"), &options).step("event log")?;
    Ok(Journal::new(log))
}

fn image_options(config: &Config, program: &Path) -> crate::image::Options {
    let unpack = vec![program.into(), OsString::from("unpack")];
    crate::image::Options {
        volumes_dir: Some(config.state.join("image-volumes")),
        registry_config_dir: Some(config.image.registry_config_dir.clone()),
        max_parallel_layers: config.image.max_parallel_layers,
        progress_timeout: config.image.progress_timeout,
        ..crate::image::Options::new(config.root.join("roots"), unpack)
    }
}

fn network_config(config: &Config) -> Result<cni_shim::Config> {
    let network = &config.network;
    let subnet = |text: &str| {
        let (ip, prefix) = text.split_once('/')?;
        Cidr::new(ip.parse().ok()?, prefix.parse().ok()?)
    };
    let subnets = [&network.subnet, &network.subnet6]
        .into_iter()
        .filter(|text| !text.is_empty())
        .map(|text| subnet(text).ok_or_else(|| Error::invalid(format!("subnet {text}: is none"))))
        .collect::<Result<_>>()?;
    Ok(cni_shim::Config {
        conf_dir: network.cni_conf_dir.clone(),
        bin_dirs: network.cni_bin_dirs.clone(),
        cache_dir: config.root.join("cni"),
        state_dir: config.root.join("network"),
        bridge: Some(BridgeConfig {
            name: network.bridge.clone(),
            table: network.bridge.replace(['-', '.'], "_"),
            subnets,
            masquerade: network.masquerade,
            mtu: None,
        }),
        add_timeout: CNI_ADD,
        parallel: CNI_PARALLEL,
    })
}

/// The static monitor program doubles as the pause program: it is all that the root holds.
fn make_pause_root(state: &Path, helpers: &Path) -> Result<PathBuf> {
    let root = state.join("pause-root");
    // libcontainer mounts over these, as the root of a user namespace in some pods.
    for dir in [
        root.clone(),
        root.join("proc"),
        root.join("dev"),
        root.join("sys"),
    ] {
        store::make_dir(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).step("pause root")?;
    }
    let (from, to, tmp) = (
        helpers.join("cairn-monitor"),
        root.join("pause"),
        root.join("pause.tmp"),
    );
    fs::copy(&from, &tmp)
        .and_then(|_| fs::rename(&tmp, &to))
        .step("pause root")?;
    Ok(root)
}
