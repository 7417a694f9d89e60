//! Generates the code in `proto/*/generated` from the `.proto` files.
//!
//! The code is in git: a build of cairn or of a plugin then needs no compiler of `.proto` files.
//! After a change of a `.proto` file: `cargo run -p proto-gen`. A test compares both.

use std::{error::Error, fs, path::Path};

use prost::Message as _;
use prost_types::FileDescriptorSet;
use prost13::Message as _;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Records on disk, and verbose answers, contain these messages as JSON. Absent fields are zero, as
/// on the wire.
const JSON: &str = "#[derive(serde::Serialize, serde::Deserialize)] #[serde(default)]";

/// Commands print these as JSON, by the names of their fields.
const PRINTED: [&str; 7] = [
    "Plugin",
    "RejectedPlugin",
    "HeldObject",
    "Directory",
    "PodNetwork",
    "HostPort",
    "CollectedNetwork",
];

/// The descriptors of a file such as `nri/nri.proto`.
pub fn descriptors(file: &str) -> Outcome<FileDescriptorSet> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let directory = file.parent().ok_or("a file is in a directory")?;
    Ok(protox::compile([&file], [directory])?)
}

/// Writes the code of each package below `root`, as `nri/generated/nri.pkg.api.v1alpha1.rs`.
pub fn generate(root: &Path) -> Outcome<()> {
    let directory = |package: &str| {
        let directory = root.join(package).join("generated");
        fs::create_dir_all(&directory).map(|()| directory)
    };

    tonic_prost_build::configure()
        .out_dir(directory("cri")?)
        .btree_map(".")
        .message_attribute(".", JSON)
        .compile_fds(descriptors("cri/api.proto")?)?;

    let build = tonic_prost_build::configure().out_dir(directory("cairn")?);
    PRINTED
        .iter()
        .fold(build, |build, message| {
            build.message_attribute(message, "#[derive(serde::Serialize)]")
        })
        .compile_fds(descriptors("cairn/cairn.proto")?)?;

    // ttrpc is built on prost 0.13: the descriptors cross as bytes.
    let bytes = descriptors("nri/nri.proto")?.encode_to_vec();
    prost_build13::Config::new()
        .out_dir(directory("nri")?)
        .btree_map(["."])
        .message_attribute(".", JSON)
        .compile_fds(prost_types13::FileDescriptorSet::decode(bytes.as_slice())?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_in_git_is_that_of_the_proto_files() {
        let fresh = tempfile::tempdir().unwrap();
        generate(fresh.path()).unwrap();
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in [
            "cri/generated/runtime.v1.rs",
            "cairn/generated/cairn.v1.rs",
            "nri/generated/nri.pkg.api.v1alpha1.rs",
        ] {
            let [fresh, ours] = [fresh.path(), &ours].map(|of| fs::read(of.join(name)).unwrap());
            assert!(fresh == ours, "proto/{name}: run `cargo run -p proto-gen`");
        }
    }
}
