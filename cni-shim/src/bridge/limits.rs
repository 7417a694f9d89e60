//! Bandwidth limits of pods on the bridge. Missing kernel support is a warning; the pod runs.

use rustix::io::Errno;

use super::state::State;
use crate::link;
use crate::netlink::NetlinkError;
use crate::record::OnBridge;
use crate::tc::{self, Bucket};

/// The device that a pod's sent packets pass; see [`crate::tc`].
pub(crate) fn ifb_name(veth: &str) -> String {
    format!("ifb{}", veth.strip_prefix("veth").unwrap_or(veth))
}

impl State {
    /// Limits a connected pod; returns one line per limit that failed.
    pub(super) fn limit(&mut self, endpoint: &OnBridge) -> Vec<String> {
        let Some(limits) = endpoint.limits else {
            return Vec::new();
        };
        let mut failed = Vec::new();
        let mut note = |what: &str, done: Result<(), NetlinkError>| {
            if let Err(error) = done {
                failed.push(format!(
                    "{what} bandwidth of the pod is not limited: {error}"
                ));
            }
        };
        if limits.ingress_rate > 0 {
            let bucket = Bucket::new(limits.ingress_rate);
            note("ingress", self.limit_ingress(&endpoint.veth, bucket));
        }
        if limits.egress_rate > 0 {
            let bucket = Bucket::new(limits.egress_rate);
            note("egress", self.limit_egress(&endpoint.veth, bucket));
        }
        failed
    }

    fn limit_ingress(&mut self, veth: &str, bucket: Bucket) -> Result<(), NetlinkError> {
        let index = self.index_of(veth)?;
        self.route.run(&[tc::shape(index, veth, bucket)])
    }

    fn limit_egress(&mut self, veth: &str, bucket: Bucket) -> Result<(), NetlinkError> {
        let ifb = ifb_name(veth);
        // A device of that name is left from an interrupted attach of the same sandbox.
        self.route
            .run(&[link::add_ifb(&ifb).tolerate(Errno::EXIST)])?;
        let (index, through) = (self.index_of(veth)?, self.index_of(&ifb)?);
        let [ingress, filter] = tc::redirect(index, veth, through);
        self.route
            .run(&[tc::shape(through, &ifb, bucket), ingress, filter])
    }

    fn index_of(&mut self, name: &str) -> Result<u32, NetlinkError> {
        let found = link::find(&mut self.route, name)?;
        found.map(|link| link.index).ok_or_else(|| NetlinkError {
            step: format!("look up link {name}"),
            errno: Errno::NODEV,
        })
    }
}
