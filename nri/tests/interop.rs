//! Both ways against the Go module `github.com/containerd/nri`: Go plugins on our runtime side, our
//! plugins on the Go runtime side. `tests/go` has the programs; `go.mod` names the newest release
//! (dedicated calls), `old.mod` one from before them (`StateChange`).
//!
//! Needs Go on the PATH. Where there is none, say so: `NRI_WITHOUT_GO=1` leaves these tests out.

mod common;

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{Place, Record, container, pod, until, until_active};
use nri::{
    Handlers, Snapshot, Version,
    proto::*,
    stub::{Protocol, Stub},
};

/// Where the Go programs are, built once per run; `None` if Go is left out.
fn programs() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        if env::var_os("NRI_WITHOUT_GO").is_some() {
            eprintln!("left out: NRI_WITHOUT_GO is set");
            return None;
        }
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("go");
        fs::create_dir_all(&out).unwrap();
        build(&[
            "-o",
            &format!("{}/", out.display()),
            "./plugin",
            "./runtime",
        ]);
        let old = out.join("old-plugin");
        build(&["-modfile=old.mod", "-o", old.to_str().unwrap(), "./plugin"]);
        Some(out)
    });
    built.as_deref()
}

fn build(args: &[&str]) {
    let go = Command::new("go")
        .arg("build")
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go"))
        .status();
    let done = go.expect("these tests need Go on the PATH; NRI_WITHOUT_GO=1 leaves them out");
    assert!(done.success(), "go build {args:?}");
}

/// A Go program and the lines it has printed. Killed and reaped when dropped.
struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Program {
    fn start(path: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(path)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (stdout, into) = (child.stdout.take().unwrap(), lines.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                into.lock().unwrap().push(line);
            }
        });
        let stdin = child.stdin.take();
        Self {
            child,
            stdin,
            lines,
        }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    async fn says(&self, start: &str) -> String {
        self.says_times(start, 1).await
    }

    /// Waits for so many lines that start like this; gives the first.
    async fn says_times(&self, start: &str, times: usize) -> String {
        until(&format!("it says {start:?} {times} times"), || {
            let lines = self.lines();
            lines.iter().filter(|line| line.starts_with(start)).count() >= times
        })
        .await;
        let lines = self.lines();
        lines
            .into_iter()
            .find(|line| line.starts_with(start))
            .unwrap()
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn go_plugin(program: &str, place: &Place, index: &str, more: &[&str]) -> Option<Program> {
    let path = programs()?.join(program);
    let socket = place.socket();
    let mut args = vec![
        "-name",
        "go",
        "-idx",
        index,
        "-socket",
        socket.to_str().unwrap(),
    ];
    args.extend(more);
    Some(Program::start(&path, &args))
}

fn padded(id: &str, bytes: usize) -> Container {
    Container {
        annotations: BTreeMap::from([("pad".into(), "x".repeat(bytes))]),
        ..container(id, "p")
    }
}

/// Bodies around every edge of the framing (15.5).
const BODIES: [usize; 9] = [10, 3000, 4000, 4080, 4086, 4090, 5000, 100_000, 4_000_000];

#[tokio::test(flavor = "multi_thread")]
async fn go_plugins_old_and_new_live_on_our_runtime() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    for (program, index, old) in [("plugin", "10", false), ("old-plugin", "20", true)] {
        let Some(go) = go_plugin(program, &place, index, &[]) else {
            return;
        };
        let id = format!("{index}-go");
        until_active(&nri, &id).await;
        let (p, c) = (|| pod("p"), || container("c", "p"));
        let none = LinuxResources::default;
        nri.run_pod_sandbox(p()).await.unwrap();
        nri.update_pod_sandbox(p(), none(), none()).await.unwrap();
        nri.post_update_pod_sandbox(p()).await;
        {
            let turn = nri.turn().await;
            let merged = nri.create_container(&turn, p(), c()).await.unwrap().merged;
            assert_eq!(merged.adjust.annotations["go"], "was here");
            assert_eq!(merged.adjust.env[0].key, "GO");
            nri.post_create_container(p(), c()).await;
            nri.start_container(p(), c()).await.unwrap();
            nri.post_start_container(p(), c()).await;
            let merged = nri
                .update_container(&turn, p(), c(), none())
                .await
                .unwrap()
                .merged;
            let shares = merged.target.unwrap().cpu.unwrap().shares.unwrap();
            assert_eq!(shares.value, 1234);
            nri.post_update_container(p(), c()).await;
            nri.stop_container(&turn, p(), c()).await;
            nri.remove_container(p(), c()).await;
            let vetoed = Container {
                name: "veto".into(),
                ..c()
            };
            let refused = nri.create_container(&turn, p(), vetoed).await.unwrap_err();
            assert!(
                refused.to_string().contains("vetoed on demand"),
                "{refused}"
            );
        }
        nri.stop_pod_sandbox(p()).await;
        nri.remove_pod_sandbox(p()).await;
        go.says("RemovePodSandbox p").await;
        let lines = go.lines();
        let expected = [
            "Configure \"\" test v1.2.3",
            "Synchronize 0 pods 0 containers 0 bytes",
            "RunPodSandbox p",
            "UpdatePodSandbox p",
            "PostUpdatePodSandbox p",
            "CreateContainer p c",
            "PostCreateContainer p c",
            "StartContainer p c",
            "PostStartContainer p c",
            "UpdateContainer p c",
            "PostUpdateContainer p c",
            "StopContainer p c",
            "RemoveContainer p c",
            "CreateContainer p c",
            "StopPodSandbox p",
            "RemovePodSandbox p",
        ];
        assert_eq!(lines, expected, "{program}");
        assert_eq!(nri.plugins()[0].old_style, old, "{program}");
        drop(go);
        until("it is gone", || common::there(&nri).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_all_sizes_cross_to_a_go_plugin_and_back() {
    let place = Place::new();
    let nri = place
        .builder()
        .request_timeout(Duration::from_secs(5))
        .start()
        .await
        .unwrap();
    for reply in [0, 4090, 1_000_000] {
        let pad = reply.to_string();
        let Some(_go) = go_plugin("plugin", &place, "10", &["-pad", &pad]) else {
            return;
        };
        until_active(&nri, "10-go").await;
        for body in BODIES {
            let turn = nri.turn().await;
            let created = nri
                .create_container(&turn, pod("p"), padded("c", body))
                .await
                .unwrap();
            let annotations = created.merged.adjust.annotations;
            assert_eq!(annotations["bytes"], body.to_string());
            assert_eq!(annotations.get("pad").map_or(0, String::len), reply);
        }
        drop(_go);
        until("it is gone", || common::there(&nri).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_updates_two_hundred_at_once_from_a_go_plugin_all_arrive() {
    let place = Place::new();
    let nri = place
        .builder()
        .request_timeout(Duration::from_secs(5))
        .start()
        .await
        .unwrap();
    let Some(go) = go_plugin("plugin", &place, "10", &["-updates", "500"]) else {
        return;
    };
    assert_eq!(go.says("Updates").await, "Updates 500 failed 0 <nil>");
    assert_eq!(place.runtime.updates.lock().unwrap().len(), 500);
    assert_eq!(common::there(&nri).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_hundreds_of_large_pods_reaches_a_go_plugin_in_parts() {
    let place = Place::new();
    let pods = (0..300).map(|n| PodSandbox {
        annotations: BTreeMap::from([("pad".into(), "x".repeat(60_000))]),
        ..pod(&format!("p{n}"))
    });
    *place.runtime.all.lock().unwrap() = Snapshot {
        pods: pods.collect(),
        containers: (0..300)
            .map(|n| container(&format!("c{n}"), "p0"))
            .collect(),
    };
    let nri = place.builder().start().await.unwrap();
    let Some(go) = go_plugin("plugin", &place, "10", &[]) else {
        return;
    };
    until_active(&nri, "10-go").await;
    assert_eq!(
        go.says("Synchronize").await,
        "Synchronize 300 pods 300 containers 18000000 bytes"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launched_go_plugin_takes_its_socket_and_is_ended() {
    let Some(programs) = programs() else { return };
    let place = Place::new();
    let plugins = place.dir.path().join("plugins");
    fs::create_dir(&plugins).unwrap();
    fs::copy(programs.join("plugin"), plugins.join("05-launched")).unwrap();
    let nri = place.builder().no_external_plugins().start().await.unwrap();
    let turn = nri.turn().await;
    let created = nri
        .create_container(&turn, pod("p"), container("c", "p"))
        .await
        .unwrap();
    assert_eq!(created.merged.adjust.annotations["go"], "was here");
    let pid = nri.plugins()[0].pid.unwrap();
    nri.shutdown("over").await;
    assert!(
        !Path::new(&format!("/proc/{pid}")).exists(),
        "it is not ended and reaped"
    );
}

fn go_runtime(place: &Place, more: &[&str]) -> Option<Program> {
    let socket = place.socket();
    let mut args = vec!["-socket", socket.to_str().unwrap()];
    args.extend(more);
    Some(Program::start(&programs()?.join("runtime"), &args))
}

fn answers_with_pad() -> Handlers {
    Handlers::new().create_container(|_, c| async move {
        let pad = c.annotations.get("pad").cloned().unwrap_or_default();
        let adjust = ContainerAdjustment {
            annotations: BTreeMap::from([
                ("bytes".into(), pad.len().to_string()),
                ("pad".into(), pad),
            ]),
            ..Default::default()
        };
        Ok((Some(adjust), Vec::new()))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn our_plugins_live_on_the_go_runtime() {
    let place = Place::new();
    let Some(mut go) = go_runtime(&place, &[]) else {
        return;
    };
    go.says("ready").await;
    let record = Record::default();
    let stub = Stub::builder(record.handlers())
        .name("rust")
        .index("10")
        .socket(place.socket())
        .start()
        .await
        .unwrap();
    assert_eq!(stub.runtime_info().name, "go-runtime");
    // Once at its start, for no plugin; then for ours.
    go.says_times("synchronized <nil>", 2).await;
    go.tell("life");
    assert_eq!(go.says("life").await, "life <nil>");
    let expected = [
        "Synchronize p0,p1 c-p0,c-p1",
        "RunPodSandbox pod",
        "UpdatePodSandbox pod",
        "PostUpdatePodSandbox pod",
        "CreateContainer pod ctr",
        "PostCreateContainer pod ctr",
        "StartContainer pod ctr",
        "PostStartContainer pod ctr",
        "UpdateContainer pod ctr",
        "PostUpdateContainer pod ctr",
        "StopContainer pod ctr",
        "RemoveContainer pod ctr",
        "StopPodSandbox pod",
        "RemovePodSandbox pod",
    ];
    assert_eq!(record.lines(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_all_sizes_cross_between_the_go_runtime_and_our_plugin() {
    let place = Place::new();
    let Some(mut go) = go_runtime(&place, &[]) else {
        return;
    };
    go.says("ready").await;
    let _stub = Stub::builder(answers_with_pad())
        .name("rust")
        .index("10")
        .socket(place.socket())
        .start()
        .await
        .unwrap();
    // Once at its start, for no plugin; then for ours.
    go.says_times("synchronized <nil>", 2).await;
    for body in BODIES {
        go.tell(&format!("create {body}"));
        let answer = go.says(&format!("created {body} ")).await;
        assert_eq!(answer, format!("created {body} {body} <nil>"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_updates_at_once_all_reach_the_go_runtime() {
    let place = Place::new();
    let Some(mut go) = go_runtime(&place, &[]) else {
        return;
    };
    go.says("ready").await;
    let stub = Stub::builder(Record::default().handlers())
        .name("rust")
        .index("10")
        .socket(place.socket())
        .start()
        .await
        .unwrap();
    // Once at its start, for no plugin; then for ours.
    go.says_times("synchronized <nil>", 2).await;
    let refused = Arc::new(AtomicUsize::new(0));
    let calls: Vec<_> = (0..500)
        .map(|n| {
            let (runtime, refused) = (stub.runtime(), refused.clone());
            tokio::spawn(async move {
                let update = ContainerUpdate {
                    container_id: format!("c{n}"),
                    ..Default::default()
                };
                if let Err(e) = runtime.update_containers(vec![update], Vec::new()).await {
                    eprintln!("{n}: {e}");
                    refused.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(refused.load(Ordering::SeqCst), 0);
    go.tell("updates");
    assert_eq!(go.says("updates").await, "updates 500");
}

#[tokio::test(flavor = "multi_thread")]
async fn our_plugin_takes_a_long_list_from_the_go_runtime_in_parts() {
    let place = Place::new();
    let Some(go) = go_runtime(&place, &["-pods", "80", "-pad", "150000"]) else {
        return;
    };
    go.says("ready").await;
    let listed = Arc::new(Mutex::new((0, 0)));
    let into = listed.clone();
    let handlers = Handlers::new()
        .run_pod_sandbox(|_| async { Ok(()) })
        .synchronize(move |pods, containers| {
            *into.lock().unwrap() = (pods.len(), containers.len());
            async { Ok(Vec::new()) }
        });
    let _stub = Stub::builder(handlers)
        .name("rust")
        .index("10")
        .socket(place.socket())
        .start()
        .await
        .unwrap();
    // Once at its start, for no plugin; then for ours.
    go.says_times("synchronized <nil>", 2).await;
    assert_eq!(*listed.lock().unwrap(), (80, 80));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_asks_for_the_newest_version_gets_what_the_runtime_knows() {
    let place = Place::new();
    let Some(go) = go_runtime(&place, &[]) else {
        return;
    };
    go.says("ready").await;
    let newest = || {
        Stub::builder(Record::default().handlers())
            .name("rust")
            .index("10")
            .socket(place.socket())
            .protocol(Protocol::Newest)
    };
    // The Go runtime does not know v1beta1; the same connection goes on with v1alpha1.
    let stub = newest().start().await.unwrap();
    assert_eq!(stub.runtime_info().protocol, Version::V1Alpha1);
    go.says_times("synchronized <nil>", 2).await;
    drop((stub, go));
    let ours = place.builder().start().await;
    // A killed runtime leaves a dead socket, which is no obstacle.
    let nri = ours.unwrap();
    let stub = newest().start().await.unwrap();
    assert_eq!(stub.runtime_info().protocol, Version::V1Beta1);
    until_active(&nri, "10-rust").await;
}
