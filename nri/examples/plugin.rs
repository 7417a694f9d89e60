//! A plugin: counts pods, vetoes the requested ones, labels containers.
//!
//! ```text
//! cargo run -p nri --features stub --example plugin -- [SOCKET]
//! ```
//!
//! Installed as `10-example` in a runtime's plugin directory, it needs no argument: the runtime
//! sets its name, index and socket.

use std::collections::BTreeSet;

use nri::prelude::*;
use parking_lot::Mutex;

#[derive(Default)]
struct Example {
    pods: Mutex<BTreeSet<String>>,
}

impl Plugin for Example {
    async fn synchronize(
        &self,
        cx: &Context,
        pods: Vec<PodSandbox>,
        _: Vec<Container>,
    ) -> Result<Vec<ContainerUpdate>> {
        println!("{} has {} pods", cx.runtime_info().name, pods.len());
        *self.pods.lock() = pods.into_iter().map(|pod| pod.id).collect();
        Ok(Vec::new())
    }

    async fn run_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<()> {
        if pod.annotations.contains_key("example/veto") {
            return Err("its annotation says so".into());
        }
        self.pods.lock().insert(pod.id);
        Ok(())
    }

    async fn create_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateAnswer> {
        let mut answer = CreateAnswer::default();
        answer.adjust.add_annotation("example/pod", pod.name);
        answer.adjust.add_env("CONTAINER_NAME", container.name);
        Ok(answer)
    }

    async fn remove_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<()> {
        self.pods.lock().remove(&pod.id);
        println!("{}/{} is gone", pod.namespace, pod.name);
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), StubError> {
    let stub = Stub::builder(Example::default());
    let stub = match std::env::args().nth(1) {
        Some(socket) => stub.name("example").index("10").socket(socket),
        None => stub,
    };
    let stub = stub.on_disconnect(|why, again| match again {
        Some(pause) => eprintln!("{why}; trying again in {pause:.1?}"),
        None => eprintln!("{why}"),
    });
    stub.run().await
}
