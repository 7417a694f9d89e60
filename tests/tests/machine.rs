//! The last test of a run: the machine is in the same state as before the first. `hack/test` takes
//! the snapshot and runs this test; alone, it has nothing to compare with.

use std::{collections::BTreeSet, env, fs, time::Duration};

use cairn_tests::{machine, until};

#[test]
#[ignore = "run by hack/test, after all others"]
fn the_machine_is_as_it_was_before_the_tests() {
    let file = env::var("CAIRN_TEST_BEFORE").expect("hack/test sets CAIRN_TEST_BEFORE");
    let run = env::var("CAIRN_TEST_RUN").expect("hack/test sets CAIRN_TEST_RUN");
    let before = fs::read_to_string(file).expect("hack/test took a snapshot");
    let before: BTreeSet<String> = before.lines().map(str::to_owned).collect();
    assert!(before.len() > 10, "the snapshot of before is not one");
    let own = format!("{} ", env::current_exe().expect("a path").display());
    let mut left = Vec::new();
    // The last test's processes may still be ending.
    until::blocking(Duration::from_secs(15), || {
        left = machine::snapshot()
            .into_iter()
            .filter(|item| !before.contains(item) && machine::ours(item, &run))
            .filter(|item| !item.contains(&own) && !item.contains("hack/test"))
            .collect();
        left.is_empty()
    });
    assert!(left.is_empty(), "left behind:\n{}", left.join("\n"));
    let stray = fs::read_dir(env::var("CAIRN_TEST_TMP").expect("hack/test sets CAIRN_TEST_TMP"))
        .expect("the run's directory is there")
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(cairn_tests::daemon::PREFIX))
        .collect::<Vec<_>>();
    assert!(stray.is_empty(), "directories left behind: {stray:?}");
}
