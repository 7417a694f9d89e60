//! Targets in a container's root whose path leads elsewhere: each kind of target by each kind of
//! link, of the image or of a volume, which another container may have made or swaps meanwhile. The
//! target is made inside the root, or the container is refused by its name; the host sees nothing.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use cairn_tests::{
    Daemon, cri,
    image::{Image, Layer},
    plugin::Plugin,
    pod::{Pod, container_namespaces, pod_namespaces, security, set_image, user_namespace},
};
use nri::{
    adjust::{Adjust, HookKind},
    proto::{ContainerAdjustment, Hook, LinuxDevice, Mount},
};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use super::mapped_pod;

/// What is asked for at a path.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Directory,
    File,
    Deeper,
    Node,
    Masked,
    ReadOnly,
    Work,
    PluginsMount,
    PluginsNode,
}

const KINDS: [Kind; 9] = [
    Kind::Directory,
    Kind::File,
    Kind::Deeper,
    Kind::Node,
    Kind::Masked,
    Kind::ReadOnly,
    Kind::Work,
    Kind::PluginsMount,
    Kind::PluginsNode,
];

/// A directory of the host that no container mounts, with files that have the names of the targets.
struct Victim(PathBuf);

impl Victim {
    fn make(at: PathBuf) -> Victim {
        fs::create_dir(&at).expect("a directory");
        for name in ["node", "null", "file"] {
            fs::write(at.join(name), "the host's").expect("a file");
            let mode = fs::Permissions::from_mode(0o4755);
            fs::set_permissions(at.join(name), mode).expect("a mode");
        }
        Victim(at)
    }

    /// All that can change below it.
    fn state(&self) -> BTreeMap<PathBuf, [u64; 6]> {
        let mut found = BTreeMap::new();
        let mut left = vec![self.0.clone()];
        while let Some(at) = left.pop() {
            for entry in fs::read_dir(&at).expect("a directory").flatten() {
                let of = entry.metadata().expect("it stays");
                if of.is_dir() {
                    left.push(entry.path());
                }
                let owner = u64::from(of.uid()) << 32 | u64::from(of.gid());
                let state = [
                    of.mode().into(),
                    owner,
                    of.ino(),
                    of.rdev(),
                    of.ctime().cast_unsigned(),
                    of.ctime_nsec().cast_unsigned(),
                ];
                found.insert(entry.path(), state);
            }
        }
        // Of the host's devices only those that a target would be.
        for name in ["marker", "node", "deep", "work", "below", "target", "x"] {
            if let Ok(of) = fs::symlink_metadata(Path::new("/dev").join(name)) {
                found.insert(Path::new("/dev").join(name), [of.ino(); 6]);
            }
        }
        found
    }
}

/// A link, and where it leads.
struct Trap {
    name: &'static str,
    to: String,
    /// The directory of the container where its targets are made, if they are.
    inside: String,
}

impl Trap {
    /// A part of the refusal of this kind of target, or none if it is made.
    fn refusal(&self, of_image: bool, kind: Kind) -> Option<&'static str> {
        use Kind::{
            Deeper, Directory, File, Masked, Node, PluginsMount, PluginsNode, ReadOnly, Work,
        };
        let below = matches!(kind, Deeper | Node | PluginsNode | Work);
        let why = match self.name {
            "magic" | "many" => "a symlink loop or a magic link",
            "device" if below => "Not a directory",
            "devices" | "device" => "into /dev",
            "processes" => "into /proc",
            "system" => "into /sys",
            // Missing paths need no mask.
            "absolute" | "up" | "other" | "dangling" if matches!(kind, Masked | ReadOnly) => {
                return None;
            }
            _ if !of_image => "out of the mount",
            "root" if matches!(kind, Masked | ReadOnly) => "it is the root",
            "root" if !below => "to the root",
            "existing" if kind == File => "a file cannot be mounted on a directory",
            _ => return None,
        };
        match kind {
            Work => Some("working directory"),
            Directory | File | Deeper | Node | Masked | ReadOnly | PluginsMount | PluginsNode => {
                Some(why)
            }
        }
    }

    /// A command that succeeds in a container whose target was made.
    fn check(&self, kind: Kind) -> String {
        let inside = self.inside.trim_end_matches('/');
        match kind {
            Kind::Directory | Kind::PluginsMount => format!("test -f {inside}/marker"),
            Kind::File => format!("test -f {inside}"),
            Kind::Deeper => format!("test -f {inside}/deep/er/marker"),
            Kind::Node | Kind::PluginsNode => format!("test -c {inside}/node"),
            Kind::Work => format!("test $(pwd -P) = {inside}/work"),
            Kind::Masked | Kind::ReadOnly => "true".to_owned(),
        }
    }
}

struct Scene {
    daemon: Daemon,
    plugin: Plugin,
    victim: Victim,
    /// Of the volumes at `/v` and `/w`, and of what is mounted at a target.
    volume: PathBuf,
    other: PathBuf,
    source: PathBuf,
    made: AtomicUsize,
}

impl Scene {
    async fn new() -> Scene {
        let daemon = Daemon::start().await;
        let plugin = Plugin::join(&daemon.nri_socket(), "10", "adjuster").await;
        let [volume, other, source] = ["volume", "other", "source"].map(|name| {
            let at = daemon.path(name);
            fs::create_dir(&at).expect("a directory");
            at
        });
        fs::write(source.join("marker"), "").expect("a file");
        Scene {
            victim: Victim::make(daemon.path("victim")),
            daemon,
            plugin,
            volume,
            other,
            source,
            made: AtomicUsize::new(0),
        }
    }

    fn traps(&self) -> Vec<Trap> {
        let victim = self.victim.0.display().to_string();
        let trap = |name, to: &str, inside: &str| Trap {
            name,
            to: to.to_owned(),
            inside: inside.to_owned(),
        };
        vec![
            trap("absolute", &victim, &victim),
            trap("magic", &format!("/proc/1/root{victim}"), ""),
            trap("up", &format!("../../../../../../../..{victim}"), &victim),
            trap("devices", "/dev", ""),
            trap("device", "/dev/null", ""),
            trap("processes", "/proc/sys", ""),
            trap("system", "/sys/kernel", ""),
            trap("other", "/w/below", "/w/below"),
            trap("root", "/", "/"),
            trap("existing", "/etc", "/etc"),
            trap("dangling", "/made/for/it", "/made/for/it"),
        ]
    }

    fn mount(from: &Path, to: &str) -> cri::Mount {
        cri::Mount {
            host_path: from.display().to_string(),
            container_path: to.to_owned(),
            ..Default::default()
        }
    }

    /// A container with the two volumes and a target of this kind at `path`.
    fn config(&self, pod: &Pod, kind: Kind, path: &str, check: &str) -> cri::ContainerConfig {
        let look = format!(
            "for at in /proc /sys /dev; do test ! -e $at/marker || echo covered $at; done; \
             test -c /dev/null && test -e /proc/self/stat && {check} && echo complete"
        );
        let name = format!("c{}", self.made.fetch_add(1, Ordering::Relaxed));
        let mut config = pod.cri.container_config(&name, &["sh", "-c", &look]);
        config.mounts = vec![
            Self::mount(&self.volume, "/v"),
            Self::mount(&self.other, "/w"),
        ];
        let file = self.source.join("marker");
        match kind {
            Kind::Directory => config.mounts.push(Self::mount(&self.source, path)),
            Kind::File => config.mounts.push(Self::mount(&file, path)),
            Kind::Deeper => {
                let deeper = format!("{path}/deep/er");
                config.mounts.push(Self::mount(&self.source, &deeper));
            }
            Kind::Node => config.devices.push(cri::Device {
                host_path: "/dev/null".to_owned(),
                container_path: format!("{path}/node"),
                permissions: "rw".to_owned(),
            }),
            Kind::Masked => security(&mut config).masked_paths = vec![path.to_owned()],
            Kind::ReadOnly => security(&mut config).readonly_paths = vec![path.to_owned()],
            Kind::Work => config.working_dir = format!("{path}/work"),
            Kind::PluginsMount | Kind::PluginsNode => {}
        }
        self.adjust(kind, path.to_owned());
        config
    }

    fn adjust(&self, kind: Kind, path: String) {
        let source = self.source.display().to_string();
        self.plugin.adjusts(move |_, _| {
            let mut answer = ContainerAdjustment::default();
            if kind == Kind::PluginsMount {
                answer.add_mount(Mount {
                    destination: path.clone(),
                    r#type: "bind".into(),
                    source: source.clone(),
                    options: vec!["bind".into()],
                });
            }
            if kind == Kind::PluginsNode {
                answer.add_device(LinuxDevice {
                    path: format!("{path}/node"),
                    r#type: "c".into(),
                    major: 1,
                    minor: 3,
                    ..Default::default()
                });
            }
            Some(answer)
        });
    }

    /// Starts a container. `Err`: the message of its refusal.
    async fn tried(&self, pod: &Pod, config: cri::ContainerConfig) -> Result<Vec<String>, String> {
        let container = pod.try_create(config).await;
        let container = container.map_err(|e| e.message().to_owned())?;
        let result = match container.start().await {
            Ok(()) => {
                container.exited().await;
                Ok(container.lines())
            }
            Err(e) => Err(e.message().to_owned()),
        };
        container.remove().await.expect("RemoveContainer");
        result
    }

    /// Empties the volumes, and makes the link of a trap.
    fn set(&self, to: &str) {
        for directory in [&self.volume, &self.other] {
            fs::remove_dir_all(directory).expect("it is the test's own");
            fs::create_dir(directory).expect("a directory");
        }
        symlink(to, self.volume.join("x")).expect("a link");
    }
}

/// Returns what is wrong with each kind of target at the trap, which is at `path`.
async fn each_kind(
    scene: &Scene,
    pod: &Pod,
    image: Option<&str>,
    path: &str,
    trap: &Trap,
) -> Vec<String> {
    let before = scene.victim.state();
    let mut wrong = Vec::new();
    for kind in KINDS {
        fs::remove_dir_all(&scene.other).expect("it is the test's own");
        fs::create_dir(&scene.other).expect("a directory");
        let mut config = scene.config(pod, kind, path, &trap.check(kind));
        if let Some(image) = image {
            set_image(&mut config, image);
        }
        if pod_namespaces(&mut pod.config.clone())
            .userns_options
            .is_some()
        {
            container_namespaces(&mut config).userns_options = Some(user_namespace());
        }
        let expected = trap.refusal(image.is_some(), kind);
        let is_right = |result: &Result<Vec<String>, String>| match (result, expected) {
            (Ok(lines), None) => lines == &["complete"],
            (Err(text), Some(why)) => text.contains(why) && text.contains(path),
            _ => false,
        };
        let result = scene.tried(pod, config).await;
        if !is_right(&result) {
            let name = trap.name;
            wrong.push(format!("{name}, {kind:?}: {result:?}, not {expected:?}"));
        }
        if scene.victim.state() != before {
            wrong.push(format!("{}, {kind:?}: the host has changed", trap.name));
        }
    }
    wrong
}

async fn links_of_a_volume(scene: &Scene, pod: &Pod) -> Vec<String> {
    let mut wrong = Vec::new();
    for trap in scene.traps() {
        scene.set(&trap.to);
        wrong.extend(each_kind(scene, pod, None, "/v/x", &trap).await);
    }
    scene.set("x1");
    for n in 1..=41 {
        let link = scene.volume.join(format!("x{n}"));
        symlink(format!("x{}", n + 1), link).expect("a link");
    }
    let many = Trap {
        name: "many",
        to: String::new(),
        inside: String::new(),
    };
    wrong.extend(each_kind(scene, pod, None, "/v/x", &many).await);
    wrong
}

#[tokio::test]
async fn a_link_of_a_volume_leads_no_target_out_of_the_root_or_over_the_kernels_places() {
    let scene = Scene::new().await;
    let pod = scene.daemon.cri().pod("links").await;
    let wrong = links_of_a_volume(&scene, &pod).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    pod.end().await;
}

#[tokio::test]
async fn a_link_of_a_volume_leads_no_target_of_a_user_namespace_elsewhere() {
    let scene = Scene::new().await;
    let pod = mapped_pod(&scene.daemon, "mapped").await;
    for directory in [&scene.volume, &scene.other, &scene.source] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).expect("a mode");
    }
    let wrong = links_of_a_volume(&scene, &pod).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    pod.end().await;
}

#[tokio::test]
async fn a_link_of_the_image_leads_no_target_out_of_the_root_or_over_the_kernels_places() {
    let scene = Scene::new().await;
    let pod = scene.daemon.cri().pod("image").await;
    let mut wrong = Vec::new();
    for trap in scene.traps() {
        scene.set("nowhere");
        let name = trap.name;
        let reference = format!("localhost/cairn-test/trap-{name}:1");
        let image = Image::busybox(&reference).layer(Layer::default().symlink("x", &trap.to));
        scene.daemon.import(&image).await;
        wrong.extend(each_kind(&scene, &pod, Some(&reference), "/x", &trap).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    pod.end().await;
}

/// The files and mounts that every container has.
#[tokio::test]
async fn a_link_of_the_image_in_place_of_the_runtimes_own_targets_stays_inside() {
    let scene = Scene::new().await;
    let pod = scene.daemon.cri().pod("own").await;
    let victim = scene.victim.0.display().to_string();
    let before = scene.victim.state();
    let mut wrong = Vec::new();
    for (n, link) in [
        "etc",
        "etc/hosts",
        "etc/resolv.conf",
        "dev",
        "proc",
        "sys",
        "tmp",
    ]
    .into_iter()
    .enumerate()
    {
        let reference = format!("localhost/cairn-test/own-{n}:1");
        let mut image = Image::bare(&reference).layer(Layer::default().symlink(link, &victim));
        if link == "tmp" {
            // A VOLUME of the image.
            image = image.config("Volumes", json!({"/tmp/volume": {}}));
        }
        scene.daemon.import(&image).await;
        let mut config = pod.cri.container_config("c", &["true"]);
        set_image(&mut config, &reference);
        let container = pod.try_create(config).await.expect("CreateContainer");
        // The image has no program; the root comes first.
        let error = container.start().await.expect_err("nothing to run");
        let refused = ["/dev", "/proc", "/sys"].contains(&format!("/{link}").as_str());
        let named = error.message().contains(&format!("mount /{link}"));
        if named != refused {
            wrong.push(format!("{link}: {}", error.message()));
        }
        container.remove().await.expect("RemoveContainer");
        if scene.victim.state() != before {
            wrong.push(format!("{link}: the host has changed"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    pod.end().await;
}

/// Exchanges a directory of the volume with a link to the victim until it is dropped.
#[derive(Default)]
struct Swapper {
    stop: AtomicBool,
    swapped: AtomicUsize,
    volume: PathBuf,
    victim: PathBuf,
}

impl Swapper {
    fn run(&self) {
        let (deep, away) = (self.volume.join("x"), self.volume.join("away"));
        while !self.stop.load(Ordering::Relaxed) {
            if renameat_with(CWD, &deep, CWD, &away, RenameFlags::EXCHANGE).is_ok() {
                self.swapped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn prepare(&self) {
        let to = format!("/proc/1/root{}", self.victim.display());
        fs::create_dir(self.volume.join("x")).expect("a directory");
        symlink(to, self.volume.join("away")).expect("a link");
    }

    /// Swaps while `starts` run.
    async fn during<T>(self, starts: impl Future<Output = T>) -> T {
        let swapper = Arc::new(self);
        let thread = thread::spawn({
            let swapper = Arc::clone(&swapper);
            move || swapper.run()
        });
        let done = starts.await;
        swapper.stop.store(true, Ordering::Relaxed);
        thread.join().expect("it ends");
        let swapped = swapper.swapped.load(Ordering::Relaxed);
        assert!(swapped > 1_000, "swapped {swapped} times");
        done
    }
}

#[tokio::test]
async fn a_directory_that_another_container_swaps_for_a_link_leads_no_target_out_of_the_root() {
    let scene = Scene::new().await;
    let hook = Hook {
        path: "/bin/true".to_owned(),
        ..Default::default()
    };
    let pod = scene.daemon.cri().pod("swap").await;
    let before = scene.victim.state();
    let mut wrong = Vec::new();
    let (mut made, mut refused) = (0, 0);
    for with_hooks in [false, true] {
        for kind in [Kind::Directory, Kind::File, Kind::Deeper, Kind::Node] {
            scene.set("unused");
            fs::remove_file(scene.volume.join("x")).expect("the link");
            let swapper = Swapper {
                volume: scene.volume.clone(),
                victim: scene.victim.0.clone(),
                ..Swapper::default()
            };
            swapper.prepare();
            let starts = async {
                let mut started = Vec::new();
                for _ in 0..8 {
                    let config = scene.config(&pod, kind, "/v/x/target", "true");
                    let hook = hook.clone();
                    if with_hooks {
                        scene.plugin.adjusts(move |_, _| {
                            let mut answer = ContainerAdjustment::default();
                            answer.add_hook(HookKind::CreateContainer, hook.clone());
                            Some(answer)
                        });
                    }
                    started.push(scene.tried(&pod, config).await);
                }
                started
            };
            let started = swapper.during(starts).await;
            for result in started {
                match result {
                    Ok(lines) if lines == ["complete"] => made += 1,
                    Err(text) if text.contains("a magic link") => refused += 1,
                    other => wrong.push(format!("{kind:?}: {other:?}")),
                }
            }
            if scene.victim.state() != before {
                wrong.push(format!("{kind:?}: the host has changed"));
            }
        }
    }
    assert!(made > 0 && refused > 0, "{made} made, {refused} refused");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    pod.end().await;
}

/// The volume that a link leads over `/dev` has links in place of its nodes.
#[tokio::test]
async fn a_volume_that_a_link_leads_over_dev_gets_no_nodes_of_it() {
    let scene = Scene::new().await;
    let pod = scene.daemon.cri().pod("devices").await;
    let before = scene.victim.state();
    scene.set("/dev");
    let swapper = Swapper {
        volume: scene.other.clone(),
        victim: scene.victim.0.clone(),
        ..Swapper::default()
    };
    swapper.prepare();
    for directory in ["shm", "pts", "mqueue"] {
        fs::create_dir(scene.other.join(directory)).expect("a directory");
    }
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        let link = scene.other.join(name);
        symlink(format!("x/made-{name}"), link).expect("a link");
    }
    let starts = async {
        for n in 0..20 {
            for link in ["fd", "stdin", "stdout", "stderr", "kcore", "ptmx"] {
                let _ = fs::remove_file(scene.other.join(link));
            }
            let name = format!("c{n}");
            let mut config = pod.cri.container_config(&name, &["true"]);
            config.mounts = vec![
                Scene::mount(&scene.volume, "/v"),
                Scene::mount(&scene.other, "/v/x"),
            ];
            let container = pod.try_create(config).await.expect("CreateContainer");
            let error = container.start().await.expect_err("over /dev");
            assert!(error.message().contains("mount /v/x: "), "{error}");
            container.remove().await.expect("RemoveContainer");
            assert_eq!(scene.victim.state(), before);
        }
    };
    swapper.during(starts).await;
    pod.end().await;
}

/// The mount of a client, whose path leads through links that its image has for its own use.
#[tokio::test]
async fn a_dangling_link_of_the_image_is_followed_inside_and_its_end_is_made() {
    let scene = Scene::new().await;
    let pod = scene.daemon.cri().pod("dangling").await;
    let reference = "localhost/cairn-test/dangling:1";
    let layer = Layer::default()
        .symlink("etc/localtime", "/usr/share/zoneinfo/Europe/X")
        .symlink("conf", "../nope/deep")
        .symlink("run", "var/run");
    let image = Image::busybox(reference).layer(layer);
    scene.daemon.import(&image).await;
    let file = scene.source.join("file");
    fs::write(&file, "inside\n").expect("a file");
    for (n, (to, from, read)) in [
        ("/etc/localtime", &file, "/usr/share/zoneinfo/Europe/X"),
        ("/conf", &scene.source, "/nope/deep/file"),
        ("/conf/a/b", &scene.source, "/nope/deep/a/b/file"),
        ("/run/secrets/x", &file, "/var/run/secrets/x"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut config = pod.cri.container_config(&format!("c{n}"), &["cat", read]);
        set_image(&mut config, reference);
        config.mounts = vec![Scene::mount(from, to)];
        let container = pod.started(config).await;
        container.exited().await;
        assert_eq!(container.lines(), ["inside"], "{to}");
        container.remove().await.expect("RemoveContainer");
    }
    pod.end().await;
}
