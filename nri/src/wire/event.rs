//! The list of events as types: each request knows its event, reply and object.
//!
//! Names, masks and classes of the events are in `mask.rs` and `policy.rs`; code that is generic
//! over events (`peer.rs`, `dispatch.rs`) is written once over [`HookRequest`].

use prost::Message;
use proto_nri::*;

use crate::mask::event_named;

/// A message of the wire. The encoding is private: no signature names its crate.
pub trait Wire: Default + Clone + Send + Sync + 'static {
    fn to_wire(&self) -> Vec<u8>;
    /// The error says why the bytes are invalid.
    fn from_wire(bytes: &[u8]) -> Result<Self, String>;
}

impl<M: Message + Default + Clone + 'static> Wire for M {
    fn to_wire(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    fn from_wire(bytes: &[u8]) -> Result<Self, String> {
        M::decode(bytes).map_err(|e| e.to_string())
    }
}

/// A request that delivers one event (table 4.1); one of the fourteen in [`proto`](crate::proto).
///
/// ```
/// use nri::{HookRequest, mask::event_name, proto::StartContainerRequest};
///
/// fn line<R: HookRequest>(request: &R) -> String {
///     let pod = request.pod().map_or("", |pod| &pod.name);
///     format!("{} of pod {pod}", event_name(R::EVENT))
/// }
/// assert_eq!(line(&StartContainerRequest::default()), "StartContainer of pod ");
/// ```
pub trait HookRequest: Wire {
    /// The event.
    const EVENT: Event;
    /// The plugin's answer.
    type Reply: Wire;

    /// The pod of the event.
    fn pod(&self) -> Option<&PodSandbox>;
    /// The container of the event; `None` for events of pods.
    fn container(&self) -> Option<&Container>;
    /// Both, to leave out fields of a message that is too long. The default has nothing to leave
    /// out.
    fn objects_mut(&mut self) -> (Option<&mut PodSandbox>, Option<&mut Container>) {
        (None, None)
    }
}

macro_rules! hooks {
    ($($request:ident => $reply:ident, $event:ident, $about:ident;)*) => {
        $(impl HookRequest for $request {
            const EVENT: Event = Event::$event;
            type Reply = $reply;

            fn pod(&self) -> Option<&PodSandbox> {
                self.pod.as_ref()
            }

            fn container(&self) -> Option<&Container> {
                hooks!(@container self $about)
            }

            fn objects_mut(&mut self) -> (Option<&mut PodSandbox>, Option<&mut Container>) {
                (self.pod.as_mut(), hooks!(@container_mut self $about))
            }
        })*
    };
    (@container $this:ident pod) => { None };
    (@container $this:ident container) => { $this.container.as_ref() };
    (@container_mut $this:ident pod) => { None };
    (@container_mut $this:ident container) => { $this.container.as_mut() };
}

hooks! {
    RunPodSandboxRequest => RunPodSandboxResponse, RunPodSandbox, pod;
    UpdatePodSandboxRequest => UpdatePodSandboxResponse, UpdatePodSandbox, pod;
    PostUpdatePodSandboxRequest => PostUpdatePodSandboxResponse, PostUpdatePodSandbox, pod;
    StopPodSandboxRequest => StopPodSandboxResponse, StopPodSandbox, pod;
    RemovePodSandboxRequest => RemovePodSandboxResponse, RemovePodSandbox, pod;
    CreateContainerRequest => CreateContainerResponse, CreateContainer, container;
    PostCreateContainerRequest => PostCreateContainerResponse, PostCreateContainer, container;
    StartContainerRequest => StartContainerResponse, StartContainer, container;
    PostStartContainerRequest => PostStartContainerResponse, PostStartContainer, container;
    UpdateContainerRequest => UpdateContainerResponse, UpdateContainer, container;
    PostUpdateContainerRequest => PostUpdateContainerResponse, PostUpdateContainer, container;
    StopContainerRequest => StopContainerResponse, StopContainer, container;
    RemoveContainerRequest => RemoveContainerResponse, RemoveContainer, container;
    ValidateContainerAdjustmentRequest => ValidateContainerAdjustmentResponse,
        ValidateContainerAdjustment, container;
}

/// True for the nine events that an old plugin takes as `StateChange` (NRI-330). Their replies are
/// empty and their requests are `{pod=1, container=2}`.
pub(crate) fn has_state_change(event: Event) -> bool {
    matches!(
        event,
        Event::RunPodSandbox
            | Event::PostUpdatePodSandbox
            | Event::StopPodSandbox
            | Event::RemovePodSandbox
            | Event::PostCreateContainer
            | Event::StartContainer
            | Event::PostStartContainer
            | Event::PostUpdateContainer
            | Event::RemoveContainer
    )
}

/// Whether this method is one of the nine events without an answer, which `StateChange` can deliver
/// too.
pub fn is_plain(method: &str) -> bool {
    event_named(method).is_some_and(has_state_change)
}

/// The id of the request's pod, or an empty text.
pub(crate) fn pod_id<R: HookRequest>(request: &R) -> &str {
    request.pod().map_or("", |pod| &pod.id)
}

/// The id of the request's container, or an empty text.
pub(crate) fn container_id<R: HookRequest>(request: &R) -> &str {
    request.container().map_or("", |container| &container.id)
}
