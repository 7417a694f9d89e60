//! Cgroups v1, hybrid and v2 behind one face.
