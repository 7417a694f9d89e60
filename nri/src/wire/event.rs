//! The list of events as types: each request knows its event, its reply and what it is about.
//!
//! Names, masks and classes of the events are in `mask.rs` and `policy.rs`; whatever is generic over
//! events (`peer.rs`, `dispatch.rs`) is written once over [`HookRequest`].

use prost::Message;
use proto_nri::*;

/// A request that delivers one event (table 4.1).
pub trait HookRequest: Message + Default + Clone + 'static {
    /// The event.
    const EVENT: Event;
    /// What a plugin answers.
    type Reply: Message + Default + 'static;

    /// The pod it is about.
    fn pod(&self) -> Option<&PodSandbox>;
    /// The container it is about; `None` for events of pods.
    fn container(&self) -> Option<&Container>;
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
        })*
    };
    (@container $this:ident pod) => { None };
    (@container $this:ident container) => { $this.container.as_ref() };
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

/// The id of the pod of a request, or nothing.
pub(crate) fn pod_id<R: HookRequest>(request: &R) -> &str {
    request.pod().map_or("", |pod| &pod.id)
}

/// The id of the container of a request, or nothing.
pub(crate) fn container_id<R: HookRequest>(request: &R) -> &str {
    request.container().map_or("", |container| &container.id)
}
