use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;
use prost14::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=nri.proto");
    // protox speaks prost 0.14, ttrpc speaks 0.13: the descriptors cross as bytes.
    let bytes = protox::compile(["nri.proto"], ["."])?.encode_to_vec();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("nri.bin"), &bytes)?;
    let descriptors = prost_types::FileDescriptorSet::decode(bytes.as_slice())?;
    prost_build::Config::new()
        .btree_map(["."])
        // Records on disk hold adjustments as JSON.
        .message_attribute(
            ".",
            "#[derive(serde::Serialize, serde::Deserialize)] #[serde(default)]",
        )
        .compile_fds(descriptors)?;
    Ok(())
}
