//! Pulls: registries, mirrors, passwords, and the display of a pull in progress (CRI-170, 177,
//! 410).

use std::{
    fs,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cairn_tests::{
    Daemon, cri,
    image::{Image, Layer},
    registry::{Reply, start as start_registry},
    until,
};

use crate::images::{remove, spec, status};

const REGISTRY: &str = "127.0.0.1:5000";

async fn pull(daemon: &Daemon, reference: &str) -> Result<String, tonic::Status> {
    let request = cri::PullImageRequest {
        image: Some(spec(reference)),
        ..Default::default()
    };
    let mut client = daemon.cri().client.image;
    Ok(client.pull_image(request).await?.into_inner().image_ref)
}

/// Runs Debian's docker-registry in the daemon's yard, with one image of busybox and a marker.
async fn registry(daemon: &mut Daemon, htpasswd: Option<&str>) -> Image {
    let config = daemon.path("registry.yml");
    let data = daemon.path("registry");
    let auth = htpasswd.map_or(String::new(), |file| {
        format!("auth: {{htpasswd: {{realm: test, path: {file}}}}}\n")
    });
    let text = format!(
        "version: 0.1\nlog: {{level: warn}}\nhttp: {{addr: {REGISTRY}}}\n{auth}\
         storage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\n",
        data.display()
    );
    fs::write(&config, text).expect("a file");
    let log = daemon.path("registry.log");
    let argv = ["docker-registry", "serve", &config.display().to_string()];
    daemon
        .yard
        .run(&argv, &[], &log)
        .await
        .expect("docker-registry starts: hack/setup test");
    let image = Image::busybox("unused").layer(Layer::default().file("pulled", 0o644, b"yes"));
    let tar = daemon.path("pushed.tar");
    image.write(&tar);
    let from = format!("oci-archive:{}", tar.display());
    let to = format!("docker://{REGISTRY}/library/pulled:1");
    until::until_within(
        "the registry takes an image",
        Duration::from_secs(60),
        || async {
            let mut skopeo = daemon.yard.command("skopeo");
            skopeo.args(["copy", "-q", "--insecure-policy", "--dest-tls-verify=false"]);
            if htpasswd.is_some() {
                skopeo.args(["--dest-creds", "user:opensesame-17"]);
            }
            let done = skopeo
                .args([&from, &to])
                .stderr(Stdio::null())
                .status()
                .await;
            done.is_ok_and(|s| s.success()).then_some(())
        },
    )
    .await;
    image
}

#[tokio::test]
async fn a_pulled_image_runs_and_has_the_id_that_pull_returned() {
    let mut daemon = Daemon::start().await;
    let blobs = registry(&mut daemon, None).await.blobs();
    let name = format!("{REGISTRY}/library/pulled:1");
    let id = pull(&daemon, &name).await.expect("PullImage");
    assert_eq!(id, blobs.id);
    let image = status(&daemon, &name).await.expect("it was pulled");
    assert_eq!((&image.id, &image.repo_tags), (&id, &vec![name.clone()]));
    assert_eq!(
        image.repo_digests,
        [format!("{REGISTRY}/library/pulled@{}", blobs.manifest)]
    );
    let pod = daemon.cri().pod("pulled").await;
    let mut config = pod.cri.container_config("c", &["cat", "/pulled"]);
    config.image = Some(spec(&id));
    let container = pod.try_create(config).await.expect("CreateContainer");
    container.start().await.expect("StartContainer");
    let ended = container.exited().await;
    assert_eq!((ended.exit_code, ended.image_id), (0, id.clone()));
    assert_eq!(container.records()[0].content, b"yes");
    pod.end().await;
    remove(&daemon, &name).await;
    let by_digest = format!("{REGISTRY}/library/pulled@{}", blobs.manifest);
    assert_eq!(pull(&daemon, &by_digest).await.expect("PullImage"), id);
    let image = status(&daemon, &by_digest).await.expect("it was pulled");
    assert!(image.repo_tags.is_empty(), "a pull by digest gives no tag");
}

#[tokio::test]
async fn a_mirror_of_hosts_toml_is_used_under_the_original_name() {
    let mut daemon = Daemon::start().await;
    registry(&mut daemon, None).await;
    let dir = daemon.path("certs/registry.example");
    fs::create_dir_all(&dir).expect("a directory");
    let hosts = format!(
        "server = \"https://registry.example\"\n\n[host.\"http://{REGISTRY}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
    );
    fs::write(dir.join("hosts.toml"), hosts).expect("a file");
    let name = "registry.example/library/pulled:1";
    let id = pull(&daemon, name).await.expect("PullImage by the mirror");
    let image = status(&daemon, name).await.expect("it was pulled");
    assert_eq!((image.id, image.repo_tags), (id, vec![name.to_owned()]));
}

#[tokio::test]
async fn a_registry_that_wants_a_password_gets_the_right_one() {
    let mut daemon = Daemon::start().await;
    let file = daemon.path("htpasswd");
    // The password is "opensesame-17": a bcrypt line of cost 5, made for this test.
    fs::write(&file, HTPASSWD).expect("a file");
    registry(&mut daemon, Some(&file.display().to_string())).await;
    let name = format!("{REGISTRY}/library/pulled:1");
    let error = pull(&daemon, &name)
        .await
        .expect_err("anonymous is not enough");
    assert!(
        error.message().contains(REGISTRY) && !error.message().contains('\n'),
        "{error}"
    );
    let auth = |password: &str| cri::PullImageRequest {
        image: Some(spec(&name)),
        auth: Some(cri::AuthConfig {
            username: "user".into(),
            password: password.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut client = daemon.cri().client.image;
    let wrong = client
        .pull_image(auth("guess"))
        .await
        .expect_err("wrong password");
    assert!(
        !wrong.message().contains("guess"),
        "a password is never repeated: {wrong}"
    );
    client
        .pull_image(auth("opensesame-17"))
        .await
        .expect("PullImage");
    assert!(!daemon.log().contains("opensesame"), "nor logged");
}

const HTPASSWD: &str = "user:$2y$05$abcdefghijklmnopqrstuuQaXLfT3i4U4RJyshNiQjaeSjPvCyJEa\n";

#[tokio::test]
async fn a_registry_that_is_down_or_lies_is_told_in_one_line() {
    let mut daemon = Daemon::start().await;
    let down = format!("{REGISTRY}/library/pulled:1");
    let error = pull(&daemon, &down).await.expect_err("no process listens");
    assert!(
        error.message().contains("library/pulled:1") && !error.message().contains('\n'),
        "{error}"
    );
    registry(&mut daemon, None).await;
    let none = format!("{REGISTRY}/library/none:1");
    let error = pull(&daemon, &none)
        .await
        .expect_err("there is no such image");
    assert!(
        error.message().contains("library/none:1") && !error.message().contains('\n'),
        "{error}"
    );
    // The registry serves a blob that does not match its digest.
    let blobs = daemon.path("registry/docker/registry/v2/blobs/sha256");
    let mut spoiled = 0;
    for path in cairn_tests::look::tree(&blobs) {
        let path = blobs.join(path);
        if path.is_file() {
            let mut bytes = fs::read(&path).expect("a blob");
            if bytes.starts_with(&[0x1f, 0x8b]) {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::write(&path, bytes).expect("it can be spoiled");
                spoiled += 1;
            }
        }
    }
    assert!(spoiled > 0, "there are layers to spoil");
    let error = pull(&daemon, &down)
        .await
        .expect_err("a layer is not its digest");
    assert!(
        !error.message().contains('\n') && error.message().contains("sha256:"),
        "{error}"
    );
    assert_eq!(status(&daemon, &down).await, None);
}

/// Returns the pulls in progress in Status.
async fn pulls(daemon: &Daemon) -> serde_json::Value {
    let request = cri::StatusRequest { verbose: true };
    let mut client = daemon.cri().client.runtime;
    let status = client.status(request).await.expect("Status").into_inner();
    serde_json::from_str(&status.info["pulls"]).expect("JSON")
}

#[tokio::test]
async fn a_pull_under_way_is_shown_with_its_bytes_and_ends_with_its_caller() {
    let daemon = Daemon::start().await;
    let data = "incompressible? no matter: the layer is held back half way".repeat(4000);
    let image = Image::bare("unused").layer(Layer::default().file("data", 0o644, data.as_bytes()));
    let blobs = image.blobs();
    let sent = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&sent);
    let body = vec![0x1f; 300_000];
    let registry = start_registry(&daemon.yard, REGISTRY, vec![("slow:1", blobs)], {
        move |request| {
            let layer = request.path.contains("/blobs/") && seen.swap(true, Ordering::SeqCst);
            layer.then(|| Reply::Stall(body.clone(), 200_000))
        }
    });
    let reference = format!("{REGISTRY}/slow:1");
    let mut client = daemon.cri().client.image;
    let request = cri::PullImageRequest {
        image: Some(spec(&reference)),
        ..Default::default()
    };
    let pulling = tokio::spawn(async move { client.pull_image(request).await });
    let shown = until("the pull is shown", || async {
        let pulls = pulls(&daemon).await;
        pulls.get(0).cloned()
    })
    .await;
    assert_eq!(shown["image"], reference.as_str(), "{shown}");
    assert!(shown["bytes"].is_u64() && shown["of"].is_u64(), "{shown}");
    pulling.abort();
    until("the pull is given up", || async {
        (pulls(&daemon).await == serde_json::json!([])).then_some(())
    })
    .await;
    drop(registry);
}
