//! Concurrent work on the same few images: no loss, no leftovers.

use std::collections::BTreeSet;
use std::io::Cursor;
use std::sync::Arc;

use cairn::image::{Error, Progress};

use crate::registry::fake_registry;
use crate::support::*;

const IMAGES: u32 = 4;
const HANDS: u32 = 6;
const STEPS: u32 = 30;

/// Images that share their lowest layer, and pairs that share two.
fn image(n: u32) -> Image {
    let layers = [
        Layer::new().file("base", "base"),
        Layer::new().file("half", &(n / 2).to_string()),
        Layer::new().file("own", &n.to_string()),
    ];
    Image::new(&format!("i:{n}"), &layers)
}

/// A deterministic sequence, different for each worker.
fn next(state: &mut u32) -> u32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    *state >> 16
}

async fn hand(f: Arc<Fixture>, registry: Arc<String>, number: u32) {
    let mut state = number;
    for step in 0..STEPS {
        let n = next(&mut state) % IMAGES;
        let pulled = format!("{registry}/i:{n}");
        match next(&mut state) % 4 {
            0 => {
                let from = Cursor::new(image(n).layout());
                f.images
                    .import(from, None, &Progress::default())
                    .await
                    .unwrap();
            }
            1 => {
                let id = f
                    .images
                    .pull(&pulled, None, &Progress::default())
                    .await
                    .unwrap();
                assert_eq!(id, image(n).id);
            }
            2 => f.images.remove(&pulled).await.unwrap(),
            _ => {
                let Some(record) = f.images.resolve(image(n).id.as_str()).unwrap() else {
                    continue;
                };
                let id = format!("c{number}-{step}");
                match f.images.prepare_rootfs(&id, &record, None).await {
                    Ok(rootfs) => {
                        f.images.remove(record.id.as_str()).await.unwrap();
                        let own = f.images.rootfs_text(&rootfs, "/own").await.unwrap();
                        assert_eq!(own, Some(n.to_string()), "a container keeps its layers");
                        f.images.release_rootfs(&id).await.unwrap();
                    }
                    // Removed between the look-up and the use.
                    Err(Error::NoLayer(_)) => {}
                    Err(e) => panic!("{e}"),
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pulls_imports_removals_and_containers_at_once_lose_and_leave_nothing() {
    let names: Vec<_> = (0..IMAGES).map(|n| format!("i:{n}")).collect();
    let served = names
        .iter()
        .map(|name| (name.as_str(), image(name[2..].parse().unwrap())));
    let fake = fake_registry(served.collect(), |_| None);
    let f = Arc::new(Fixture::new());
    let registry = Arc::new(fake.host.clone());
    let hands = (0..HANDS).map(|n| tokio::spawn(hand(f.clone(), registry.clone(), n)));
    for hand in futures_util::future::join_all(hands).await {
        hand.unwrap();
    }
    let check = |f: &Fixture| {
        let records = f.images.list();
        let layers: BTreeSet<_> = records.iter().flat_map(|r| r.layers.clone()).collect();
        assert_eq!(f.names("layers").len(), layers.len());
        assert_eq!(f.names("records").len(), records.len());
        records
            .iter()
            .map(|r| (r.id.clone(), r.repo_tags.clone()))
            .collect::<Vec<_>>()
    };
    let before = check(&f);
    let f = Arc::into_inner(f).unwrap().reopen();
    assert_eq!(check(&f), before, "memory and disk agree");
    for (id, _) in before {
        f.images.remove(id.as_str()).await.unwrap();
    }
    assert_eq!((f.names("layers").len(), f.names("records").len()), (0, 0));
}
