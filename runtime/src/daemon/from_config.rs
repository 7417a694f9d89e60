//! Translates the configuration into the settings of the daemon's parts.

use std::{ffi::OsString, path::Path, sync::Arc, time::Duration};

use cni_shim::{BridgeConfig, Cidr};

use crate::{
    cgroup, clock,
    config::{self, Config},
    host::{facts as host, lookup::Lookups},
    image,
    monitor::Launcher,
    oci::{CgroupDriver, HostFacts, Policies, Policy, SeccompKind},
    pod::error::{AtStep as _, Error, Kind, Result},
    trace::{self, EventLog},
};

/// Time that a pod waits for a network configuration.
const CNI_READY: Duration = Duration::from_secs(10);
/// Time limit for a CNI ADD (CRI-518).
const CNI_ADD: Duration = Duration::from_secs(60);
/// Concurrent CNI operations over all pods (CRI-518).
const CNI_PARALLEL: usize = 16;
/// Time that ready CNI programs may fail before the node is reported not ready (CRI-503).
const CNI_GRACE: Duration = Duration::from_secs(10);

/// The operator's policies for containers, by runtime handler.
///
/// # Errors
/// None for a checked configuration.
pub fn policies(config: &Config, cgroups: &cgroup::Host) -> Result<Policies> {
    let own = |container: &config::Container| policy(config, container, cgroups).map(Arc::new);
    let handlers = config.handlers.iter();
    Ok(Policies {
        default: own(&config.container)?,
        handlers: handlers
            .map(|(name, handler)| Ok((name.clone(), own(&handler.over(&config.container))?)))
            .collect::<Result<_>>()?,
    })
}

fn policy(
    config: &Config,
    container: &config::Container,
    cgroups: &cgroup::Host,
) -> Result<Policy> {
    Ok(Policy {
        cgroup_driver: match cgroups.systemd() {
            Some(_) => CgroupDriver::Systemd,
            None => CgroupDriver::Cgroupfs,
        },
        default_cgroup_parent: config.cgroup.parent.clone(),
        seccomp_when_absent: match container.unset_seccomp_profile {
            config::SeccompDefault::Unconfined => SeccompKind::Unconfined,
            config::SeccompDefault::RuntimeDefault => SeccompKind::RuntimeDefault,
        },
        annotation_prefixes: container.annotation_prefixes.clone(),
        rlimits: container.rlimits().step("configuration")?,
        device_ownership_from_user: container.device_ownership_from_security_context,
        privileged_without_host_devices: container.privileged_without_host_devices,
        default_masks: container.masks == config::Masks::Default,
    })
}

/// Logs restrictions of this host for containers.
pub(super) fn warn_of(host: &HostFacts) {
    if let Some(selinux) = &host.selinux
        && let Err(why) = &selinux.contexts
    {
        let refused = if selinux.enforcing {
            "; those that ask for selinux_options, or for selinux_relabel of a mount as a kubelet does for volumes, \
             are refused"
        } else {
            ""
        };
        tracing::warn!("SELinux: containers run without labels{refused}: {why}");
    }
    if let Some(Err(problem)) = &host.apparmor {
        tracing::warn!("AppArmor: no default profile, containers run without one: {problem}");
    }
}

/// Opens the hierarchies, and systemd if it is the driver.
pub(super) async fn open_cgroups(config: &Config, launcher: &Launcher) -> Result<cgroup::Host> {
    let host = cgroup::Host::detect().step("cgroups")?;
    let only_v2 = host.mode() == cgroup::Mode::V2;
    match config.cgroup.driver {
        config::CgroupDriver::Cgroupfs => return Ok(host),
        config::CgroupDriver::Auto if !only_v2 || !host::is_run_by_systemd() => return Ok(host),
        config::CgroupDriver::Systemd if !only_v2 => {
            return Err(Error::new(
                Kind::Unsupported,
                "cgroup.driver = \"systemd\" needs cgroup v2 alone, and this host has v1 hierarchies: boot it with \
                 systemd.unified_cgroup_hierarchy=1, or set \"cgroupfs\"",
            ));
        }
        config::CgroupDriver::Auto | config::CgroupDriver::Systemd => {}
    }
    let systemd = cgroup::Systemd::new(&config.root, launcher.hold(), cgroup::SYSTEM_BUS.into());
    systemd
        .check()
        .await
        .step("the systemd cgroup driver (cgroup.driver = \"cgroupfs\" does without it)")?;
    Ok(host.driven_by(systemd))
}

pub(super) fn open_log(config: &Config) -> Result<EventLog> {
    let options = trace::Options::new(clock::now_ns);
    EventLog::open(&config.root.join("trace"), &options).step("event log")
}

pub fn image_options(config: &Config, program: &Path, lookups: &Lookups) -> Result<image::Options> {
    let asked = &config.image;
    Ok(image::Options {
        roots_dir: config.root.join("roots"),
        volumes_dir: config.state.join("image-volumes"),
        unpack_helper: vec![program.into(), OsString::from("unpack")],
        registry_config_dir: asked.registry_config_dir.clone(),
        lookups: lookups.clone(),
        turns: image::TurnBounds::of(asked.max_parallel_layers),
        image: image::TreeBounds {
            bytes: asked.max_image_bytes,
            files: asked.max_image_files,
            depth: asked.max_image_depth,
        },
        max_volume_bytes: asked.max_volume_bytes,
        progress_timeout: asked.progress_timeout,
        token_services: asked.token_services.clone(),
        pinned: asked.pinned().step("configuration")?,
    })
}

pub fn network_config(config: &Config, lookups: &Lookups) -> Result<cni_shim::Config> {
    let network = &config.network;
    let parse = |text: &String| {
        text.parse::<Cidr>()
            .map_err(|message| Error::invalid(format!("network: {message}")))
    };
    let subnets = [&network.subnet, &network.subnet6]
        .into_iter()
        .filter(|text| !text.is_empty())
        .map(parse)
        .collect::<Result<_>>()?;
    let others = network.non_masquerade_cidrs.iter().map(parse);
    let non_masquerade_cidrs = others.collect::<Result<_>>()?;
    Ok(cni_shim::Config {
        conf_dir: network.cni_conf_dir.clone(),
        bin_dirs: network.cni_bin_dirs.clone(),
        cache_dir: network.cni_cache_dir.clone(),
        earlier_cache_dir: Some(config.root.join("cni")),
        state_dir: config.root.join("network"),
        bridge: (!network.bridge.is_empty()).then(|| BridgeConfig {
            name: network.bridge.clone(),
            table: network.bridge.replace(['-', '.'], "_"),
            subnets,
            masquerade: network.masquerade,
            non_masquerade_cidrs,
            spoof_check: network.spoof_check,
            mtu: (network.mtu > 0).then_some(network.mtu),
        }),
        add_timeout: CNI_ADD,
        ready_timeout: CNI_READY,
        status_grace: CNI_GRACE,
        parallel: CNI_PARALLEL,
        started: Some(crate::inherited::reset),
        answers: cni_shim::Answers::by({
            let lookups = lookups.clone();
            move |paths| {
                let lookups = lookups.clone();
                Box::pin(async move { lookups.answer(paths).await.map_err(|e| e.to_string()) })
            }
        }),
    })
}
