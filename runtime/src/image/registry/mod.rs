//! Registries: their hosts, credentials, requests and transfers.

pub(super) mod auth;
pub(super) mod host;
pub(super) mod hosts;
pub(super) mod pace;
mod reach;
pub(super) mod remote;
pub(super) mod token;
pub(super) mod transfer;
