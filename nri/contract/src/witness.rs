//! A plugin that the runtime launches, so that it is connected before the runtime answers any call.
//! It writes its events to a file. It is this program, started by a script in the runtime's plugin
//! directory.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use nri::{Handlers, mask::event_name, proto::*, stub::Stub};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    points::restarts,
    stage::{Run, Stage, eventually},
};
use testkit::verdict::{Checked, done, miss, skip};

/// With the path of the file, makes this program the plugin.
pub(crate) const FLAG: &str = "--launched";
/// The last index, so that it is called last.
const INDEX: &str = "99";

/// Serves as the plugin until the runtime ends it.
pub(crate) async fn serve(notes: PathBuf) -> ExitCode {
    let note = move |line: &str| {
        let opened = OpenOptions::new().append(true).create(true).open(&notes);
        // One write, so that readers see complete lines.
        let _ = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    };
    note(&format!("begins {}", std::process::id()));
    match Stub::builder(handlers(Arc::new(note))).run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn handlers(note: Arc<dyn Fn(&str) + Send + Sync>) -> Handlers {
    let own = note.clone();
    let mut handlers = Handlers::new().synchronize(move |pods, containers| {
        for pod in &pods {
            own(&format!("listed {}", pod.name));
        }
        for container in containers {
            let pod = pods.iter().find(|pod| pod.id == container.pod_sandbox_id);
            let pod = pod.map_or("", |pod| &pod.name);
            own(&format!("listed {pod}/{}", container.name));
        }
        own("synchronised");
        async { Ok(Vec::new()) }
    });
    macro_rules! of_pod {
        ($event:ident, $method:ident) => {
            let own = note.clone();
            handlers = handlers.$method(move |pod| {
                own(&format!("{} {}", event_name(Event::$event), pod.name));
                async { Ok(()) }
            });
        };
    }
    macro_rules! of_container {
        ($event:ident, $method:ident, $answer:expr) => {
            let own = note.clone();
            handlers = handlers.$method(move |pod, container| {
                let event = event_name(Event::$event);
                own(&format!("{event} {}/{}", pod.name, container.name));
                async { Ok($answer) }
            });
        };
    }
    of_pod!(RunPodSandbox, run_pod_sandbox);
    of_pod!(StopPodSandbox, stop_pod_sandbox);
    of_pod!(RemovePodSandbox, remove_pod_sandbox);
    of_container!(CreateContainer, create_container, (None, Vec::new()));
    of_container!(StartContainer, start_container, ());
    of_container!(StopContainer, stop_container, Vec::new());
    of_container!(RemoveContainer, remove_container, ());
    handlers
}

/// The suite's view of the plugin.
pub(crate) struct Witness {
    id: String,
    notes: PathBuf,
    prefix: String,
}

/// The events of one life: from a start of the runtime to its end.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub pid: u32,
    /// The pods and containers of its Synchronize, `p` or `p/c`.
    pub listed: Vec<String>,
    pub events: Vec<String>,
    pub synchronised: bool,
}

fn script(run: &Run) -> Option<PathBuf> {
    let dir = run.plugin_dir.as_ref()?;
    Some(dir.join(format!("{INDEX}-{}-witness", run.id)))
}

/// Removes the script at the end of the run.
pub(crate) fn leave(run: &Run) {
    if let Some(script) = script(run) {
        let _ = fs::remove_file(script);
    }
}

impl Witness {
    /// Returns the launched plugin. The first use installs the script and restarts the runtime; the
    /// plugin then stays until the end of the run.
    pub(crate) async fn of(s: &Stage) -> Checked<Self> {
        let Some(script) = script(&s.run) else {
            return skip("the directory of plugins that the runtime launches (--plugin-dir)");
        };
        let witness = Self {
            id: format!("{INDEX}-{}-witness", s.run.id),
            notes: s.run.scratch.join("witness"),
            prefix: s.journal.prefix.clone(),
        };
        if !script.exists() {
            restarts::command(s)?;
            let written = write_script(&script, &witness.notes);
            done("a plugin can be put into the runtime's directory", written)?;
            restarts::restart(s).await?;
        }
        witness
            .life_that("the launched plugin is synchronised", |life| {
                life.synchronised
            })
            .await?;
        Ok(witness)
    }

    /// Returns index and name, as the runtime uses them.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Kills the plugin, as in a crash.
    pub(crate) fn kill(&self, life: &Life) -> Checked {
        // Kill only a process of this plugin, even if the file has a wrong pid.
        let line = fs::read(format!("/proc/{}/cmdline", life.pid)).unwrap_or_default();
        let own = String::from_utf8_lossy(&line).contains(FLAG);
        let pid = i32::try_from(life.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|_| own) else {
            return miss("the launched plugin runs", format!("{life:?}"));
        };
        let killed = kill_process(pid, Signal::KILL).map_err(Into::into);
        done("the launched plugin can be killed", killed)
    }

    /// Returns all lives, with the events of the point's own pods.
    pub(crate) fn lives(&self) -> Vec<Life> {
        let mut lives: Vec<Life> = Vec::new();
        for line in fs::read_to_string(&self.notes).unwrap_or_default().lines() {
            match (line.split_once(' '), lives.last_mut()) {
                (Some(("begins", pid)), _) => lives.push(Life {
                    pid: pid.parse().unwrap_or_default(),
                    ..Life::default()
                }),
                (None, Some(life)) => life.synchronised = true,
                (Some((what, of)), Some(life)) => {
                    let Some(of) = of.strip_prefix(&self.prefix) else {
                        continue;
                    };
                    match what {
                        "listed" => life.listed.push(of.to_owned()),
                        event => life.events.push(format!("{event} {of}")),
                    }
                }
                (_, None) => {}
            }
        }
        lives
    }

    pub(crate) fn last_life(&self) -> Life {
        self.lives().pop().unwrap_or_default()
    }

    /// Waits until the last life satisfies `is`.
    pub(crate) async fn life_that(&self, what: &str, is: impl Fn(&Life) -> bool) -> Checked<Life> {
        eventually(what, || async {
            let life = self.last_life();
            if is(&life) {
                Ok(life)
            } else {
                Err(format!("{life:?}"))
            }
        })
        .await
    }
}

fn write_script(script: &Path, notes: &Path) -> std::io::Result<()> {
    let own = std::env::current_exe()?;
    let text = format!(
        "#!/bin/sh\nexec '{}' {FLAG} '{}'\n",
        own.display(),
        notes.display()
    );
    // Rename it when it is complete: the runtime may read the directory at any moment.
    let draft = notes.with_extension("script");
    fs::write(&draft, text)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
    fs::copy(&draft, script).map(drop)
}
