//! A plugin in fifty lines: prints pods, vetoes what it is told to, labels containers.
//!
//! ```text
//! cargo run -p nri --features stub --example plugin -- [SOCKET]
//! ```
//!
//! Installed as `10-example` in a runtime's plugin directory it needs no argument: the runtime gives
//! it a name, an index and a socket.

use nri::{
    Handlers,
    adjust::Adjust,
    proto::ContainerAdjustment,
    stub::{Stub, StubError},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), StubError> {
    let handlers = Handlers::new()
        .synchronize(|pods, containers| async move {
            println!(
                "{} pods and {} containers are there",
                pods.len(),
                containers.len()
            );
            Ok(Vec::new())
        })
        .run_pod_sandbox(|pod| async move {
            println!("pod {}/{}", pod.namespace, pod.name);
            if pod.annotations.contains_key("example/veto") {
                return Err("its annotation says so".into());
            }
            Ok(())
        })
        .create_container(|pod, container| async move {
            let mut adjust = ContainerAdjustment::default();
            adjust.add_annotation("example/pod", &pod.name);
            adjust.add_env("CONTAINER_NAME", &container.name);
            Ok((Some(adjust), Vec::new()))
        })
        .remove_pod_sandbox(|pod| async move {
            println!("pod {}/{} is gone", pod.namespace, pod.name);
            Ok(())
        });
    let stub = Stub::builder(handlers);
    let stub = match std::env::args().nth(1) {
        Some(socket) => stub
            .name("example")
            .index("10")
            .socket(socket)
            .reconnect(true)
            .on_disconnect(|why, again| match again {
                Some(pause) => eprintln!("{why}; trying again in {pause:.1?}"),
                None => eprintln!("{why}"),
            }),
        None => stub,
    };
    stub.run().await
}
