//! A runtime made of memory, for the tests of plugins: no root, no containers, the real wire.
//!
//! [`FakeRuntime`] listens on a socket of its own and takes pods and containers through their lives as a
//! runtime does. The plugin under test connects to it (any program, or `stub::Stub` in the test itself), or is
//! handed over as it is. What it answered is in what the methods return; everything else
//! it did is in [`FakeRuntime::take_deliveries`], [`FakeRuntime::take_wishes`] and [`FakeRuntime::take_happenings`].
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
