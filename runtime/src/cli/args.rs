//! The command line; `serve_flags.rs` has the flags of `serve`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use serde_json::Value;

use super::{serve_flags::Serve, standard_output, text::safe_json};

/// The daemon's endpoint, unless the user names another.
const DEFAULT_CONNECT: &str = "unix:///run/cairn/cairn.sock";

/// The variable that crictl uses; ours too.
const ENDPOINT: &str = "CONTAINER_RUNTIME_ENDPOINT";

/// A small CRI runtime with NRI built in.
#[derive(Debug, Parser)]
#[command(
    name = "cairn",
    version,
    propagate_version = true,
    subcommand_required = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon with its CRI and NRI sockets. Exit 78 if configuration or host must change.
    Serve(Serve),
    /// Print or check a configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check whether this host can run pods; exit 1 if it cannot.
    Check(Check),
    /// Work with the images of a running daemon.
    #[command(subcommand)]
    Image(ImageCommand),
    /// List the networks of pods, and release those of removed pods.
    #[command(subcommand)]
    Network(NetworkCommand),
    /// List pods and their containers: state, age, restarts, id, image, process.
    Ps(Ps),
    /// Check whether the daemon can run pods; if not, show why and what to do. Exit 1 if it cannot.
    #[command(after_help = STATUS)]
    Status(Ask),
    /// Show the events of a pod: contract points, plugins' answers, the runtime's steps.
    Timeline(Timeline),
    /// List NRI plugins: connections, subscriptions, answer times, errors.
    #[command(after_help = PLUGINS)]
    Plugins(Ask),
    /// Explain a container, or all of a pod: what CRI asked for, what each plugin changed, what came out.
    Explain(Explain),
    /// Stop and remove pods or containers; --force skips failing steps.
    Rm(Rm),
    /// Print a completion script for a shell.
    Completion { shell: clap_complete::Shell },
    /// Write the manual pages into a directory, for packages.
    Man { dir: PathBuf },
    /// Helper process: unpack one layer, or read an archive of images. Started by the daemon only.
    #[command(hide = true)]
    Unpack {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// Helper process: look up paths that may never answer. Started by the daemon only.
    #[command(hide = true)]
    Look,
    /// Helper process: make the namespaces of one pod. Started by the daemon only.
    #[command(hide = true)]
    Sandbox,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the commented default configuration.
    Default,
    /// Check a configuration file; exit 0 if the daemon would start with it.
    Check { file: PathBuf },
}

/// Has the daemon's flags, because the result depends on them; needs no running daemon.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    pub serve: Serve,
    /// Output format: for people or for programs.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// The daemon's endpoint, and the output format.
#[derive(Debug, Args)]
pub struct Ask {
    /// Output format: for people or for programs.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    #[command(flatten)]
    pub connect: Connect,
}

/// The daemon's endpoint.
#[derive(Debug, Args)]
pub struct Connect {
    /// The daemon's endpoint; by default CONTAINER_RUNTIME_ENDPOINT of the environment, as in
    /// crictl, else unix:///run/cairn/cairn.sock.
    #[arg(long, value_name = "ENDPOINT")]
    pub connect: Option<String>,
}

impl Connect {
    /// The source of the endpoint, and the endpoint.
    pub fn endpoint(&self) -> (&'static str, String) {
        match &self.connect {
            Some(given) => ("--connect", given.clone()),
            None => match std::env::var(ENDPOINT) {
                Ok(set) if set.starts_with('/') => (ENDPOINT, format!("unix://{set}")),
                Ok(set) if !set.is_empty() => (ENDPOINT, set),
                _ => ("--connect", DEFAULT_CONNECT.to_owned()),
            },
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List images: names, id, size, and number of containers.
    Ls(Ask),
    /// Pull an image and show the progress; Ctrl-C cancels the pull.
    Pull(ImagePull),
    /// Remove images with all their names; reports containers that still use them.
    Rm(ImageRm),
    /// Import an image archive: an OCI layout tar, or one of `docker save` ("-": standard input).
    Import {
        file: PathBuf,
        /// A name for an image without a name in the archive.
        #[arg(long, default_value = "")]
        name: String,
        #[command(flatten)]
        connect: Connect,
    },
}

#[derive(Debug, Subcommand)]
pub enum NetworkCommand {
    /// List the networks of pods: configuration, interface, addresses, host ports, namespace.
    #[command(after_help = NETWORK_LS)]
    Ls(Ask),
    /// Release networks of removed pods; exit 1 if something is left.
    Gc(NetworkGc),
}

const NETWORK_LS: &str = "\
NETWORK is the built-in bridge, or the name of a CNI configuration. (the node's): a pod on the host's network. A line that
begins with (unknown) belongs to a removed pod: run cairn network gc.";

#[derive(Debug, Args)]
#[command(after_help = "\
The daemon does this when it starts. Later leftovers are attachments of pods that were removed by force, CNI results of pods
without namespace and record, and addresses that only CNI plugins know (GC, since CNI 1.1.0).")]
pub struct NetworkGc {
    /// Only list the networks that would be released.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub ask: Ask,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --all: pods that are ready, or have a container that has not exited, and those containers.

STATE of a pod is ready or notready; of a container created, running, exited or unknown (its record cannot be read:
cairn status). AGE counts from the start of a container that runs, from the end of one that exited, else from the
creation. RESTARTS is the attempt that the kubelet counts. PROCESS is the pid on the host, or how the container ended.")]
pub struct Ps {
    /// Also pods that are not ready, and exited containers.
    #[arg(short, long)]
    pub all: bool,
    #[command(flatten)]
    pub ask: Ask,
}

const STATUS: &str = "\
ok       no problem
limited  pods run, with the limitation named below and its remedy
fails    pods cannot be created, or not those that need this feature: exit code 1

`cairn check` checks the host in the same way, without a daemon.";

#[derive(Debug, Args)]
#[command(after_help = "\
Mirrors and certificates of registries are the daemon's: hosts.toml files in image.registry_config_dir. Credentials go to the
image's registry and its token service only, and into no log. --creds can be seen in the list of processes.

A pull that another client waits for too goes on when this one is given up.")]
pub struct ImagePull {
    /// A reference, such as registry.k8s.io/pause:3.10 or busybox@sha256:...
    pub image: String,
    /// Credentials for the registry.
    #[arg(long, value_name = "USER:PASSWORD")]
    pub creds: Option<String>,
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
pub struct ImageRm {
    /// Names, ids, or unique prefixes of ids of images.
    #[arg(value_name = "IMAGE", required = true)]
    pub images: Vec<String>,
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The page is one file for a browser, and needs no network: lanes for CRI, the runtime, the network, monitors and each plugin,
what failed first and why, request and answer of each event by mouse or keyboard. It shows what the text shows; values of
environment variables are in neither.

  cairn timeline web --html web.html
  cairn timeline --json > events; cairn timeline --from events --html all.html      elsewhere, without the daemon")]
pub struct Timeline {
    /// Id, prefix of an id, or name of a pod or a container; by default all pods and the plugins.
    #[arg(value_name = "POD|CONTAINER")]
    pub pod: Option<String>,
    /// Continue with new events.
    #[arg(short, long)]
    pub follow: bool,
    /// One JSON object per line, as in the event log.
    #[arg(long)]
    pub json: bool,
    /// Write a page for a browser to this file, atomically.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["follow", "json"])]
    pub html: Option<PathBuf>,
    /// Read events from --json output or an event log file ("-": standard input), without a daemon.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["follow", "connect"])]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The container is named by its id, the beginning of it, its name, pod/name or namespace/pod/name. A pod's id or name
explains the pod and all its containers. Rejected requests and removed containers are found while the event log has them.

Values of environment variables are never shown.")]
pub struct Explain {
    /// Id, beginning of an id, or name of a container or a pod.
    #[arg(value_name = "POD|CONTAINER")]
    pub container: String,
    /// Also the lines of the specification that no plugin changed.
    #[arg(long)]
    pub full: bool,
    #[command(flatten)]
    pub ask: Ask,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --force this does the same as crictl rmp -f and rm -f: it kills containers, notifies plugins and releases the network.
The first failing step ends the removal and is named; another run resumes there.

With --force a failing step is skipped and named in the output, such as a process that does not end, or a CNI program that is
missing or fails. Leftovers of that step, such as an address or a cgroup, must be removed by hand.")]
pub struct Rm {
    /// Id of a pod or container, or unique prefix of it.
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// Skip and report failing steps.
    #[arg(short, long)]
    pub force: bool,
    #[command(flatten)]
    pub connect: Connect,
}

/// The output format of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    Table,
    Json,
}

impl Output {
    /// Prints one form in one write, so that a reader of the first line cannot end the command.
    pub fn print(self, table: impl FnOnce() -> String, json: impl FnOnce() -> Value) {
        let text = match self {
            Self::Table => table(),
            Self::Json => safe_json(&format!("{:#}\n", json())).into_owned(),
        };
        // A failed write does not change the result of the command.
        let _ = standard_output::write(&text);
    }
}

const PLUGINS: &str = "\
States:
  connected  it gets events
  joining    it is being synchronized
  shadowed   a newer instance of its index and name is called, until one of the two ends
  hung       an answer is overdue; no event until it comes (on_timeout = \"skip\")
  MISSING    required and absent: no pod and no container is created
  missing    must run and is absent: Stop and Remove events are kept for it
  closed     disconnected; the reason is in the line below
With it, where it differs from the default:
  required, must run   as configured in cairn.toml
  fail request         an event that it does not answer fails (fail_request)
  keep connected       a timeout does not close it (on_timeout = \"keep\")

Latencies are over the last 256 calls. BACKLOG counts the Stop and Remove events that are kept for
a plugin with must_run. JSON has more, with durations in nanoseconds, and other words for STATE: active
(connected), overdue (hung), absent (MISSING, missing), gone (closed).";
