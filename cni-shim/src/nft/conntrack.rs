//! Connection tracking: a UDP flow keeps its route while packets flow, even after a host port
//! opened or closed (CRI-537). Therefore flows to the port are deleted, so that the kernel routes
//! them again.

use rustix::io::Errno;

use super::family::{Ip, nfgenmsg};
use crate::netlink::{Attrs, Message, NetlinkError, Socket};
use crate::record::OnBridge;
use crate::types::Protocol;

const NFNL_SUBSYS_CTNETLINK: u16 = 1;
const IPCTNL_MSG_CT_DELETE: u16 = 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_FILTER: u16 = 25;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;
/// Compares only the tuple's protocol and destination port.
const BY_PROTOCOL_AND_PORT: u32 = 1 << 3 | 1 << 5;

/// Deletes the flows to a pod's UDP host ports. Kernels before 6.8 cannot select them; there old
/// flows stay until they time out, which is logged.
pub(crate) fn forget_udp(socket: &mut Socket, endpoint: &OnBridge) -> Result<(), NetlinkError> {
    let udp = endpoint
        .ports
        .iter()
        .filter(|port| port.protocol == Protocol::Udp);
    for (port, ip) in udp.flat_map(|port| endpoint.ips().map(move |ip| (port, ip))) {
        let step = format!("forget flows to UDP port {}", port.host_port);
        let protocol = Attrs::default()
            .put(CTA_PROTO_NUM, &[Protocol::Udp as u8])
            .put(CTA_PROTO_DST_PORT, &port.host_port.to_be_bytes());
        let tuple = Attrs::default().nest(CTA_TUPLE_PROTO, protocol);
        let filter = Attrs::default()
            .put_u32(CTA_FILTER_ORIG_FLAGS, BY_PROTOCOL_AND_PORT)
            .put_u32(CTA_FILTER_REPLY_FLAGS, 0);
        let body = nfgenmsg(Ip::of(ip) as u8, 0)
            .nest(CTA_TUPLE_ORIG, tuple)
            .nest(CTA_FILTER, filter);
        let kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE;
        let request = Message::new(kind, 0, step, body);
        match socket.run(&[request.tolerate(Errno::NOENT)]) {
            Err(error) if matches!(error.errno, Errno::INVAL | Errno::OPNOTSUPP) => {
                tracing::warn!(%error, "cannot delete UDP flows: established ones keep their destination");
            }
            other => other?,
        }
    }
    Ok(())
}
