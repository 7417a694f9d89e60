use std::error::Error;

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

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=cairn.proto");
    let descriptors = protox::compile(["cairn.proto"], ["."])?;
    let build = tonic_prost_build::configure();
    let build = PRINTED.iter().fold(build, |build, message| {
        build.message_attribute(message, "#[derive(serde::Serialize)]")
    });
    build.compile_fds(descriptors)?;
    Ok(())
}
