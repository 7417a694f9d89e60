//! Images against real disks, real overlay mounts and real registries. Needs root.

mod pull;
mod registry;
mod store;
mod support;
mod unpack;
