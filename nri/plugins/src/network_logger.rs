//! Logs the network of pods as they come and go: namespace path, or that it is the host's, and
//! addresses.

use nri::{Handlers, proto::PodSandbox};

use crate::{
    cli::{Args, Flag, Usage},
    log::Log,
    plugin::Plugin,
};

const HOST: &str = "network of the host";

/// See the module.
#[derive(Debug)]
pub struct NetworkLogger {
    log: Log,
}

impl Plugin for NetworkLogger {
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

    fn handlers(self) -> Handlers {
        let log = self.log;
        let on = |event: &'static str, without: &'static str| {
            let log = log.clone();
            move |pod: PodSandbox| {
                log.info(format_args!("{event}: {}", describe(&pod, without)));
                std::future::ready(Ok(()))
            }
        };
        let (synchronize, shutdown) = (log.clone(), log.clone());
        Handlers::new()
            .synchronize(move |pods, _| {
                for pod in &pods {
                    synchronize.info(format_args!("Synchronize: {}", describe(pod, HOST)));
                }
                std::future::ready(Ok(Vec::new()))
            })
            .run_pod_sandbox(on("RunPodSandbox", HOST))
            .stop_pod_sandbox(on("StopPodSandbox", HOST))
            // By now a path that was there is gone, so that its absence says nothing of the host.
            .remove_pod_sandbox(on("RemovePodSandbox", "network gone"))
            .shutdown(move |reason| {
                shutdown.info(format_args!("Shutdown: {reason}"));
                std::future::ready(())
            })
    }
}

/// `default/pod0: /run/netns/x, addresses 10.0.0.2`. `without`: what it means that there is no path.
fn describe(pod: &PodSandbox, without: &str) -> String {
    let network = netns(pod).unwrap_or(without);
    let addresses = match pod.ips.is_empty() {
        true => "no address".to_owned(),
        false => format!("addresses {}", pod.ips.join(", ")),
    };
    format!("{}/{}: {network}, {addresses}", pod.namespace, pod.name)
}

/// The path of the pod's network namespace; `None` if it shares the host's.
pub fn netns(pod: &PodSandbox) -> Option<&str> {
    let namespaces = pod.linux.iter().flat_map(|linux| &linux.namespaces);
    let mut network = namespaces.filter(|namespace| namespace.r#type == "network");
    let path = network.next().map(|namespace| namespace.path.as_str());
    path.filter(|path| !path.is_empty())
}
