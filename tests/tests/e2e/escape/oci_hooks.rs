//! OCI hooks and first processes that never answer: a stop waits a few seconds for them, and nothing
//! of them is left.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use cairn_tests::{
    Daemon,
    container::Container,
    cri, look,
    plugin::Plugin,
    pod::{Pod, pod_namespaces, security},
    table, until,
};
use nri::{
    adjust::{Adjust, HookKind},
    proto::{ContainerAdjustment, Hook, Hooks},
};

/// The longest time of a stop, whatever hangs.
const STOPPED: Duration = Duration::from_secs(5);

/// All points, in their order.
const POINTS: [HookKind; 6] = [
    HookKind::Prestart,
    HookKind::CreateRuntime,
    HookKind::CreateContainer,
    HookKind::StartContainer,
    HookKind::Poststart,
    HookKind::Poststop,
];

/// The call that ends the container.
#[derive(Clone, Copy, Debug)]
enum End {
    Container,
    Pod,
}

/// The argument of the hook of a point, and of no other process.
fn mark(point: usize, end: End) -> String {
    format!("{}", 100_000 + 10 * point + end as usize)
}

/// Hooks that do not end: a process, and an orphan in a session of its own.
fn hanging(mark: &str) -> Hook {
    let script = "setsid sleep $0 & sleep $0; exit";
    Hook {
        path: "/bin/sh".to_owned(),
        args: ["sh", "-c", script, mark].map(str::to_owned).to_vec(),
        env: vec!["PATH=/usr/bin:/bin".to_owned()],
        ..Default::default()
    }
}

/// Whether the hook and its orphan run in the yard.
fn hangs(daemon: &Daemon, mark: &str) -> bool {
    let processes = fs::read_dir(daemon.yard.inside("/proc")).expect("procfs");
    let lines = processes.flatten();
    let lines = lines.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let sleeps = format!("sleep\0{mark}\0");
    lines.filter(|line| line == sleeps.as_bytes()).count() == 2
}

async fn stop(pod: &Pod, container: &Container, end: End) -> Duration {
    let begun = Instant::now();
    match end {
        End::Container => container.stop(Duration::ZERO).await.expect("StopContainer"),
        End::Pod => pod.stop().await.expect("StopPodSandbox"),
    }
    begun.elapsed()
}

/// One row of the table: the time of the stop.
async fn row(daemon: &Daemon, number: usize, end: End) -> Duration {
    let (point, mark) = (POINTS[number], mark(number, end));
    let pod = daemon.cri().pod(&format!("hook-{mark}")).await;
    let config = pod.cri.container_config("c", &["sleep", "1000"]);
    let container = pod.try_create(config).await.expect("CreateContainer");
    let starting = container.clone();
    let start = tokio::spawn(async move { starting.start().await });
    let is_last = matches!(point, HookKind::Poststop);
    let took = if is_last {
        start.await.expect("no panic").expect("StartContainer");
        stop(&pod, &container, end).await
    } else {
        until("the hook hangs", || async {
            hangs(daemon, &mark).then_some(())
        })
        .await;
        let took = stop(&pod, &container, end).await;
        let error = start.await.expect("no panic").expect_err("it was stopped");
        let why = "given up after 3 s, since the container is to end";
        assert!(error.message().contains(why), "{point:?}: {error}");
        took
    };
    assert_eq!(
        container.state().await,
        cri::ContainerState::ContainerExited
    );
    pod.end().await;
    took
}

/// The processes of the yard, by name.
fn processes(daemon: &Daemon) -> BTreeSet<String> {
    look::processes(daemon.yard.pid())
}

#[tokio::test]
async fn a_hook_of_any_point_that_hangs_holds_no_stop_and_leaves_no_process() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "hooks").await;
    plugin.adjusts(|pod, _| {
        let mark = pod.name.strip_prefix("hook-")?;
        let number: usize = mark.parse().ok()?;
        let mut adjustment = ContainerAdjustment::default();
        adjustment.add_hook(POINTS[(number - 100_000) / 10], hanging(mark));
        Some(adjustment)
    });
    let before = processes(&daemon);
    for (number, point) in POINTS.into_iter().enumerate() {
        let (alone, with_pod) = tokio::join!(
            row(&daemon, number, End::Container),
            row(&daemon, number, End::Pod)
        );
        table::cell(&format!(
            "hook that hangs: {point:?}: StopContainer {:.1} s, StopPodSandbox {:.1} s",
            alone.as_secs_f32(),
            with_pod.as_secs_f32(),
        ));
        assert!(alone.max(with_pod) <= STOPPED, "{point:?}");
        assert_eq!(processes(&daemon), before, "{point:?}");
    }
}

/// The container stops every process of the pod that it can reach, also those that are about to
/// execute their program.
#[tokio::test]
async fn a_neighbour_that_stops_a_first_process_before_its_program_holds_no_stop() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("shared");
    pod_namespaces(&mut config).pid = cri::NamespaceMode::Pod.into();
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let container = |name: &str, script: &str| {
        let mut config = pod.cri.container_config(name, &["/bin/sh", "-c", script]);
        let context = security(&mut config);
        context.run_as_user = Some(cri::Int64Value { value: 1000 });
        let options = context.namespace_options.as_mut().expect("set");
        options.pid = cri::NamespaceMode::Pod.into();
        config
    };
    let script = "while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; \
         [ $p = 1 ] || [ $p = $$ ] || kill -STOP $p; done 2>/dev/null; done";
    let attacker = pod.started(container("attacker", script)).await;
    let (mut held, mut longest, mut rounds) = (0, Duration::ZERO, 0);
    // Until the neighbour was quick enough; it is in half of the rounds.
    while held == 0 || rounds < 8 {
        assert!(rounds < 60, "no start was held");
        let round = rounds;
        rounds += 1;
        let config = container(&format!("victim-{round}"), "exec sleep 1000");
        let victim = pod.try_create(config).await.expect("CreateContainer");
        let starting = victim.clone();
        let mut start = tokio::spawn(async move { starting.start().await });
        // Far longer than a start.
        let started = tokio::time::timeout(Duration::from_secs(1), &mut start).await;
        held += usize::from(started.is_err());
        longest = longest.max(stop(&pod, &victim, End::Container).await);
        victim.remove().await.expect("RemoveContainer");
    }
    table::cell(&format!(
        "a neighbour that stops processes: {held} of {rounds} starts held, stopped within {:.1} s",
        longest.as_secs_f32()
    ));
    assert!(longest <= STOPPED, "{longest:?}");
    attacker.stop(Duration::ZERO).await.expect("StopContainer");
    pod.end().await;
}

#[tokio::test]
async fn a_container_that_was_stopped_before_its_start_has_all_the_time_that_its_hooks_need() {
    let daemon = Daemon::start().await;
    let hook = daemon.path("hook");
    fs::write(&hook, "#!/bin/sh\nexec sleep 4\n").expect("written");
    fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "slow").await;
    let path = hook.display().to_string();
    plugin.adjusts(move |_, _| {
        Some(ContainerAdjustment {
            hooks: Some(Hooks {
                create_runtime: vec![Hook {
                    path: path.clone(),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        })
    });
    let pod = daemon.cri().pod("slow").await;
    let config = pod.cri.container_config("c", &["sleep", "1000"]);
    let container = pod.try_create(config).await.expect("CreateContainer");
    container.stop(Duration::ZERO).await.expect("StopContainer");
    container.start().await.expect("StartContainer");
    pod.end().await;
}
