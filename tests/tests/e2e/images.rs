//! Images: identity, import, and malicious archives: CRI-171…177, 440…447.

use std::{fs, path::Path};

use cairn_tests::{
    Daemon, Setup, bins, cri,
    image::{Image, Layer},
    pod::pod_namespaces,
};

pub(crate) fn spec(reference: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: reference.to_owned(),
        ..Default::default()
    }
}

pub(crate) async fn status(daemon: &Daemon, reference: &str) -> Option<cri::Image> {
    let request = cri::ImageStatusRequest {
        image: Some(spec(reference)),
        verbose: false,
    };
    let mut client = daemon.cri().client.image;
    client
        .image_status(request)
        .await
        .expect("ImageStatus")
        .into_inner()
        .image
}

pub(crate) async fn list(daemon: &Daemon) -> Vec<cri::Image> {
    let mut client = daemon.cri().client.image;
    let all = client.list_images(cri::ListImagesRequest::default()).await;
    all.expect("ListImages").into_inner().images
}

pub(crate) async fn remove(daemon: &Daemon, reference: &str) {
    let request = cri::RemoveImageRequest {
        image: Some(spec(reference)),
    };
    daemon
        .cri()
        .client
        .image
        .remove_image(request)
        .await
        .expect("RemoveImage");
}

#[tokio::test]
async fn an_image_is_the_same_by_whatever_name_it_is_asked_for() {
    let daemon = Daemon::start().await;
    let name = "localhost/cairn-test/named:7";
    let id = daemon
        .import(&Image::busybox(name).config("User", "1000:1000".into()))
        .await;
    let image = status(&daemon, name).await.expect("it was imported");
    assert_eq!(image.id, id, "the id is the digest of the config");
    assert_eq!(image.repo_tags, [name]);
    assert!(image.size > 0);
    assert_eq!(image.uid.as_ref().map(|u| u.value), Some(1000));
    assert!(image.username.is_empty());
    let hex = id.trim_start_matches("sha256:");
    for other in [id.as_str(), hex, &hex[..16]] {
        assert_eq!(
            status(&daemon, other).await.as_ref(),
            Some(&image),
            "{other}"
        );
    }
    assert!(list(&daemon).await.contains(&image));
    assert_eq!(status(&daemon, "localhost/cairn-test/other:7").await, None);
    remove(&daemon, &id).await;
    assert_eq!(status(&daemon, name).await, None);
    assert!(!list(&daemon).await.iter().any(|i| i.id == id));
}

#[tokio::test]
async fn two_names_of_one_image_are_one_entry() {
    let daemon = Daemon::start().await;
    let marker = || Layer::default().file("marker", 0o644, b"same");
    let a = daemon
        .import(&Image::busybox("localhost/cairn-test/a:1").layer(marker()))
        .await;
    let b = daemon
        .import(&Image::busybox("localhost/cairn-test/b:1").layer(marker()))
        .await;
    assert_eq!(a, b);
    let all = list(&daemon).await;
    let same: Vec<_> = all.iter().filter(|i| i.id == a).collect();
    assert_eq!(same.len(), 1);
    let mut tags = same[0].repo_tags.clone();
    tags.sort();
    assert_eq!(
        tags,
        ["localhost/cairn-test/a:1", "localhost/cairn-test/b:1"]
    );
    remove(&daemon, "localhost/cairn-test/a:1").await;
    assert_eq!(
        status(&daemon, "localhost/cairn-test/b:1").await,
        None,
        "CRI-175: all its names go"
    );
}

#[tokio::test]
async fn an_image_that_a_container_uses_stays_for_it_alone() {
    let daemon = Daemon::start().await;
    let name = "localhost/cairn-test/used:1";
    daemon
        .import(&Image::busybox(name).layer(Layer::default().file("kept", 0o644, b"kept")))
        .await;
    let pod = daemon.cri().pod("user").await;
    let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
    config.image = Some(spec(name));
    let container = pod.try_create(config).await.expect("CreateContainer");
    container.start().await.expect("StartContainer");
    remove(&daemon, name).await;
    assert_eq!(status(&daemon, name).await, None);
    assert_eq!(container.exec(&["cat", "/kept"]).await, "kept");
    pod.end().await;
}

#[tokio::test]
async fn damaged_archives_are_refused_in_one_line_and_leave_nothing() {
    let daemon = Daemon::start().await;
    let before = (list(&daemon).await, daemon.inventory().await);
    let good = Image::busybox("localhost/cairn-test/damaged:1").layer(Layer::default().file(
        "damaged-marker",
        0o644,
        b"d",
    ));
    let whole = good.blobs().archive();
    let mut lying = good.blobs();
    let last = lying.blobs.len() - 3;
    lying.blobs[last].1[10] ^= 0x55;
    let mut missing = good.blobs();
    let id = missing.id.clone();
    missing.blobs.retain(|(digest, _)| *digest != id);
    let mut no_index = good.blobs();
    no_index.index = b"{".to_vec();
    let cases: [(&str, Vec<u8>); 6] = [
        ("empty", Vec::new()),
        ("noise", vec![0x5a; 100_000]),
        ("cut short", whole[..whole.len() / 2].to_vec()),
        ("a blob that is not its digest", lying.archive()),
        ("no config", missing.archive()),
        ("an index that is no JSON", no_index.archive()),
    ];
    for (case, bytes) in cases {
        let file = daemon.path("damaged.tar");
        fs::write(&file, bytes).expect("a file");
        let done = daemon.import_file(&file).await;
        assert!(!done.status.success(), "{case} was accepted");
        let printed = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(printed.trim_end().lines().count(), 1, "{case}: {printed}");
    }
    assert_eq!(list(&daemon).await, before.0);
    daemon.leaves_only(&before.1).await;
}

#[tokio::test]
async fn the_image_filesystem_is_told_from_the_start() {
    let daemon = Daemon::start().await;
    let mut client = daemon.cri().client.image;
    let info = client
        .image_fs_info(cri::ImageFsInfoRequest {})
        .await
        .expect("ImageFsInfo")
        .into_inner();
    let first = info.image_filesystems.first().expect("one filesystem");
    let mountpoint = first
        .fs_id
        .as_ref()
        .map(|f| f.mountpoint.clone())
        .expect("a mountpoint");
    assert!(Path::new(&mountpoint).is_dir(), "{mountpoint}");
    assert!(first.used_bytes.is_some_and(|b| b.value > 0));
    assert!(bins::cairn().is_file());
}

#[tokio::test]
async fn the_status_of_a_container_names_the_image_that_is_mounted() {
    use proto_cri::v1 as newer;

    let daemon = Daemon::start().await;
    let name = "localhost/cairn-test/data:1";
    let id = daemon
        .import(&Image::busybox(name).layer(Layer::default().file("data", 0o644, b"of the image")))
        .await;
    let pod = daemon.cri().pod("image-volume").await;
    let named = |image: &str| newer::ImageSpec {
        image: image.to_owned(),
        ..Default::default()
    };
    let config = newer::ContainerConfig {
        metadata: Some(newer::ContainerMetadata {
            name: "c".to_owned(),
            attempt: 0,
        }),
        image: Some(named(cairn_tests::image::BUSYBOX)),
        command: ["sleep", "1000"].map(str::to_owned).to_vec(),
        mounts: vec![newer::Mount {
            container_path: "/volume".to_owned(),
            readonly: true,
            image: Some(named(name)),
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut client = pod.cri.client.newer.clone();
    let create = newer::CreateContainerRequest {
        pod_sandbox_id: pod.id.clone(),
        config: Some(config),
        sandbox_config: None,
    };
    let created = client.create_container(create).await;
    let container_id = created.expect("CreateContainer").into_inner().container_id;
    let container = pod.cri.container_by_id(&container_id, daemon.path("none"));
    container.start().await.expect("StartContainer");
    assert_eq!(
        container.exec(&["cat", "/volume/data"]).await,
        "of the image"
    );
    // By the id of the image at that time: the name may refer to another one now.
    remove(&daemon, name).await;
    let request = newer::ContainerStatusRequest {
        container_id,
        verbose: false,
    };
    let status = client.container_status(request).await;
    let status = status.expect("ContainerStatus").into_inner().status;
    let mounts = status.expect("a status").mounts;
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    let image = mounts[0].image.as_ref().expect("an image");
    assert_eq!((image.image.as_str(), &image.image_ref), (name, &id));
    pod.end().await;
}

#[tokio::test]
async fn an_image_that_the_operator_pins_is_told_as_pinned() {
    let (kept, other) = (
        "localhost/cairn-test/kept:1",
        "localhost/cairn-test/other:1",
    );
    let setup = Setup::default().toml(&format!("[image]\npinned = [\"{kept}\"]"));
    let mut daemon = Daemon::with(setup).await;
    for name in [kept, other] {
        let layer = Layer::default().file("own", 0o644, name.as_bytes());
        daemon.import(&Image::busybox(name).layer(layer)).await;
    }
    let pinned = async |daemon: &Daemon, name| status(daemon, name).await.map(|i| i.pinned);
    assert_eq!(pinned(&daemon, kept).await, Some(true));
    assert_eq!(pinned(&daemon, other).await, Some(false));
    // An image that existed before the operator configured its pin is pinned at the next start.
    let file = daemon.path("cairn.toml");
    let text = fs::read_to_string(&file).expect("the daemon's");
    fs::write(&file, text.replace(kept, other)).expect("a file");
    daemon.kill_and_restart().await;
    assert_eq!(pinned(&daemon, other).await, Some(true));
    // Pins prevent garbage collection; an explicit removal succeeds.
    remove(&daemon, other).await;
    assert_eq!(pinned(&daemon, other).await, None);
}

#[tokio::test]
async fn an_image_is_mounted_in_a_user_namespace_with_the_pods_mappings_and_no_others() {
    use proto_cri::v1 as newer;

    let daemon = Daemon::start().await;
    let name = "localhost/cairn-test/data:1";
    daemon
        .import(&Image::busybox(name).layer(Layer::default().file("data", 0o644, b"of the image")))
        .await;
    let ids = |host_id| newer::IdMapping {
        container_id: 0,
        host_id,
        length: 65_536,
    };
    let options = newer::NamespaceOption {
        pid: newer::NamespaceMode::Container.into(),
        userns_options: Some(newer::UserNamespace {
            mode: newer::NamespaceMode::Pod.into(),
            uids: vec![ids(65_536)],
            gids: vec![ids(65_536)],
        }),
        ..Default::default()
    };
    let mut config = daemon.cri().pod_config("mapped");
    pod_namespaces(&mut config).userns_options = Some(cri::UserNamespace {
        mode: cri::NamespaceMode::Pod.into(),
        uids: vec![mapping()],
        gids: vec![mapping()],
    });
    let pod = daemon.cri().try_pod(config).await.expect("RunPodSandbox");
    let create = |container: &str, mappings: Vec<newer::IdMapping>| {
        let named = |image: &str| newer::ImageSpec {
            image: image.to_owned(),
            ..Default::default()
        };
        let context = newer::LinuxContainerSecurityContext {
            namespace_options: Some(options.clone()),
            ..Default::default()
        };
        let config = newer::ContainerConfig {
            metadata: Some(newer::ContainerMetadata {
                name: container.to_owned(),
                attempt: 0,
            }),
            image: Some(named(cairn_tests::image::BUSYBOX)),
            command: ["sleep", "1000"].map(str::to_owned).to_vec(),
            mounts: vec![newer::Mount {
                container_path: "/volume".to_owned(),
                readonly: true,
                image: Some(named(name)),
                uid_mappings: mappings.clone(),
                gid_mappings: mappings,
                ..Default::default()
            }],
            linux: Some(newer::LinuxContainerConfig {
                security_context: Some(context),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = newer::CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(config),
            sandbox_config: None,
        };
        let mut client = pod.cri.client.newer.clone();
        async move { client.create_container(request).await }
    };
    for (container, mappings) in [("without", vec![]), ("with", vec![ids(65_536)])] {
        let created = create(container, mappings).await.expect("CreateContainer");
        let id = created.into_inner().container_id;
        let container = pod.cri.container_by_id(&id, daemon.path("none"));
        container.start().await.expect("StartContainer");
        let seen = container.sh("cat /volume/data; stat -c %u:%g /volume/data");
        assert_eq!(seen.await, "of the image0:0");
    }
    let refused = create("other", vec![ids(131_072)]).await;
    let refused = refused.expect_err("not the pod's mapping");
    assert!(
        refused.message().contains("mappings of the pod"),
        "{refused}"
    );
    pod.end().await;
}

fn mapping() -> cri::IdMapping {
    cri::IdMapping {
        container_id: 0,
        host_id: 65_536,
        length: 65_536,
    }
}
