//! NRI, the Node Resource Interface, as a library.
//!
//! A container runtime notifies *plugins* of the events of its pods and containers, and lets them
//! adjust containers during creation. A plugin is a separate program, started by the runtime or
//! connected to its socket; or an object in the runtime's process. This crate has both ends:
//!
//! - **the runtime side**, [`Adaptation`]: knows plugins, not pods;
//! - **the plugin side**, [`Plugin`] and, with feature `stub`, the connection: `stub::Stub`.
//!   Programs that choose their events at run time fill a table, [`Handlers`].
//!
//! # The events
//!
//! | | a plugin may veto | teardown: every plugin is notified | notification only |
//! |---|---|---|---|
//! | pods | RunPodSandbox, UpdatePodSandbox | StopPodSandbox, RemovePodSandbox | PostUpdatePodSandbox |
//! | containers | CreateContainer, StartContainer, UpdateContainer | StopContainer, RemoveContainer | PostCreate-, PostStart-, PostUpdateContainer |
//!
//! Answers to CreateContainer carry an adjustment of the container; those to Create-, Update- and
//! StopContainer also updates of other containers. Each field and key has one owner: two plugins
//! that set the same field fail the creation, by name ([`owners`], [`merge`]). Then *validators*,
//! plugins with the fourteenth event, check the result ([`validate`]).
//!
//! # Failing plugins
//!
//! An error is a veto at setup, and only reported at teardown. A plugin that does not answer in
//! time, loses its connection or breaks the protocol is closed, and the operation continues without
//! it, unless the plugin is *required*, or requested itself that its failures fail the request and
//! that it stays connected when late ([`Plugin::failure_policy`]). [`policy`] has the complete
//! table; [`PluginSettings`] changes it per plugin.
//!
//! # A plugin
//!
//! A type with `impl` [`Plugin`]. It subscribes to the events whose methods it implements, and
//! `stub::Stub` makes a program of it.
//!
//! ```
//! use nri::{Handlers, prelude::*};
//!
//! struct Names;
//!
//! impl Plugin for Names {
//!     async fn run_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<()> {
//!         if pod.name.is_empty() {
//!             return Err("a pod without a name".into());
//!         }
//!         Ok(())
//!     }
//!
//!     async fn create_container(&self, _: &Context, pod: PodSandbox, _: Container) -> Result<CreateAnswer> {
//!         let mut answer = CreateAnswer::default();
//!         answer.adjust.add_env("POD", pod.name);
//!         Ok(answer)
//!     }
//! }
//!
//! assert_eq!(Handlers::from(Names).events().to_string(), "RunPodSandbox,CreateContainer");
//! // Stub::builder(Names).name("names").index("10").run().await, with feature `stub`,
//! // or Adaptation::builder(..).in_process("10-names".parse()?, Names)
//! ```
//!
//! What it reads is easier with [`read`], what it writes with [`adjust`]; [`prelude`] has both.
//!
//! # A runtime
//!
//! ```no_run
//! use std::sync::Arc;
//! use nri::{Adaptation, BoxFuture, FailedUpdate, PluginId, Requester, Snapshot, Source, proto::*};
//!
//! struct Runtime;
//!
//! impl Source for Runtime {
//!     fn snapshot(&self) -> Snapshot {
//!         Snapshot::default()
//!     }
//!     fn update(&self, _: &Requester, updates: Vec<ContainerUpdate>) -> BoxFuture<'_, Vec<FailedUpdate>> {
//!         let failed = updates.into_iter().map(|update| FailedUpdate::new(update, "not supported"));
//!         Box::pin(std::future::ready(failed.collect()))
//!     }
//!     fn evict(&self, _: &PluginId, _: String, _: String) -> BoxFuture<'_, Result<(), String>> {
//!         Box::pin(async { Err("not supported".into()) })
//!     }
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let nri = Adaptation::builder("my-runtime", "1.0").source(Arc::new(Runtime)).start().await?;
//! nri.run_pod_sandbox(PodSandbox { id: "pod1".into(), ..Default::default() }).await?;
//!
//! let turn = nri.turn(Event::CreateContainer).await;
//! let created = nri.create_container(&turn, PodSandbox::default(), Container::default()).await?;
//! // apply created.merged.evict, created.merged.update, then created.merged.adjust
//! drop(turn);
//! # Ok(())
//! # }
//! ```
//!
//! # Order of calls
//!
//! One method per event. Methods of setup events fail with [`Refused`] when a plugin vetoes; then
//! the runtime notifies all plugins with the stop and remove methods (NRI-430). Teardown and
//! notification methods never fail.
//!
//! The order of waiting is: the runtime's own step → [`Adaptation::turn`] → applying updates. A
//! call whose future is dropped early leaves a plugin busy; it gets its next event after the time
//! limit of its answer. [`Timeouts::operation`] bounds a setup event at all plugins together.
//!
//! # Plugins that connect during operations
//!
//! Add a pod or container to [`Source::snapshot`] at any time **before** you call
//! [`Adaptation::run_pod_sandbox`] or [`Adaptation::create_container`] for it, and keep it there
//! until its remove hook has begun. The library leaves it out of plugins' lists until its hook is
//! done, and again once its removal has begun; objects at [`Builder::start`] count as done. Then
//! each plugin has each object in its list or gets its Run/Create event; never both, never neither.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "stub"),
    allow(
        unreachable_pub,
        reason = "errors of the wire are in the plugin side's face, which is a feature"
    )
)]
#![allow(
    clippy::result_large_err,
    reason = "an error is made once per failed operation, and its fields are for the caller"
)]

// The Rust examples are compiled, and run if possible.
#[cfg(all(doctest, feature = "stub"))]
#[doc = include_str!("../README.md")]
struct Readme;
#[cfg(all(doctest, feature = "stub"))]
#[doc = include_str!("../../docs/from-go.md")]
struct FromGo;

mod adaptation;
pub mod adjust;
pub mod annotation;
mod backlog;
mod builder;
mod call;
mod chunks;
mod closing;
mod dispatch;
mod establish;
mod failed_joins;
mod fields;
#[doc(hidden)]
pub mod internals;
mod join;
mod json;
mod kept;
mod launch;
mod limits;
mod listen;
pub mod mask;
pub mod merge;
mod metrics;
mod notices;
mod observe;
mod operation;
pub mod owners;
mod pace;
mod peer;
mod peer_identity;
pub mod permit;
pub mod place;
mod plugin;
mod plugin_id;
mod plugin_list;
mod plugin_side;
pub mod policy;
pub mod read;
mod rejections;
mod removed;
mod requests;
mod roster;
mod rt;
mod seats;
mod settings;
mod settle;
mod shared;
mod shorten;
mod source;
pub mod validate;
mod validators;
pub mod wire;

#[cfg(feature = "sim")]
#[doc(hidden)]
pub use nri_sim as sim;
/// The messages on the wire.
pub use proto_nri as proto;

/// What a plugin is written with, in one line: the trait, its answers, the messages, and the methods that read and
/// write them.
///
/// ```
/// use nri::prelude::*;
///
/// struct Caps;
///
/// impl Plugin for Caps {
///     async fn update_container(&self, _: &Context, pod: PodSandbox, container: Container, wanted: LinuxResources) -> Result<UpdateAnswer> {
///         let mut answer = UpdateAnswer::default();
///         if pod.annotation_for("example/capped", &container.name).is_some() && wanted.limits().memory > Some(128 << 20) {
///             answer.updates.push(update(&container.id, false).memory_limit(128 << 20).cpuset_cpus("0-1").clone());
///         }
///         Ok(answer)
///     }
/// }
/// ```
pub mod prelude {
    pub use crate::{
        Context, CreateAnswer, Plugin, Result, UpdateAnswer,
        adjust::{Adjust, HookKind, SetResources, update},
        proto::*,
        read::{ReadContainer, ReadPod, ReadResources},
    };
    #[cfg(feature = "stub")]
    pub use crate::{Stub, StubError};
}

pub use adaptation::{Adaptation, Turn};
pub use builder::Builder;
pub use launch::StartError;
pub use mask::EventMask;
pub use observe::{Delivery, Kind, Observer, PluginEvent, PluginInfo, PluginName, PluginState};
pub use operation::{Created, Notified, Ran, Refused, Stopped, Updated};
pub use peer_identity::PeerRule;
pub use plugin_id::{BadPluginId, PluginId};
#[cfg(feature = "stub")]
pub use plugin_side::stub::{self, Stub, StubBuilder, StubError};
pub use plugin_side::{
    answer::{CreateAnswer, UpdateAnswer},
    context::{Context, left_out, time_left},
    handlers::{Error, Handlers, Result},
    plugin::Plugin,
    runtime::Runtime,
    runtime_info::RuntimeInfo,
};
pub use policy::Outcome;
pub use rejections::Rejection;
pub use settings::{
    DEFAULT_PLUGIN_CONFIG_DIR, DEFAULT_PLUGIN_DIR, DEFAULT_SOCKET, PluginConfig, PluginSettings,
    Restart, Settings, Timeouts,
};
pub use shorten::LeftOut;
pub use source::{BoxFuture, FailedUpdate, Requester, Snapshot, Source};
pub use wire::{
    error::TransportError,
    event::{HookRequest, is_plain},
    mux::Watch,
    rpc::{CallError, Code, Status},
    version::{NRI_VERSION, PLUGIN_API, RUNTIME_API},
};
