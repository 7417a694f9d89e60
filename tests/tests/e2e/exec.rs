//! ExecSync: CRI-139…141.

use std::time::{Duration, Instant};

use cairn_tests::{Daemon, container::Ran, cri, look};
use tonic::Code;

#[tokio::test]
async fn a_timed_out_exec_dies_with_all_its_descendants() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("timeout").await;
    let container = pod.sleeper("c").await;
    let before = look::cgroup_pids(daemon.cgroup_parent()).len();
    let start = Instant::now();
    // Descendants: one in a session of its own, one that ignores signals, one plain.
    let script = "setsid sleep 1001 & (trap '' TERM INT HUP; sleep 1002) & sleep 1003";
    let error = container
        .try_exec(&["sh", "-c", script], 1)
        .await
        .expect_err("it runs too long");
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    // The sleeps take more than a quarter of an hour.
    assert!(start.elapsed() < Duration::from_secs(120));
    cairn_tests::until("its processes have ended", || async {
        (look::cgroup_pids(daemon.cgroup_parent()).len() == before).then_some(())
    })
    .await;
    assert_eq!(
        container.exec(&["echo", "alive"]).await,
        "alive",
        "the container is left alone"
    );
    pod.end().await;
}

#[tokio::test]
async fn exec_does_not_wait_for_background_children() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("background").await;
    let container = pod.sleeper("c").await;
    let ran = container
        .try_exec(&["sh", "-c", "sleep 1234 & echo done"], 0)
        .await
        .expect("ExecSync");
    assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"));
    // The shell has another name until it executes the program.
    cairn_tests::until("its child runs on", || async {
        let left = container.exec(&["ps", "-o", "args"]).await;
        let left = left.lines().filter(|line| *line == "sleep 1234").count();
        (left == 1).then_some(())
    })
    .await;
    pod.end().await;
}

#[tokio::test]
async fn output_of_an_exec_is_capped_so_that_the_answer_fits_16_mib_and_drained() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("flood").await;
    let container = pod.sleeper("c").await;
    let mut runtime = pod.cri.client.runtime.clone();
    let request = cri::ExecSyncRequest {
        container_id: container.id.clone(),
        cmd: ["sh", "-c", "head -c 20000000 /dev/zero; echo >&2 all"]
            .map(String::from)
            .into(),
        timeout: 60,
    };
    let answer = runtime.exec_sync(request.clone()).await;
    let answer = answer.expect("a client takes 16 MiB").into_inner();
    assert!(answer.stdout.len() > 15 << 20, "{}", answer.stdout.len());
    assert_eq!(
        answer.stderr, b"all\n",
        "the command was not stopped by the cap"
    );
    let both = "head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2; exit 7";
    let request = cri::ExecSyncRequest {
        cmd: ["sh", "-c", both].map(String::from).into(),
        ..request
    };
    let answer = runtime.exec_sync(request).await;
    let answer = answer.expect("a client takes 16 MiB").into_inner();
    let (out, err) = (answer.stdout.len(), answer.stderr.len());
    assert!(out > 7 << 20 && err > 7 << 20, "{out} and {err}");
    assert_eq!(answer.exit_code, 7);
    assert_eq!(container.exec(&["echo", "alive"]).await, "alive");
    pod.end().await;
}

#[tokio::test]
async fn fifty_execs_at_a_time_keep_their_output_apart() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("crowd").await;
    let container = pod.sleeper("c").await;
    let mut set = tokio::task::JoinSet::new();
    for n in 0..50 {
        let container = container.clone();
        set.spawn(async move {
            let script = format!("echo {n}; echo {n} >&2; exit {n}");
            let ran = container
                .try_exec(&["sh", "-c", &script], 60)
                .await
                .expect("ExecSync");
            assert_eq!(
                ran,
                Ran {
                    code: n,
                    out: format!("{n}\n"),
                    err: format!("{n}\n")
                }
            );
        });
    }
    while let Some(done) = set.join_next().await {
        done.expect("each exec went its way");
    }
    let killed = ["sh", "-c", "kill -9 $$"];
    let ran = container.try_exec(&killed, 10).await.expect("ExecSync");
    assert_eq!(ran.code, 137);
    let missing = container.try_exec(&["/no/such/program"], 10).await;
    let error = missing.expect_err("the program is missing");
    assert!(error.message().contains("/no/such/program"), "{error}");
    pod.end().await;
}
