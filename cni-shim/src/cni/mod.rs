//! Placeholder.
#[derive(Debug, thiserror::Error)]
pub enum CniError {}
