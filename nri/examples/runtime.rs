//! A runtime without containers: accepts plugins and sends them the events of one pod after the
//! other.
//!
//! ```text
//! cargo run -p nri --example runtime -- SOCKET
//! ```

use std::{sync::Arc, time::Duration};

use nri::{Adaptation, BoxFuture, FailedUpdate, PluginId, Requester, Snapshot, Source, proto::*};

struct Runtime;

impl Source for Runtime {
    fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }

    fn update(
        &self,
        _: &Requester,
        updates: Vec<ContainerUpdate>,
    ) -> BoxFuture<'_, Vec<FailedUpdate>> {
        let failed = updates
            .into_iter()
            .map(|update| FailedUpdate::new(update, "not supported"));
        Box::pin(std::future::ready(failed.collect()))
    }

    fn evict(&self, _: &PluginId, _: String, _: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Err("there is nothing to evict".into()) })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args().nth(1).ok_or("give the path of a socket")?;
    let nri = Adaptation::builder("example", "1.0")
        .socket(socket)
        .source(Arc::new(Runtime))
        .start()
        .await?;
    for n in 1.. {
        let pod = PodSandbox {
            id: format!("pod{n}"),
            name: format!("pod{n}"),
            namespace: "default".into(),
            ..Default::default()
        };
        match nri.run_pod_sandbox(pod.clone()).await {
            Ok(reported) => println!("pod{n}: {} plugins agree", reported.deliveries.len()),
            Err(refused) => println!("pod{n}: {refused}"),
        }
        nri.stop_pod_sandbox(pod.clone()).await;
        nri.remove_pod_sandbox(pod).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
