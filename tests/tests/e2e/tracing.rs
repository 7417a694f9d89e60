//! Spans by OTLP: the data that a collector gets, and the cost of a missing one.

mod collector;

use std::{
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use cairn_tests::{
    Daemon,
    client::Client,
    daemon::Setup,
    image::{Image, Layer},
    plugin::Plugin,
    registry::{listen, start as start_registry},
    until,
};
use collector::{COLLECTOR, Collector, Span, attribute};
use k8s_cri::v1 as cri;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

const REGISTRY: &str = "127.0.0.1:5000";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn setup(per_million: u32) -> Setup {
    Setup::default().toml(&format!(
        "[tracing]\nendpoint = \"http://{COLLECTOR}\"\nsampling_per_million = {per_million}"
    ))
}

/// A message with the trace context of a kubelet.
fn traced<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let metadata = request.metadata_mut();
    metadata.insert("traceparent", parent.parse().expect("a value"));
    request
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    let names: Vec<_> = spans.iter().map(|span| &span.name).collect();
    assert_eq!(found.len(), 1, "{name}: {names:?}");
    found[0]
}

/// Returns the spans below a span, in the order of their start.
fn below(spans: &[Span], parent: &Span) -> Vec<String> {
    let mut children: Vec<_> = spans
        .iter()
        .filter(|span| span.parent_span_id == parent.span_id)
        .collect();
    children.sort_by_key(|span| span.start);
    for child in &children {
        assert_eq!(child.trace_id, parent.trace_id);
        let inside = parent.start <= child.start + 1_000_000 && child.end <= parent.end + 1_000_000;
        assert!(inside, "{} is within {}", child.name, parent.name);
    }
    children.iter().map(|span| span.name.clone()).collect()
}

#[tokio::test]
async fn a_pods_start_is_a_tree_of_spans_below_the_callers() {
    let daemon = Daemon::with(setup(0)).await;
    let collector = Collector::start(&daemon);
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "seer").await;
    let mut client = Client::connect(&daemon.socket()).await.expect("connected");
    let harness = daemon.cri();
    let config = harness.pod_config("traced");
    let pod = client
        .runtime
        .run_pod_sandbox(traced(cri::RunPodSandboxRequest {
            config: Some(config.clone()),
            ..Default::default()
        }))
        .await
        .expect("it runs")
        .into_inner()
        .pod_sandbox_id;
    let container = client
        .runtime
        .create_container(traced(cri::CreateContainerRequest {
            pod_sandbox_id: pod.clone(),
            config: Some(harness.container_config("one", &["sleep", "1000"])),
            sandbox_config: Some(config),
        }))
        .await
        .expect("it is made")
        .into_inner()
        .container_id;
    let start = cri::StartContainerRequest {
        container_id: container.clone(),
    };
    client
        .runtime
        .start_container(traced(start))
        .await
        .expect("it starts");
    let missing = cri::StartContainerRequest {
        container_id: "none".to_owned(),
    };
    client
        .runtime
        .start_container(traced(missing))
        .await
        .expect_err("there is none");
    // Requests without a trace context produce no spans.
    client
        .runtime
        .version(cri::VersionRequest::default())
        .await
        .expect("answered");
    let is_last = |span: &Span| {
        let code = attribute(&span.attributes, "rpc.grpc.status_code");
        span.name.ends_with("/StartContainer") && code == "5"
    };
    let mut spans = collector.once("the last call's span", is_last).await;
    let refused = spans.iter().position(is_last).expect("it is there");
    // An error of the caller is not an error of the server.
    assert_eq!(spans.remove(refused).status, None);

    let run = named(&spans, "runtime.v1.RuntimeService/RunPodSandbox");
    assert_eq!(
        (hex(&run.trace_id), hex(&run.parent_span_id)),
        (TRACE.into(), CALLER.into())
    );
    assert_eq!((run.kind, &run.status), (2, &None));
    for (key, value) in [
        ("rpc.system", "grpc"),
        ("rpc.service", "runtime.v1.RuntimeService"),
        ("rpc.method", "RunPodSandbox"),
        ("rpc.grpc.status_code", "0"),
    ] {
        assert_eq!(attribute(&run.attributes, key), value);
    }
    assert_eq!(
        below(&spans, run),
        [
            "make the cgroup",
            "make namespaces",
            "attach the network",
            "NRI RunPodSandbox 10-seer",
        ]
    );
    let call = named(&spans, "NRI RunPodSandbox 10-seer");
    assert_eq!(attribute(&call.attributes, "nri.plugin"), "10-seer");
    let create = named(&spans, "runtime.v1.RuntimeService/CreateContainer");
    assert_eq!(
        below(&spans, create),
        [
            "prepare the root",
            "build the spec",
            "NRI CreateContainer 10-seer",
            "NRI PostCreateContainer 10-seer",
        ]
    );
    let start = named(&spans, "runtime.v1.RuntimeService/StartContainer");
    assert_eq!(
        below(&spans, start),
        [
            "make the cgroup",
            "mount the root",
            "spawn the monitor and create",
            "NRI StartContainer 10-seer",
            "start",
            "NRI PostStartContainer 10-seer",
        ]
    );
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE));
    drop(plugin);
    harness.pod_by_id(&pod, "traced").end().await;
}

#[tokio::test]
async fn calls_without_a_trace_are_sampled_and_a_pull_shows_its_layers() {
    let daemon = Daemon::with(setup(1_000_000)).await;
    let layer = Layer::default().file("data", 0o644, b"some");
    let image = Image::bare("unused").layer(layer).blobs();
    let _registry = start_registry(&daemon.yard, REGISTRY, vec![("app:1", image)], |_| None);
    let collector = Collector::start(&daemon);
    let pulled = daemon
        .cairn(&["image", "pull", &format!("{REGISTRY}/app:1")])
        .await;
    assert!(pulled.status.success());
    let failed = daemon
        .cairn(&["image", "pull", "127.0.0.1:5001/none:1"])
        .await;
    assert!(!failed.status.success());
    let is_failed = |span: &Span| span.name.ends_with("/PullImage") && span.status.is_some();
    let spans = collector.once("the second pull", is_failed).await;
    let pull = spans
        .iter()
        .find(|span| span.name.ends_with("/PullImage") && span.status.is_none());
    let pull = pull.expect("the first pull");
    assert!(pull.parent_span_id.is_empty());
    assert_eq!(
        below(&spans, pull),
        [
            "ask the registry",
            "fetch the manifest",
            "fetch the config",
            "fetch and unpack a layer",
            "commit a layer",
        ]
    );
    let failed = spans
        .iter()
        .find(|span| is_failed(span))
        .expect("it is there");
    let status = failed.status.clone().unwrap_or_default();
    assert_eq!(status.code, 2);
    assert!(
        status.message.contains("127.0.0.1:5001/none:1"),
        "{status:?}"
    );
    // Our own commands also use other services, which are not traced.
    assert!(spans.iter().all(|span| !span.name.starts_with("cairn.v1")));
}

#[tokio::test]
async fn a_collector_that_is_not_there_costs_a_line_and_no_time() {
    let daemon = Daemon::with(setup(1_000_000)).await;
    // A collector that closes every connection, and counts them.
    let broken = listen(daemon.yard.pid(), COLLECTOR).expect("a listener in the yard");
    let comers = Arc::new(AtomicUsize::new(0));
    let (ended, count) = (
        broken.try_clone().expect("a descriptor is left"),
        comers.clone(),
    );
    let door = std::thread::spawn(move || {
        while broken.accept().is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let lines = || {
        daemon
            .log()
            .matches("tracing: cannot send spans to")
            .count()
    };
    let begun = Instant::now();
    let pod = daemon.cri().pod("untold").await;
    let container = pod.sleeper("one").await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    until("it is logged", || async { (lines() > 0).then_some(()) }).await;
    let told_at = comers.load(Ordering::SeqCst);
    until("it is tried again", || async {
        pod.status().await;
        (comers.load(Ordering::SeqCst) > told_at).then_some(())
    })
    .await;
    rustix::net::shutdown(&ended, rustix::net::Shutdown::Both).expect("it listens");
    drop(ended);
    door.join().expect("no panic");
    assert_eq!(container.exec(&["echo", "here"]).await, "here");
    // The collector starts: new spans reach it.
    let collector = Collector::start(&daemon);
    let ask = || async {
        pod.status().await;
        let spans = collector.spans();
        spans
            .iter()
            .any(|span| span.name.ends_with("/PodSandboxStatus"))
            .then_some(())
    };
    until("spans get there", ask).await;
    pod.end().await;
    assert_eq!(lines(), 1, "{}", daemon.log());
    assert!(
        daemon
            .log()
            .contains("sending spans to http://127.0.0.1:4317 again")
    );
}

#[tokio::test]
async fn nothing_is_traced_where_the_sampling_is_zero_and_nobody_brings_a_trace() {
    let daemon = Daemon::with(setup(0)).await;
    let collector = Collector::start(&daemon);
    let pod = daemon.cri().pod("quiet").await;
    pod.end().await;
    let mut client = Client::connect(&daemon.socket()).await.expect("connected");
    let not = format!("00-{TRACE}-{CALLER}-00");
    let mut request = tonic::Request::new(cri::VersionRequest::default());
    request
        .metadata_mut()
        .insert("traceparent", not.parse().expect("a value"));
    client.runtime.version(request).await.expect("answered");
    // Then a traced request: spans of the earlier ones would have arrived before it.
    let version = traced(cri::VersionRequest::default());
    client.runtime.version(version).await.expect("answered");
    let is_version = |span: &Span| span.name.ends_with("/Version");
    let spans = collector.once("the traced call", is_version).await;
    assert_eq!(spans.len(), 1, "{spans:?}");
}

/// Makes a self-signed certificate for the collector's address, and its key, in the daemon's
/// directory.
fn certificate(daemon: &Daemon, name: &str) -> (PathBuf, PathBuf) {
    let path = |ending: &str| daemon.path(&format!("certs/{name}.{ending}"));
    let (certificate, key) = (path("pem"), path("key"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ])
        .args([
            "-days",
            "2",
            "-subj",
            "/CN=collector",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .expect("openssl is there");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    (certificate, key)
}

#[tokio::test]
async fn a_collector_by_https_is_believed_if_this_machine_vouches_for_it() {
    let toml =
        format!("[tracing]\nendpoint = \"https://{COLLECTOR}\"\nsampling_per_million = 1000000");
    let trusted = tempfile::NamedTempFile::new().expect("a file");
    let file = trusted.path().display().to_string();
    let setup = Setup::default().toml(&toml).env("SSL_CERT_FILE", &file);
    let mut daemon = Daemon::new(setup).await;
    let (certificate, key) = self::certificate(&daemon, "collector");
    let (other, _) = self::certificate(&daemon, "other");
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_file(&certificate).expect("a certificate")],
            PrivateKeyDer::from_pem_file(&key).expect("a key"),
        );
    let mut config = config.expect("they belong together");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let collector = Collector::with_tls(&daemon, TlsAcceptor::from(Arc::new(config)));
    let tried = async |daemon: &Daemon| {
        let mut client = Client::connect(&daemon.socket()).await.expect("connected");
        let version = client.runtime.version(cri::VersionRequest::default());
        version.await.expect("answered");
    };
    std::fs::copy(&other, trusted.path()).expect("copied");
    daemon.serve().await;
    tried(&daemon).await;
    let reported = format!("tracing: cannot send spans to https://{COLLECTOR}, ");
    until("it is not believed", || async {
        daemon.log().contains(&reported).then_some(())
    })
    .await;
    assert!(collector.spans().is_empty());
    daemon.kill().await;
    std::fs::copy(&certificate, trusted.path()).expect("copied");
    daemon.serve().await;
    tried(&daemon).await;
    collector
        .once("it gets there", |span| span.name.ends_with("/Version"))
        .await;
}
