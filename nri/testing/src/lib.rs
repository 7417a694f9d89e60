//! An in-memory runtime for tests of plugins: no root, no containers, the real wire.
//!
//! [`FakeRuntime`] listens on its own socket and runs the life of pods and containers like a
//! runtime. The plugin under test connects to it (any program, or `stub::Stub` in the test itself),
//! or runs in-process. The methods return its answers; its other effects are in
//! [`FakeRuntime::take_deliveries`], [`FakeRuntime::take_requests`] and
//! [`FakeRuntime::take_happenings`].
//!
//! ```
//! use nri::{
//!     Context, CreateAnswer, Plugin, Result,
//!     adjust::Adjust,
//!     proto::{Container, ContainerAdjustment, PodSandbox},
//! };
//! use nri_testing::{FakeRuntime, assert_only, container, pod};
//!
//! struct Example;
//!
//! impl Plugin for Example {
//!     async fn create_container(&self, _: &Context, pod: PodSandbox, _: Container) -> Result<CreateAnswer> {
//!         let mut answer = CreateAnswer::default();
//!         answer.adjust.add_env("POD", pod.name);
//!         Ok(answer)
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let runtime = FakeRuntime::builder()
//!     .plugin("10-example".parse().unwrap(), Example)
//!     .start()
//!     .await
//!     .unwrap();
//! runtime.run_pod(pod("web")).await.unwrap();
//! let created = runtime.create("web", container("greeter")).await.unwrap();
//!
//! let mut wanted = ContainerAdjustment::default();
//! wanted.add_env("POD", "web");
//! assert_only(&created, &wanted);
//! # });
//! ```
//!
//! # Updates and evictions
//!
//! [`FakeRuntime::take_requests`] has those of answers when the step returns. A plugin that requests
//! them of its own accord connects to the socket; its request is recorded when it is answered.
//!
//! ```
//! use std::time::Duration;
//!
//! use nri::prelude::*;
//! use nri_testing::{FakeRuntime, PluginRequestKind, container, pod};
//!
//! /// Gives each existing container the same shares.
//! struct Shares;
//!
//! impl Plugin for Shares {
//!     async fn synchronize(&self, _: &Context, _: Vec<PodSandbox>, containers: Vec<Container>) -> Result<Vec<ContainerUpdate>> {
//!         Ok(containers.iter().map(|c| update(&c.id, false).cpu_shares(512).clone()).collect())
//!     }
//!
//!     async fn remove_container(&self, _: &Context, _: PodSandbox, _: Container) -> Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let builder = FakeRuntime::builder().existing(pod("web"), [container("old")]);
//! let mut runtime = builder.start().await.unwrap();
//! let stub = Stub::builder(Shares).name("shares").index("10").socket(runtime.socket());
//! let own = stub.runtime();
//! let plugin = tokio::spawn(stub.run());
//! let id = "10-shares".parse().unwrap();
//! runtime.joined(&id, Duration::from_secs(5)).await.expect("it joins");
//!
//! let old = runtime.container("old").unwrap().1.id;
//! let requests = runtime.take_requests();
//! assert_eq!((requests.len(), &requests[0].container), (1, &old));
//! assert!(matches!(&requests[0].kind, PluginRequestKind::Update(r) if r.limits().cpu_shares == Some(512)));
//!
//! // Of its own accord: what failed is in the answer.
//! own.evict(&old, "a test").await.unwrap();
//! let failed = own.update_containers(vec![update("nobody", false)], Vec::new()).await.unwrap();
//! assert_eq!(failed[0].container_id, "nobody");
//! let requests = runtime.take_requests();
//! assert!(matches!(&requests[0].kind, PluginRequestKind::Evict(reason) if reason == "a test"));
//!
//! // The plugin reconnects after a Shutdown, five seconds later, and is synchronised again.
//! runtime.restart().await.unwrap();
//! runtime.joined(&id, Duration::from_secs(15)).await.expect("it is back");
//! plugin.abort();
//! # });
//! ```

mod builder;
mod differences;
mod flavor;
mod memory;
mod objects;
mod runtime;

pub use builder::Builder;
pub use differences::{Difference, assert_has, assert_only, differences, includes};
pub use flavor::Flavor;
pub use memory::{Happening, Place, PluginRequest, PluginRequestKind};
pub use objects::{ContainerBuilder, PodBuilder, container, pod};
pub use runtime::{Failed, FakeRuntime, Removed};
