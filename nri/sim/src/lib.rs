//! Tasks in an order drawn from a seed, and in-memory sockets, for the seeded model of nri
//! (`nri/tests/sim`). The library uses it with its feature `sim`.

pub use self::{
    memory::{Direction, Link, Memory},
    rng::Rng,
    tasks::{Group, begin, is_stuck, kill, live, spawn, spawn_in, within},
};

mod memory;
mod rng;
mod tasks;
