//! cairn-images DIR: stand-ins for the images that critest names, made from the system's busybox.
//!
//! Writes `DIR/<n>.tar` (OCI layouts) and `DIR/images.tsv` (reference, file). They serve the specs
//! of basic operations, idempotence and networking; others need images that busybox cannot play.

use std::{env, fs, path::PathBuf, process::ExitCode};

use cairn_tests::image::{Image, Layer};
use serde_json::json;

const E2E: &str = "registry.k8s.io/e2e-test-images";
const STAGING: &str = "gcr.io/k8s-staging-cri-tools";

/// Debian's busybox has no pgrep: by the name of the process, as the spec uses it.
const PGREP: &str = "#!/bin/sh\n\
    found=1\n\
    for dir in /proc/[0-9]*; do\n\
    \x20 name=$(cat $dir/comm 2>/dev/null) || continue\n\
    \x20 case $name in *\"$1\"*) echo ${dir#/proc/}; found=0 ;; esac\n\
    done\n\
    exit $found\n";
const NGINX: &str = "#!/bin/sh\nexec httpd -f -p 80 -h /www\n";

fn main() -> ExitCode {
    let Some(dir) = env::args_os().nth(1).map(PathBuf::from) else {
        return ExitCode::from(2);
    };
    match write(&dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn write(dir: &std::path::Path) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    let tools = || Layer::default().file("bin/pgrep", 0o755, PGREP.as_bytes());
    let web = Layer::default()
        .dir("www", 0o755)
        .file("www/index.html", 0o644, b"hello\n")
        .file("bin/nginx", 0o755, NGINX.as_bytes());
    let mut all = vec![
        (format!("{E2E}/busybox:1.29-2"), vec![tools()], json!(null)),
        (format!("{E2E}/nginx:1.14-2"), vec![web], json!(["nginx"])),
    ];
    for name in [
        "test-image-latest:latest",
        "test-image-1:latest",
        "test-image-tag:test",
    ] {
        let marker = Layer::default().file("marker", 0o644, name.as_bytes());
        all.push((format!("{STAGING}/{name}"), vec![marker], json!(null)));
    }
    let mut table = String::new();
    for (n, (reference, layers, entrypoint)) in all.into_iter().enumerate() {
        let mut image = Image::busybox(&reference).config("Entrypoint", entrypoint);
        for layer in layers {
            image = image.layer(layer);
        }
        let file = dir.join(format!("{n}.tar"));
        image.write(&file);
        table += &format!("{reference}\t{}\n", file.display());
    }
    fs::write(dir.join("images.tsv"), table)
}
