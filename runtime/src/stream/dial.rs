//! A connection to a port of a pod: by a socket that is made in the pod's network namespace, and
//! used from here.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    path::PathBuf,
    time::Duration,
};

use cni_shim::namespaces::in_netns;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::{
    blocking::blocking,
    pod::{record::PodPhase, state::Pod},
};

const CONNECT: Duration = Duration::from_secs(30);

/// 127.0.0.1, then ::1.
///
/// # Errors
/// One line: the pod is not ready, or what each address answered.
pub(super) async fn dial(pod: &Pod, port: u16) -> Result<TcpStream, String> {
    let failed = |why: String| format!("port {port} of sandbox {}: {why}", pod.id);
    let record = pod.cell.get();
    if record.phase != PodPhase::Ready {
        return Err(failed("the sandbox is not ready".into()));
    }
    let addresses: [SocketAddr; 2] = [
        (Ipv4Addr::LOCALHOST, port).into(),
        (Ipv6Addr::LOCALHOST, port).into(),
    ];
    let mut refused = Vec::new();
    for address in addresses {
        let connected = match socket(record.namespaces.net.clone(), address).await {
            Ok(socket) => timeout(CONNECT, socket.connect(address))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                .map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        match connected {
            Ok(stream) => {
                // Without it the connection is slower.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => refused.push(format!("{}: {error}", address.ip())),
        }
    }
    Err(failed(format!("cannot connect to {}", refused.join("; "))))
}

/// In the namespace pinned there, or the host's.
async fn socket(netns: Option<PathBuf>, address: SocketAddr) -> Result<TcpSocket, String> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let open = move || -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(socket_with(family, SocketType::STREAM, flags, None)?)
    };
    let opened = match netns {
        Some(path) => blocking(move || in_netns(&path, open))
            .await
            .map_err(|error| error.to_string())?,
        None => open(),
    };
    let fd = opened.map_err(|error| error.to_string())?;
    Ok(TcpSocket::from_std_stream(fd.into()))
}
