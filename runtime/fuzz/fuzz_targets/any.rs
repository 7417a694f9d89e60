//! The target that `CAIRN_FUZZ` names: one of `cairn::fuzzing`, or of `cni_shim::checks`.
#![no_main]

use std::sync::OnceLock;

static TARGET: OnceLock<String> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("CAIRN_FUZZ").expect("CAIRN_FUZZ names a target");
        TARGET.set(name).expect("set once");
    },
    |data: &[u8]| match TARGET.get().map_or("", String::as_str) {
        "cni_conflist" => cni_shim::checks::conflist(data),
        "cni_result" => cni_shim::checks::result(data),
        name => cairn::fuzzing::run(name, data),
    }
);
