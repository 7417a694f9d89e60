//! `cairn image verify`: damage of the store on disk is reported, and repaired by the next pull.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use cairn_tests::{
    Daemon,
    image::{BUSYBOX, Image, Layer},
    output::{shown, stdout},
    registry::start as start_registry,
};
use serde_json::Value;

const REGISTRY: &str = "127.0.0.1:5000";

/// Returns the output, the exit code, and the JSON of `-o json`.
async fn verified(daemon: &Daemon, more: &[&str]) -> (Value, Option<i32>, String) {
    let args = [&["image", "verify", "-o", "json"], more].concat();
    let output = daemon.cairn(&args).await;
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (json, output.status.code(), shown(&output))
}

/// Returns the store's directories of layers with this path.
fn layers_with(daemon: &Daemon, path: &str) -> Vec<PathBuf> {
    let layers = fs::read_dir(daemon.path("root/images/layers")).expect("listed");
    let layers = layers.map(|layer| layer.expect("listed").path());
    layers
        .filter(|layer| layer.join("fs").join(path).symlink_metadata().is_ok())
        .collect()
}

fn layer_with(daemon: &Daemon, path: &str) -> PathBuf {
    let mut layers = layers_with(daemon, path);
    assert_eq!(layers.len(), 1, "{path}: {layers:?}");
    layers.remove(0)
}

fn chain_id(layer: &Path) -> String {
    let json = fs::read(layer.join("layer.json")).expect("read");
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    json["chain_id"].as_str().expect("text").to_owned()
}

/// Two layers: one like a base image, and one with every kind of entry.
fn various(name: &str) -> Image {
    Image::bare(name)
        .layer(
            Layer::default()
                .dir("etc", 0o755)
                .file("etc/gone", 0o644, b"gone")
                .file("etc/base", 0o644, b"of the base")
                .dir("hidden", 0o700)
                .file("hidden/x", 0o644, b"x"),
        )
        .layer(
            Layer::default()
                .file("etc/.wh.gone", 0, b"")
                .file("hidden/.wh..wh..opq", 0, b"")
                .file("etc/.wh.never-there", 0, b"")
                .file("usr/bin/tool", 0o4755, &[7; 300_000])
                .hard_link("usr/bin/again", "usr/bin/tool")
                .file("usr/holes", 0o600, &[0; 900_000])
                .file("usr/empty", 0o644, b"")
                .file("usr/replaced", 0o644, b"first")
                .file("usr/replaced", 0o644, b"second")
                .symlink("link", "usr/bin/tool")
                .raw(tar::EntryType::Fifo, "fifo", "", 0o644, b""),
        )
}

#[tokio::test]
async fn whole_images_verify_and_the_table_says_so() {
    let daemon = Daemon::start().await;
    daemon.import(&various("localhost/various:1")).await;
    let output = daemon.cairn(&["image", "verify"]).await;
    assert!(output.status.success(), "{}", shown(&output));
    let table = stdout(&output);
    let lines: Vec<Vec<_>> = table
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert_eq!(lines[0], ["IMAGE", "ID", "LAYERS", "ENTRIES", "STATE"]);
    for name in [BUSYBOX, "localhost/various:1"] {
        let row = lines.iter().find(|row| row[0] == name);
        assert_eq!(row.and_then(|row| row.last()), Some(&"sound"), "{table}");
    }
    let (json, code, printed) = verified(&daemon, &["localhost/various:1"]).await;
    assert_eq!(code, Some(0), "{printed}");
    let image = &json["images"][0];
    assert_eq!(
        (&image["sound"], &image["layers"]),
        (&true.into(), &2.into()),
        "{printed}"
    );
    // Two roots; etc, two files, hidden, a file; etc, a whiteout, hidden, usr, usr/bin, five files,
    // a link, a fifo. The whiteout of a file that never existed is dropped.
    assert_eq!(image["entries"], 6 + 13, "{printed}");
    let output = daemon
        .cairn(&["image", "verify", "localhost/other:1"])
        .await;
    assert_eq!(output.status.code(), Some(1));
    let printed = shown(&output);
    assert!(
        printed.contains("image localhost/other:1: there is none of this name or id"),
        "{printed}"
    );
}

#[tokio::test]
async fn a_flipped_byte_a_file_of_no_bytes_and_what_else_a_disk_loses_is_told_with_its_place() {
    let daemon = Daemon::start().await;
    daemon.import(&various("localhost/various:1")).await;
    let layer = layer_with(&daemon, "usr/bin/tool");
    let mut tool = fs::read(layer.join("fs/usr/bin/tool")).expect("read");
    tool[250_000] ^= 1;
    fs::write(layer.join("fs/usr/bin/tool"), tool).expect("written");
    fs::write(layer.join("fs/usr/replaced"), b"").expect("written");
    fs::remove_file(layer.join("fs/etc/gone")).expect("removed");
    fs::remove_file(layer.join("fs/link")).expect("removed");
    symlink("/etc", layer.join("fs/link")).expect("made");
    let (json, code, printed) = verified(&daemon, &[]).await;
    assert_eq!(code, Some(1), "{printed}");
    let images = json["images"].as_array().expect("a list");
    let of = |name: &str| {
        images
            .iter()
            .find(|i| i["names"][0] == name)
            .expect("it is reported")
    };
    assert_eq!(of(BUSYBOX)["sound"], true, "{printed}");
    let damages = of("localhost/various:1")["damages"]
        .as_array()
        .expect("a list");
    let mut reported: Vec<_> = damages
        .iter()
        .map(|damage| {
            assert_eq!(damage["layer"], chain_id(&layer), "{printed}");
            let text = |key: &str| damage[key].as_str().unwrap_or_default();
            format!("{} {}", text("path"), text("problem"))
        })
        .collect();
    reported.sort();
    assert_eq!(
        reported,
        [
            "etc/gone is missing",
            "link points elsewhere than it did",
            "usr/bin/again has another content than it had",
            "usr/bin/tool has another content than it had",
            "usr/replaced has 0 bytes of 6",
        ],
        "{printed}"
    );
    let output = daemon
        .cairn(&["image", "verify", "localhost/various:1"])
        .await;
    let (table, printed) = (stdout(&output), shown(&output));
    let short = &chain_id(&layer)["sha256:".len()..][..13];
    let line = format!("  layer {short}, /usr/replaced: has 0 bytes of 6\n");
    assert!(table.contains(&line), "{table}");
    let advice = "cairn: localhost/various:1 is damaged: `cairn image verify --repair localhost/various:1`, then";
    assert!(printed.contains(advice), "{printed}");
}

#[tokio::test]
async fn a_repaired_image_is_not_here_and_the_next_pull_fetches_what_was_damaged_only() {
    let daemon = Daemon::start().await;
    let blobs = various("unused").blobs();
    let id = blobs.id.clone();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let more = Layer::default().file("more", 0o644, b"more");
    let upon = various("unused").layer(more).blobs();
    let all = vec![("app:1", blobs), ("upon:1", upon)];
    let _registry = start_registry(&daemon.yard, REGISTRY, all, {
        let asked = asked.clone();
        move |request| {
            asked.lock().expect("no panic").push(request.path.clone());
            None
        }
    });
    let image = format!("{REGISTRY}/app:1");
    let pull = async || {
        let output = daemon.cairn(&["image", "pull", &image]).await;
        assert!(output.status.success(), "{}", shown(&output));
    };
    pull().await;
    let layer = layer_with(&daemon, "usr/bin/tool");
    fs::write(layer.join("fs/usr/bin/tool"), b"").expect("written");
    // A pull without a verification trusts its records.
    pull().await;
    let upon = format!("{REGISTRY}/upon:1");
    let output = daemon.cairn(&["image", "pull", &upon]).await;
    assert!(output.status.success(), "{}", shown(&output));
    let (_, code, printed) = verified(&daemon, &[&image]).await;
    assert_eq!(code, Some(1), "{printed}");
    let (json, code, printed) = verified(&daemon, &["--repair", &image]).await;
    let other = format!("{upon} has the same layer, and is set aside with {image}");
    assert!(printed.contains(&other), "{printed}");
    assert_eq!(
        (code, &json["images"][0]["set_aside"]),
        (Some(1), &true.into()),
        "{printed}"
    );
    assert!(
        printed.contains(&format!(
            "`cairn image pull` of {image} fetches what is damaged"
        )),
        "{printed}"
    );
    assert_eq!(layers_with(&daemon, "usr/bin/tool").len(), 0, "it is away");
    assert_eq!(
        layers_with(&daemon, "etc/base").len(),
        1,
        "a good layer is kept"
    );
    let list = daemon.cairn(&["image", "ls"]).await;
    assert!(!stdout(&list).contains(REGISTRY), "{}", stdout(&list));
    asked.lock().expect("no panic").clear();
    pull().await;
    let fetched = asked.lock().expect("no panic").clone();
    let blobs: Vec<_> = fetched
        .iter()
        .filter(|path| path.contains("/blobs/"))
        .collect();
    assert_eq!(blobs.len(), 2, "the config and one layer: {fetched:?}");
    let (json, code, printed) = verified(&daemon, &[]).await;
    assert_eq!(code, Some(0), "{printed}");
    let ids: Vec<_> = json["images"].as_array().expect("a list").iter().collect();
    assert!(
        ids.iter().any(|image| image["id"] == id.as_str()),
        "{printed}"
    );
    // A kept layer is removed with its image.
    let output = daemon.cairn(&["image", "rm", &image]).await;
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(layers_with(&daemon, "etc/base").len(), 0);
}

#[tokio::test]
async fn a_damaged_config_is_told_and_repaired_and_so_it_is_after_a_restart() {
    let mut daemon = Daemon::start().await;
    daemon.import(&various("localhost/various:1")).await;
    let (json, _, _) = verified(&daemon, &["localhost/various:1"]).await;
    let id = json["images"][0]["id"].as_str().expect("text").to_owned();
    let hex = id.trim_start_matches("sha256:");
    let record = daemon.path(&format!("root/images/records/{hex}.json"));
    let good = fs::read_to_string(&record).expect("read");
    fs::write(&record, good.replace("FROM_IMAGE", "FROM_IMAGF")).expect("written");
    let (json, code, printed) = verified(&daemon, &[]).await;
    let damaged = |json: &Value| {
        let images = json["images"].as_array().cloned().unwrap_or_default();
        let image = images.into_iter().find(|image| image["id"] == id.as_str());
        image.expect("it is reported")["damages"].clone()
    };
    let why = damaged(&json)[0]["problem"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(
        code == Some(1) && why.starts_with("its record: "),
        "{printed}"
    );
    daemon.kill().await;
    daemon.serve().await;
    let (json, code, printed) = verified(&daemon, &[]).await;
    assert_eq!(
        (code, damaged(&json)[0]["problem"].as_str()),
        (Some(1), Some(&*why)),
        "{printed}"
    );
    // An image that is only on the disk can be selected by its id, too.
    let (json, code, printed) = verified(&daemon, &["--repair", &hex[..12]]).await;
    assert_eq!(
        (code, json["images"][0]["id"].as_str()),
        (Some(1), Some(&*id)),
        "{printed}"
    );
    let (json, code, printed) = verified(&daemon, &[]).await;
    assert_eq!(code, Some(0), "{printed}");
    let images = json["images"].as_array().expect("a list");
    assert!(
        images.iter().all(|image| image["id"] != id.as_str()),
        "{printed}"
    );
    daemon.import(&various("localhost/various:1")).await;
    let (_, code, printed) = verified(&daemon, &[]).await;
    assert_eq!(code, Some(0), "{printed}");
}

#[tokio::test]
async fn a_damaged_layer_that_a_container_has_is_left_and_the_container_named() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("user").await;
    let container = pod.sleeper("web").await;
    let layer = layer_with(&daemon, "etc/group");
    let group = fs::read(layer.join("fs/etc/group")).expect("read");
    fs::write(layer.join("fs/etc/group"), b"").expect("written");
    let (json, code, printed) = verified(&daemon, &["--repair"]).await;
    assert_eq!(
        (code, &json["images"][0]["set_aside"]),
        (Some(1), &false.into()),
        "{printed}"
    );
    let user = format!(
        "is in use by container user/web ({}): remove that first",
        &container.id[..13]
    );
    assert!(printed.contains(&user), "{printed}");
    assert_eq!(container.exec(&["echo", "here"]).await, "here");
    fs::write(layer.join("fs/etc/group"), group).expect("written");
    let (_, code, printed) = verified(&daemon, &[]).await;
    assert_eq!(code, Some(0), "{printed}");
    pod.end().await;
}

#[tokio::test]
async fn of_an_image_with_one_damaged_layer_in_use_no_other_is_taken_either() {
    let daemon = Daemon::start().await;
    // Layers are checked in the order of their digests: one of these precedes busybox's, one
    // follows it.
    let mut upon = Vec::new();
    for n in 0..8 {
        let name = format!("localhost/upon{n}:1");
        let layer = Layer::default().file(&format!("upon{n}"), 0o644, b"upon");
        daemon.import(&Image::busybox(&name).layer(layer)).await;
        upon.push((name, layer_with(&daemon, &format!("upon{n}")), n));
    }
    let base = layer_with(&daemon, "etc/group");
    let before = chain_id(&base);
    let (lower, higher): (Vec<_>, Vec<_>) = upon
        .iter()
        .partition(|(_, layer, _)| chain_id(layer) < before);
    assert!(!lower.is_empty() && !higher.is_empty(), "of eight digests");
    let pod = daemon.cri().pod("user").await;
    pod.sleeper("web").await;
    let group = fs::read(base.join("fs/etc/group")).expect("read");
    fs::write(base.join("fs/etc/group"), b"").expect("written");
    for (name, layer, n) in [lower[0], higher[0]] {
        fs::write(layer.join(format!("fs/upon{n}")), b"").expect("written");
        let (json, code, printed) = verified(&daemon, &["--repair", name]).await;
        assert_eq!(
            (code, &json["images"][0]["set_aside"]),
            (Some(1), &false.into()),
            "{printed}"
        );
        assert!(
            printed.contains("is in use by container user/web"),
            "{printed}"
        );
        let list = stdout(&daemon.cairn(&["image", "ls"]).await);
        assert!(list.contains(name.trim_end_matches(":1")), "{list}");
        assert!(layer.join("fs").exists());
    }
    fs::write(base.join("fs/etc/group"), group).expect("written");
    pod.end().await;
}

#[tokio::test]
async fn layers_of_an_earlier_version_are_told_and_are_no_damage() {
    let mut daemon = Daemon::start().await;
    daemon.import(&various("localhost/various:1")).await;
    let layer = layer_with(&daemon, "usr/bin/tool");
    daemon.kill().await;
    let path = layer.join("layer.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    json.as_object_mut()
        .expect("an object")
        .remove("tree")
        .expect("it was there");
    fs::write(&path, json.to_string()).expect("written");
    daemon.serve().await;
    let output = daemon
        .cairn(&["image", "verify", "localhost/various:1"])
        .await;
    let printed = shown(&output);
    assert!(output.status.success(), "{printed}");
    assert!(
        printed.contains("sound but for 1 layer that is not verifiable"),
        "{printed}"
    );
    assert!(
        printed.contains("unpacked by an earlier cairn"),
        "{printed}"
    );
}
