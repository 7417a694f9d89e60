//! Writes the code of the proto packages into `proto/*/generated`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    proto_gen::generate(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
}
