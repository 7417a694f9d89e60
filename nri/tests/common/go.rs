//! The Go programs of `tests/go`, built once per run, and one running program.
//!
//! Requires Go on the PATH. `NRI_WITHOUT_GO=1` skips these tests.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, OnceLock},
};

use super::{Place, until};

/// Returns the directory of the Go programs, built once per run; `None` if Go is skipped.
pub(crate) fn programs() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        if env::var_os("NRI_WITHOUT_GO").is_some() {
            eprintln!("left out: NRI_WITHOUT_GO is set");
            return None;
        }
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("go");
        fs::create_dir_all(&out).unwrap();
        build(&[
            "-o",
            &format!("{}/", out.display()),
            "./plugin",
            "./failing",
            "./runtime",
        ]);
        for (generation, package) in [
            ("v0.11", "./plugin"),
            ("v0.6", "./plugin"),
            ("v0.2", "./plugin02"),
        ] {
            let (modfile, to) = (format!("-modfile={generation}.mod"), out.join(generation));
            build(&[&modfile, "-tags=nri02", "-o", to.to_str().unwrap(), package]);
        }
        Some(out)
    });
    built.as_deref()
}

fn build(args: &[&str]) {
    let go = Command::new("go")
        .arg("build")
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go"))
        .status();
    let done = go.expect("these tests need Go on the PATH; NRI_WITHOUT_GO=1 leaves them out");
    assert!(done.success(), "go build {args:?}");
}

/// A Go program and the lines it has printed. Killed and reaped when dropped.
pub(crate) struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Program {
    pub(crate) fn start(path: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(path)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (stdout, into) = (child.stdout.take().unwrap(), lines.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                into.lock().unwrap().push(line);
            }
        });
        let stdin = child.stdin.take();
        Self {
            child,
            stdin,
            lines,
        }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub(crate) async fn says(&self, start: &str) -> String {
        self.says_times(start, 1).await
    }

    /// Waits for this number of lines with this start; returns the first.
    pub(crate) async fn says_times(&self, start: &str, times: usize) -> String {
        until(&format!("it says {start:?} {times} times"), || {
            let lines = self.lines();
            lines.iter().filter(|line| line.starts_with(start)).count() >= times
        })
        .await;
        let lines = self.lines();
        lines
            .into_iter()
            .find(|line| line.starts_with(start))
            .unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the program; its printed lines remain available.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn report(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn go_plugin(
    program: &str,
    place: &Place,
    index: &str,
    more: &[&str],
) -> Option<Program> {
    let path = programs()?.join(program);
    let socket = place.socket();
    let mut args = vec![
        "-name",
        "go",
        "-idx",
        index,
        "-socket",
        socket.to_str().unwrap(),
    ];
    args.extend(more);
    Some(Program::start(&path, &args))
}

pub(crate) fn go_runtime(place: &Place, more: &[&str]) -> Option<Program> {
    let socket = place.socket();
    let mut args = vec!["-socket", socket.to_str().unwrap()];
    args.extend(more);
    Some(Program::start(&programs()?.join("runtime"), &args))
}
