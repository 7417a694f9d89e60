//! An in-memory runtime for tests of plugins: no root, no containers, the real wire.
//!
//! [`FakeRuntime`] listens on its own socket and runs the life of pods and containers like a
//! runtime. The plugin under test connects to it (any program, or `stub::Stub` in the test itself),
//! or runs in-process. The methods return its answers; its other effects are in
//! [`FakeRuntime::take_deliveries`], [`FakeRuntime::take_wishes`] and
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

mod builder;
mod differences;
mod flavor;
mod memory;
mod objects;
mod runtime;

pub use builder::Builder;
pub use differences::{Difference, assert_has, assert_only, differences, includes};
pub use flavor::Flavor;
pub use memory::{Happening, Place, Wish, WishKind};
pub use objects::{ContainerBuilder, PodBuilder, container, pod};
pub use runtime::{Failed, FakeRuntime, Removed};
