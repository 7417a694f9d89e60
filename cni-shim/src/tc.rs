//! Traffic control: the messages that slow down what a link sends, or what it receives.
//!
//! ```text
//!   to the pod      host's end of the pair: tbf
//!   from the pod    host's end: ingress ─u32, matches all─► mirred: redirect ─► ifb device: tbf ─► back to the bridge
//! ```
//! A queue works on what a link sends only, so what comes in is sent through a device that does nothing else. The
//! pod's own end would need neither, but is the pod's to change.

use crate::link::{self, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO};
use crate::netlink::{Message, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NetlinkError, Socket};

const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TC_H_ROOT: u32 = 0xffff_ffff;
const TC_H_INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;
const TCMSG: usize = 20;

const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;

const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TC_U32_TERMINAL: u8 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TC_ACT_STOLEN: i32 = 4;
const TCA_EGRESS_REDIR: i32 = 1;
const ETH_P_ALL: u16 = 3;

/// What may be sent at once where nobody says: as much as the rate gives in this time, but whole large packets.
const BURST_FRACTION: u64 = 20;
const BURST_MIN: u64 = 64 << 10;
/// What may wait, beyond a burst: as much as the rate gives in this time.
const QUEUE_FRACTION: u64 = 20;

/// A bucket of tokens, in bytes and bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    rate: u64,
    burst: u32,
    limit: u32,
}

impl Bucket {
    /// Of a rate in bits per second, and a burst in bits that is 0 if the rate decides.
    pub(crate) fn new(rate: u64, burst: u64) -> Self {
        let rate = (rate / 8).max(1);
        let burst = match burst / 8 {
            0 => (rate / BURST_FRACTION).max(BURST_MIN),
            // Less lets no packet pass.
            given => given.max(BURST_MIN),
        };
        let clamp = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        Self {
            rate,
            burst: clamp(burst),
            limit: clamp(burst + rate / QUEUE_FRACTION),
        }
    }
}

/// Limits what a link sends.
pub(crate) fn shape(link: u32, name: &str, bucket: Bucket) -> Message {
    let rate32 = u32::try_from(bucket.rate).unwrap_or(u32::MAX);
    let mut parameters = Vec::with_capacity(36);
    // struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate. With a link layer the kernel needs no
    // table of it.
    parameters.extend([0, TC_LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
    parameters.extend(rate32.to_ne_bytes());
    // No peak rate.
    parameters.extend([0u8; 12]);
    parameters.extend(bucket.limit.to_ne_bytes());
    // buffer, which the burst says; and mtu.
    parameters.extend([0u8; 8]);
    qdisc(link, TC_H_ROOT, 0, "tbf", name, |a| {
        a.nest(TCA_OPTIONS, |options| {
            options.put(TCA_TBF_PARMS, &parameters);
            options.put_u32(TCA_TBF_BURST, bucket.burst);
            if rate32 == u32::MAX {
                options.put(TCA_TBF_RATE64, &bucket.rate.to_ne_bytes());
            }
            options
        })
    })
}

/// Makes an intermediate device, up.
pub(crate) fn add_ifb(name: &str) -> Message {
    let step = format!("create ifb device {name}");
    link::new_link(step, |a| {
        a.put_str(IFLA_IFNAME, name)
            .nest(IFLA_LINKINFO, |info| info.put(IFLA_INFO_KIND, b"ifb"))
    })
}

/// Sends what a link receives through the device of index `through` first.
pub(crate) fn redirect(link: u32, name: &str, through: u32) -> [Message; 2] {
    let ingress = qdisc(link, TC_H_INGRESS, INGRESS_HANDLE, "ingress", name, |a| a);
    let priority_and_protocol = 1 << 16 | u32::from(ETH_P_ALL.to_be());
    let fixed = tcmsg(link, 0, INGRESS_HANDLE, priority_and_protocol);
    // struct tc_u32_sel with one key that matches everything.
    let mut select = vec![TC_U32_TERMINAL, 0, 1, 0];
    select.extend([0u8; 12]);
    select.extend([0u8; 16]);
    // struct tc_mirred: index, capabilities, action, reference counts; what to do, and where.
    let mut mirred = vec![0u8; 8];
    mirred.extend(TC_ACT_STOLEN.to_ne_bytes());
    mirred.extend([0u8; 8]);
    mirred.extend(TCA_EGRESS_REDIR.to_ne_bytes());
    mirred.extend(through.to_ne_bytes());
    let step = format!("redirect what {name} receives (u32, mirred)");
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    let filter = Message::new(RTM_NEWTFILTER, flags, step, &fixed, |a| {
        a.put_str(TCA_KIND, "u32").nest(TCA_OPTIONS, |options| {
            options.put(TCA_U32_SEL, &select);
            options.nest(TCA_U32_ACT, |actions| {
                actions.nest(1, |first| {
                    first.put_str(TCA_ACT_KIND, "mirred");
                    first.nest(TCA_ACT_OPTIONS, |parameters| {
                        parameters.put(TCA_MIRRED_PARMS, &mirred)
                    })
                })
            })
        })
    });
    [ingress, filter]
}

/// The kinds of the queues of a link.
pub(crate) fn queues(socket: &mut Socket, link: u32) -> Result<Vec<String>, NetlinkError> {
    let fixed = tcmsg(link, 0, 0, 0);
    let request = Message::new(RTM_GETQDISC, NLM_F_DUMP, "list queues", &fixed, |a| a);
    let replies = socket.ask(&request)?;
    let of_link = replies.iter().filter(|reply| {
        reply.kind == RTM_NEWQDISC && reply.body.get(4..8) == Some(&link.to_ne_bytes()[..])
    });
    let kind = |reply: &crate::netlink::Reply| reply.attribute(TCMSG, TCA_KIND).map(link::text);
    Ok(of_link.filter_map(kind).collect())
}

fn qdisc(
    link: u32,
    parent: u32,
    handle: u32,
    kind: &str,
    name: &str,
    fill: impl FnOnce(&mut crate::netlink::Attrs) -> &mut crate::netlink::Attrs,
) -> Message {
    let fixed = tcmsg(link, handle, parent, 0);
    let step = format!("add {kind} queue to {name}");
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    Message::new(RTM_NEWQDISC, flags, step, &fixed, |a| {
        a.put_str(TCA_KIND, kind);
        fill(a)
    })
}

/// `struct tcmsg`.
fn tcmsg(link: u32, handle: u32, parent: u32, info: u32) -> [u8; TCMSG] {
    let mut fixed = [0u8; TCMSG];
    for (at, word) in [(4, link), (8, handle), (12, parent), (16, info)] {
        fixed[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    fixed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bucket_lets_a_whole_packet_pass_and_grows_with_the_rate() {
        let slow = Bucket::new(1_000, 0);
        assert_eq!((slow.rate, slow.burst), (125, 65_536));
        let fast = Bucket::new(8_000_000_000, 0);
        assert_eq!((fast.rate, fast.burst), (1_000_000_000, 50_000_000));
        assert_eq!(Bucket::new(8_000_000, 8).burst, 65_536);
        assert_eq!(
            Bucket::new(8_000_000, u64::from(u32::MAX)).burst,
            536_870_911
        );
    }

    proptest! {
        #[test]
        fn no_rate_overflows(rate: u64, burst: u64) {
            let bucket = Bucket::new(rate, burst);
            prop_assert!(bucket.limit >= bucket.burst && bucket.rate > 0);
        }
    }
}
