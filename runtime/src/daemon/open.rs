//! Everything that the daemon has, opened and put together once: each step of a pod gets what it uses, and no more.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use cni_shim::{Network, namespaces::HelperCommand};

use super::{
    cairn_service::CairnService,
    from_config::{image_options, network_config, open_cgroups, open_log, policies, warn_of},
    networks::Networks,
    pause_root,
};
use crate::{
    blocking::blocking,
    config::Config,
    cri::{Cri, Statistics},
    host::{facts as host, lookup::Lookups},
    image::Images,
    monitor::{Launcher, LauncherConfig},
    oci::HostFacts,
    pod::{
        adjusted_cgroup::AdjustedCgroups,
        container_exit::ContainerExit,
        create_container::CreateContainer,
        dirs::Dirs,
        error::{AtStep as _, Error, Result},
        events::Events,
        hooks::Hooks,
        machine::Linux,
        message::Describe,
        pause::Pauses,
        plugins::Plugins,
        processes::Processes,
        record::{ContainerRecord, PodRecord},
        recover::Recovery,
        registry::Registry,
        remove_by_id::RemoveById,
        remove_container::RemoveContainer,
        remove_pod_sandbox::RemovePodSandbox,
        resources::ResourceWriter,
        run_pod_sandbox::RunPodSandbox,
        sandbox::Sandboxes,
        side_effects::Others,
        spec::SpecStore,
        start_container::StartContainer,
        steps::Steps,
        stop_container::StopContainer,
        stop_pod_sandbox::StopPodSandbox,
        update_container_resources::UpdateContainerResources,
        update_pod_sandbox_resources::UpdatePodSandboxResources,
    },
    preflight,
    stats::{Layers, Sampler},
    store::{self, Store, Unsynced},
    stream::Streams,
    trace::EventLog,
};

#[cfg(test)]
#[path = "model/mod.rs"]
mod model;

/// What `serve.rs` serves and drains.
pub(super) struct Daemon {
    pub cri: Cri,
    pub cairn: CairnService,
    pub recovery: Recovery,
    pub plugins: Plugins,
    pub hooks: Arc<Hooks>,
    pub events: Events,
    /// CPU rates; runs while the daemon does.
    pub sampler: Sampler,
}

/// What everything else is made of: the machine, the disk, and who is told.
struct Parts {
    config: Arc<Config>,
    dirs: Dirs,
    host: Arc<HostFacts>,
    describe: Describe,
    pods: Store<PodRecord>,
    containers: Store<ContainerRecord>,
    specs: SpecStore,
    unsynced: Unsynced,
    images: Images,
    lookups: Lookups,
    network: Arc<Network>,
    processes: Arc<Processes>,
    registry: Arc<Registry>,
    hooks: Arc<Hooks>,
    events: Events,
    log: EventLog,
    pause_root: PathBuf,
}

/// Opens everything; the directories are locked by the caller.
///
/// # Errors
/// The first thing that is not to be had.
pub(super) async fn open(config: Config, streams: Arc<Streams>) -> Result<Daemon> {
    Ok(Parts::open(config).await?.put_together(streams))
}

impl Parts {
    async fn open(config: Config) -> Result<Self> {
        let dirs = Dirs {
            root: config.root.clone(),
            state: config.state.clone(),
        };
        let (root, state) = (&dirs.root, &dirs.state);
        store::make_passage(state)?;
        for dir in [
            "pods",
            "containers",
            "image-volumes",
            "pause",
            "pause-root",
            "ns",
        ] {
            store::make_passage(&state.join(dir))?;
        }
        // Programs of images, with their setuid bits, are for containers only, and records for us.
        for dir in ["images", "network", "roots", "trace", "volumes"] {
            store::make_private(&root.join(dir), None)?;
        }
        let program = std::env::current_exe().step("find our own program")?;
        let helpers = program
            .parent()
            .ok_or_else(|| Error::failed("our own program lies nowhere"))?
            .to_owned();
        let lookups = Lookups::new(program.clone(), config.path_timeout);
        let options = image_options(&config, &program, &lookups)?;
        let images = Images::open(&root.join("images"), options).step("images")?;
        // A third of the start, so beside the rest of it; in a directory that opening the images empties, so not before.
        let looking = tokio::spawn({
            let (config, program, lookups) = (config.clone(), program.clone(), lookups.clone());
            async move {
                let mut dirs = config.network.cni_bin_dirs.clone();
                dirs.push(config.network.cni_conf_dir.clone());
                let silent = lookups.answer(dirs).await.err();
                blocking(move || {
                    let silent = silent.map(|error| error.to_string());
                    let found = preflight::inspect(&config, &program, silent);
                    found.log();
                    found
                })
                .await
            }
        });
        let launcher = Launcher::new(LauncherConfig {
            run_dir: state.join("monitor"),
            helpers_dir: helpers.clone(),
        })
        .await
        .step("monitor")?;
        let cgroups = open_cgroups(&config, &launcher).await?;
        let network = Network::new(network_config(&config, &lookups)?).step("network")?;
        let network = Arc::new(network);
        let machine = Linux {
            network: Arc::clone(&network),
            helper: HelperCommand {
                program: program.clone(),
                args: vec![OsString::from("sandbox")],
            },
        };
        let pause_root = pause_root::make(state, &helpers)?;
        let log = open_log(&config)?;
        let describe = Describe {
            dirs: dirs.clone(),
            node_name: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            policies: policies(&config, &cgroups)?,
        };
        let unsynced = Unsynced::default();
        let (pods, containers) = (
            Store::open(root.join("pods"), unsynced.clone())?,
            Store::open(root.join("containers"), unsynced.clone())?,
        );
        let specs = SpecStore::open(root.join("specs"), unsynced.clone())?;
        let found = looking.await.step("look at the host")?;
        let mut host = host::facts(&cgroups, found.no_user_namespaces, &root.join("apparmor"))
            .step("read the host's facts")?;
        if let Some(selinux) = &mut host.selinux {
            pause_root::label(&pause_root, selinux)?;
        }
        warn_of(&host);
        Ok(Self {
            specs,
            processes: Arc::new(Processes {
                launcher,
                cgroups,
                machine: Arc::new(machine),
                dirs: dirs.clone(),
                boot_id: host::boot_id().step("read the boot id")?,
            }),
            config: Arc::new(config),
            dirs,
            host: Arc::new(host),
            hooks: Arc::new(Hooks::new(
                helpers.join("nri-wasm"),
                lookups.clone(),
                describe.clone(),
                log.clone(),
            )),
            describe,
            pods,
            containers,
            unsynced,
            images,
            lookups,
            network,
            registry: Arc::default(),
            events: Events::default(),
            log,
            pause_root,
        })
    }

    fn put_together(self, streams: Arc<Streams>) -> Daemon {
        let sandboxes = Arc::new(Sandboxes {
            describe: self.describe.clone(),
            processes: Arc::clone(&self.processes),
            nri_network: self.config.network.nri,
            images: self.images.clone(),
        });
        let pauses = Arc::new(Pauses {
            root: self.pause_root.clone(),
            host: Arc::clone(&self.host),
            describe: self.describe.clone(),
            processes: Arc::clone(&self.processes),
            registry: Arc::clone(&self.registry),
            events: self.events.clone(),
            log: self.log.clone(),
        });
        let others = Others {
            registry: Arc::clone(&self.registry),
            resources: Arc::new(ResourceWriter {
                specs: self.specs.clone(),
                host: Arc::clone(&self.host),
                policy: Arc::clone(&self.describe.policies.default),
                processes: Arc::clone(&self.processes),
            }),
            log: self.log.clone(),
        };
        let steps = Arc::new(self.steps(&sandboxes, &pauses, &others));
        let run_pod_sandbox = Arc::new(RunPodSandbox {
            registry: Arc::clone(&self.registry),
            records: self.pods.clone(),
            sandboxes: Arc::clone(&sandboxes),
            pauses,
            host: Arc::clone(&self.host),
            hooks: Arc::clone(&self.hooks),
            events: self.events.clone(),
            log: self.log.clone(),
            steps: Arc::clone(&steps),
        });
        let remove_by_id = Arc::new(RemoveById {
            registry: Arc::clone(&self.registry),
            pods: self.pods.clone(),
            containers: self.containers.clone(),
            specs: self.specs.clone(),
            images: self.images.clone(),
            processes: Arc::clone(&self.processes),
            sandboxes,
        });
        let sampler = Sampler::default();
        Daemon {
            recovery: Recovery {
                registry: Arc::clone(&self.registry),
                pods: self.pods,
                containers: self.containers,
                specs: self.specs.clone(),
                describe: self.describe.clone(),
                hooks: Arc::clone(&self.hooks),
                run_pod_sandbox: Arc::clone(&run_pod_sandbox),
                steps,
                remove_by_id: Arc::clone(&remove_by_id),
            },
            plugins: Plugins {
                describe: self.describe.clone(),
                others,
                log: self.log.clone(),
            },
            cairn: CairnService {
                dirs: self.dirs,
                images: self.images.clone(),
                log: self.log,
                hooks: Arc::clone(&self.hooks),
                registry: Arc::clone(&self.registry),
                specs: self.specs.clone(),
                remove_by_id,
                networks: Arc::new(Networks {
                    network: Arc::clone(&self.network),
                    registry: Arc::clone(&self.registry),
                }),
            },
            cri: Cri {
                config: self.config,
                host: self.host,
                policies: self.describe.policies,
                network: self.network,
                hooks: Arc::clone(&self.hooks),
                pods: Arc::clone(&self.registry),
                specs: self.specs,
                images: self.images.clone(),
                events: self.events.clone(),
                run_pod_sandbox,
                statistics: Arc::new(Statistics {
                    pods: self.registry,
                    images: self.images,
                    processes: self.processes,
                    sampler: sampler.clone(),
                    layers: Layers::default(),
                }),
                streams,
            },
            hooks: self.hooks,
            events: self.events,
            sampler,
        }
    }

    fn steps(&self, sandboxes: &Arc<Sandboxes>, pauses: &Arc<Pauses>, others: &Others) -> Steps {
        let hooks = || Arc::clone(&self.hooks);
        let registry = || Arc::clone(&self.registry);
        let processes = || Arc::clone(&self.processes);
        let (events, log) = (|| self.events.clone(), || self.log.clone());
        let exit = Arc::new(ContainerExit {
            processes: processes(),
            hooks: hooks(),
            others: others.clone(),
            events: events(),
            log: log(),
        });
        let stop_container = StopContainer {
            processes: processes(),
        };
        Steps {
            stop_pod_sandbox: StopPodSandbox {
                registry: registry(),
                sandboxes: Arc::clone(sandboxes),
                pauses: Arc::clone(pauses),
                hooks: hooks(),
                events: events(),
                log: log(),
            },
            remove_pod_sandbox: RemovePodSandbox {
                registry: registry(),
                hooks: hooks(),
                events: events(),
                log: log(),
            },
            update_pod_sandbox_resources: UpdatePodSandboxResources { hooks: hooks() },
            create_container: CreateContainer {
                records: self.containers.clone(),
                specs: self.specs.clone(),
                images: self.images.clone(),
                host: Arc::clone(&self.host),
                lookups: self.lookups.clone(),
                describe: self.describe.clone(),
                places: AdjustedCgroups {
                    registry: registry(),
                    cgroups: self.processes.cgroups.clone(),
                    placing: tokio::sync::Mutex::default(),
                },
                hooks: hooks(),
                exit: Arc::clone(&exit),
                events: events(),
                log: log(),
            },
            start_container: StartContainer {
                registry: registry(),
                lookups: self.lookups.clone(),
                specs: self.specs.clone(),
                images: self.images.clone(),
                processes: processes(),
                exit: Arc::clone(&exit),
                hooks: hooks(),
                events: events(),
                log: log(),
                max_log_line: self.config.container.max_log_line,
            },
            update_container_resources: UpdateContainerResources {
                hooks: hooks(),
                others: others.clone(),
                log: log(),
            },
            remove_container: RemoveContainer {
                specs: self.specs.clone(),
                images: self.images.clone(),
                stop: stop_container.clone(),
                exit: Arc::clone(&exit),
                hooks: hooks(),
                events: events(),
                log: log(),
            },
            stop_container,
            container_exit: exit,
            log: log(),
            unsynced: self.unsynced.clone(),
        }
    }
}
