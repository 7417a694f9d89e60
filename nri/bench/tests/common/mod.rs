//! Runs nri-bench like a program, and reads its output.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use serde_json::Value;

/// A directory for scenarios.
pub(crate) struct Bench(tempfile::TempDir);

/// The result of a run.
pub(crate) struct Run {
    pub code: u8,
    pub text: String,
    /// Its standard error.
    pub errors: String,
    pub json: Value,
}

impl Run {
    /// The rules that were broken, each once, in order.
    pub(crate) fn rules(&self) -> Vec<&str> {
        let mut rules = Vec::new();
        for report in self.json.as_array().into_iter().flatten() {
            for step in report["steps"].as_array().into_iter().flatten() {
                for finding in step["findings"].as_array().into_iter().flatten() {
                    let rule = finding["rule"].as_str().unwrap_or_default();
                    if !rules.contains(&rule) {
                        rules.push(rule);
                    }
                }
            }
        }
        rules
    }
}

/// Returns the command that starts the plugin that breaks this rule. Builds it if it is missing, as
/// when a single suite is run.
pub(crate) fn broken(rule: &str) -> Vec<OsString> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let bench = Path::new(env!("CARGO_BIN_EXE_nri-bench"));
        let dir = bench.parent().expect("it lies in a directory");
        let program = dir.join("examples/broken");
        if !program.is_file() {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--quiet", "-p", "nri-bench", "--example", "broken"]);
            if !cfg!(debug_assertions) {
                build.arg("--release");
            }
            assert!(build.status().expect("cargo runs").success());
        }
        program
    });
    vec![program.into(), rule.into()]
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs one scenario against a plugin.
    pub(crate) fn run(&self, scenario: &str, flags: &[&str], plugin: &[OsString]) -> Run {
        let file = self.path("scenario.toml");
        fs::write(&file, scenario).expect("a file");
        let mut args = vec!["run".into(), file.into()];
        args.extend(flags.iter().map(OsString::from));
        self.answer(args, plugin)
    }

    /// Runs nri-bench with these arguments and no others.
    pub(crate) fn answer_plain(&self, args: Vec<OsString>) -> Run {
        let all = std::iter::once("nri-bench".into()).chain(args);
        let (mut out, mut errors) = (Vec::new(), Vec::new());
        let code = nri_bench::cli::answer_to(all, &mut out, &mut errors);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Run {
            code,
            text: text(&out),
            errors: text(&errors),
            json: Value::Null,
        }
    }

    /// Runs nri-bench with these arguments, the plugin's last.
    pub(crate) fn answer(&self, args: Vec<OsString>, plugin: &[OsString]) -> Run {
        let json = self.path("out.json");
        let _ = fs::remove_file(&json);
        let mut all = args;
        all.extend(["--json".into(), json.clone().into()]);
        if !plugin.is_empty() {
            all.push("--".into());
            all.extend_from_slice(plugin);
        }
        let mut run = self.answer_plain(all);
        let json = fs::read_to_string(&json).unwrap_or_default();
        run.json = serde_json::from_str(&json).unwrap_or_default();
        run
    }
}
