//! The books: acknowledged calls on each pod and container, and the states that they permit.
//!
//! ```text
//! asked ─► made ─► (container: starting ─► started) ─► stopping ─► stopped ─► removing ─► gone
//! ```
//! An `-ing` stage has an unacknowledged call: both neighbors may be listed.

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

use cairn_tests::cri::{self, ContainerState, PodSandboxState};

use crate::{
    calls::{Link, Subject},
    weather::Cause,
};

/// The program of a container, which decides how it can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Writes numbered lines until it is stopped, then exits 0.
    Counter,
    /// Writes this many lines, lives a little, and exits with the code.
    Mortal { lines: u64, code: i32 },
    /// Ignores SIGTERM, as do its children.
    Deaf,
}

impl Program {
    pub(crate) fn script(self, name: &str) -> String {
        match self {
            Self::Counter => format!(
                "trap 'exit 0' TERM; i=0; while :; do echo $i; echo $i >/dev/shm/{name}.new; \
                 mv /dev/shm/{name}.new /dev/shm/{name}; i=$((i+1)); sleep 0.3 & wait $!; done"
            ),
            Self::Mortal { lines, code } => format!(
                "i=0; while [ $i -lt {lines} ]; do echo $i; i=$((i+1)); done; sleep 0.2; exit {code}"
            ),
            Self::Deaf => "trap '' TERM; sleep 100000 & while :; do sleep 1000; done".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Its creation was requested and not acknowledged.
    Asked,
    Made,
    /// Containers only.
    Starting,
    Started,
    /// Containers only: StartContainer failed.
    NotStarted,
    Stopping,
    Stopped,
    Removing,
}

/// The first reported end of a container; it never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) code: i32,
    pub(crate) reason: String,
    pub(crate) at: i64,
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) program: Program,
    pub(crate) image: String,
    pub(crate) stage: Stage,
    pub(crate) log: PathBuf,
    pub(crate) subject: Subject,
    pub(crate) ending: Option<Ending>,
    /// Time of the first request of its start, and of the acknowledgement.
    pub(crate) start: Option<(Instant, Option<Instant>)>,
    /// The number of lines that a client has seen.
    pub(crate) acknowledged: u64,
    /// Number of its log's rotations.
    pub(crate) rotations: u32,
    /// The complete log was read and is correct.
    pub(crate) log_checked: bool,
}

#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) config: cri::PodSandboxConfig,
    pub(crate) stage: Stage,
    pub(crate) subject: Subject,
    pub(crate) containers: Vec<Container>,
    /// Time of its acknowledged or observed creation.
    pub(crate) made: Option<Instant>,
    /// Its creation failed with an incomplete undo: completing the undo may remove it.
    pub(crate) failed: bool,
}

/// Makes the subject of a new object.
pub(crate) fn subject(link: &Link, name: &str) -> Subject {
    Subject {
        name: name.to_owned(),
        ids: HashSet::new(),
        born: Instant::now(),
        history: Arc::new(link.report.history()),
    }
}

impl Subject {
    /// Whether its record, or its pod's, is torn: until its repair, its state shows nothing.
    fn is_held(&self, link: &Link) -> bool {
        let torn = |cause: &Cause| matches!(cause, Cause::Torn { id, .. } if self.ids.contains(id));
        link.weather.now(torn)
    }
}

impl Pod {
    pub(crate) fn identify(&mut self, link: &Link, id: &str) {
        link.weather.report(id);
        self.id = Some(id.to_owned());
        self.subject.ids.insert(id.to_owned());
        for container in &mut self.containers {
            container.subject.ids.insert(id.to_owned());
        }
    }

    /// Whether a known fault explains its unrequested end.
    fn lost(&self, link: &Link) -> bool {
        // As with a container, the `cairn-create` that was hit may have become the pause meanwhile.
        let made = self.made.unwrap_or_else(Instant::now);
        let create = |cause: &Cause| *cause == Cause::Create;
        let hit_as_create = link.weather.between(self.subject.born, made, create);
        hit_as_create
            || link.weather.since(self.subject.born, |cause| match cause {
                Cause::Reboot => true,
                Cause::MonitorKilled(id) | Cause::MonitorHeld(id) => self.id.as_ref() == Some(id),
                _ => false,
            })
    }

    /// Whether new containers are expected to work in it.
    pub(crate) fn serves(&self, link: &Link) -> bool {
        self.stage == Stage::Made && !self.lost(link)
    }

    /// Checks that the state in a list or status is legal. `None` means that the pod is missing.
    pub(crate) fn check(&self, link: &Link, seen: Option<PodSandboxState>) -> Result<(), String> {
        if self.subject.is_held(link) {
            return Ok(());
        }
        let Some(state) = seen else {
            let may = self.failed || matches!(self.stage, Stage::Asked | Stage::Removing);
            return may
                .then_some(())
                .ok_or_else(|| format!("the pod is gone; it is {:?} in the books", self.stage));
        };
        let ready = state == PodSandboxState::SandboxReady;
        let legal = match self.stage {
            Stage::Made => ready || self.lost(link),
            Stage::Stopped => !ready,
            _ => true,
        };
        legal.then_some(()).ok_or_else(|| {
            format!(
                "the pod is {}; it is {:?} in the books",
                state.as_str_name(),
                self.stage
            )
        })
    }
}

impl Container {
    pub(crate) fn identify(&mut self, link: &Link, id: &str) {
        link.weather.report(id);
        self.id = Some(id.to_owned());
        self.subject.ids.insert(id.to_owned());
    }

    /// Whether a known fault explains an unrequested end, which does not show the program's result.
    pub(crate) fn lost(&self, link: &Link) -> bool {
        // The `cairn-create` that was hit became the program: the process survives execve.
        let hit_as_create = self.start.is_some_and(|(asked, reported)| {
            let reported = reported.unwrap_or_else(Instant::now);
            let create = |cause: &Cause| *cause == Cause::Create;
            link.weather.between(asked, reported, create)
        });
        hit_as_create
            || link.weather.since(self.subject.born, |cause| match cause {
                Cause::Reboot => true,
                // By its own id or its pod's: the pause process ends its PID namespace.
                Cause::MonitorKilled(id) | Cause::MonitorHeld(id) => self.subject.ids.contains(id),
                _ => false,
            })
    }

    /// Whether it may count as never started in spite of a failed start: no process keeps that for
    /// the next daemon, and the disk was full. A later stop of its pod makes no difference.
    pub(crate) fn start_forgotten(&self, link: &Link) -> bool {
        let not_started = |ending: &Ending| ending.reason == "StartError";
        let (true, Some((asked, _))) = (self.ending.as_ref().is_some_and(not_started), self.start)
        else {
            return false;
        };
        let since = |is: fn(&Cause) -> bool| link.weather.since(asked, is);
        since(|c| *c == Cause::Scarce) && since(|c| matches!(c, Cause::Daemon | Cause::Reboot))
    }

    /// Whether an exec in it is expected to work.
    pub(crate) fn serves(&self, link: &Link) -> bool {
        self.stage == Stage::Started
            && !matches!(self.program, Program::Mortal { .. })
            && !self.lost(link)
    }

    /// Checks that the state in a list is legal. `None` means that the container is missing.
    pub(crate) fn check(&self, link: &Link, seen: Option<ContainerState>) -> Result<(), String> {
        use ContainerState::{
            ContainerCreated as Created, ContainerExited as Exited, ContainerRunning as Running,
            ContainerUnknown as Unknown,
        };
        if self.subject.is_held(link) {
            return Ok(());
        }
        let Some(state) = seen else {
            let may = matches!(self.stage, Stage::Asked | Stage::Removing);
            return may.then_some(()).ok_or_else(|| {
                format!("the container is gone; it is {:?} in the books", self.stage)
            });
        };
        let mortal = matches!(self.program, Program::Mortal { .. });
        let lost = self.lost(link);
        let legal = match (self.stage, state) {
            (_, Unknown) => lost,
            // Not acknowledged: all states of its neighbors.
            (Stage::Asked | Stage::Made, state) => state == Created,
            (Stage::Starting | Stage::Removing | Stage::Stopping, _) => true,
            (Stage::Started, state) => state == Running || (state == Exited && (mortal || lost)),
            (Stage::NotStarted, state) => state == Created || state == Exited,
            (Stage::Stopped, state) => state == Exited || state == Created,
        };
        let ended = self.ending.is_none()
            || state == Exited
            || state == Unknown && lost
            || state == Created && self.start_forgotten(link);
        (legal && ended).then_some(()).ok_or_else(|| {
            format!(
                "the container is {}; it is {:?} in the books, its end {:?}",
                state.as_str_name(),
                self.stage,
                self.ending
            )
        })
    }

    /// Records its end, which must be legal for its program and its calls, and final.
    pub(crate) fn ended(
        &mut self,
        link: &Link,
        status: &cri::ContainerStatus,
    ) -> Result<(), String> {
        let ending = Ending {
            code: status.exit_code,
            reason: status.reason.clone(),
            at: status.finished_at,
        };
        if let Some(before) = &self.ending {
            return (*before == ending)
                .then_some(())
                .ok_or_else(|| format!("its end was {before:?} and became {ending:?}"));
        }
        // Stops of its pod and removals stop it, too; the stage shows them.
        let told_to_end = self.stage >= Stage::Stopping;
        let by_program = match self.program {
            Program::Mortal { code, .. } => ending.code == code,
            Program::Counter => told_to_end && ending.code == 0,
            Program::Deaf => false,
        };
        let by_signal = told_to_end && matches!(ending.code, 137 | 143);
        let not_started = matches!(self.stage, Stage::Starting | Stage::NotStarted)
            || (told_to_end && ending.reason == "StartError");
        let lost = self.lost(link) && matches!(ending.code, 255 | 137 | 143);
        let legal = by_program || by_signal || not_started || lost;
        let reported = format!("its end is {ending:?}; it is {:?} in the books", self.stage);
        self.ending = Some(ending);
        legal.then_some(()).ok_or(reported)
    }
}

/// The objects in a list, by id, with names for those with unknown ids.
#[derive(Debug, Default)]
pub(crate) struct Listed<S> {
    pub(crate) by_id: BTreeMap<String, (String, S)>,
}

impl<S: Copy> Listed<S> {
    pub(crate) fn state(&self, id: &str) -> Option<S> {
        self.by_id.get(id).map(|(_, state)| *state)
    }
    /// Ids of the objects with this name.
    pub(crate) fn named(&self, name: &str) -> Vec<&String> {
        let with_name = self.by_id.iter().filter(|(_, (n, _))| n == name);
        with_name.map(|(id, _)| id).collect()
    }
}
