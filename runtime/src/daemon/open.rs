//! Opens the resources of the daemon once: the machine and the context of the pods' steps.

use std::{ffi::OsString, path::Path, sync::Arc, time::Duration};

use cni_shim::{Network, namespaces::HelperCommand};
use tokio::{task::JoinHandle, time::timeout};

use super::{
    from_config::{image_options, network_config, open_cgroups, open_log, policies, warn_of},
    pause_root,
};
use crate::{
    blocking::blocking,
    config::Config,
    host::{facts as host, lookup::Lookups},
    image::Images,
    monitor::{Launcher, LauncherConfig},
    pod::{
        dirs::Dirs,
        error::{AtStep as _, Error, Result},
        machine::Linux,
        node::Node,
        pods::Pods,
        spec::SpecStore,
    },
    preflight::{self, Report},
    store::{self, Store, Unsynced},
};

/// The time that the start waits for directories of others.
const PROMPT: Duration = Duration::from_millis(200);

/// Opens everything; the caller has locked the directories.
///
/// # Errors
/// The first resource that cannot be opened.
pub(super) async fn open(config: Config) -> Result<Arc<Pods>> {
    let dirs = make_dirs(&config)?;
    let (root, state) = (&dirs.root, &dirs.state);
    let program = std::env::current_exe().step("find our own program")?;
    let helpers = program
        .parent()
        .ok_or_else(|| Error::failed("cannot determine the directory of the cairn binary"))?
        .to_owned();
    let lookups = Lookups::new(program.clone(), config.path_timeout);
    let options = image_options(&config, &program, &lookups)?;
    let images = Images::open(&root.join("images"), options).step("images")?;
    // A third of the start: runs beside the rest, but after images emptied its directory.
    let inspection = inspect(&config, &program, &lookups);
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
            program,
            args: vec![OsString::from("sandbox")],
        },
        netns: dirs.netns(),
    };
    let pause_root = pause_root::make(state, &helpers)?;
    let log = open_log(&config)?;
    let policies = policies(&config, &cgroups)?;
    let unsynced = Unsynced::default();
    let pods = Store::open(root.join("pods"), unsynced.clone())?;
    let containers = Store::open(root.join("containers"), unsynced.clone())?;
    let specs = SpecStore::open(root.join("specs"), unsynced.clone())?;
    let found = inspection.await.step("look at the host")?;
    let mut host = host::facts(&cgroups, found.no_user_namespaces, &root.join("apparmor"))
        .step("read the host's facts")?;
    if let Some(selinux) = &mut host.selinux {
        pause_root::label(&pause_root, selinux)?;
    }
    warn_of(&host);
    let node = Node {
        name: rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
        boot_id: host::boot_id().step("read the boot id")?,
        wasm_host: helpers.join("nri-wasm"),
        machine: Arc::new(machine),
        config,
        dirs,
        host,
        policies,
        lookups,
        launcher,
        cgroups,
        network,
        images,
        pods,
        containers,
        specs,
        unsynced,
        pause_root,
    };
    Ok(Pods::new(node, log, Vec::new()))
}

/// Makes the directories of pods and containers below `root` and `state`.
///
/// # Errors
/// The first directory that cannot be made.
pub fn make_dirs(config: &Config) -> Result<Dirs> {
    let (root, state) = (&config.root, &config.state);
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
    // Users of the host must not reach the images' setuid programs, nor our records.
    for dir in ["images", "network", "roots", "trace", "volumes"] {
        store::make_private(&root.join(dir), None)?;
    }
    Ok(Dirs {
        root: root.clone(),
        state: state.clone(),
    })
}

/// Inspects the features of this host, in its own task.
fn inspect(config: &Config, program: &Path, lookups: &Lookups) -> JoinHandle<Report> {
    let (config, program, lookups) = (config.clone(), program.to_owned(), lookups.clone());
    tokio::spawn(async move {
        let mut dirs = config.network.cni_bin_dirs.clone();
        dirs.push(config.network.cni_conf_dir.clone());
        let silent = match timeout(PROMPT, lookups.answer(dirs)).await {
            Ok(answer) => answer.err().map(|error| error.to_string()),
            Err(_) => Some("a CNI directory has not answered yet".to_owned()),
        };
        blocking(move || {
            let found = preflight::inspect(&config, &program, silent);
            found.log();
            found
        })
        .await
    })
}
