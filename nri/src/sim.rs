//! What a seeded model of the adaptation (`tests/sim`) needs of the library.

pub(crate) use self::tasks::spawn;
pub use self::{
    memory::{Direction, Link, Memory},
    rng::Rng,
    tasks::{Group, begin, is_stuck, kill, live, spawn_in, within},
};

mod memory;
mod rng;
mod tasks;
