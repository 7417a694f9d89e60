//! Injects OCI hooks described in the directories of podman and CRI-O: JSON files of version 1.0.0
//! with a hook, the conditions under which it runs, and its stages. A file of a later directory
//! replaces one of the same name.
//!
//! The files are read for each container, so that a change takes effect at once; with
//! `-disableWatch` only at the start. A file that cannot be read or parsed fails the creation,
//! because a hook that silently does not run may be a protection.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use nri::{
    Context, CreateAnswer, Error, Plugin,
    adjust::{Adjust, HookKind},
    proto::{Container, Hook, OptionalInt, PodSandbox},
};
use regex_lite::Regex;
use serde::Deserialize;

use crate::{
    cli::{Args, Flag, Usage},
    log::Log,
    plugin::{Sample, display},
};

const DIRS: [&str; 2] = [
    "/usr/share/containers/oci/hooks.d",
    "/etc/containers/oci/hooks.d",
];
/// Bytes of one file.
const LARGEST: u64 = 1 << 20;
/// Files of one directory.
const MOST: usize = 1024;

#[derive(Debug, Clone, Deserialize)]
struct HookFile {
    version: String,
    hook: HookValue,
    when: When,
    stages: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct HookValue {
    path: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<String>,
    timeout: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct When {
    always: Option<bool>,
    annotations: BTreeMap<String, String>,
    commands: Vec<String>,
    has_bind_mounts: Option<bool>,
    /// One condition is enough.
    or: bool,
}

/// One file, checked.
#[derive(Debug, Clone)]
struct Known {
    hook: Hook,
    stages: Vec<HookKind>,
    when: Conditions,
}

#[derive(Debug, Clone)]
struct Conditions {
    always: Option<bool>,
    /// Pattern of the key, pattern of the value.
    annotations: Vec<(Regex, Regex)>,
    /// Patterns of the first argument.
    commands: Vec<Regex>,
    has_bind_mounts: Option<bool>,
    or: bool,
}

/// See the module.
#[derive(Debug)]
pub struct HookInjector {
    dirs: Vec<PathBuf>,
    /// Read once, at the start.
    fixed: Option<Vec<Known>>,
    log: Log,
}

impl Sample for HookInjector {
    const NAME: &'static str = "hook-injector";
    const USAGE: Usage = [
        "Injects OCI hooks from /usr/share/containers/oci/hooks.d and /etc/containers/oci/hooks.d, read anew for each container.",
        "hook-injector -idx 10  # or launched as 10-hook-injector; -hooks-dir DIR reads only DIR, -disableWatch only what is there now",
        r#"mkdir -p /etc/containers/oci/hooks.d && echo '{"version": "1.0.0", "hook": {"path": "/bin/touch", "args": ["touch", "/run/hooked"]}, "when": {"always": true}, "stages": ["createRuntime"]}' >/etc/containers/oci/hooks.d/touch.json"#,
    ];
    const FLAGS: &'static [Flag] = &[
        Flag::switch("disableWatch", "read the hooks once, at the start"),
        Flag::value(
            "hooks-dir",
            "PATH",
            "read this directory instead of the usual two; repeatable",
        ),
    ];

    fn new(args: &Args, log: Log) -> Result<Self, String> {
        let mut dirs: Vec<PathBuf> = args.all("hooks-dir").map(PathBuf::from).collect();
        if dirs.is_empty() {
            dirs = DIRS.map(PathBuf::from).to_vec();
        }
        let fixed = if args.is("disableWatch") {
            Some(read_all(&dirs)?)
        } else {
            None
        };
        Ok(Self { dirs, fixed, log })
    }
}

impl Plugin for HookInjector {
    async fn create_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateAnswer, Error> {
        let read;
        let known = match &self.fixed {
            Some(fixed) => fixed,
            None => {
                read = read_all(&self.dirs)?;
                &read
            }
        };
        let mut annotations = container.annotations.clone();
        annotations.extend(pod.annotations.clone());
        let mut answer = CreateAnswer::default();
        for known in known {
            if !known.when.hold(&annotations, &container)? {
                continue;
            }
            let (container, path) = (display(&pod, &container), &known.hook.path);
            self.log
                .debug(format_args!("{container}: {path} at {:?}", known.stages));
            for stage in &known.stages {
                answer.adjust.add_hook(*stage, known.hook.clone());
            }
        }
        Ok(answer)
    }
}

impl Conditions {
    /// All stated conditions are met, or one of them; at least one.
    fn hold(
        &self,
        annotations: &BTreeMap<String, String>,
        container: &Container,
    ) -> Result<bool, String> {
        let mut stated: Vec<bool> = Vec::new();
        stated.extend(self.always);
        // `hasBindMounts: false` is never met, as in podman.
        let mounts = |wanted: bool| wanted && !container.mounts.is_empty();
        stated.extend(self.has_bind_mounts.map(mounts));
        for (key, value) in &self.annotations {
            let fits = |(k, v): (&String, &String)| key.is_match(k) && value.is_match(v);
            stated.push(annotations.iter().any(fits));
        }
        if !self.commands.is_empty() {
            let command = container
                .args
                .first()
                .ok_or("the container has no command")?;
            stated.push(
                self.commands
                    .iter()
                    .any(|pattern| pattern.is_match(command)),
            );
        }
        Ok(if self.or {
            stated.contains(&true)
        } else {
            !stated.is_empty() && !stated.contains(&false)
        })
    }
}

/// All hooks of the directories, in order of their file names.
fn read_all(dirs: &[PathBuf]) -> Result<Vec<Known>, String> {
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    for dir in dirs {
        files.extend(list(dir)?);
    }
    files.values().map(|path| read(path)).collect()
}

/// The files of a directory by name; empty if it does not exist.
fn list(dir: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let fail = |e: std::io::Error| format!("{}: {e}", dir.display());
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(fail)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".json") {
            files.push((name, entry.path()));
        }
        if files.len() > MOST {
            return Err(format!("{}: more than {MOST} files", dir.display()));
        }
    }
    Ok(files)
}

fn read(path: &Path) -> Result<Known, String> {
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let size = fs::metadata(path).map_err(|e| fail(&e))?.len();
    if size > LARGEST {
        return Err(fail(&format_args!("larger than {LARGEST} bytes")));
    }
    let text = fs::read_to_string(path).map_err(|e| fail(&e))?;
    let file: HookFile = serde_json::from_str(&text).map_err(|e| fail(&e))?;
    check(file).map_err(|e| fail(&e))
}

fn check(file: HookFile) -> Result<Known, String> {
    if file.version != "1.0.0" {
        return Err(format!("version {:?} is not 1.0.0", file.version));
    }
    if !file.hook.path.starts_with('/') {
        return Err(format!("hook path {:?} must be absolute", file.hook.path));
    }
    let kind = |name: &String| stage(name).ok_or_else(|| format!("stage {name:?} is not known"));
    let stages = file
        .stages
        .iter()
        .map(kind)
        .collect::<Result<Vec<_>, _>>()?;
    if stages.is_empty() {
        return Err("no stage is given".into());
    }
    let (hook, when) = (file.hook, file.when);
    if when.always.is_none()
        && when.has_bind_mounts.is_none()
        && when.annotations.is_empty()
        && when.commands.is_empty()
    {
        return Err("no condition is given".into());
    }
    let annotations = when.annotations.iter();
    let annotations = annotations.map(|(k, v)| Ok((pattern(k)?, pattern(v)?)));
    let commands = when.commands.iter().map(|c| pattern(c));
    Ok(Known {
        hook: Hook {
            path: hook.path,
            args: hook.args,
            env: hook.env,
            timeout: hook.timeout.map(|value| OptionalInt { value }),
        },
        stages,
        when: Conditions {
            always: when.always,
            annotations: annotations.collect::<Result<_, String>>()?,
            commands: commands.collect::<Result<_, _>>()?,
            has_bind_mounts: when.has_bind_mounts,
            or: when.or,
        },
    })
}

fn pattern(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|e| format!("pattern {text:?}: {e}"))
}

/// The OCI hook kind of a stage.
pub fn stage(name: &str) -> Option<HookKind> {
    Some(match name {
        "prestart" => HookKind::Prestart,
        "createRuntime" => HookKind::CreateRuntime,
        "createContainer" => HookKind::CreateContainer,
        "startContainer" => HookKind::StartContainer,
        "poststart" => HookKind::Poststart,
        "poststop" => HookKind::Poststop,
        _ => return None,
    })
}
