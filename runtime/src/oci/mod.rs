//! Pure: CRI values, image configuration and NRI adjustments in, an OCI runtime spec out. No I/O, no clock.
