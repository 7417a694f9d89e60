//! cairn-yard: process 1 of the namespaces in which one daemon is tested.
//!
//! Started by `unshare --mount --net --pid`. It sets up `lo` and covers `/run`, which a daemon
//! might share with the machine, then obeys JSON lines on standard input:
//!
//! ```text
//! {"run":{"argv":[...],"env":{...},"log":"path"}}  →  {"started":17} | {"failed":"why"}
//! {"kill":{"pid":17,"signal":9}}                   →  {"killed":17}; the end is reported as usual
//!                                                  →  {"exited":{"pid":17,"status":9}} at any time
//! ```
//! `status` is a wait status: the signal in the low byte, or the exit code in the next. At the end
//! of its input, because the test ends or dies, it exits, and the kernel ends every process in the
//! namespace. This is the complete clean-up.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::{self, BufRead, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    mount::{MountFlags, mount},
    process::{Pid, Signal, WaitOptions, kill_process, wait},
};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    Run {
        argv: Vec<String>,
        env: BTreeMap<String, String>,
        log: PathBuf,
    },
    Kill {
        pid: i32,
        signal: i32,
    },
}

/// Messages are lines; two threads write them.
static ANSWERS: Mutex<()> = Mutex::new(());

fn answer(value: &serde_json::Value) {
    let _guard = ANSWERS.lock();
    let mut out = io::stdout().lock();
    // The test may have ended; then no process reads, and the end of input follows at once.
    let _ = writeln!(out, "{value}").and_then(|()| out.flush());
}

fn main() -> ExitCode {
    if let Err(why) = prepare() {
        answer(&json!({ "failed": why }));
        return ExitCode::FAILURE;
    }
    answer(&json!({ "started": std::process::id() }));
    thread::spawn(reap);
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(order) => obey(order),
            Err(e) => answer(&json!({ "failed": format!("not an order: {e}: {line}") })),
        }
    }
    ExitCode::SUCCESS
}

/// The namespaces are new: changes here are invisible outside.
fn prepare() -> Result<(), String> {
    mount(c"tmpfs", "/run", c"tmpfs", MountFlags::empty(), None)
        .map_err(|e| format!("tmpfs on /run: {e}"))?;
    let status = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status()
        .map_err(|e| format!("ip: {e}"))?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| format!("ip link set lo up: {status}"))
}

fn obey(order: Order) {
    match order {
        Order::Run { argv, env, log } => match run(&argv, &env, &log) {
            Ok(pid) => answer(&json!({ "started": pid })),
            Err(e) => answer(&json!({ "failed": format!("{argv:?}: {e}") })),
        },
        Order::Kill { pid, signal } => {
            if let (Some(pid), Some(signal)) = (Pid::from_raw(pid), Signal::from_named_raw(signal))
            {
                // A process that has ended is fine.
                let _ = kill_process(pid, signal);
            }
            answer(&json!({ "killed": pid }));
        }
    }
}

fn run(argv: &[String], env: &BTreeMap<String, String>, log: &PathBuf) -> io::Result<u32> {
    let (program, args) = argv
        .split_first()
        .ok_or_else(|| io::Error::other("an empty argv"))?;
    let out = OpenOptions::new().create(true).append(true).open(log)?;
    let child = Command::new(program)
        .args(args)
        .envs(env)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        // Its own group: a signal to the daemon's group must not reach its neighbors.
        .process_group(0)
        .spawn()?;
    // `reap` reaps it, like all children.
    Ok(child.id())
}

/// Reports the end of every child, including the orphans of pid 1.
fn reap() {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => answer(&json!({
                "exited": { "pid": pid.as_raw_nonzero().get(), "status": status.as_raw() }
            })),
            Ok(None) | Err(Errno::INTR) => {}
            // No child at the moment; one may start at any time.
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}
