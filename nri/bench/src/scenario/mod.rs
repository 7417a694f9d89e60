//! A scenario: a TOML file, checked completely before anything is started. Errors name the line.

mod model;
mod read;
mod shape;

pub use model::{Act, Other, Scenario, Speaks, Step, unnamed};

pub use read::{Bad, read};
#[cfg(test)]
pub use shape::filled;
