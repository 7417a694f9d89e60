//! Admission: what a request meets, given where the pod and the container are and what is
//! under way. Pure: a table with names, no I/O, no clock.

use super::record::{ContainerPhase, PodPhase};

/// What the driver has under way for the pod as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodWork {
    pub updating: bool,
    pub stopping: bool,
    pub removing: bool,
}

/// What is done to a container; one of them at a time, but for the exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Create,
    Start,
    Stop,
    Update,
    Remove,
    /// Its exit is being recorded and told to plugins.
    Exit,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Run the step now.
    Run,
    /// Nothing is to be done: it is so already.
    Done,
    /// The same is under way: share its result.
    Join,
    /// Share the result of the stop under way, with the shorter of both deadlines.
    Shorten,
    /// Ask again when the step under way has ended.
    Wait,
    /// As `Wait`, and cut the grace period under way to nothing.
    CutShort,
    /// `FAILED_PRECONDITION` with this reason.
    Deny(&'static str),
}

use Decision::{CutShort, Deny, Done, Join, Run, Shorten, Wait};

/// May a container be created in this pod?
pub fn create(pod: PodPhase, work: PodWork) -> Decision {
    match pod {
        PodPhase::Creating => Deny("the sandbox is still being created"),
        PodPhase::NotReady => Deny("the sandbox is not ready"),
        PodPhase::Ready if work.removing => Deny("the sandbox is being removed"),
        PodPhase::Ready if work.stopping => Deny("the sandbox is being stopped"),
        PodPhase::Ready => Run,
    }
}

/// StopPodSandbox. `stopped` is whether a stop has completed before.
pub fn stop_pod(stopped: bool, work: PodWork) -> Decision {
    match () {
        () if work.stopping => Join,
        () if stopped => Done,
        () if work.updating => Wait,
        () => Run,
    }
}

/// RemovePodSandbox. The end of a pod ends its driver with all steps: none may be under way then.
pub fn remove_pod(work: PodWork) -> Decision {
    match () {
        () if work.removing => Join,
        () if work.updating => Wait,
        () => Run,
    }
}

/// UpdatePodSandboxResources.
pub fn update_pod(pod: PodPhase, work: PodWork) -> Decision {
    match pod {
        PodPhase::Creating => Deny("the sandbox is still being created"),
        PodPhase::NotReady => Deny("the sandbox is not ready"),
        PodPhase::Ready if work.stopping || work.removing => Deny("the sandbox is being stopped"),
        PodPhase::Ready if work.updating => Wait,
        PodPhase::Ready => Run,
    }
}

/// A request to one container of the pod.
pub fn container(
    pod: PodPhase,
    work: PodWork,
    phase: ContainerPhase,
    step: Option<Verb>,
    ask: Verb,
) -> Decision {
    match ask {
        Verb::Create => Deny("the container is there already"),
        Verb::Start => start(pod, work, phase, step),
        Verb::Stop => stop(phase, step),
        Verb::Update => update(phase, step),
        Verb::Remove => remove(step),
        Verb::Exit => exited(phase, step),
    }
}

fn start(pod: PodPhase, work: PodWork, phase: ContainerPhase, step: Option<Verb>) -> Decision {
    if pod != PodPhase::Ready || work.stopping || work.removing {
        return Deny("the sandbox is not ready");
    }
    match (phase, step) {
        (ContainerPhase::Creating, _) => Deny("the container is still being created"),
        (_, Some(Verb::Remove)) => Deny("the container is being removed"),
        (ContainerPhase::Created, Some(Verb::Start)) => Join,
        (ContainerPhase::Created, Some(_)) => Wait,
        (ContainerPhase::Created, None) => Run,
        (ContainerPhase::Running, _) => Deny("the container is running already"),
        (ContainerPhase::Exited, _) => Deny("the container has exited; it is never started again"),
        (ContainerPhase::Unknown, _) => Deny("the state of the container is unknown"),
    }
}

fn stop(phase: ContainerPhase, step: Option<Verb>) -> Decision {
    match (phase, step) {
        (_, Some(Verb::Stop)) => Shorten,
        (_, Some(Verb::Remove)) => Wait,
        (ContainerPhase::Created | ContainerPhase::Exited, None) => Done,
        (_, Some(_)) => Wait,
        (ContainerPhase::Running | ContainerPhase::Unknown | ContainerPhase::Creating, None) => Run,
    }
}

fn update(phase: ContainerPhase, step: Option<Verb>) -> Decision {
    match (phase, step) {
        (ContainerPhase::Creating, _) => Deny("the container is still being created"),
        (ContainerPhase::Exited, _) => Deny("the container has exited"),
        (ContainerPhase::Unknown, _) => Deny("the state of the container is unknown"),
        (_, Some(Verb::Stop | Verb::Exit)) => Deny("the container is being stopped"),
        (_, Some(Verb::Remove)) => Deny("the container is being removed"),
        (_, Some(_)) => Wait,
        (ContainerPhase::Created | ContainerPhase::Running, None) => Run,
    }
}

fn remove(step: Option<Verb>) -> Decision {
    match step {
        None => Run,
        Some(Verb::Remove) => Join,
        Some(Verb::Stop) => CutShort,
        Some(Verb::Create | Verb::Start | Verb::Update | Verb::Exit) => Wait,
    }
}

/// An exit overtakes a grace period, an update and a removal, which waits for it; it waits for a start that has not yet
/// said what became of the process.
fn exited(phase: ContainerPhase, step: Option<Verb>) -> Decision {
    match (phase, step) {
        (ContainerPhase::Exited, _) => Done,
        (_, Some(Verb::Start | Verb::Create)) => Wait,
        (_, Some(Verb::Exit)) => Join,
        _ => Run,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDLE: PodWork = PodWork {
        updating: false,
        stopping: false,
        removing: false,
    };

    fn ask(phase: ContainerPhase, step: Option<Verb>, ask: Verb) -> Decision {
        container(PodPhase::Ready, IDLE, phase, step, ask)
    }

    #[test]
    fn a_container_starts_once() {
        use ContainerPhase::*;
        assert_eq!(ask(Created, None, Verb::Start), Run);
        assert_eq!(ask(Created, Some(Verb::Start), Verb::Start), Join);
        assert!(matches!(ask(Running, None, Verb::Start), Deny(_)));
        assert!(matches!(ask(Exited, None, Verb::Start), Deny(_)));
    }

    #[test]
    fn stop_of_what_does_not_run_is_done() {
        assert_eq!(ask(ContainerPhase::Created, None, Verb::Stop), Done);
        assert_eq!(ask(ContainerPhase::Exited, None, Verb::Stop), Done);
    }

    #[test]
    fn a_second_stop_shortens_the_first() {
        assert_eq!(
            ask(ContainerPhase::Running, Some(Verb::Stop), Verb::Stop),
            Shorten
        );
    }

    #[test]
    fn remove_overtakes_a_grace_period() {
        assert_eq!(
            ask(ContainerPhase::Running, Some(Verb::Stop), Verb::Remove),
            CutShort
        );
    }

    #[test]
    fn an_exit_does_not_wait_for_the_removal_that_waits_for_it() {
        let removed = ask(ContainerPhase::Running, Some(Verb::Remove), Verb::Exit);
        assert_eq!(removed, Run);
    }

    #[test]
    fn an_exit_overtakes_a_grace_period() {
        assert_eq!(
            ask(ContainerPhase::Running, Some(Verb::Stop), Verb::Exit),
            Run
        );
    }

    #[test]
    fn a_stopping_pod_takes_no_new_container_and_starts_none() {
        let stopping = PodWork {
            stopping: true,
            ..IDLE
        };
        assert!(matches!(create(PodPhase::Ready, stopping), Deny(_)));
        let start = container(
            PodPhase::Ready,
            stopping,
            ContainerPhase::Created,
            None,
            Verb::Start,
        );
        assert!(matches!(start, Deny(_)));
    }

    #[test]
    fn a_stopped_pod_stays_stopped() {
        assert_eq!(stop_pod(true, IDLE), Done);
        assert!(matches!(create(PodPhase::NotReady, IDLE), Deny(_)));
        assert!(matches!(update_pod(PodPhase::NotReady, IDLE), Deny(_)));
    }

    #[test]
    fn what_is_asked_of_a_pod_meets_what_is_under_way() {
        let of = |change: fn(&mut PodWork)| {
            let mut work = IDLE;
            change(&mut work);
            work
        };
        let updating = of(|work| work.updating = true);
        let stopping = of(|work| work.stopping = true);
        let removing = of(|work| work.removing = true);
        let ready = PodPhase::Ready;

        assert_eq!(create(ready, IDLE), Run);
        assert_eq!(create(ready, updating), Run);
        assert_eq!(
            create(ready, stopping),
            Deny("the sandbox is being stopped")
        );
        assert_eq!(
            create(ready, removing),
            Deny("the sandbox is being removed")
        );

        assert_eq!(update_pod(ready, IDLE), Run);
        assert_eq!(update_pod(ready, updating), Wait);
        for ending in [stopping, removing] {
            assert_eq!(
                update_pod(ready, ending),
                Deny("the sandbox is being stopped")
            );
        }

        assert_eq!(stop_pod(false, IDLE), Run);
        assert_eq!(stop_pod(false, updating), Wait);
        assert_eq!(remove_pod(updating), Wait);
        for stopped in [false, true] {
            assert_eq!(stop_pod(stopped, stopping), Join);
        }
        assert_eq!(remove_pod(IDLE), Run);
        assert_eq!(remove_pod(removing), Join);
    }

    #[test]
    fn an_exit_is_taken_once_and_not_before_the_start_has_said_what_came_of_it() {
        use ContainerPhase::*;
        for step in [None, Some(Verb::Stop), Some(Verb::Exit), Some(Verb::Start)] {
            assert_eq!(ask(Exited, step, Verb::Exit), Done);
        }
        for step in [Verb::Create, Verb::Start] {
            assert_eq!(ask(Created, Some(step), Verb::Exit), Wait);
        }
        assert_eq!(ask(Running, Some(Verb::Exit), Verb::Exit), Join);
        assert_eq!(ask(Running, Some(Verb::Update), Verb::Exit), Run);
        assert_eq!(ask(Running, None, Verb::Exit), Run);
    }

    fn phases() -> impl Strategy<Value = ContainerPhase> {
        prop_oneof![
            Just(ContainerPhase::Creating),
            Just(ContainerPhase::Created),
            Just(ContainerPhase::Running),
            Just(ContainerPhase::Exited),
            Just(ContainerPhase::Unknown),
        ]
    }

    fn steps() -> impl Strategy<Value = Option<Verb>> {
        prop::option::of(prop_oneof![
            Just(Verb::Create),
            Just(Verb::Start),
            Just(Verb::Stop),
            Just(Verb::Update),
            Just(Verb::Remove),
            Just(Verb::Exit),
        ])
    }

    fn asks() -> impl Strategy<Value = Verb> {
        prop_oneof![
            Just(Verb::Start),
            Just(Verb::Stop),
            Just(Verb::Update),
            Just(Verb::Remove),
            Just(Verb::Exit),
        ]
    }

    proptest! {
        #[test]
        fn nothing_waits_for_a_step_that_is_not_there(phase in phases(), what in asks()) {
            prop_assert!(!matches!(ask(phase, None, what), Wait | CutShort | Join | Shorten));
        }

        #[test]
        fn remove_is_never_refused(phase in phases(), step in steps()) {
            prop_assert!(!matches!(ask(phase, step, Verb::Remove), Deny(_) | Done));
        }

        #[test]
        fn two_steps_run_at_once_only_where_an_exit_overtakes(
            phase in phases(), step in steps(), what in asks()
        ) {
            if step.is_some() && ask(phase, step, what) == Run {
                prop_assert_eq!(what, Verb::Exit);
            }
        }
    }
}
