//! Sample NRI plugins.
