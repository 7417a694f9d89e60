//! PortForward: checks the request, and returns the URL of its stream.

use proto_cri::v1 as cri;

use crate::{
    pod::{
        error::{Error, Kind, Result},
        record::PodPhase,
        registry::Registry,
    },
    stream::{Job, Streams},
};

/// # Errors
/// An invalid port, or a sandbox that is not ready.
pub fn port_forward(
    pods: &Registry,
    streams: &Streams,
    request: &cri::PortForwardRequest,
) -> Result<cri::PortForwardResponse> {
    if request.pod_sandbox_id.is_empty() {
        return Err(Error::invalid("port-forward: pod_sandbox_id is empty"));
    }
    let pod = pods.pod(&request.pod_sandbox_id)?;
    let number = |port: &i32| {
        let port = u16::try_from(*port).ok().filter(|port| *port > 0);
        port.ok_or_else(|| Error::invalid(format!("sandbox {}: port: not a port", pod.id)))
    };
    let ports = request.port.iter().map(number).collect::<Result<_>>()?;
    if pod.cell.get().phase != PodPhase::Ready {
        let text = format!("sandbox {}: port-forward: is not ready", pod.id);
        return Err(Error::new(Kind::WrongState, text));
    }
    let url = streams.url(Job::PortForward { pod, ports })?;
    Ok(cri::PortForwardResponse { url })
}
