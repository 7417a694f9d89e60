//! Serves plugins of NRI 0.1, which are programs run once per event: JSON in, JSON out.
//!
//! | event | state passed to them |
//! |---|---|
//! | RunPodSandbox | `create` |
//! | StopPodSandbox | `delete` |
//! | StartContainer | `create` |
//! | StopContainer | `delete`, errors are only logged |
//!
//! `/etc/nri/conf.json` lists them: {version, plugins: [{type, conf}]}. Each is run as `<type>
//! invoke`, in order, with the results of those before it. A program that fails, reports an error
//! or prints invalid JSON fails the event. It is killed when the runtime no longer waits for it.

use std::{collections::BTreeMap, env, fs, io, process::Stdio};

use nri::{Context, Error, Plugin, proto::*};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
};

use crate::{
    cli::{Args, Flag, Usage},
    log::Log,
    plugin::Sample,
};

const CONFIG: &str = "/etc/nri/conf.json";
const BINARIES: &str = "/opt/nri/bin";
/// A launched plugin has no `PATH`; its programs need one.
const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Bytes of one answer.
const LARGEST: u64 = 4 << 20;

#[derive(Debug, Clone, Deserialize)]
struct Config {
    #[serde(default = "version")]
    version: String,
    #[serde(default)]
    plugins: Vec<Program>,
}

fn version() -> String {
    "0.1".to_owned()
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: version(),
            plugins: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
struct Program {
    r#type: String,
    conf: Option<Value>,
}

#[derive(Debug, Serialize)]
struct Request<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    conf: Option<&'a Value>,
    version: &'a str,
    state: &'a str,
    id: &'a str,
    #[serde(rename = "sandboxID", skip_serializing_if = "str::is_empty")]
    sandbox_id: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    pid: u32,
    spec: &'a Spec,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    results: &'a [Answer],
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    resources: Value,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    namespaces: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    cgroups_path: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Answer {
    plugin: String,
    version: String,
    error: String,
    metadata: BTreeMap<String, String>,
}

/// See the module.
#[derive(Debug)]
pub struct V010Adapter {
    config: Config,
    log: Log,
}

impl Sample for V010Adapter {
    const NAME: &'static str = "v010-adapter";
    const USAGE: Usage = [
        "Serves plugins of NRI 0.1: programs run once per event, JSON in and JSON out.",
        "v010-adapter -idx 10  # or launched as 10-v010-adapter; programs of /etc/nri/conf.json, or of -config FILE, from PATH or /opt/nri/bin",
        r#"mkdir -p /opt/nri/bin && printf '#!/bin/sh\ncat >>/run/asked; echo {}\n' >/opt/nri/bin/old && chmod 755 /opt/nri/bin/old && echo '{"plugins": [{"type": "old"}]}' >/run/old.json && v010-adapter -idx 10 -config /run/old.json"#,
    ];
    const FLAGS: &'static [Flag] = &[Flag::value(
        "config",
        "PATH",
        "list of plugins (default: /etc/nri/conf.json)",
    )];

    fn new(args: &Args, log: Log) -> Result<Self, String> {
        let path = args.get("config").unwrap_or(CONFIG);
        let config = match fs::read_to_string(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Config::default(),
            text => {
                let text = text.map_err(|e| format!("{path}: {e}"))?;
                serde_json::from_str(&text).map_err(|e| format!("{path}: {e}"))?
            }
        };
        Ok(Self { config, log })
    }
}

impl Plugin for V010Adapter {
    async fn run_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<(), Error> {
        Ok(self.invoke("create", &pod, None).await?)
    }

    async fn stop_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<(), Error> {
        Ok(self.invoke("delete", &pod, None).await?)
    }

    async fn start_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<(), Error> {
        Ok(self.invoke("create", &pod, Some(&container)).await?)
    }

    async fn stop_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<Vec<ContainerUpdate>, Error> {
        if let Err(e) = self.invoke("delete", &pod, Some(&container)).await {
            self.log
                .info(format_args!("StopContainer {}: {e}", container.id));
        }
        Ok(Vec::new())
    }
}

impl V010Adapter {
    /// Runs all programs in order, up to the first failure.
    async fn invoke(
        &self,
        state: &str,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), String> {
        let spec = spec(pod, container);
        let mut results: Vec<Answer> = Vec::new();
        for program in &self.config.plugins {
            let request = Request {
                conf: program.conf.as_ref(),
                version: &self.config.version,
                state,
                id: container.map_or(&pod.id, |c| &c.id),
                sandbox_id: &pod.id,
                pid: container.map_or(pod.pid, |c| c.pid),
                spec: &spec,
                labels: &pod.labels,
                results: &results,
            };
            let name = &program.r#type;
            let input = serde_json::to_vec(&request).map_err(|e| format!("{name}: {e}"))?;
            let answer = invoke(name, &input)
                .await
                .map_err(|e| format!("{name}: {e}"))?;
            if !answer.error.is_empty() {
                return Err(format!("{name}: {}", answer.error));
            }
            results.push(answer);
        }
        Ok(())
    }
}

/// Runs one program: its output counts, even if it exits with an error.
async fn invoke(program: &str, input: &[u8]) -> Result<Answer, String> {
    let path = env::var("PATH").ok().filter(|path| !path.is_empty());
    let path = path.as_deref().unwrap_or(USUAL);
    let mut child = Command::new(program)
        .arg("invoke")
        .env("PATH", format!("{path}:{BINARIES}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("cannot be run: {e}"))?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A program that does not read its input may still answer.
            let _ = stdin.write_all(input).await;
        }
    };
    let mut output = Vec::new();
    let read = async {
        match stdout {
            Some(stdout) => stdout.take(LARGEST).read_to_end(&mut output).await,
            None => Ok(0),
        }
    };
    let ((), read) = tokio::join!(write, read);
    read.map_err(|e| format!("its answer cannot be read: {e}"))?;
    let status = child.wait().await.map_err(|e| format!("lost: {e}"))?;
    match serde_json::from_slice(&output) {
        Ok(answer) => Ok(answer),
        Err(_) if !status.success() => Err(format!("ended with {status}")),
        Err(e) => Err(format!("its answer is not a result: {e}")),
    }
}

fn spec(pod: &PodSandbox, container: Option<&Container>) -> Spec {
    let empty = LinuxResources::default();
    let by_type = |namespaces: &[LinuxNamespace]| {
        let each = namespaces.iter();
        each.map(|n| (n.r#type.clone(), n.path.clone())).collect()
    };
    match container {
        Some(container) => {
            let linux = container.linux.clone().unwrap_or_default();
            Spec {
                resources: resources(linux.resources.as_ref().unwrap_or(&empty)),
                namespaces: by_type(&linux.namespaces),
                cgroups_path: linux.cgroups_path,
                annotations: container.annotations.clone(),
            }
        }
        None => {
            let linux = pod.linux.clone().unwrap_or_default();
            Spec {
                resources: resources(linux.resources.as_ref().unwrap_or(&empty)),
                namespaces: by_type(&linux.namespaces),
                cgroups_path: linux.cgroups_path,
                annotations: pod.annotations.clone(),
            }
        }
    }
}

/// `linux.resources` in the form of the OCI runtime specification.
fn resources(resources: &LinuxResources) -> Value {
    let pages = resources.hugepage_limits.iter();
    let pages = pages.map(|p| json!({"pageSize": p.page_size, "limit": p.limit}));
    let devices = resources.devices.iter().map(|d| {
        let mut rule = json!({"allow": d.allow, "type": d.r#type, "access": d.access});
        for (key, number) in [("major", d.major), ("minor", d.minor)] {
            if let Some(number) = number {
                rule[key] = json!(number.value);
            }
        }
        rule
    });
    present(json!({
        "memory": resources.memory.as_ref().map(memory),
        "cpu": resources.cpu.as_ref().map(cpu),
        "pids": resources.pids.map(|p| json!({"limit": p.limit})),
        "hugepageLimits": pages.collect::<Value>(),
        "devices": devices.collect::<Value>(),
        "unified": resources.unified,
    }))
}

fn memory(m: &LinuxMemory) -> Value {
    present(json!({
        "limit": m.limit.map(|v| v.value),
        "reservation": m.reservation.map(|v| v.value),
        "swap": m.swap.map(|v| v.value),
        "kernel": m.kernel.map(|v| v.value),
        "kernelTCP": m.kernel_tcp.map(|v| v.value),
        "swappiness": m.swappiness.map(|v| v.value),
        "disableOOMKiller": m.disable_oom_killer.map(|v| v.value),
        "useHierarchy": m.use_hierarchy.map(|v| v.value),
    }))
}

fn cpu(c: &LinuxCpu) -> Value {
    present(json!({
        "shares": c.shares.map(|v| v.value),
        "quota": c.quota.map(|v| v.value),
        "period": c.period.map(|v| v.value),
        "realtimeRuntime": c.realtime_runtime.map(|v| v.value),
        "realtimePeriod": c.realtime_period.map(|v| v.value),
        "cpus": c.cpus,
        "mems": c.mems,
    }))
}

/// Removes unset fields of an object.
fn present(mut object: Value) -> Value {
    let is_said = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| is_said(value));
    }
    object
}
