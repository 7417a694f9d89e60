//! Random stacks of layers: overlayfs, the look-up without a mount and a model of the layers give
//! the same result (CRI-441, CRI-442).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::*;

/// One entry of a layer. Names come from a small set, so that layers overlap.
#[derive(Debug, Clone)]
enum Step {
    File(String),
    Dir(String),
    Whiteout(String),
    Opaque(String),
}

fn step() -> impl Strategy<Value = Step> {
    let name = "[ab](/[ab]){0,2}";
    prop_oneof![
        4 => name.prop_map(Step::File),
        1 => name.prop_map(Step::Dir),
        2 => name.prop_map(Step::Whiteout),
        1 => name.prop_map(Step::Opaque),
    ]
}

/// The content of a stack of layers: paths with the content of files, or `None` for directories.
type Tree = BTreeMap<String, Option<String>>;

fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

fn below(tree: &Tree, dir: &str) -> Vec<String> {
    let prefix = format!("{dir}/");
    tree.keys()
        .filter(|p| p.starts_with(&prefix))
        .cloned()
        .collect()
}

/// Keeps the consistent steps of a layer: no two entries with one name, no entry below a file, no
/// whiteout of the layer's own entries. Other tests cover the rest.
fn sensible(steps: &[Step]) -> Vec<Step> {
    let mut files = BTreeSet::new();
    let mut dirs = BTreeSet::new();
    let mut gone = BTreeSet::new();
    let mut kept = Vec::new();
    for step in steps {
        let (Step::File(path) | Step::Dir(path) | Step::Whiteout(path) | Step::Opaque(path)) = step;
        let used = |p: &str| files.contains(p) || gone.contains(p);
        if parents(path).any(used) || used(path) {
            continue;
        }
        let is_leaf = matches!(step, Step::File(_) | Step::Whiteout(_));
        if is_leaf && dirs.contains(path.as_str()) {
            continue;
        }
        dirs.extend(parents(path).map(str::to_owned));
        match step {
            Step::File(p) => drop(files.insert(p.clone())),
            Step::Whiteout(p) => drop(gone.insert(p.clone())),
            Step::Dir(p) | Step::Opaque(p) => drop(dirs.insert(p.clone())),
        }
        kept.push(step.clone());
    }
    kept
}

/// Applies a layer as the image specification defines it: first its whiteouts, then its entries.
fn apply(tree: &mut Tree, steps: &[Step], content: &str) {
    for step in steps {
        let (path, itself) = match step {
            Step::Whiteout(path) => (path, true),
            Step::Opaque(path) => (path, false),
            _ => continue,
        };
        for hidden in below(tree, path) {
            tree.remove(&hidden);
        }
        if itself {
            tree.remove(path);
        }
    }
    for step in steps {
        let (path, what) = match step {
            Step::File(path) => (path, Some(content.to_owned())),
            Step::Dir(path) | Step::Opaque(path) => (path, None),
            // Its directories exist, even if only for the whiteout.
            Step::Whiteout(path) => {
                make_dirs(tree, parents(path));
                continue;
            }
        };
        make_dirs(tree, parents(path));
        if what.is_some() {
            for hidden in below(tree, path) {
                tree.remove(&hidden);
            }
            tree.insert(path.clone(), what);
        } else {
            make_dirs(tree, [path.as_str()].into_iter());
        }
    }
}

fn make_dirs<'a>(tree: &mut Tree, paths: impl Iterator<Item = &'a str>) {
    for path in paths {
        tree.insert(path.to_owned(), None);
    }
}

fn layer(steps: &[Step], content: &str) -> Layer {
    let mut layer = Layer::new();
    for step in steps {
        layer = match step {
            Step::File(path) => layer.file(path, content),
            Step::Dir(path) => layer.dir(path, 0o755),
            Step::Opaque(path) => layer.file(&format!("{path}/.wh..wh..opq"), ""),
            Step::Whiteout(path) => {
                let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
                layer.file(&format!("{dir}/.wh.{name}"), "")
            }
        };
    }
    layer
}

fn walk(root: &Path, at: &Path, tree: &mut Tree) {
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        let name = path
            .strip_prefix(root)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        if path.is_dir() {
            tree.insert(name, None);
            walk(root, &path, tree);
        } else {
            tree.insert(name, Some(fs::read_to_string(&path).unwrap()));
        }
    }
}

async fn check(stack: &[Vec<Step>]) {
    let f = Fixture::new();
    let mut want = Tree::new();
    let mut layers = Vec::new();
    for (n, steps) in stack.iter().enumerate() {
        let content = format!("layer {n}");
        apply(&mut want, steps, &content);
        layers.push(layer(steps, &content));
    }
    f.import(&Image::new("x:1", &layers)).await.unwrap();
    let record = f.images.list().pop().unwrap();
    let rootfs = f.images.prepare_rootfs("c", &record, None).await.unwrap();
    let merged = f.path("merged");
    fs::create_dir(&merged).unwrap();
    rootfs.mount_at(&merged, None, None).unwrap();
    let _mounted = Mounted(merged.clone());
    let mut shown = Tree::new();
    walk(&merged, &merged, &mut shown);
    assert_eq!(
        shown, want,
        "overlayfs shows something else than the layers mean"
    );
    let copy = f.path("copy");
    fs::create_dir(&copy).unwrap();
    let volumes = [("/".to_owned(), copy.clone())].into();
    f.images.fill_volumes(&rootfs, &volumes).await.unwrap();
    let mut copied = Tree::new();
    walk(&copy, &copy, &mut copied);
    assert_eq!(copied, want, "the unmounted view shows something else");
    for (path, content) in &want {
        let text = f.images.rootfs_text(&rootfs, path).await.ok().flatten();
        assert_eq!(&text, content, "{path}");
    }
}

#[test]
fn overlayfs_and_the_unmounted_view_show_what_the_layers_mean() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let stacks = prop::collection::vec(prop::collection::vec(step(), 0..8), 1..4);
    let stacks = stacks.prop_map(|s| s.iter().map(|l| sensible(l)).collect::<Vec<_>>());
    let config = Config {
        cases: 48,
        failure_persistence: None,
        max_shrink_iters: 60,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&stacks, |stack| {
            let run = std::panic::AssertUnwindSafe(|| runtime.block_on(check(&stack)));
            std::panic::catch_unwind(run).map_err(|_| TestCaseError::fail(format!("{stack:?}")))
        })
        .unwrap();
}
