//! Namespaces owned by a user namespace, made by a short single-threaded process: the kernel lets
//! no thread of a larger process unshare its user namespace.
//!
//! ```text
//!   daemon                                  helper (`cairn sandbox`)
//!   spec as one line of JSON  ───────────►  unshare(user)
//!   write uid_map, gid_map    ◄──"made"───
//!   "mapped"                  ───────────►  become its root; unshare(net, ipc, uts);
//!                                           hostname, lo, sysctls
//!   bind-mount /proc/<pid>/ns ◄──"ready"──
//!   close stdin, reap         ───────────►  exit
//! ```
//! Any other word is the helper's error, in one line.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use rustix::process::DumpableBehavior;
use rustix::thread::UnshareFlags;

use super::error::NamespaceError;
use super::make;
use super::spec::{IdMap, Mappings, PinSpec};

/// Limit of a spec or an answer.
const LINE_MAX: u64 = 1 << 20;

/// The program that runs [`helper_main`], with all its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelperCommand {
    pub program: PathBuf,
    pub args: Vec<OsString>,
}

/// Makes the namespaces by the helper, and pins them while it lives.
pub(super) fn pin_by_process(
    spec: &PinSpec,
    mappings: &Mappings,
    dir: &Path,
    helper: &HelperCommand,
) -> Result<(), NamespaceError> {
    let mut process = make_and_map(spec, mappings, helper)?;
    process.send("mapped")?;
    process.expect("ready")?;
    make::bind_all(spec, &process.namespaces(), dir)
}

/// Makes a user namespace that lasts as long as the descriptor. Takes the start time of `helper`.
pub fn user_namespace(
    mappings: &Mappings,
    helper: &HelperCommand,
) -> Result<OwnedFd, NamespaceError> {
    let spec = PinSpec {
        userns: Some(mappings.clone()),
        ..PinSpec::default()
    };
    spec.validate()?;
    let process = make_and_map(&spec, mappings, helper)?;
    let namespace = File::open(process.namespaces().join("user"));
    let namespace = namespace.map_err(NamespaceError::io("open the user namespace"))?;
    Ok(namespace.into())
}

fn make_and_map(
    spec: &PinSpec,
    mappings: &Mappings,
    helper: &HelperCommand,
) -> Result<Process, NamespaceError> {
    let mut process = Process::start(helper)?;
    let line = serde_json::to_string(spec).map_err(|e| NamespaceError::Helper(e.to_string()))?;
    process.send(&line)?;
    process.expect("made")?;
    let proc_dir = PathBuf::from(format!("/proc/{}", process.child.id()));
    for (file, ranges) in [("uid_map", &mappings.uids), ("gid_map", &mappings.gids)] {
        let path = proc_dir.join(file);
        fs::write(&path, map_lines(ranges))
            .map_err(NamespaceError::io(format!("write {file} of the sandbox")))?;
    }
    Ok(process)
}

fn map_lines(ranges: &[IdMap]) -> String {
    ranges
        .iter()
        .map(|r| format!("{} {} {}\n", r.container, r.host, r.size))
        .collect()
}

/// The helper process; killed and reaped when dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn namespaces(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns", self.child.id()))
    }

    fn start(helper: &HelperCommand) -> Result<Self, NamespaceError> {
        let step = || format!("start {}", helper.program.display());
        let mut child = Command::new(&helper.program)
            .args(&helper.args)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(NamespaceError::io(step()))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Self {
                child,
                input,
                output: BufReader::new(output),
            }),
            _ => Err(NamespaceError::Helper("started without pipes".into())),
        }
    }

    fn send(&mut self, line: &str) -> Result<(), NamespaceError> {
        writeln!(self.input, "{line}").map_err(NamespaceError::io("write to the sandbox helper"))
    }

    fn expect(&mut self, word: &str) -> Result<(), NamespaceError> {
        let answer = read_line(&mut self.output)
            .map_err(NamespaceError::io("read from the sandbox helper"))?;
        if answer == word {
            return Ok(());
        }
        let reason = if answer.is_empty() {
            "ended without an answer".to_owned()
        } else {
            answer
        };
        Err(NamespaceError::Helper(reason))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The helper owns only the namespaces, which are pinned or unneeded now. It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the helper, by the protocol above. Call it first in `main`, before any thread starts.
pub fn helper_main() -> ExitCode {
    let mut input = BufReader::new(io::stdin());
    let mut output = io::stdout();
    match helper_steps(&mut input, &mut output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a daemon there is no other reader.
            let _ = writeln!(output, "{}", error.to_string().replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn helper_steps(input: &mut impl BufRead, output: &mut impl Write) -> Result<(), NamespaceError> {
    let mut answer = |word: &str| {
        writeln!(output, "{word}")
            .and_then(|()| output.flush())
            .map_err(NamespaceError::io("answer the daemon"))
    };
    let line = read_line(input).map_err(NamespaceError::io("read the request"))?;
    let spec: PinSpec = serde_json::from_str(&line)
        .map_err(|e| NamespaceError::Invalid(format!("unreadable request: {e}")))?;
    spec.validate()?;
    // A container with the host's user 0 that sees this process would have every capability over it
    // in its new user namespace; its root is the host's.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(NamespaceError::io("forbid dumps"))?;
    let unshare = |flags| make::unshare(flags).map_err(NamespaceError::io("unshare"));
    unshare(UnshareFlags::NEWUSER)?;
    answer("made")?;
    if read_line(input).map_err(NamespaceError::io("wait for the mappings"))? != "mapped" {
        return Err(NamespaceError::Helper(
            "the daemon closed the connection".into(),
        ));
    }
    become_root()?;
    // As its root, since message queues belong to the creator of their namespace.
    unshare(spec.flags())?;
    make::prepare(&spec)?;
    answer("ready")?;
    // The namespaces must live until the daemon has pinned them and closes the pipe.
    read_line(input)
        .map(drop)
        .map_err(NamespaceError::io("wait for the daemon"))
}

/// The namespace's root alone may write its IPC parameters, whatever capabilities another user has.
fn become_root() -> Result<(), NamespaceError> {
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    use rustix::{fs::Gid, fs::Uid};
    set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT))
        .and_then(|()| set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT))
        .map_err(NamespaceError::io("become root of the user namespace"))
}

fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.take(LINE_MAX).read_line(&mut line)?;
    line.truncate(line.trim_end_matches('\n').len());
    Ok(line)
}
