//! The network of a pod sandbox.
