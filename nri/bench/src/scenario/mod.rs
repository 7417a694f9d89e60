//! A scenario: a TOML file, checked whole before anything is started. What is wrong is named with its line.

mod model;
mod read;
mod shape;

pub use model::{Act, Other, Scenario, Speaks, Step, unnamed};

pub use read::{Bad, read};
#[cfg(test)]
pub use shape::filled;
