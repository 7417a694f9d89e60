//! The end-to-end tests, by theme. One binary: linking is most of what a test binary costs.

mod harness;
