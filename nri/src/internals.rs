//! Internals for the oracles of `nri/fuzz`. Not part of the API: any commit may change them.

use std::{io, sync::Arc};

use proto_nri::Event;
use tokio::{net::UnixStream, sync::oneshot, task::JoinHandle};

use crate::{Adaptation, wire::rpc::Status};
pub use crate::{
    chunks::{Chunk, chunks},
    join::takes_parts,
    operation::{AnswerContents, Operation, Run, Stop, permitted_updates},
    peer_identity::Identity,
    requests::{Registration, RuntimeService, Who},
    wire::{
        mux::{FrameReader, Mux, MuxConn, MuxError},
        rpc::one_line,
    },
};

/// The runtime's service of one plugin without a connection, and the registration it forwards.
pub fn service(
    nri: &Adaptation,
    who: Who,
) -> (
    RuntimeService,
    oneshot::Receiver<Result<Registration, Status>>,
) {
    RuntimeService::new((*nri.shared).clone(), who)
}

/// Begins a dispatch, which ends when the result is dropped.
pub fn begin_dispatch(nri: &Adaptation, event: Event, pod: &str, container: &str) -> impl Sized {
    nri.shared.roster.begin_dispatch(event, pod, container)
}

/// Serves a plugin's connection; the task ends with it.
pub fn connect(nri: &Adaptation, socket: UnixStream) -> io::Result<JoinHandle<()>> {
    let identity = Arc::new(Identity::of(&socket)?);
    let shared = (*nri.shared).clone();
    Ok(shared.welcome(socket, identity, None))
}
