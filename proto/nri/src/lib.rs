//! The wire types of NRI v1alpha1, generated from `nri.proto` by `proto-gen`. No logic lives here.

#![allow(clippy::all, clippy::pedantic, reason = "generated code")]

include!("../generated/nri.pkg.api.v1alpha1.rs");
