use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=api.proto");
    let descriptors = protox::compile(["api.proto"], ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("api.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .btree_map(".")
        // Records on disk and verbose answers hold these messages as JSON; absent fields are
        // zero there as they are on the wire.
        .message_attribute(
            ".",
            "#[derive(serde::Serialize, serde::Deserialize)] #[serde(default)]",
        )
        .compile_fds(descriptors)?;
    Ok(())
}
