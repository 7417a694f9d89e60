//! Admission: decides about a request from the state of its pod and container and the running
//! steps. Pure: a table with names, no I/O, no clock.

use super::{
    op::{Look, Op},
    record::{ContainerPhase, PodPhase},
};

/// The running work of the driver on the pod itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodWork {
    /// What is left of it after a restart is not known yet.
    pub recovering: bool,
    pub updating: bool,
    pub stopping: bool,
    pub removing: bool,
}

/// The decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Run the step now.
    Run,
    /// The state is already as requested.
    Done,
    /// The same operation is running: share its result.
    Join,
    /// Share the result of the running stop, with the shorter of both deadlines.
    Shorten,
    /// Decide again when the running step has ended.
    Wait,
    /// As `Wait`, and end the running grace period at once.
    CutShort,
    /// The container does not exist.
    Absent,
    Deny(Denial),
}

/// The reason of a denial with `FAILED_PRECONDITION`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    #[error("the sandbox is still being created")]
    SandboxCreating,
    #[error("the sandbox is not ready")]
    SandboxNotReady,
    #[error("the sandbox is being stopped")]
    SandboxStopping,
    #[error("the sandbox is being removed")]
    SandboxRemoving,
    #[error("the container is still being created")]
    Creating,
    #[error("the container is running already")]
    Running,
    #[error("the container is being stopped")]
    Stopping,
    #[error("the container is being removed")]
    Removing,
    #[error("the container has exited")]
    Exited,
    #[error("the container has exited; it is never started again")]
    NeverAgain,
    #[error("the state of the container is unknown")]
    Unknown,
}

use Decision::{Absent, CutShort, Deny, Done, Join, Run, Shorten, Wait};

/// Decides about an operation on a pod. `stopped`: a stop of the pod has completed before.
/// `container`: the phase and the running step of the container that the operation is about.
pub fn decide(
    op: &Op,
    pod: PodPhase,
    stopped: bool,
    work: PodWork,
    container: Option<(ContainerPhase, Option<&Op>)>,
) -> Decision {
    match (op, container) {
        (Op::StopPod, _) => stop_pod(stopped, work),
        (Op::RemovePod, _) => remove_pod(work),
        (Op::UpdatePod(_), _) => update_pod(pod, work),
        (Op::RecoverPod, _) => Run,
        (Op::Create(_), _) => create(pod, work),
        (Op::Start, Some((phase, step))) => start(pod, work, phase, step),
        (Op::Stop { .. }, Some((phase, step))) => stop(phase, step),
        (Op::Update(_), Some((phase, step))) => update(phase, step),
        (Op::Remove, Some((_, step))) => remove(step),
        (Op::Exited(_), Some((phase, step))) => exited(phase, step),
        (Op::Recover(look), Some((phase, step))) => recover(*look, phase, step),
        (_, None) => Absent,
    }
}

/// CreateContainer with a free name.
fn create(pod: PodPhase, work: PodWork) -> Decision {
    match pod {
        PodPhase::Creating => Deny(Denial::SandboxCreating),
        PodPhase::NotReady => Deny(Denial::SandboxNotReady),
        PodPhase::Ready if work.removing => Deny(Denial::SandboxRemoving),
        PodPhase::Ready if work.stopping => Deny(Denial::SandboxStopping),
        PodPhase::Ready if work.recovering => Wait,
        PodPhase::Ready => Run,
    }
}

/// StopPodSandbox. `stopped`: a stop has completed before.
fn stop_pod(stopped: bool, work: PodWork) -> Decision {
    match work {
        PodWork { stopping: true, .. } => Join,
        _ if stopped => Done,
        PodWork { updating: true, .. } => Wait,
        _ => Run,
    }
}

/// RemovePodSandbox. No step may be running, because the driver ends with the pod.
fn remove_pod(work: PodWork) -> Decision {
    match work {
        PodWork { removing: true, .. } => Join,
        _ if work.updating || work.recovering => Wait,
        _ => Run,
    }
}

/// UpdatePodSandboxResources.
fn update_pod(pod: PodPhase, work: PodWork) -> Decision {
    match pod {
        PodPhase::Creating => Deny(Denial::SandboxCreating),
        PodPhase::NotReady => Deny(Denial::SandboxNotReady),
        PodPhase::Ready if work.stopping || work.removing => Deny(Denial::SandboxStopping),
        PodPhase::Ready if work.updating || work.recovering => Wait,
        PodPhase::Ready => Run,
    }
}

fn start(pod: PodPhase, work: PodWork, phase: ContainerPhase, step: Option<&Op>) -> Decision {
    if pod != PodPhase::Ready || work.stopping || work.removing {
        return Deny(Denial::SandboxNotReady);
    }
    match (phase, step) {
        (ContainerPhase::Creating, _) => Deny(Denial::Creating),
        (_, Some(Op::Remove)) => Deny(Denial::Removing),
        (ContainerPhase::Created, Some(Op::Start)) => Join,
        (ContainerPhase::Created, Some(_)) => Wait,
        (ContainerPhase::Created, None) if work.recovering => Wait,
        (ContainerPhase::Created, None) => Run,
        (ContainerPhase::Running, _) => Deny(Denial::Running),
        (ContainerPhase::Exited, _) => Deny(Denial::NeverAgain),
        (ContainerPhase::Unknown, _) => Deny(Denial::Unknown),
    }
}

fn stop(phase: ContainerPhase, step: Option<&Op>) -> Decision {
    match (phase, step) {
        (_, Some(Op::Stop { .. })) => Shorten,
        (_, Some(Op::Remove)) => Wait,
        (ContainerPhase::Created | ContainerPhase::Exited, None) => Done,
        (_, Some(_)) => Wait,
        (ContainerPhase::Running | ContainerPhase::Unknown | ContainerPhase::Creating, None) => Run,
    }
}

fn update(phase: ContainerPhase, step: Option<&Op>) -> Decision {
    match (phase, step) {
        (_, Some(Op::Recover(_))) => Wait,
        (ContainerPhase::Creating, _) => Deny(Denial::Creating),
        (ContainerPhase::Exited, _) => Deny(Denial::Exited),
        (ContainerPhase::Unknown, _) => Deny(Denial::Unknown),
        (_, Some(Op::Stop { .. } | Op::Exited(_))) => Deny(Denial::Stopping),
        (_, Some(Op::Remove)) => Deny(Denial::Removing),
        (_, Some(_)) => Wait,
        (ContainerPhase::Created | ContainerPhase::Running, None) => Run,
    }
}

fn remove(step: Option<&Op>) -> Decision {
    match step {
        None => Run,
        Some(Op::Remove) => Join,
        Some(Op::Stop { .. }) => CutShort,
        Some(_) => Wait,
    }
}

/// An exit waits for a running start or recovery, whose outcome is not known yet. It does not wait for a grace
/// period or an update, nor for a removal, which waits for the exit.
fn exited(phase: ContainerPhase, step: Option<&Op>) -> Decision {
    match (phase, step) {
        (ContainerPhase::Exited, _) => Done,
        (_, Some(Op::Start | Op::Create(_) | Op::Recover(_))) => Wait,
        (_, Some(Op::Exited(_))) => Join,
        _ => Run,
    }
}

fn recover(look: Look, phase: ContainerPhase, step: Option<&Op>) -> Decision {
    match (look, phase, step) {
        (_, _, Some(_)) => Wait,
        (Look::Again, ContainerPhase::Unknown, None) | (Look::First, _, None) => Run,
        (Look::Again, _, None) => Done,
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use proptest::prelude::*;

    use super::*;
    use crate::monitor::Ending;

    const STOP: Op = Op::Stop {
        grace: Duration::ZERO,
    };
    const EXIT: Op = Op::Exited(Ending::Lost);
    const RECOVERY: Op = Op::Recover(Look::First);

    const IDLE: PodWork = PodWork {
        recovering: false,
        updating: false,
        stopping: false,
        removing: false,
    };

    fn ask(phase: ContainerPhase, step: Option<Op>, op: Op) -> Decision {
        let container = Some((phase, step.as_ref()));
        decide(&op, PodPhase::Ready, false, IDLE, container)
    }

    #[test]
    fn a_container_starts_once() {
        use ContainerPhase::*;
        assert_eq!(ask(Created, None, Op::Start), Run);
        assert_eq!(ask(Created, Some(Op::Start), Op::Start), Join);
        assert!(matches!(ask(Running, None, Op::Start), Deny(_)));
        assert!(matches!(ask(Exited, None, Op::Start), Deny(_)));
    }

    #[test]
    fn stop_of_what_does_not_run_is_done() {
        assert_eq!(ask(ContainerPhase::Created, None, STOP), Done);
        assert_eq!(ask(ContainerPhase::Exited, None, STOP), Done);
    }

    #[test]
    fn a_second_stop_shortens_the_first() {
        assert_eq!(ask(ContainerPhase::Running, Some(STOP), STOP), Shorten);
    }

    #[test]
    fn remove_overtakes_a_grace_period() {
        assert_eq!(
            ask(ContainerPhase::Running, Some(STOP), Op::Remove),
            CutShort
        );
    }

    #[test]
    fn an_exit_does_not_wait_for_the_removal_that_waits_for_it() {
        let removed = ask(ContainerPhase::Running, Some(Op::Remove), EXIT);
        assert_eq!(removed, Run);
    }

    #[test]
    fn an_exit_overtakes_a_grace_period() {
        assert_eq!(ask(ContainerPhase::Running, Some(STOP), EXIT), Run);
    }

    #[test]
    fn a_stopping_pod_takes_no_new_container_and_starts_none() {
        let stopping = PodWork {
            stopping: true,
            ..IDLE
        };
        assert!(matches!(create(PodPhase::Ready, stopping), Deny(_)));
        let start = start(PodPhase::Ready, stopping, ContainerPhase::Created, None);
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
        let recovering = of(|work| work.recovering = true);
        let ready = PodPhase::Ready;

        assert_eq!(create(ready, IDLE), Run);
        assert_eq!(create(ready, updating), Run);
        assert_eq!(create(ready, stopping), Deny(Denial::SandboxStopping));
        assert_eq!(create(ready, removing), Deny(Denial::SandboxRemoving));

        assert_eq!(update_pod(ready, IDLE), Run);
        assert_eq!(update_pod(ready, updating), Wait);
        for ending in [stopping, removing] {
            assert_eq!(update_pod(ready, ending), Deny(Denial::SandboxStopping));
        }

        assert_eq!(stop_pod(false, IDLE), Run);
        assert_eq!(stop_pod(false, updating), Wait);
        assert_eq!(remove_pod(updating), Wait);
        for stopped in [false, true] {
            assert_eq!(stop_pod(stopped, stopping), Join);
        }
        assert_eq!(create(ready, recovering), Wait);
        assert_eq!(update_pod(ready, recovering), Wait);
        let created = ContainerPhase::Created;
        assert_eq!(start(ready, recovering, created, None), Wait);
        assert_eq!(stop_pod(false, recovering), Run);
        assert_eq!(remove_pod(recovering), Wait);
        assert_eq!(remove_pod(IDLE), Run);
        assert_eq!(remove_pod(removing), Join);
    }

    #[test]
    fn an_exit_is_taken_once_and_not_before_the_start_has_said_what_came_of_it() {
        use ContainerPhase::*;
        for step in [None, Some(STOP), Some(EXIT), Some(Op::Start)] {
            assert_eq!(ask(Exited, step, EXIT), Done);
        }
        for step in [Op::Create(Arc::default()), Op::Start, RECOVERY] {
            assert_eq!(ask(Created, Some(step), EXIT), Wait);
        }
        assert_eq!(ask(Running, Some(EXIT), EXIT), Join);
        assert_eq!(ask(Running, Some(Op::Update(Arc::default())), EXIT), Run);
        assert_eq!(ask(Running, None, EXIT), Run);
    }

    #[test]
    fn what_is_recovered_is_looked_at_once_more_only_while_it_is_unknown() {
        use ContainerPhase::*;
        let again = || Op::Recover(Look::Again);
        assert_eq!(ask(Unknown, None, again()), Run);
        assert_eq!(ask(Unknown, Some(STOP), again()), Wait);
        assert_eq!(ask(Exited, None, again()), Done);
        for phase in [Creating, Created, Running, Exited, Unknown] {
            assert_eq!(ask(phase, None, RECOVERY), Run);
        }
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

    fn steps() -> impl Strategy<Value = Option<Op>> {
        prop::option::of(prop_oneof![
            Just(Op::Create(Arc::default())),
            Just(Op::Start),
            Just(STOP),
            Just(Op::Update(Arc::default())),
            Just(Op::Remove),
            Just(EXIT),
            Just(RECOVERY),
        ])
    }

    fn asks() -> impl Strategy<Value = Op> {
        prop_oneof![
            Just(Op::Start),
            Just(STOP),
            Just(Op::Update(Arc::default())),
            Just(Op::Remove),
            Just(EXIT),
            Just(RECOVERY),
            Just(Op::Recover(Look::Again)),
        ]
    }

    #[test]
    fn an_operation_on_a_container_that_does_not_exist_meets_its_absence() {
        for op in [
            Op::Start,
            STOP,
            Op::Update(Arc::default()),
            Op::Remove,
            EXIT,
        ] {
            assert_eq!(decide(&op, PodPhase::Ready, false, IDLE, None), Absent);
        }
    }

    proptest! {
        #[test]
        fn nothing_waits_for_a_step_that_is_not_there(phase in phases(), what in asks()) {
            prop_assert!(!matches!(ask(phase, None, what), Wait | CutShort | Join | Shorten));
        }

        #[test]
        fn remove_is_never_refused(phase in phases(), step in steps()) {
            prop_assert!(!matches!(ask(phase, step, Op::Remove), Deny(_) | Done));
        }

        #[test]
        fn two_steps_run_at_once_only_where_an_exit_overtakes(
            phase in phases(), step in steps(), what in asks()
        ) {
            if step.is_some() && ask(phase, step, what.clone()) == Run {
                prop_assert!(matches!(what, Op::Exited(_)));
            }
        }
    }
}
