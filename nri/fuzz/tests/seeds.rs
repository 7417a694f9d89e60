//! Runs the seeds of the fuzz targets with the functions of the targets, so that both stay valid.

use std::{
    collections::BTreeSet,
    fs,
    panic::{catch_unwind, set_hook, take_hook},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use nri_fuzz::{TARGETS, run, seeds};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds")
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    entries.map(|entry| name(entry.unwrap())).collect()
}

/// The prefix of seeds that fuzzing found; `nri_fuzz::seeds` makes the others.
const FOUND: &str = "found-";

/// Counts panics in any task, also in those that another task catches.
static PANICS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn every_seed_is_taken_without_a_panic_and_keeps_its_invariants() {
    let reported = take_hook();
    set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        reported(panic);
    }));
    let mut bad = Vec::new();
    for target in &TARGETS {
        let dir = directory().join(target.name);
        for name in names(&dir) {
            let bytes = fs::read(dir.join(&name)).unwrap();
            let before = PANICS.load(Ordering::SeqCst);
            let _ = catch_unwind(|| run(target.name, &bytes));
            if PANICS.load(Ordering::SeqCst) != before {
                bad.push(format!("{}/{name}", target.name));
            }
        }
    }
    assert!(bad.is_empty(), "seeds that break a rule: {bad:#?}");
}

#[test]
fn the_seeds_are_those_of_the_generator_and_those_that_were_found() {
    let mut missing = Vec::new();
    for seed in seeds() {
        let path = directory().join(seed.target).join(&seed.name);
        if fs::read(&path).ok() != Some(seed.bytes) {
            missing.push(format!("{}/{}", seed.target, seed.name));
        }
    }
    for target in &TARGETS {
        let all = seeds();
        let longest = all.iter().filter(|seed| seed.target == target.name);
        let longest = longest.map(|seed| seed.bytes.len()).max();
        assert!(longest <= Some(target.max_len), "{}", target.name);
    }
    let known = |target: &str, name: &str| {
        let mut all = seeds().into_iter();
        name.starts_with(FOUND) || all.any(|seed| seed.target == target && seed.name == name)
    };
    let mut strange = Vec::new();
    for target in &TARGETS {
        let there = names(&directory().join(target.name)).into_iter();
        strange.extend(there.filter(|name| !known(target.name, name)));
    }
    let how = "cargo test -p nri-fuzz --test seeds -- --ignored";
    assert!(missing.is_empty(), "{how} writes {missing:#?}");
    assert!(strange.is_empty(), "from nowhere: {strange:#?}");
}

#[test]
fn every_target_has_seeds_and_no_other_directory_is_there() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|t| t.name.to_owned()).collect();
    assert_eq!(names(&directory()), targets);
}

/// Not a test: rewrites the generated seeds and keeps the found ones.
#[test]
#[ignore = "writes into the sources"]
fn write_the_seeds() {
    for target in &TARGETS {
        let dir = directory().join(target.name);
        fs::create_dir_all(&dir).unwrap();
        for name in names(&dir).iter().filter(|name| !name.starts_with(FOUND)) {
            fs::remove_file(dir.join(name)).unwrap();
        }
    }
    for seed in seeds() {
        let path = directory().join(seed.target).join(&seed.name);
        assert!(!path.exists(), "{} twice", path.display());
        fs::write(path, seed.bytes).unwrap();
    }
}
