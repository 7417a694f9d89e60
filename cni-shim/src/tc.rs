//! Traffic control: messages that limit what a link sends or receives.
//!
//! ```text
//!   to the pod      host's end of the pair: tbf
//!   from the pod    host's end: ingress ─u32, all─► mirred: redirect ─► ifb: tbf ─► bridge
//! ```
//! A queue limits only what a link sends, so received packets are sent through an ifb device. The
//! pod's own end would be simpler, but the pod can change it.

use crate::netlink::{Attrs, Message, NLM_F_CREATE, NLM_F_REPLACE};

const RTM_NEWQDISC: u16 = 36;
const RTM_NEWTFILTER: u16 = 44;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TC_H_ROOT: u32 = 0xffff_ffff;
const TC_H_INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;
const ADD: u16 = NLM_F_CREATE | NLM_F_REPLACE;

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

/// The default burst: the rate's amount in this fraction of a second, at least a few large packets.
const BURST_FRACTION: u64 = 20;
const BURST_MIN: u64 = 64 << 10;
/// The queue beyond a burst: the rate's amount in this fraction of a second.
const QUEUE_FRACTION: u64 = 20;

/// A bucket of tokens, in bytes and bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    rate: u64,
    burst: u32,
    limit: u32,
}

impl Bucket {
    /// Of a rate in bits per second.
    pub(crate) fn new(rate: u64) -> Self {
        let rate = (rate / 8).max(1);
        let burst = (rate / BURST_FRACTION).max(BURST_MIN);
        let clamp = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        Self {
            rate,
            burst: clamp(burst),
            limit: clamp(burst + rate / QUEUE_FRACTION),
        }
    }
}

/// Limits the sending of a link.
pub(crate) fn shape(link: u32, name: &str, bucket: Bucket) -> Message {
    let rate32 = u32::try_from(bucket.rate).unwrap_or(u32::MAX);
    let mut parameters = Vec::with_capacity(36);
    // struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate. A link layer makes
    // the kernel's rate table unnecessary.
    parameters.extend([0, TC_LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
    parameters.extend(rate32.to_ne_bytes());
    // Without a peak rate.
    parameters.extend([0u8; 12]);
    parameters.extend(bucket.limit.to_ne_bytes());
    // buffer, replaced by the burst; and mtu.
    parameters.extend([0u8; 8]);
    let mut options = Attrs::default()
        .put(TCA_TBF_PARMS, &parameters)
        .put_u32(TCA_TBF_BURST, bucket.burst);
    if rate32 == u32::MAX {
        options = options.put(TCA_TBF_RATE64, &bucket.rate.to_ne_bytes());
    }
    let body = tcmsg(link, 0, TC_H_ROOT, 0).put_str(TCA_KIND, "tbf");
    let step = format!("add tbf queue to {name}");
    Message::new(RTM_NEWQDISC, ADD, step, body.nest(TCA_OPTIONS, options))
}

/// Redirects the packets that a link receives to the device `through`.
pub(crate) fn redirect(link: u32, name: &str, through: u32) -> [Message; 2] {
    let queue = tcmsg(link, INGRESS_HANDLE, TC_H_INGRESS, 0).put_str(TCA_KIND, "ingress");
    let step = format!("add ingress queue to {name}");
    let queue = Message::new(RTM_NEWQDISC, ADD, step, queue);
    // struct tc_u32_sel with one key that matches everything.
    let mut select = vec![TC_U32_TERMINAL, 0, 1, 0];
    select.extend([0u8; 12]);
    select.extend([0u8; 16]);
    // struct tc_mirred: index, capabilities, action, reference counts; direction and device.
    let mut mirred = vec![0u8; 8];
    mirred.extend(TC_ACT_STOLEN.to_ne_bytes());
    mirred.extend([0u8; 8]);
    mirred.extend(TCA_EGRESS_REDIR.to_ne_bytes());
    mirred.extend(through.to_ne_bytes());
    let mirred = Attrs::default().put(TCA_MIRRED_PARMS, &mirred);
    let action = Attrs::default()
        .put_str(TCA_ACT_KIND, "mirred")
        .nest(TCA_ACT_OPTIONS, mirred);
    let options = Attrs::default()
        .put(TCA_U32_SEL, &select)
        .nest(TCA_U32_ACT, Attrs::default().nest(1, action));
    let priority_and_protocol = 1 << 16 | u32::from(ETH_P_ALL.to_be());
    let filter = tcmsg(link, 0, INGRESS_HANDLE, priority_and_protocol)
        .put_str(TCA_KIND, "u32")
        .nest(TCA_OPTIONS, options);
    let step = format!("redirect what {name} receives (u32, mirred)");
    [queue, Message::new(RTM_NEWTFILTER, ADD, step, filter)]
}

/// `struct tcmsg`.
fn tcmsg(link: u32, handle: u32, parent: u32, info: u32) -> Attrs {
    let words = [0, link, handle, parent, info].map(u32::to_ne_bytes);
    Attrs::after(words.as_flattened())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bucket_lets_a_whole_packet_pass_and_grows_with_the_rate() {
        let slow = Bucket::new(1_000);
        assert_eq!((slow.rate, slow.burst), (125, 65_536));
        let fast = Bucket::new(8_000_000_000);
        assert_eq!((fast.rate, fast.burst), (1_000_000_000, 50_000_000));
    }

    proptest! {
        #[test]
        fn no_rate_overflows(rate: u64) {
            let bucket = Bucket::new(rate);
            prop_assert!(bucket.limit >= bucket.burst && bucket.rate > 0);
        }
    }
}
