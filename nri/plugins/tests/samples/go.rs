//! The samples on the runtime side of the Go module `github.com/containerd/nri`: the program in
//! `nri/tests/go/runtime`. Needs Go on the PATH; `NRI_WITHOUT_GO=1` leaves this out.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Children that end with the test.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn go_runtime() -> Option<PathBuf> {
    if env::var_os("NRI_WITHOUT_GO").is_some() {
        return None;
    }
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-runtime");
    let build = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg("./runtime")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/go"))
        .status();
    let build = build.expect("this test needs Go on the PATH; NRI_WITHOUT_GO=1 leaves it out");
    assert!(build.success());
    Some(program)
}

/// Waits, with a deadline, until the file has this number of lines with this start.
fn until_logged(path: &Path, start: &str, times: usize) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        if text.lines().filter(|line| line.starts_with(start)).count() >= times {
            return text;
        }
        assert!(Instant::now() < deadline, "no {start:?} in {text:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn on_the_go_runtime_the_samples_serve_and_the_logger_prints_the_same_lines() {
    let Some(program) = go_runtime() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let (socket, log) = (dir.path().join("nri.sock"), dir.path().join("log"));
    let mut runtime = Command::new(program)
        .args(["-pods", "2", "-socket"])
        .arg(&socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut report = runtime.stdin.take().expect("piped");
    let printed = BufReader::new(runtime.stdout.take().expect("piped"));
    let mut printed = printed.lines().map_while(Result::ok);
    let mut children = Children(vec![runtime]);
    assert!(printed.any(|line| line == "ready"));

    // The Go runtime accepts plugins one after the other and prints a line for each.
    let mut join = |program: &str, index: &str, flags: &[&str]| {
        let child = Command::new(program)
            .args(["-idx", index, "-socket-path"])
            .arg(&socket)
            .args(flags)
            .stderr(Stdio::null())
            .spawn();
        children.0.push(child.expect("it runs"));
        assert_eq!(printed.next().as_deref(), Some("synchronized <nil>"));
    };
    let (demo, log_path) = (env!("CARGO_BIN_EXE_demo-adjuster"), log.to_string_lossy());
    join(
        demo,
        "10",
        &["-env", "A=1", "-memory", "1000000", "-args", "x y"],
    );
    join(env!("CARGO_BIN_EXE_device-injector"), "20", &[]);
    join(
        env!("CARGO_BIN_EXE_hook-injector"),
        "21",
        &["-hooks-dir", "/nosuch"],
    );
    join(env!("CARGO_BIN_EXE_ulimit-adjuster"), "22", &[]);
    join(env!("CARGO_BIN_EXE_rdt"), "23", &[]);
    join(env!("CARGO_BIN_EXE_network-logger"), "24", &[]);
    join(env!("CARGO_BIN_EXE_network-device-injector"), "25", &[]);
    join(
        env!("CARGO_BIN_EXE_v010-adapter"),
        "26",
        &["-config", "/nosuch"],
    );
    let mounts = ["-host-mount-file", "/proc/self/mountinfo"];
    join(env!("CARGO_BIN_EXE_writable-cgroups"), "27", &mounts);
    join(env!("CARGO_BIN_EXE_template"), "28", &[]);
    join(env!("CARGO_BIN_EXE_default-validator"), "98", &[]);
    let flags = ["-events-only", "-set-env", "A", "-log-file", &log_path];
    join(env!("CARGO_BIN_EXE_logger"), "99", &flags);

    writeln!(report, "life").expect("it listens");
    assert_eq!(printed.next().as_deref(), Some("life <nil>"));
    let text = until_logged(&log, "RemovePodSandbox", 1);
    let expected = "\
Synchronize 2 pods 2 containers
RunPodSandbox pod
UpdatePodSandbox pod
PostUpdatePodSandbox pod
CreateContainer pod ctr
ValidateContainerAdjustment pod ctr
PostCreateContainer pod ctr
StartContainer pod ctr
PostStartContainer pod ctr
UpdateContainer pod ctr
PostUpdateContainer pod ctr
StopContainer pod ctr
RemoveContainer pod ctr
StopPodSandbox pod
RemovePodSandbox pod
";
    assert_eq!(text, expected);
}
