//! The daemon's memory for output that a container writes.

use std::time::Duration;

use cairn_tests::{Daemon, cri, look, until::until_within};
use tonic::Code;

/// Returns the daemon's peak memory, in MB.
fn peak(daemon: &Daemon) -> u64 {
    let process = daemon.yard.inside(format!("/proc/{}", daemon.pid()));
    let peak = look::status_field(&process, "VmHWM").expect("the daemon runs");
    let kilobytes = peak.split_whitespace().next().and_then(|n| n.parse().ok());
    kilobytes.map(|n: u64| n / 1000).expect("a number of kB")
}

#[tokio::test]
async fn calls_that_write_without_end_share_one_budget_and_a_short_one_still_works() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("floods").await;
    let container = pod.sleeper("c").await;
    let before = peak(&daemon);
    let flood = "cat /dev/zero & exec cat /dev/zero >&2";
    let floods: Vec<_> = (0..20)
        .map(|_| {
            let mut runtime = pod.cri.client.runtime.clone();
            let request = cri::ExecSyncRequest {
                container_id: container.id.clone(),
                cmd: ["sh", "-c", flood].map(String::from).into(),
                timeout: 10,
            };
            tokio::spawn(async move { runtime.exec_sync(request).await })
        })
        .collect();
    until_within(
        "the first of them has ended",
        Duration::from_secs(60),
        || async {
            assert_eq!(container.exec(&["echo", "beside"]).await, "beside");
            floods.iter().any(|flood| flood.is_finished()).then_some(())
        },
    )
    .await;
    assert_eq!(container.exec(&["echo", "beside"]).await, "beside");
    let mut refused = 0;
    for flood in floods {
        let error = flood.await.expect("no panic").expect_err("it never ends");
        match error.code() {
            Code::DeadlineExceeded => {}
            Code::ResourceExhausted => {
                assert!(error.message().contains("256 MiB"), "{error}");
                refused += 1;
            }
            _ => panic!("{error}"),
        }
    }
    let grown = peak(&daemon) - before;
    println!("20 calls: {grown} MB, {refused} refused");
    assert!(grown < 400, "the daemon grew by {grown} MB");
    assert!(refused > 0, "some are beyond the budget");
    let large = container
        .sh("head -c 10000000 /dev/zero | tr '\\0' x")
        .await;
    assert_eq!(large.len(), 10_000_000, "the budget is given back");
    pod.end().await;
}
