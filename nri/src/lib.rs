//! NRI as a library.

pub mod mask;
pub mod merge;
pub mod owners;
pub mod policy;
