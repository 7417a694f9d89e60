//! The target that `CAIRN_FUZZ` names, one of `nri_fuzz::TARGETS`.
#![no_main]

use std::sync::OnceLock;

static TARGET: OnceLock<String> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("CAIRN_FUZZ").expect("CAIRN_FUZZ names a target");
        TARGET.set(name).expect("set once");
    },
    |data: &[u8]| nri_fuzz::run(TARGET.get().map_or("", String::as_str), data)
);
