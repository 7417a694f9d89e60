//! Logs the network of pods at start and end: namespace path or host network, and addresses.

use nri::{
    Context, Error, Plugin,
    proto::{Container, ContainerUpdate, PodSandbox},
    read::ReadPod,
};

use crate::{
    cli::{Args, Flag, Usage},
    log::Log,
    plugin::Sample,
};

const HOST: &str = "network of the host";

/// See the module.
#[derive(Debug)]
pub struct NetworkLogger {
    log: Log,
}

impl Sample for NetworkLogger {
    const NAME: &'static str = "network-logger";
    const USAGE: Usage = [
        "Logs network namespace and addresses of pods as they come and go.",
        "network-logger -idx 10  # prints: RunPodSandbox: default/pod0: /run/netns/x, addresses 10.0.0.2",
        "network-logger -idx 10 -log-file /run/networks -reconnect",
    ];
    const FLAGS: &'static [Flag] = &[Flag::value(
        "log-file",
        "PATH",
        "where to log (default: standard error)",
    )];

    fn new(args: &Args, log: Log) -> Result<Self, String> {
        args.get("log-file")
            .map_or(Ok(()), |path| log.to_file(path))?;
        Ok(Self { log })
    }
}

impl Plugin for NetworkLogger {
    async fn synchronize(
        &self,
        _: &Context,
        pods: Vec<PodSandbox>,
        _: Vec<Container>,
    ) -> Result<Vec<ContainerUpdate>, Error> {
        for pod in &pods {
            self.report("Synchronize", pod, HOST);
        }
        Ok(Vec::new())
    }

    async fn run_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<(), Error> {
        self.report("RunPodSandbox", &pod, HOST);
        Ok(())
    }

    async fn stop_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<(), Error> {
        self.report("StopPodSandbox", &pod, HOST);
        Ok(())
    }

    async fn remove_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<(), Error> {
        // The path may have been removed by now, so its absence does not mean the host's network.
        self.report("RemovePodSandbox", &pod, "network gone");
        Ok(())
    }

    async fn shutdown(&self, _: &Context) {
        self.log.info(format_args!("Shutdown"));
    }
}

impl NetworkLogger {
    fn report(&self, event: &str, pod: &PodSandbox, without: &str) {
        self.log
            .info(format_args!("{event}: {}", describe(pod, without)));
    }
}

/// `default/pod0: /run/netns/x, addresses 10.0.0.2`. `without`: the text for a missing path.
fn describe(pod: &PodSandbox, without: &str) -> String {
    let network = pod.namespace_path("network").unwrap_or(without);
    let addresses = if pod.ips.is_empty() {
        "no address".to_owned()
    } else {
        format!("addresses {}", pod.ips.join(", "))
    };
    format!("{}: {network}, {addresses}", pod.full_name())
}
