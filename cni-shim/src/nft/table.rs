//! Messages that make and change nftables tables. Our tables have one name, in several families.

use super::expr::Rule;
use super::family::nfgenmsg;
use crate::netlink::{Attrs, Message, NLM_F_APPEND, NLM_F_CREATE};

const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;
const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_GETTABLE: u16 = 1;
const NFT_MSG_DELTABLE: u16 = 2;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_NEWRULE: u16 = 6;
const NFT_MSG_NEWSET: u16 = 9;
const NFT_MSG_NEWSETELEM: u16 = 12;
const NFT_MSG_DELSETELEM: u16 = 14;
const NFT_MSG_GETGEN: u16 = 16;
const NFT_SET_MAP: u32 = 8;

/// `nft`'s numbers of data types, only for the output of `nft list`.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(crate) enum Type {
    IpAddr = 7,
    Ip6Addr = 8,
    EtherAddr = 9,
    InetProto = 12,
    InetService = 13,
    InterfaceName = 41,
}

impl Type {
    /// Length in bytes, padded as in a key of several parts.
    fn length(self) -> u32 {
        match self {
            Type::IpAddr | Type::InetProto | Type::InetService => 4,
            Type::EtherAddr => 8,
            Type::Ip6Addr | Type::InterfaceName => 16,
        }
    }

    /// Number and length of a concatenation: six bits of each number.
    fn concatenated(parts: &[Type]) -> (u32, u32) {
        parts.iter().fold((0, 0), |(number, length), part| {
            ((number << 6) | *part as u32, length + part.length())
        })
    }
}

/// A request that any kernel with nftables answers.
pub(crate) fn generation() -> Message {
    let kind = (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_GETGEN;
    Message::new(kind, 0, "read nftables", nfgenmsg(0, 0))
}

/// The hook of a base chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hook {
    pub(crate) kind: &'static str,
    pub(crate) number: u32,
    pub(crate) priority: i32,
}

/// An entry of a set or, with data, of a map, as the kernel compares it: parts padded to 32 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) family: u8,
    pub(crate) set: &'static str,
    pub(crate) key: Vec<u8>,
    pub(crate) data: Option<Vec<u8>>,
}

/// The change of an [`Element`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Add,
    Remove,
}

#[derive(Debug, Clone)]
pub(crate) struct Table(pub(crate) String);

impl Table {
    /// Empties the family's table; makes it if missing.
    pub(crate) fn renew(&self, family: u8) -> impl Iterator<Item = Message> {
        let [create, delete] = self.remove(family);
        [create.clone(), delete, create].into_iter()
    }

    /// Removes the family's table; it is created first, so that the deletion cannot fail.
    pub(crate) fn remove(&self, family: u8) -> [Message; 2] {
        [NFT_MSG_NEWTABLE, NFT_MSG_DELTABLE]
            .map(|kind| self.message(kind, NLM_F_CREATE, "table", self.within(family)))
    }

    pub(crate) fn look_up(&self, family: u8) -> Message {
        self.message(NFT_MSG_GETTABLE, 0, "look it up", self.within(family))
    }

    pub(crate) fn chain(&self, family: u8, chain: &str, hook: Option<Hook>) -> Message {
        let mut body = self.within(family).put_str(3, chain);
        if let Some(hook) = hook {
            let place = Attrs::default()
                .put_be32(1, hook.number)
                .put(2, &hook.priority.to_be_bytes());
            body = body.nest(4, place).put_str(7, hook.kind);
        }
        self.message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, chain, body)
    }

    pub(crate) fn rule(&self, family: u8, chain: &str, rule: Rule) -> Message {
        let flags = NLM_F_CREATE | NLM_F_APPEND;
        let body = self.within(family).put_str(2, chain);
        let body = body.nest(4, rule.into_expressions());
        self.message(NFT_MSG_NEWRULE, flags, chain, body)
    }

    /// A set or, with data types, a map. `id` is unique within the transaction.
    pub(crate) fn set(
        &self,
        family: u8,
        set: &str,
        id: u32,
        key: &[Type],
        data: &[Type],
    ) -> Message {
        let (key_type, key_length) = Type::concatenated(key);
        let mut body = self
            .within(family)
            .put_str(2, set)
            .put_be32(3, if data.is_empty() { 0 } else { NFT_SET_MAP })
            .put_be32(4, key_type)
            .put_be32(5, key_length);
        if !data.is_empty() {
            let (data_type, data_length) = Type::concatenated(data);
            body = body.put_be32(6, data_type).put_be32(7, data_length);
        }
        self.message(NFT_MSG_NEWSET, NLM_F_CREATE, set, body.put_be32(10, id))
    }

    pub(crate) fn element(&self, change: Change, element: &Element) -> Message {
        let (kind, data) = match change {
            Change::Add => (NFT_MSG_NEWSETELEM, element.data.as_deref()),
            Change::Remove => (NFT_MSG_DELSETELEM, None),
        };
        let key = Attrs::default().put(1, &element.key);
        let mut entry = Attrs::default().nest(1, key);
        if let Some(bytes) = data {
            entry = entry.nest(2, Attrs::default().put(1, bytes));
        }
        let body = self.within(element.family).put_str(2, element.set);
        let body = body.nest(3, Attrs::default().nest(1, entry));
        self.message(kind, NLM_F_CREATE, element.set, body)
    }

    pub(crate) fn frame(&self) -> [Message; 2] {
        [NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END].map(|kind| {
            let step = format!("change nftables table {}", self.0);
            Message::new(kind, 0, step, nfgenmsg(0, NFNL_SUBSYS_NFTABLES))
        })
    }

    /// The start of each message about the family's table.
    fn within(&self, family: u8) -> Attrs {
        nfgenmsg(family, 0).put_str(1, &self.0)
    }

    fn message(&self, kind: u16, flags: u16, what: &str, body: Attrs) -> Message {
        let verb = match kind {
            NFT_MSG_DELTABLE | NFT_MSG_DELSETELEM => "remove from",
            NFT_MSG_GETTABLE => "see",
            _ => "add to",
        };
        let step = format!("{verb} nftables table {}: {what}", self.0);
        let kind = (NFNL_SUBSYS_NFTABLES << 8) | kind;
        Message::new(kind, flags, step, body)
    }
}
