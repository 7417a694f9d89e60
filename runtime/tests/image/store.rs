//! Import, names, removal, restart, mounts.

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::MetadataExt;

use cairn::image::{Digest, Progress};

use crate::support::*;

fn base() -> Layer {
    Layer::new()
        .dir("./", 0o751)
        .dir("etc", 0o755)
        .file("etc/passwd", "root:x:0:0::/root:/bin/sh\n")
        .dir("data", 0o700)
        .file("data/old", "old")
        .file("gone", "x")
}

fn two_layers() -> Image {
    let upper = Layer::new().file(".wh.gone", "").file("data/new", "new");
    Image::new("registry.example/a/b:1", &[base(), upper])
}

#[tokio::test]
async fn an_imported_image_is_found_by_every_name_and_is_the_same_each_time() {
    let f = Fixture::new();
    let image = two_layers();
    assert_eq!(f.import(&image).await.unwrap(), image.id);
    let id = image.id.to_string();
    let manifest = image.manifest.to_string();
    for text in [
        &id,
        id.strip_prefix("sha256:").unwrap(),
        &id[7..20],
        &id[..20],
        "registry.example/a/b:1",
        &format!("registry.example/a/b@{manifest}"),
        &format!("registry.example/a/b:1@{manifest}"),
    ] {
        let found = f
            .images
            .resolve(text)
            .unwrap()
            .unwrap_or_else(|| panic!("{text}"));
        assert_eq!(found.id, image.id);
        assert_eq!(found.repo_tags, ["registry.example/a/b:1"]);
        assert_eq!(
            found.repo_digests,
            [format!("registry.example/a/b@{manifest}")]
        );
        assert!(found.size > 0);
    }
    for absent in [
        "registry.example/a/b:2",
        "b",
        "zz",
        "",
        &format!("other/b@{manifest}"),
    ] {
        assert!(f.images.resolve(absent).unwrap().is_none(), "{absent}");
    }
    assert_eq!(f.images.list().len(), 1);
    assert!(f.images.fs_info().used_bytes > 0);
    assert!(f.images.fs_info().mountpoint.is_dir());
}

#[tokio::test]
async fn an_image_outlives_the_daemon_and_its_layers_are_stored_once() {
    let f = Fixture::new();
    let one = two_layers();
    let other = Image::new("other:1", &[base(), Layer::new().file("z", "z")]);
    f.import(&one).await.unwrap();
    f.import(&other).await.unwrap();
    f.import(&one).await.unwrap();
    assert_eq!(f.names("layers").len(), 3);
    let f = f.reopen();
    assert_eq!(f.images.list().len(), 2);
    assert_eq!(f.names("layers").len(), 3);
    let found = f
        .images
        .resolve("docker.io/library/other:1")
        .unwrap()
        .unwrap();
    assert_eq!(found.id, other.id);
    assert_eq!(found.run.cmd, ["sh"]);
}

#[tokio::test]
async fn a_tag_belongs_to_the_image_that_got_it_last() {
    let f = Fixture::new();
    let old = Image::new("a:1", &[base()]);
    let new = Image::new("a:1", &[base(), Layer::new().file("n", "n")]);
    f.import(&old).await.unwrap();
    f.import(&new).await.unwrap();
    let f = f.reopen();
    assert_eq!(f.images.resolve("a:1").unwrap().unwrap().id, new.id);
    let left = f.images.resolve(old.id.as_str()).unwrap().unwrap();
    assert!(left.repo_tags.is_empty());
    assert_eq!(left.repo_digests.len(), 1);
}

#[tokio::test]
async fn a_docker_archive_is_imported_too_and_an_import_renames() {
    let f = Fixture::new();
    let layer = base();
    let tar = layer.tar();
    let image = Image::build("x:1", &[layer], Packing::Plain, |_| {});
    let mut builder = tar::Builder::new(Vec::new());
    let mut put = |path: &str, bytes: &[u8]| {
        let mut h = tar::Header::new_gnu();
        h.set_size(bytes.len() as u64);
        builder.append_data(&mut h, path, bytes).unwrap();
    };
    put("real/layer.tar", &tar);
    put("c.json", &image.blobs[&image.id]);
    let list = r#"[{"Config":"c.json","RepoTags":["saved:2"],"Layers":["l/layer.tar"]}]"#;
    put("manifest.json", list.as_bytes());
    let mut h = tar::Header::new_gnu();
    h.set_entry_type(tar::EntryType::Symlink);
    h.set_size(0);
    builder
        .append_link(&mut h, "l/layer.tar", "../real/layer.tar")
        .unwrap();
    let bytes = builder.into_inner().unwrap();
    let (_, bytes) = pack(&bytes, Packing::Gzip);
    let from = Cursor::new(bytes);
    let done = f
        .images
        .import(from, None, &Progress::default())
        .await
        .unwrap();
    assert_eq!(
        (&done[0].id, &*done[0].tags),
        (&image.id, &["docker.io/library/saved:2".into()][..])
    );

    let from = Cursor::new(image.layout());
    f.images
        .import(from, Some("renamed:3"), &Progress::default())
        .await
        .unwrap();
    let found = f.images.resolve("renamed:3").unwrap().unwrap();
    let digest = format!("docker.io/library/renamed@{}", image.manifest);
    assert_eq!((&found.id, &found.repo_digests), (&image.id, &vec![digest]));
}

#[tokio::test]
async fn archives_that_skopeo_writes_are_imported() {
    let f = Fixture::new();
    let image = Image::new("x:1", &[base(), Layer::new().file("own", "own")]);
    for (kind, name) in [
        ("oci-archive", "registry.example/oci:1"),
        ("docker-archive", "saved:1"),
    ] {
        let file = crate::registry::archive(f.tmp.path(), &image, kind, name);
        let from = tokio::fs::File::open(file).await.unwrap();
        let done = f
            .images
            .import(from, None, &Progress::default())
            .await
            .unwrap();
        let record = f.images.resolve(name).unwrap().unwrap();
        assert_eq!((&record.id, done.len()), (&done[0].id, 1), "{kind}");
        let rootfs = f.images.prepare_rootfs(kind, &record, None).await.unwrap();
        let text = f.images.rootfs_text(&rootfs, "/own").await.unwrap();
        assert_eq!(text.as_deref(), Some("own"), "{kind}");
    }
    assert_eq!(
        f.names("layers").len(),
        2,
        "the same layers, however they come"
    );
}

#[tokio::test]
async fn an_archive_that_lies_or_lacks_something_leaves_nothing() {
    let f = Fixture::new();
    let good = two_layers();
    let blob = good.layer_blob(1);
    let mut lying = good.clone();
    lying.blobs.get_mut(&blob).unwrap()[40] ^= 1;
    let mut lacking = good.clone();
    lacking.blobs.remove(&blob);
    let mut wrong_diff = Image::build("x:1", &[base()], Packing::Gzip, |config| {
        config["rootfs"]["diff_ids"][0] = Digest::of(b"other").to_string().into();
    });
    wrong_diff.name = "x:1".into();
    let too_few = Image::build("x:1", &[base()], Packing::Gzip, |config| {
        config["rootfs"]["diff_ids"] = serde_json::json!([]);
    });
    let mut no_config = good.clone();
    no_config.blobs.remove(&good.id);
    for (image, word) in [
        (&lying, "not in the archive"),
        (&lacking, "not in the archive"),
        (&no_config, "not in the archive"),
        (&wrong_diff, "the config says"),
        (&too_few, "but the config lists 0"),
    ] {
        let e = f.import(image).await.unwrap_err().to_string();
        assert!(e.contains(word) && !e.contains('\n'), "{e}");
    }
    let whole = good.layout();
    let half = whole[..whole.len() / 2].to_vec();
    for bytes in [Vec::new(), vec![0x5a; 100_000], half] {
        let from = Cursor::new(bytes);
        let done = f.images.import(from, None, &Progress::default()).await;
        let e = done.unwrap_err().to_string();
        assert!(!e.contains('\n'), "{e}");
    }
    assert!(f.images.list().is_empty());
    // The first layer of a failed import may have been committed; no image has it now.
    let f = f.reopen();
    assert_eq!(f.names("layers"), Vec::<String>::new());
    assert_eq!(f.names("tmp"), Vec::<String>::new());
}

#[tokio::test]
async fn removal_takes_all_names_and_keeps_layers_only_while_a_container_uses_them() {
    let f = Fixture::new();
    let mut image = two_layers();
    image.name = "registry.example/b:2".into();
    f.import(&image).await.unwrap();
    let image = two_layers();
    f.import(&image).await.unwrap();
    assert_eq!(f.images.list().len(), 1, "one image with two names");
    let record = f.images.resolve(image.id.as_str()).unwrap().unwrap();
    let mut tags = record.repo_tags.clone();
    tags.sort();
    assert_eq!(tags, ["registry.example/a/b:1", "registry.example/b:2"]);
    f.images.prepare_rootfs("c1", &record, None).await.unwrap();
    let removals = (0..5).map(|_| f.images.remove("registry.example/a/b:1"));
    for removed in futures_util::future::join_all(removals).await {
        removed.unwrap();
    }
    assert!(f.images.list().is_empty());
    assert_eq!(f.names("layers").len(), 2);
    let f = f.reopen();
    assert_eq!(f.names("layers").len(), 2);
    let rootfs = f.images.find_rootfs("c1").unwrap().unwrap();
    assert_eq!(rootfs.lower.len(), 2);
    let in_use = f.images.in_use();
    assert_eq!((in_use.containers.len(), in_use.pods.len()), (1, 0));
    f.images.release_rootfs("c1").await.unwrap();
    assert!(f.images.in_use().containers.is_empty());
    f.images.release_rootfs("c1").await.unwrap();
    assert_eq!(f.names("layers"), Vec::<String>::new());
    assert!(f.images.find_rootfs("c1").unwrap().is_none());
    f.images.remove("registry.example/a/b:1").await.unwrap();
}

#[tokio::test]
async fn a_damaged_record_stays_and_its_layers_are_kept() {
    let f = Fixture::new();
    f.import(&two_layers()).await.unwrap();
    let record = f
        .path("images/records")
        .join(f.names("records").pop().unwrap());
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, &text[..text.len() / 2]).unwrap();
    let f = f.reopen();
    assert!(f.images.list().is_empty());
    assert_eq!(f.names("records").len(), 1, "it is still there");
    assert_eq!(f.names("layers").len(), 2);
    f.import(&two_layers()).await.unwrap();
    assert_eq!(f.names("layers").len(), 2, "the kept layers serve again");
}

#[tokio::test]
async fn a_record_whose_layer_is_gone_is_not_believed() {
    let f = Fixture::new();
    f.import(&two_layers()).await.unwrap();
    let layer = f.names("layers").pop().unwrap();
    fs::remove_dir_all(f.path("images/layers").join(layer)).unwrap();
    let f = f.reopen();
    assert!(f.images.list().is_empty());
    f.import(&two_layers()).await.unwrap();
    assert_eq!(f.images.list().len(), 1);
}

#[tokio::test]
async fn a_mounted_root_shows_the_merged_image_and_takes_writes_of_its_own() {
    let f = Fixture::new();
    f.import(&two_layers()).await.unwrap();
    let record = f.images.list().pop().unwrap();
    let rootfs = f.images.prepare_rootfs("c1", &record, None).await.unwrap();
    let merged = f.path("merged");
    fs::create_dir(&merged).unwrap();
    rootfs.mount_at(&merged, None, None).unwrap();
    let mounted = Mounted(merged.clone());
    assert_eq!(fs::read_to_string(merged.join("data/new")).unwrap(), "new");
    assert_eq!(fs::read_to_string(merged.join("data/old")).unwrap(), "old");
    assert!(!merged.join("gone").exists());
    assert_eq!(fs::metadata(&merged).unwrap().mode() & 0o7777, 0o751);
    assert_eq!(
        fs::metadata(merged.join("data")).unwrap().mode() & 0o7777,
        0o700,
        "a directory that the upper layer only implies keeps the lower one's mode"
    );
    fs::write(merged.join("data/mine"), "w").unwrap();
    assert!(rootfs.upper.join("data/mine").exists());
    let passwd = f
        .images
        .rootfs_text(&rootfs, "/etc/passwd")
        .await
        .unwrap()
        .unwrap();
    assert!(passwd.starts_with("root:"));
    assert_eq!(f.images.rootfs_text(&rootfs, "/gone").await.unwrap(), None);
    drop(mounted);
    rootfs.mount_at(&merged, None, None).unwrap();
    let mounted = Mounted(merged.clone());
    assert!(
        merged.join("data/mine").exists(),
        "a start that is tried again mounts again"
    );
    drop(mounted);
    let into = f.path("volume");
    fs::create_dir(&into).unwrap();
    let volumes = [("/data".to_owned(), into.clone())].into();
    f.images.fill_volumes(&rootfs, &volumes).await.unwrap();
    assert_eq!(fs::read_to_string(into.join("old")).unwrap(), "old");
    f.images.release_rootfs("c1").await.unwrap();
    assert!(!f.path("containers/c1/rootfs").exists());
}

#[tokio::test]
async fn a_hundred_and_fifty_layers_mount() {
    let f = Fixture::new();
    let layers: Vec<_> = (0..150)
        .map(|n| Layer::new().file(&format!("f{n}"), "x"))
        .collect();
    f.import(&Image::new("deep:1", &layers)).await.unwrap();
    let record = f.images.list().pop().unwrap();
    let rootfs = f.images.prepare_rootfs("c1", &record, None).await.unwrap();
    let merged = f.path("merged");
    fs::create_dir(&merged).unwrap();
    rootfs.mount_at(&merged, None, None).unwrap();
    let _mounted = Mounted(merged.clone());
    assert_eq!(fs::read_dir(&merged).unwrap().count(), 150);
}

#[tokio::test]
async fn an_image_volume_is_one_read_only_view_per_pod_with_sub_paths_kept_inside() {
    let f = Fixture::new();
    let image = Image::new(
        "v:1",
        &[base().symlink("out", "../../../../../etc").file("f", "")],
    );
    f.import(&image).await.unwrap();
    let record = f.images.list().pop().unwrap();
    let mount = async |sub| {
        f.images
            .mount_image_volume("pod1", &record, sub, None, None)
            .await
    };
    let whole = mount("").await.unwrap();
    let _mounted = Mounted(whole.clone());
    assert_eq!(mount("").await.unwrap(), whole);
    assert_eq!(mount("data").await.unwrap(), whole.join("data"));
    assert_eq!(
        mount("out").await.unwrap(),
        whole.join("etc"),
        "inside the image, not the host"
    );
    for bad in ["absent", "f", "../x", "data/../../x"] {
        assert!(mount(bad).await.is_err(), "{bad}");
    }
    assert!(fs::write(whole.join("x"), "x").is_err());
    f.images.remove("v:1").await.unwrap();
    assert_eq!(fs::read_to_string(whole.join("data/old")).unwrap(), "old");
    f.images.release_image_volumes("pod1").await.unwrap();
    f.images.release_image_volumes("pod1").await.unwrap();
    assert_eq!(f.names("layers"), Vec::<String>::new());
    assert_eq!(fs::read_dir(f.path("volumes")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_configured_image_is_pinned_when_it_comes_and_when_the_daemon_starts() {
    let f = Fixture::new();
    f.import(&Image::new("a:1", &[base()])).await.unwrap();
    let pinning = |name: &'static str| {
        move |o: &mut cairn::image::Options| o.pinned = vec![name.parse().unwrap()]
    };
    let pinned =
        |images: &cairn::image::Images, name: &str| images.resolve(name).unwrap().unwrap().pinned;
    let images = open(f.tmp.path(), pinning("b:1"));
    assert!(!pinned(&images, "a:1"));
    let other = Image::new("b:1", &[Layer::new().file("b", "")]);
    let from = Cursor::new(other.layout());
    images
        .import(from, None, &Progress::default())
        .await
        .unwrap();
    assert!(pinned(&images, "b:1"));
    drop(images);
    let images = open(f.tmp.path(), pinning("a:1"));
    assert!(pinned(&images, "a:1") && pinned(&images, "b:1"));
}

#[tokio::test]
async fn an_id_that_is_no_plain_name_is_refused() {
    let f = Fixture::new();
    for bad in ["", "..", "a/b", "../x", "a\0b"] {
        assert!(f.images.release_rootfs(bad).await.is_err(), "{bad:?}");
    }
}
