//! The pure half of the crate: owners, merge, policy, validation, masks. No I/O, no root.

mod fields;
mod masks;
mod policy;
mod properties;
mod support;
mod table;
mod updates;
mod validation;
