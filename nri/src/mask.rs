//! Sets of events and of fields: a plugin's subscription (NRI-310, NRI-400, NRI-401) and its
//! permissions.
//!
//! Both print as a comma-separated list in numeric order, which their parser accepts.

use std::{
    fmt,
    ops::{BitAnd, BitOr, Sub},
    str::FromStr,
};

use proto_nri::{Event, Field};
use serde::{Deserialize, Serialize};

/// A set of events. Bit `n - 1` stands for event number `n` (NRI-310).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<String>", from = "Vec<String>")]
pub struct EventMask(u32);

/// The events a plugin can subscribe to, with their RPC names, in order of their numbers.
pub const EVENTS: [(Event, &str); 14] = [
    (Event::RunPodSandbox, "RunPodSandbox"),
    (Event::StopPodSandbox, "StopPodSandbox"),
    (Event::RemovePodSandbox, "RemovePodSandbox"),
    (Event::CreateContainer, "CreateContainer"),
    (Event::PostCreateContainer, "PostCreateContainer"),
    (Event::StartContainer, "StartContainer"),
    (Event::PostStartContainer, "PostStartContainer"),
    (Event::UpdateContainer, "UpdateContainer"),
    (Event::PostUpdateContainer, "PostUpdateContainer"),
    (Event::StopContainer, "StopContainer"),
    (Event::RemoveContainer, "RemoveContainer"),
    (Event::UpdatePodSandbox, "UpdatePodSandbox"),
    (Event::PostUpdatePodSandbox, "PostUpdatePodSandbox"),
    (
        Event::ValidateContainerAdjustment,
        "ValidateContainerAdjustment",
    ),
];

/// The RPC name of an event, as in metrics and logs (NRI-401).
pub fn event_name(event: Event) -> &'static str {
    let known = EVENTS.iter().find(|(e, _)| *e == event);
    known.map_or_else(|| event.as_str_name(), |(_, name)| name)
}

/// The event of this RPC name.
pub fn event_named(name: &str) -> Option<Event> {
    let known = EVENTS.iter().find(|(_, known)| *known == name);
    known.map(|(event, _)| *event)
}

/// A text that is not a set of events or fields.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMask {
    #[error("empty name in a list")]
    Empty,
    #[error("unknown event or group of events {0:?}; events are {names}", names = EVENTS.map(|(_, name)| name).join(", "))]
    Event(String),
    #[error("unknown field or group of fields {0:?}")]
    Field(String),
    #[error("unknown events {0:#x} (known: {all:#x})", all = EventMask::ALL.0)]
    Bits(u32),
}

impl EventMask {
    /// No event.
    pub const NONE: Self = Self(0);
    /// All fourteen, validation included.
    pub const ALL: Self = Self(0x3fff);
    /// The five events of pods; groups `pod` and `podsandbox`.
    pub const POD: Self = Self(0x1807);
    /// All events with "container" in their name, validation included.
    pub const CONTAINER: Self = Self(0x27f8);

    /// The set of one event; empty for `Unknown` and `Last`.
    pub fn of(event: Event) -> Self {
        match event {
            Event::Unknown | Event::Last => Self::NONE,
            event => Self(1 << (event as u32 - 1)),
        }
    }

    /// Reads ConfigureResponse.events: 0 means all; a bit beyond the known ones is an error that
    /// names it (NRI-310, NRI-313).
    pub fn from_wire(events: i32) -> Result<Self, BadMask> {
        match events.cast_unsigned() {
            0 => Ok(Self::ALL),
            bits if bits & !Self::ALL.0 != 0 => Err(BadMask::Bits(bits)),
            bits => Ok(Self(bits)),
        }
    }

    /// The number for ConfigureResponse.events, where the empty set means "all".
    pub fn to_wire(self) -> i32 {
        self.0.cast_signed()
    }

    /// Any bits, including those without an event: to print a peer's value.
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether the sets share an event.
    pub(crate) fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// This set and one more event.
    pub fn with(self, event: Event) -> Self {
        self | Self::of(event)
    }

    /// The known events of the set, in order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = Event> {
        let events = EVENTS.iter().map(|(event, _)| *event);
        events.filter(move |event| self.has(*event))
    }

    /// Reads several texts, each a comma-separated list (NRI-400).
    pub fn parse<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Result<Self, BadMask> {
        let mut mask = Self::NONE;
        for text in texts {
            mask = mask | text.as_ref().parse()?;
        }
        Ok(mask)
    }

    fn parse_one(name: &str) -> Result<Self, BadMask> {
        match name.to_ascii_lowercase().as_str() {
            "" => Err(BadMask::Empty),
            "all" => Ok(Self::ALL),
            "pod" | "podsandbox" => Ok(Self::POD),
            "container" => Ok(Self::CONTAINER),
            _ => {
                let mut events = EVENTS.iter();
                let known = events.find(|(_, known)| known.eq_ignore_ascii_case(name));
                let (event, _) = known.ok_or_else(|| BadMask::Event(name.to_owned()))?;
                Ok(Self::of(*event))
            }
        }
    }
}

impl fmt::Display for EventMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<String> = self.iter().map(|e| event_name(e).to_owned()).collect();
        let unknown = self.0 & !Self::ALL.0;
        if unknown != 0 {
            names.push(format!("unknown({unknown:#x})"));
        }
        f.write_str(&names.join(","))
    }
}

/// A set of the fields that plugins own (appendix B), and two rights that are treated alike:
/// `Evict`, of containers, and `PodIps`, to give a pod addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct FieldMask(u64);

const LAST_FIELD: u32 = Field::MemoryPolicy as u32;
const EVICT_BIT: u64 = 1 << (LAST_FIELD + 1);
const POD_IPS_BIT: u64 = EVICT_BIT << 1;

impl FieldMask {
    /// No field.
    pub const NONE: Self = Self(0);
    /// Every field, and both rights.
    pub const ALL: Self = Self(((POD_IPS_BIT << 1) - 1) & !1);
    /// Evicting a container; a permission that is not a field.
    pub const EVICT: Self = Self(EVICT_BIT);
    /// Giving a pod addresses; a permission that is not a field of a container.
    pub const POD_IPS: Self = Self(POD_IPS_BIT);
    /// Everything an update of a container can carry: group `resources`.
    pub const RESOURCES: Self = Self::range(Field::MemLimit, Field::CgroupsUnified);
    /// The eight memory fields: group `memory`.
    pub const MEMORY: Self = Self::range(Field::MemLimit, Field::MemUseHierarchy);
    /// The seven CPU fields: group `cpu`.
    pub const CPU: Self = Self::range(Field::CpuShares, Field::CpuSetMems);
    /// The three fields of `LinuxRdt`: group `rdt`.
    pub const RDT: Self = Self::range(Field::RdtClosId, Field::RdtEnableMonitoring);

    const fn range(first: Field, last: Field) -> Self {
        Self((1 << (last as u32 + 1)) - (1 << first as u32))
    }

    /// The set of one field; empty for `None`.
    pub fn of(field: Field) -> Self {
        Self((1u64 << field as u32) & Self::ALL.0)
    }

    pub fn may_evict(self) -> bool {
        self.0 & EVICT_BIT != 0
    }

    pub fn may_give_ips(self) -> bool {
        self.0 & POD_IPS_BIT != 0
    }

    /// The fields of the set, in order of their numbers, without the two rights.
    pub fn iter(self) -> impl Iterator<Item = Field> {
        let fields = (1..=LAST_FIELD.cast_signed()).filter_map(|n| Field::try_from(n).ok());
        fields.filter(move |field| self.has(*field))
    }

    fn parse_one(name: &str) -> Result<Self, BadMask> {
        match name.to_ascii_lowercase().as_str() {
            "" => Err(BadMask::Empty),
            "all" => Ok(Self::ALL),
            "evict" => Ok(Self::EVICT),
            "podips" => Ok(Self::POD_IPS),
            "resources" => Ok(Self::RESOURCES),
            "memory" => Ok(Self::MEMORY),
            "cpu" => Ok(Self::CPU),
            "rdt" => Ok(Self::RDT),
            _ => {
                let mut fields = Self::ALL.iter();
                let known = fields.find(|f| f.as_str_name().eq_ignore_ascii_case(name));
                known
                    .map(Self::of)
                    .ok_or_else(|| BadMask::Field(name.to_owned()))
            }
        }
    }
}

impl fmt::Display for FieldMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<&str> = self.iter().map(|field| field.as_str_name()).collect();
        if self.may_evict() {
            names.push("Evict");
        }
        if self.may_give_ips() {
            names.push("PodIps");
        }
        f.write_str(&names.join(","))
    }
}

/// Methods of both sets.
macro_rules! sets {
    ($($(#[$doc:meta])* $Mask:ident of $Item:ident;)*) => {
        $(impl $Mask {
            pub fn is_empty(self) -> bool {
                self.0 == 0
            }

            pub fn has(self, one: $Item) -> bool {
                !(Self::of(one) & self).is_empty()
            }
        }

        impl FromStr for $Mask {
            type Err = BadMask;

            $(#[$doc])*
            fn from_str(s: &str) -> Result<Self, BadMask> {
                s.split(',').try_fold(Self::NONE, |mask, name| {
                    Ok(mask | Self::parse_one(name.trim())?)
                })
            }
        }

        impl BitOr for $Mask {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl BitAnd for $Mask {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        impl Sub for $Mask {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        })*
    };
}

sets! {
    /// Accepts names of events and the groups `all`, `pod`, `podsandbox` and `container`,
    /// comma-separated, in any case, with optional blanks (NRI-400).
    EventMask of Event;
    /// Accepts field names of appendix B, `Evict`, `PodIps`, and the groups `all`, `resources`,
    /// `memory`, `cpu` and `rdt`, comma-separated, in any case.
    FieldMask of Field;
}
