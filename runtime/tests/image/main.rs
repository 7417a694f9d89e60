//! Images against real disks, real overlay mounts and real registries. Needs root.

mod store;
mod support;
mod unpack;
