//! The client alone against a Go plugin. The library calls a plugin with one event at a time; a
//! connection must support more (NRI-132, NRI-140).
//!
//! Needs Go on the PATH. `NRI_WITHOUT_GO=1` skips it on hosts without Go.

use std::{
    env,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use prost::Message;
use proto_nri::{ConfigureRequest, Container, PodSandbox, StartContainerRequest};
use tokio::{net::UnixListener, sync::Notify};

use super::{Client, Incoming, Serve, Status, serve};
use crate::{
    wire::mux::{Mux, PLUGIN_SERVICE, RUNTIME_SERVICE},
    wire::version::{PLUGIN_API, RUNTIME_API, RUNTIME_METHODS},
};

/// Accepts everything, and signals its first call.
struct Yes(Notify);

#[async_trait::async_trait]
impl Serve for Yes {
    async fn answer(&self, _: Incoming) -> Result<Vec<u8>, Status> {
        self.0.notify_one();
        Ok(Vec::new())
    }
}

struct Plugin(Child);

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &Path, socket: &Path) -> Plugin {
    let program = dir.join("plugin");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg("./plugin")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go"))
        .status();
    let built = built.expect("this test needs Go on the PATH; NRI_WITHOUT_GO=1 leaves it out");
    assert!(built.success(), "go build ./plugin");
    let mut command = Command::new(program);
    command.args(["-name", "go", "-idx", "10", "-socket"]);
    command.arg(socket).stdout(Stdio::piped());
    Plugin(command.stderr(Stdio::null()).spawn().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_calls_at_once_are_all_taken_by_a_go_plugin() {
    const CALLS: usize = 500;
    if env::var_os("NRI_WITHOUT_GO").is_some() {
        eprintln!("left out: NRI_WITHOUT_GO is set");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut plugin = start(dir.path(), &socket);
    let lines = std::io::BufReader::new(plugin.0.stdout.take().unwrap());
    let limit = Duration::from_secs(10);
    let (stream, _) = tokio::time::timeout(limit, listener.accept())
        .await
        .unwrap()
        .unwrap();
    let mux = Mux::new(stream, limit);
    let client = Client::new(mux.open(PLUGIN_SERVICE), PLUGIN_API);
    let asked = Arc::new(Yes(Notify::new()));
    let conn = mux.open_for_replies(RUNTIME_SERVICE);
    let _serving = serve(conn, RUNTIME_API, &RUNTIME_METHODS, asked.clone())
        .await
        .unwrap();
    mux.start();
    let registered = tokio::time::timeout(limit, asked.0.notified()).await;
    registered.expect("it registers");
    let configure = ConfigureRequest::default().encode_to_vec();
    let configured = client.call("Configure", configure, limit);
    configured.await.unwrap();
    let calls: Vec<_> = (0..CALLS)
        .map(|n| {
            let client = client.clone();
            let request = StartContainerRequest {
                pod: Some(PodSandbox::default()),
                container: Some(Container {
                    id: format!("c{n}"),
                    ..Container::default()
                }),
            };
            crate::rt::spawn(async move {
                let payload = request.encode_to_vec();
                let answer = client.call("StartContainer", payload, limit);
                answer.await
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    drop(mux);
    // Without its runtime the plugin exits, and its output ends.
    let lines = std::io::BufRead::lines(lines).map_while(Result::ok);
    let mut notified: Vec<_> = lines.filter(|l| l.starts_with("StartContainer")).collect();
    notified.sort();
    notified.dedup();
    assert_eq!(notified.len(), CALLS, "some were lost or answered twice");
}
