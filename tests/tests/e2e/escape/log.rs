//! A reader of the daemon's log that stops reading.

use std::{
    fs::{File, OpenOptions},
    io::Read as _,
    os::unix::fs::OpenOptionsExt as _,
    time::Duration,
};

use cairn_tests::{
    Daemon, Setup, cri,
    image::{BUSYBOX, Image},
    until,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use tokio::time::timeout;

/// The deadline of a call, which the log must not delay.
const DEADLINE: Duration = Duration::from_secs(8);

/// Makes the daemon log far more than pipe and queue can hold, by calls that must all end.
async fn log_much(daemon: &Daemon) {
    let mut runtime = daemon.cri().client.runtime;
    let long = format!("10.0.0.0/{}", "8".repeat(1000));
    for n in 0..5000 {
        let network = cri::NetworkConfig {
            pod_cidr: long.clone(),
        };
        let request = cri::UpdateRuntimeConfigRequest {
            runtime_config: Some(cri::RuntimeConfig {
                network_config: Some(network),
            }),
        };
        let called = timeout(DEADLINE, runtime.update_runtime_config(request)).await;
        let called = called.unwrap_or_else(|_| panic!("call {n}: not within {DEADLINE:?}"));
        called.expect("UpdateRuntimeConfig");
    }
}

fn read_all(mut from: &File) -> String {
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    // Reading an empty pipe would block.
    while let Ok(n) = from.read(&mut piece) {
        text.extend_from_slice(&piece[..n]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn a_log_that_nobody_reads_holds_up_no_call_and_not_the_end_of_the_daemon() {
    let setup = Setup {
        log_level: Some("info"),
        ..Default::default()
    };
    let mut daemon = Daemon::new(setup).await;
    let fifo = daemon.path("stderr");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).expect("a fifo");
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    let reader = options.read(true).write(true).custom_flags(nonblocking);
    let reader = reader.open(&fifo).expect("it is there");
    daemon.setup_mut().stderr = Some(fifo);
    daemon.serve().await;
    daemon.import(&Image::busybox(BUSYBOX)).await;
    log_much(&daemon).await;
    let pod = timeout(DEADLINE, daemon.cri().pod("beside")).await;
    let pod = pod.unwrap_or_else(|_| panic!("RunPodSandbox: not within {DEADLINE:?}"));
    pod.end().await;
    let mut log = String::new();
    until("the count of lost lines is logged", || {
        log += &read_all(&reader);
        let found = log.contains("lines of this log were dropped");
        async move { found.then_some(()) }
    })
    .await;
    log_much(&daemon).await;
    let ended = timeout(Duration::from_secs(20), daemon.terminate()).await;
    let ended = ended.expect("it ends although no process reads");
    assert_eq!(ended.code(), Some(0));
}
