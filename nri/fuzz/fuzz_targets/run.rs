//! See `nri::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nri::fuzzing::run("run", data));
