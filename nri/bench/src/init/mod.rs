//! Creates a first scenario: from a Kubernetes pod, from a recording, or from a template.

mod expected;
mod pod;
mod quantity;
mod recording;

use std::fmt::Write as _;

use crate::line::quoted;
use pod::{Container, Pod};

pub(crate) use recording::scenario as from_script;

/// The scenario without a pod.
pub(crate) const TEMPLATE: &str = include_str!("template.toml");

/// The scenario of a pod's complete life. `text` is YAML or JSON: a Pod, or an object with its
/// template.
pub(crate) fn from_pod(text: &str) -> Result<String, String> {
    let pod = Pod::read(text)?;
    let mut out = String::from(
        "# Run it: nri-bench run THIS -- ./my-plugin      Every key: docs/bench.md of cairn\n\
         flavor = \"containerd\"\n",
    );
    let name = quoted(&pod.name);
    let _ = writeln!(out, "\n[pod.{name}]");
    let _ = writeln!(out, "namespace = {}", quoted(&pod.namespace));
    if !pod.runtime_handler.is_empty() {
        let _ = writeln!(out, "runtime_handler = {}", quoted(&pod.runtime_handler));
    }
    map(&mut out, &format!("pod.{name}.labels"), &pod.labels);
    map(
        &mut out,
        &format!("pod.{name}.annotations"),
        &pod.annotations,
    );
    for container in &pod.containers {
        describe(&mut out, container)?;
    }
    steps(&mut out, &name, &pod.containers);
    Ok(out)
}

fn describe(out: &mut String, container: &Container) -> Result<(), String> {
    let _ = writeln!(out, "\n[container.{}]", quoted(&container.name));
    let args = container.command.iter().chain(&container.args);
    let args: Vec<_> = args.map(|arg| quoted(arg)).collect();
    if !args.is_empty() {
        let _ = writeln!(out, "args = [{}]", args.join(", "));
    }
    // External values (valueFrom) are not in the pod.
    let env = container.env.iter().filter_map(|env| {
        let value = env.value.as_ref()?;
        Some(quoted(&format!("{}={value}", env.name)))
    });
    let env: Vec<_> = env.collect();
    if !env.is_empty() {
        let _ = writeln!(out, "env = [{}]", env.join(", "));
    }
    for (key, value) in container.resources()? {
        let _ = writeln!(out, "linux.resources.{key} = {value}");
    }
    for mount in &container.volume_mounts {
        let options = if mount.read_only {
            "\"rbind\", \"ro\""
        } else {
            "\"rbind\", \"rw\""
        };
        let source = quoted(&format!("/var/lib/kubelet/volumes/{}", mount.name));
        let _ = writeln!(out, "[[container.{}.mounts]]", quoted(&container.name));
        let _ = writeln!(out, "destination = {}", quoted(&mount.mount_path));
        let _ = writeln!(
            out,
            "source = {source}\ntype = \"bind\"\noptions = [{options}]"
        );
    }
    Ok(())
}

fn steps(out: &mut String, pod: &str, containers: &[Container]) {
    out.push_str("\n[[step]]\ndo = \"join\"\n");
    for container in containers {
        let name = quoted(&container.name);
        let _ = write!(
            out,
            "\n[[step]]\ndo = \"create\"\npod = {pod}\ncontainer = {name}\n\
             # expect.adjust.env = [{{ key = \"NAME\", value = \"what my plugin sets\" }}]\n\
             \n[[step]]\ndo = \"start\"\ncontainer = {name}\n"
        );
        if container.ends {
            let _ = write!(out, "\n[[step]]\ndo = \"stop\"\ncontainer = {name}\n");
        }
    }
    let _ = write!(
        out,
        "\n# The runtime closes the connection without Shutdown, and restarts with its pods.\n[[step]]\ndo = \"crash\"\n\
         \n[[step]]\ndo = \"remove-pod\"\npod = {pod}\n"
    );
}

fn map(out: &mut String, table: &str, entries: &std::collections::BTreeMap<String, String>) {
    if entries.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n[{table}]");
    for (key, value) in entries {
        let _ = writeln!(out, "{} = {}", quoted(key), quoted(value));
    }
}
