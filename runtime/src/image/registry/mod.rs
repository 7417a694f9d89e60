//! Registries: which hosts serve an image, what they are told, and what comes from them.

pub mod auth;
pub mod host;
pub mod hosts;
mod pace;
pub mod remote;
pub mod token;
pub mod transfer;
