//! NRI as a library.

pub mod adjust;
pub mod mask;
pub mod merge;
pub mod owners;
pub mod permit;
pub mod policy;
pub mod validate;
