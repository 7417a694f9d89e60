//! A caller's deadline: the answer is DEADLINE_EXCEEDED, whichever side detects it first, and no
//! object is orphaned (CRI-006).

use std::time::Duration;

use cairn_tests::{Daemon, cri, look, until};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::{
    Code, Request, Status,
    body::Body,
    client::GrpcService,
    codegen::http::{self, Uri},
};

type Runtime<T> = cri::runtime_service_client::RuntimeServiceClient<T>;

/// A client without a timer of its own, so that the daemon makes the answer.
async fn patient(
    daemon: &Daemon,
) -> Runtime<
    impl GrpcService<Body, ResponseBody = hyper::body::Incoming, Error = hyper::Error, Future: Send>
    + Clone,
> {
    let socket = tokio::net::UnixStream::connect(daemon.socket()).await;
    let io = TokioIo::new(socket.expect("the daemon listens"));
    let (send, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let mut send = send.clone();
        async move { send.send_request(request).await }
    });
    Runtime::with_origin(service, Uri::from_static("http://localhost"))
}

/// A message with a deadline in gRPC's format.
fn within<T>(timeout: &'static str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let timeout = timeout.parse().expect("a header's value");
    request.metadata_mut().insert("grpc-timeout", timeout);
    request
}

fn overdue<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let status = answer.expect_err("it takes longer");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(status.message().contains("deadline"), "{status}");
}

#[tokio::test]
async fn a_late_answer_is_deadline_exceeded_and_its_processes_are_gone() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("late").await;
    let container = pod.sleeper("c").await;
    let mut client = patient(&daemon).await;
    let before = look::cgroup_pids(daemon.cgroup_parent()).len();
    for n in 0..20 {
        let request = cri::ExecSyncRequest {
            container_id: container.id.clone(),
            cmd: ["sleep", "1000"].map(str::to_owned).to_vec(),
            timeout: 0,
        };
        let timeout = ["1m", "30m", "1500u", "200n"][n % 4];
        overdue(client.exec_sync(within(timeout, request)).await);
    }
    until("no exec is left", || async {
        (look::cgroup_pids(daemon.cgroup_parent()).len() == before).then_some(())
    })
    .await;
    assert_eq!(container.exec(&["echo", "alive"]).await, "alive");
    pod.end().await;
}

#[tokio::test]
async fn what_a_late_caller_began_is_found_by_its_next_call() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut client = patient(&daemon).await;
    let run = cri::RunPodSandboxRequest {
        config: Some(cri.pod_config("again")),
        runtime_handler: String::new(),
    };
    overdue(client.run_pod_sandbox(within("100u", run.clone())).await);
    let id = client.run_pod_sandbox(run).await.expect("RunPodSandbox");
    let id = id.into_inner().pod_sandbox_id;
    let pods = cri.pods().await;
    assert_eq!(pods.len(), 1, "{pods:?}");
    assert_eq!(pods[0].id, id);
    let pod = cri.pod_by_id(&id, "again");
    // Ignores the signal: the stop takes the complete grace period.
    let container = pod.run(
        "c",
        &["sh", "-c", "trap '' TERM; while :; do sleep 1; done"],
    );
    let container = container.await;
    let stop = cri::StopContainerRequest {
        container_id: container.id.clone(),
        timeout: 1000,
    };
    overdue(client.stop_container(within("100m", stop)).await);
    // The stop continues without its caller, and the next one shortens it.
    container.stop(Duration::ZERO).await.expect("StopContainer");
    pod.end().await;
    assert_eq!(cri.pods().await.len(), 0);
}
