//! Removes empty parts from adjustments.

use proto_nri::{ContainerAdjustment, LinuxContainerAdjustment, LinuxResources};

/// Drops empty parts, so that they are not sent.
pub trait Strip: Sized {
    /// The message without empty parts; `None` if nothing remains.
    fn strip(self) -> Option<Self>;
}

/// Strips an optional part in place.
fn strip<T: Strip>(part: &mut Option<T>) {
    *part = part.take().and_then(Strip::strip);
}

/// `None` for a message at its default.
fn unless_default<T: Default + PartialEq>(message: T) -> Option<T> {
    (message != T::default()).then_some(message)
}

impl Strip for ContainerAdjustment {
    fn strip(mut self) -> Option<Self> {
        self.hooks = self.hooks.and_then(unless_default);
        strip(&mut self.linux);
        unless_default(self)
    }
}

impl Strip for LinuxContainerAdjustment {
    fn strip(mut self) -> Option<Self> {
        strip(&mut self.resources);
        self.rdt = self.rdt.and_then(unless_default);
        unless_default(self)
    }
}

impl Strip for LinuxResources {
    fn strip(mut self) -> Option<Self> {
        self.memory = self.memory.and_then(unless_default);
        self.cpu = self.cpu.and_then(unless_default);
        unless_default(self)
    }
}
