//! Paths that never answer, one for each way to name a path: only the call with that path waits.
//!
//! Not in the table, because no client can name a path there: images' volumes (trees of the store),
//! AppArmor profiles (names in the kernel), `cairn image import` (the client reads the file).

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use cairn_tests::{
    Daemon, Setup, bins, cri,
    plugin::Plugin,
    pod::{Pod, host_network, security},
    table, until,
};
use nri::proto::{ContainerAdjustment, Hook, Hooks, Mount};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Concurrent waiting calls: more than the daemon has serving threads.
const CALLS: usize = 6;
/// The number of another pod's containers that are measured.
const OTHERS: usize = 25;
/// A tolerance for other work on the machine.
const NOISE: Duration = Duration::from_millis(150);
const REMOVED: Duration = Duration::from_secs(15);
const SERVED: Duration = Duration::from_secs(10);

const CNI: &str = r#"{ "cniVersion": "1.0.0", "name": "mute", "plugins": [ { "type": "mute" } ] }"#;

/// A daemon with one pod, and a directory that does not answer.
struct Scene {
    daemon: Daemon,
    pod: Pod,
    dir: PathBuf,
    /// While this file exists, the directory answers.
    gate: PathBuf,
    /// The log of unanswered requests.
    log: PathBuf,
}

impl Scene {
    async fn new(setup: Setup, dir: impl FnOnce(&Daemon) -> PathBuf) -> Self {
        let mut daemon = Daemon::with(setup).await;
        let (dir, gate) = (dir(&daemon), daemon.path("gate"));
        fs::write(&gate, "").expect("written");
        fs::create_dir_all(daemon.yard.inside(&dir)).expect("made");
        let mute = bins::built("cairn-mute").display().to_string();
        let argv = [mute, dir.display().to_string(), gate.display().to_string()];
        let log = daemon.path("mute.log");
        daemon.yard.run(&argv, &[], &log).await.expect("started");
        until("the file system is mounted", || async {
            fs::read_to_string(&log)
                .is_ok_and(|text| text.contains("mounted"))
                .then_some(())
        })
        .await;
        let mut config = daemon.cri().pod_config("named");
        host_network(&mut config);
        let pod = daemon.cri().try_pod(config).await.expect("RunPodSandbox");
        Self {
            daemon,
            pod,
            dir,
            gate,
            log,
        }
    }

    /// A scene with the directory below the daemon's.
    async fn below(setup: Setup) -> Self {
        Self::new(setup, |daemon| daemon.path("mute")).await
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn falls_silent(&self) {
        fs::remove_file(&self.gate).expect("removed");
    }

    fn was_asked(&self) -> bool {
        fs::read_to_string(&self.log).is_ok_and(|log| log.contains("unanswered"))
    }

    /// Returns the longest time of some containers of another pod, from creation to removal.
    async fn longest_of_others(&self, other: &Pod, round: &str) -> Duration {
        let mut longest = Duration::ZERO;
        for n in 0..OTHERS {
            let begun = Instant::now();
            let config = other
                .cri
                .container_config(&format!("{round}-{n}"), &["true"]);
            let container = other.try_create(config).await.expect("CreateContainer");
            container.remove().await.expect("RemoveContainer");
            longest = longest.max(begun.elapsed());
        }
        longest
    }

    /// Makes calls that name the path, and checks that other calls are not affected.
    async fn holds<F: Future<Output = Result<(), tonic::Status>> + Send + 'static>(
        mut self,
        row: &str,
        call: impl Fn(&Scene, usize) -> F,
    ) {
        let mut config = self.daemon.cri().pod_config("other");
        host_network(&mut config);
        let other = self
            .daemon
            .cri()
            .try_pod(config)
            .await
            .expect("RunPodSandbox");
        let runs = other.sleeper("runs").await;
        let quiet = self.longest_of_others(&other, "quiet").await;
        self.falls_silent();
        let calls: Vec<_> = (0..CALLS).map(|n| tokio::spawn(call(&self, n))).collect();
        until(
            "the path was asked for, or all calls have ended",
            || async {
                let ended = calls.iter().all(tokio::task::JoinHandle::is_finished);
                (ended || self.was_asked()).then_some(())
            },
        )
        .await;
        let beside = self.longest_of_others(&other, "beside").await;
        assert_eq!(runs.exec(&["echo", "here"]).await, "here");
        runs.stop(Duration::ZERO).await.expect("StopContainer");
        assert!(
            beside <= 2 * quiet + NOISE,
            "{row}: others took {beside:?} beside it, {quiet:?} before"
        );

        let begun = Instant::now();
        let removed = self.daemon.cairn(&["rm", "--force", &self.pod.id]).await;
        let removal = begun.elapsed();
        assert!(removed.status.success(), "{row}: {removed:?}");
        assert!(removal <= REMOVED, "{row}: removed after {removal:?}");
        for call in calls {
            call.abort();
        }

        let begun = Instant::now();
        self.daemon.kill_and_restart().await;
        let restart = begun.elapsed();
        assert!(restart <= SERVED, "{row}: served after {restart:?}");
        assert!(self.was_asked(), "{row}: the path was not accessed");
        other.end().await;
        table::cell(&format!(
            "never answers: {row:<22} others {:>4} ms beside it, {:>4} ms before; removed in {:>5.1} s; restarted in {:>4.1} s",
            beside.as_millis(),
            quiet.as_millis(),
            removal.as_secs_f32(),
            restart.as_secs_f32(),
        ));
    }
}

/// Creates a container of the pod, which must fail or wait.
async fn create(pod: Pod, config: cri::ContainerConfig) -> Result<(), tonic::Status> {
    pod.try_create(config).await.map(drop)
}

async fn create_and_start(pod: Pod, config: cri::ContainerConfig) -> Result<(), tonic::Status> {
    pod.try_create(config).await?.start().await
}

#[tokio::test]
async fn the_source_of_a_mount_that_never_answers() {
    let scene = Scene::below(Setup::default()).await;
    scene
        .holds("CRI mount", |scene, n| {
            let mut config = scene.pod.cri.container_config(&format!("c{n}"), &["true"]);
            config.mounts.push(cri::Mount {
                host_path: scene.path(&format!("{n}")),
                container_path: "/there".to_owned(),
                ..Default::default()
            });
            create(scene.pod.clone(), config)
        })
        .await;
}

#[tokio::test]
async fn a_device_that_never_answers() {
    let scene = Scene::below(Setup::default()).await;
    scene
        .holds("CRI device", |scene, n| {
            let mut config = scene.pod.cri.container_config(&format!("c{n}"), &["true"]);
            config.devices.push(cri::Device {
                host_path: scene.path("device"),
                container_path: "/dev/there".to_owned(),
                permissions: "rwm".to_owned(),
            });
            create(scene.pod.clone(), config)
        })
        .await;
}

#[tokio::test]
async fn a_seccomp_profile_that_never_answers() {
    let scene = Scene::below(Setup::default()).await;
    scene
        .holds("seccomp profile", |scene, n| {
            let mut config = scene.pod.cri.container_config(&format!("c{n}"), &["true"]);
            security(&mut config).seccomp = Some(cri::SecurityProfile {
                profile_type: cri::security_profile::ProfileType::Localhost.into(),
                localhost_ref: scene.path("profile.json"),
            });
            create(scene.pod.clone(), config)
        })
        .await;
}

#[tokio::test]
async fn a_log_directory_that_never_answers() {
    let mut scene = Scene::below(Setup::default()).await;
    let mut config = scene.daemon.cri().pod_config("logs");
    host_network(&mut config);
    config.log_directory = scene.path("logs");
    scene.pod = scene
        .daemon
        .cri()
        .try_pod(config)
        .await
        .expect("RunPodSandbox");
    scene
        .holds("log directory", |scene, n| {
            let config = scene.pod.cri.container_config(&format!("c{n}"), &["true"]);
            create_and_start(scene.pod.clone(), config)
        })
        .await;
}

/// A scene with a plugin that adjusts the containers of the pod `named`.
async fn adjusted(
    row: &str,
    adjustment: impl Fn(&str) -> ContainerAdjustment + Send + Sync + 'static,
) {
    let scene = Scene::below(Setup::default()).await;
    let plugin = Plugin::join(&scene.daemon.nri_socket(), "10", "mute").await;
    let path = scene.path("plugins");
    plugin.adjusts(move |pod, _| (pod.name == "named").then(|| adjustment(&path)));
    scene
        .holds(row, |scene, n| {
            let config = scene.pod.cri.container_config(&format!("c{n}"), &["true"]);
            create_and_start(scene.pod.clone(), config)
        })
        .await;
}

#[tokio::test]
async fn a_plugins_mount_that_never_answers() {
    adjusted("NRI mount", |path| ContainerAdjustment {
        mounts: vec![Mount {
            source: path.to_owned(),
            destination: "/there".to_owned(),
            r#type: "bind".to_owned(),
            options: vec!["bind".to_owned(), "ro".to_owned()],
        }],
        ..Default::default()
    })
    .await;
}

#[tokio::test]
async fn a_hook_that_never_answers() {
    adjusted("OCI hook", |path| ContainerAdjustment {
        hooks: Some(Hooks {
            create_runtime: vec![Hook {
                path: path.to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    })
    .await;
}

#[tokio::test]
async fn a_cdi_directory_that_never_answers() {
    let scene = Scene::new(Setup::default(), |_| "/run/cdi".into()).await;
    scene
        .holds("CDI directory", |scene, n| {
            let mut config = scene.pod.cri.container_config(&format!("c{n}"), &["true"]);
            config.cdi_devices.push(cri::CdiDevice {
                name: "vendor.test/thing=one".to_owned(),
            });
            create(scene.pod.clone(), config)
        })
        .await;
}

/// A scene with pods on a CNI network.
async fn networked(row: &str, setup: Setup, dir: &str) {
    let scene = Scene::new(setup, |daemon| daemon.path(dir)).await;
    scene
        .holds(row, |scene, n| {
            let cri = scene.daemon.cri().clone();
            let config = cri.pod_config(&format!("networked-{n}"));
            async move { cri.try_pod(config).await.map(drop) }
        })
        .await;
}

#[tokio::test]
async fn a_cni_configuration_that_never_answers() {
    networked("CNI configuration", Setup::default(), "cni").await;
}

#[tokio::test]
async fn cni_programs_that_never_answer() {
    let mut setup = Setup::default().cni(CNI);
    let base = tempfile::tempdir().expect("a directory");
    setup.cni_programs = Some(base.path().join("bin"));
    let dir = base.path().join("bin").display().to_string();
    networked("CNI programs", setup, &dir).await;
}

#[tokio::test]
async fn a_hosts_toml_that_never_answers() {
    let scene = Scene::new(Setup::default(), |daemon| daemon.path("certs")).await;
    scene
        .holds("hosts.toml", |scene, n| {
            let mut client = scene.daemon.cri().client.image.clone();
            let request = cri::PullImageRequest {
                image: Some(cri::ImageSpec {
                    image: format!("127.0.0.1:5{n}/x:1"),
                    ..Default::default()
                }),
                ..Default::default()
            };
            async move { client.pull_image(request).await.map(drop) }
        })
        .await;
}

#[tokio::test]
async fn a_plugin_directory_that_never_answers() {
    let scene = Scene::new(Setup::default(), |daemon| daemon.path("plugins")).await;
    scene
        .holds("plugin directory", |scene, _| {
            // The file is read only at the start.
            let cri = scene.daemon.cri().clone();
            async move { cri.client.pods(Default::default()).await.map(drop) }
        })
        .await;
}

#[tokio::test]
async fn a_mount_that_dies_between_creation_and_start() {
    let scene = Scene::below(Setup::default()).await;
    let mut containers = Vec::new();
    for n in 0..CALLS {
        let mut config = scene.pod.cri.container_config(&format!("c{n}"), &["true"]);
        config.mounts.push(cri::Mount {
            host_path: scene.path("volume"),
            container_path: "/there".to_owned(),
            ..Default::default()
        });
        containers.push(scene.pod.try_create(config).await.expect("CreateContainer"));
    }
    scene
        .holds("mount, at the start", |_, n| {
            let container = containers[n].clone();
            async move { container.start().await }
        })
        .await;
}

#[tokio::test]
async fn a_call_that_names_a_path_that_never_answers_fails_by_the_path() {
    let scene = Scene::below(Setup::default().toml_first("path_timeout = \"1s\"")).await;
    scene.falls_silent();
    let config = |name: &str| scene.pod.cri.container_config(name, &["true"]);
    let mut mount = config("mount");
    mount.mounts.push(cri::Mount {
        host_path: scene.path("mount"),
        container_path: "/there".to_owned(),
        ..Default::default()
    });
    let mut device = config("device");
    device.devices.push(cri::Device {
        host_path: scene.path("device"),
        container_path: "/dev/there".to_owned(),
        permissions: "rwm".to_owned(),
    });
    let mut profile = config("profile");
    security(&mut profile).seccomp = Some(cri::SecurityProfile {
        profile_type: cri::security_profile::ProfileType::Localhost.into(),
        localhost_ref: scene.path("profile"),
    });
    for (name, config) in [("mount", mount), ("device", device), ("profile", profile)] {
        // The second time, an earlier look-up still waits, which cannot be cancelled.
        for _ in 0..2 {
            let made = scene.pod.try_create(config.clone()).await;
            let error = made.expect_err("the path does not answer");
            assert_eq!(error.code(), tonic::Code::DeadlineExceeded, "{error}");
            let path = format!("{:?}", scene.path(name));
            assert!(error.message().contains(&path), "{error}");
        }
    }
    let kept = || async {
        let pods = scene
            .daemon
            .cri()
            .client
            .containers(Default::default())
            .await;
        pods.expect("ListContainers").len()
    };
    assert_eq!(kept().await, 0, "a container is left");
}

/// Returns the number of the daemon's threads that wait in the kernel and cannot be killed.
fn hung_threads(daemon: &Daemon) -> usize {
    let tasks = daemon.yard.inside(format!("/proc/{}/task", daemon.pid()));
    let states = fs::read_dir(tasks).expect("the daemon runs").flatten();
    let states = states.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    states.filter(|stat| stat.contains(") D ")).count()
}

#[tokio::test]
async fn a_source_that_is_swapped_for_a_link_to_such_a_path_holds_no_thread_of_the_daemon() {
    let mut scene = Scene::below(Setup::default().toml_first("path_timeout = \"1s\"")).await;
    let (good, links) = (scene.daemon.path("good"), scene.daemon.path("links"));
    fs::create_dir_all(&good).expect("made");
    fs::create_dir_all(&links).expect("made");
    symlink(&good, links.join("a")).expect("linked");
    symlink(scene.path("x"), links.join("b")).expect("linked");
    scene.falls_silent();
    let over = Arc::new(AtomicBool::new(false));
    let swapping = std::thread::spawn({
        let (over, a, b) = (over.clone(), links.join("a"), links.join("b"));
        move || {
            let swap = || renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).expect("swapped");
            while !over.load(Ordering::Relaxed) {
                swap();
                swap();
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    });
    for n in 0..3 {
        let mut config = scene.pod.cri.container_config(&format!("c{n}"), &["true"]);
        config.mounts = (0..400)
            .map(|at| cri::Mount {
                host_path: links.join("a").display().to_string(),
                container_path: format!("/{at}"),
                ..Default::default()
            })
            .collect();
        // It is created, or fails because its source does not answer.
        let _ = scene.pod.try_create(config).await;
    }
    over.store(true, Ordering::Relaxed);
    swapping.join().expect("it swapped");
    assert_eq!(hung_threads(&scene.daemon), 0);
    let begun = Instant::now();
    scene.daemon.kill_and_restart().await;
    assert!(begun.elapsed() <= SERVED, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_link_to_such_a_path_in_a_directory_of_the_configuration() {
    let mut scene = Scene::below(Setup::default()).await;
    let link = |name: &str| {
        let link = scene.daemon.path(name);
        fs::create_dir_all(link.parent().expect("a directory")).expect("made");
        symlink(scene.path("x"), &link).expect("linked");
        // Looked up once, so that the kernel has it cached.
        fs::symlink_metadata(link).expect("there");
    };
    scene.falls_silent();
    link("certs/127.0.0.1_5000_/hosts.toml");
    let mut images = scene.daemon.cri().client.image.clone();
    let request = cri::PullImageRequest {
        image: Some(cri::ImageSpec {
            image: "127.0.0.1:5000/x:1".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let pulled = images
        .pull_image(request)
        .await
        .expect_err("the path does not answer");
    assert!(pulled.message().contains("did not answer"), "{pulled}");
    link("cni/10-x.conflist");
    let cri = scene.daemon.cri();
    let made = cri.try_pod(cri.pod_config("networked"));
    let error = made.await.expect_err("it has no network");
    assert!(error.message().contains("answer"), "{error}");
    link("plugins/10-x");
    let begun = Instant::now();
    scene.daemon.kill_and_restart().await;
    assert!(begun.elapsed() <= SERVED, "{:?}", begun.elapsed());
    assert_eq!(hung_threads(&scene.daemon), 0);
}
