//! Clients of images: imports of images that share a layer, some abandoned, and removals beside
//! them.

use std::{
    collections::BTreeSet, fs, future::poll_fn, io::Cursor, pin::pin, sync::Arc, task::Poll,
};

use cairn::{
    image::{Digest, Images, Progress},
    pod::pods::Pods,
};
use serde_json::{Value, json};

use crate::{
    drawn::{drawn, some_ms},
    rule::Rule,
    world::{IMAGE, World},
};

/// Images of an archive; all share the first layer.
const IMAGES: u64 = 3;

fn name_of(image: u64) -> String {
    format!("example.com/shared:{image}")
}

/// As `docker save` writes it.
fn archive(image: u64) -> Vec<u8> {
    let layers = [layer("base"), layer(&format!("own {}", image % 2))];
    let diff_ids: Vec<String> = layers
        .iter()
        .map(|tar| Digest::of(tar).to_string())
        .collect();
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {"Cmd": [format!("/{image}")]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let config = config.to_string();
    let name = format!("{}.json", Digest::of(config.as_bytes()).hex());
    let list =
        json!([{"Config": name, "RepoTags": [name_of(image)], "Layers": ["0.tar", "1.tar"]}]);
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, &name, config.as_bytes());
    for (at, layer) in layers.iter().enumerate() {
        add(&mut tar, &format!("{at}.tar"), layer);
    }
    add(&mut tar, "manifest.json", list.to_string().as_bytes());
    tar.into_inner().expect("an archive")
}

fn layer(file: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, file, file.as_bytes());
    tar.into_inner().expect("a layer")
}

fn add(tar: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, content)
        .expect("an entry");
}

/// The work's result, or nothing if it is dropped after this many polls: it takes no time.
async fn for_polls<T>(mut polls: u64, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        let Some(left) = polls.checked_sub(1) else {
            return Poll::Ready(None);
        };
        polls = left;
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

impl World {
    /// Imports and removes images.
    pub(crate) async fn use_images(&self, pods: &Arc<Pods>, client: usize) {
        let images = &pods.node.images;
        for _ in 0..4 {
            some_ms(20).await;
            let image = drawn(IMAGES);
            let name = name_of(image);
            if drawn(3) == 0 {
                let removed = images
                    .remove(&name)
                    .await
                    .map_err(|error| error.to_string());
                self.memory
                    .log(format!("i{client} removes {name}: {removed:?}"));
                continue;
            }
            let progress = Progress::default();
            let import = images.import(Cursor::new(archive(image)), None, &progress);
            let polls = match drawn(3) {
                0 => u64::MAX,
                _ => drawn(25),
            };
            let imported = match for_polls(polls, import).await {
                Some(imported) => format!("{:?}", imported.map(drop).map_err(|e| e.to_string())),
                None => "given up".to_owned(),
            };
            self.memory
                .log(format!("i{client} imports {name}: {imported}"));
        }
    }

    /// Each listed image has its layers, and the last removal leaves none.
    pub(crate) async fn check_images(&self, images: &Images) {
        self.check_layers(images);
        for image in 0..IMAGES {
            if let Err(error) = images.remove(&name_of(image)).await {
                let text = format!("cannot be removed: {}: {error}", name_of(image));
                self.memory.fault(Rule::Image, text);
            }
        }
        for layer in self.layers() {
            self.memory.fault(Rule::Left, format!("layer {layer}"));
        }
    }

    fn check_layers(&self, images: &Images) {
        let layers = self.layers();
        for image in images.list() {
            let missing = image.layers.iter().map(Digest::to_string);
            let missing: Vec<String> = missing.filter(|layer| !layers.contains(layer)).collect();
            if !missing.is_empty() && !image.repo_tags.contains(&IMAGE.to_owned()) {
                let text = format!("{:?} is listed without {missing:?}", image.repo_tags);
                self.memory.fault(Rule::Image, text);
            }
        }
    }

    /// Chain ids of the layers on disk.
    fn layers(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.path("root/images/layers")).into_iter();
        let files = entries.flatten().flatten();
        let texts =
            files.filter_map(|entry| fs::read_to_string(entry.path().join("layer.json")).ok());
        let infos = texts.filter_map(|text| serde_json::from_str::<Value>(&text).ok());
        let ids = infos.filter_map(|info| Some(info["chain_id"].as_str()?.to_owned()));
        ids.collect()
    }
}
