//! References of the documents to tests, guarantees and requirements.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    process::Command,
};

use cairn_tests::bins::{self, repository};

use super::has_word;

#[test]
fn the_documents_name_only_tests_that_exist() {
    let mut sources = String::new();
    for tree in ["runtime", "nri", "cni-shim", "tests"] {
        let root = repository().join(tree);
        for path in cairn_tests::look::tree(&root) {
            if path.ends_with(".rs") || path.ends_with(".py") {
                sources += &fs::read_to_string(root.join(path)).expect("a source file is text");
            }
        }
    }
    let mut named = 0;
    let mut missing = Vec::new();
    for document in [
        "ARCHITECTURE.md",
        "CONTRACT.md",
        "SECURITY.md",
        "docs/kubernetes.md",
    ] {
        let text = fs::read_to_string(repository().join(document)).expect("the document is there");
        // Every second piece is between backticks.
        for name in text.split('`').skip(1).step_by(2) {
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if name.matches('_').count() >= 4 && name.chars().all(is_name) {
                named += 1;
                if !has_word(&sources, name) {
                    missing.push(format!("{document}: {name}"));
                }
            }
        }
    }
    assert!(
        named > 20,
        "the documents name their tests in backticks: found {named}"
    );
    assert!(
        missing.is_empty(),
        "tests that do not exist:\n{}",
        missing.join("\n")
    );
}

#[test]
fn the_documents_name_only_points_that_exist() {
    let list = Command::new(bins::built("nri-contract"))
        .arg("--list")
        .output();
    let list = String::from_utf8(list.expect("nri-contract runs").stdout).expect("text");
    let points: BTreeSet<&str> = list.split_whitespace().collect();
    let mut named = 0;
    for document in ["CONTRACT.md", "SECURITY.md"] {
        let text = fs::read_to_string(repository().join(document)).expect("the document is there");
        for name in text.split('`').skip(1).step_by(2) {
            let is_one = name.starts_with(['C', 'G']) && name.contains('/');
            if !is_one || name.contains([',', '*']) {
                continue;
            }
            named += 1;
            if let Some(begun) = name.strip_suffix('…') {
                // One for each event.
                let all = points.iter().filter(|point| point.starts_with(begun));
                assert!(all.count() >= 13, "{document}: {name}");
            } else {
                assert!(points.contains(name), "{document}: {name}");
            }
        }
    }
    assert!(named > 80, "found {named}");
}

/// Returns the cells of each row of CONTRACT.md that starts with a guarantee's id.
fn guarantees() -> Vec<Vec<String>> {
    rows(&["| C-", "| G-"])
}

/// Returns the cells of each row of CONTRACT.md with one of these prefixes.
fn rows(beginnings: &[&str]) -> Vec<Vec<String>> {
    let text = fs::read_to_string(repository().join("CONTRACT.md")).expect("the contract is there");
    let rows = text
        .lines()
        .filter(|line| beginnings.iter().any(|b| line.starts_with(b)));
    let cells = |row: &str| {
        let cells = row.trim_matches('|').split(" | ");
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    rows.map(cells).collect()
}

#[test]
fn each_guarantee_has_an_id_of_its_own_a_source_and_a_test() {
    let all = guarantees();
    assert!(all.len() > 90, "{} guarantees", all.len());
    let mut last: BTreeMap<String, u32> = BTreeMap::new();
    for row in &all {
        let id = &row[0];
        // C-01.3 is the third of C-01; G-05 is the fifth of the general guarantees.
        let (group, number) = id.rsplit_once(['.', '-']).expect("a group and a number");
        let number: u32 = number.parse().expect("a number");
        let before = last.insert(group.to_owned(), number).unwrap_or(0);
        assert_eq!(number, before + 1, "{id} does not follow {group} {before}");
        assert!(
            row.len() >= 4 && row.iter().all(|cell| !cell.is_empty()),
            "{row:?}"
        );
        let shown = &row[row.len() - 1];
        let construction = ["by construction", "as above"];
        let tested = shown.contains('`') || construction.iter().any(|c| shown.starts_with(c));
        assert!(tested, "{id} names no test");
        if group.starts_with("C-") {
            let kinds = [
                "#286",
                "pull/295",
                "Go ",
                "ours, because",
                "[O-",
                "[nri/README.md]",
                "critest",
            ];
            assert!(
                kinds.iter().any(|k| row[2].contains(k)),
                "{id} has no source that can be opened"
            );
        }
    }
    let points = last.keys().filter(|group| group.starts_with("C-"));
    assert_eq!(points.count(), 13, "a section for each event");
}

/// The tests of contract points: `contract_c04_…` belongs to C-04, `contract_c09_and_c13_…` to
/// both, `contract_g32_…` to G-32.
#[test]
fn each_contract_test_is_cited_by_a_guarantee_of_its_point() {
    let mut wrong = Vec::new();
    let mut tests = 0;
    let cases = repository().join("tests/tests/e2e");
    for path in cairn_tests::look::tree(&cases) {
        if !path.ends_with(".rs") {
            continue;
        }
        let text = fs::read_to_string(cases.join(&path)).expect("a source file is text");
        for (at, _) in text.match_indices("fn contract_") {
            let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
            let name: String = text[at + 3..].chars().take_while(is_name).collect();
            let points = name.split('_').skip(1).filter(|word| *word != "and");
            let points: Vec<String> = points.map_while(point).collect();
            let cites = |row: &Vec<String>| has_word(row.last().map_or("", |shown| shown), &name);
            let shown: Vec<String> = rows(&["| C-", "| G-", "| O-"])
                .into_iter()
                .filter(cites)
                .map(|r| r[0].clone())
                .collect();
            let of = |point: &String| shown.iter().any(|id| id.starts_with(point.as_str()));
            tests += 1;
            if points.is_empty() || !points.iter().all(of) {
                wrong.push(format!("{path}: {name} is cited by {shown:?}"));
            }
        }
    }
    assert!(tests > 10, "{tests} tests of the contract");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Converts `c04` to C-04.
fn point(word: &str) -> Option<String> {
    let (group, number) = word.split_at_checked(1)?;
    let is_number = number.len() == 2 && number.bytes().all(|b| b.is_ascii_digit());
    let is_group = matches!(group, "c" | "g" | "o");
    (is_group && is_number || group == "o" && number.len() == 1)
        .then(|| format!("{}-{number}", group.to_uppercase()))
}

/// Numbers of documents outside the repository are useless to its reader.
#[test]
fn the_contract_cites_only_what_can_be_opened() {
    let text = fs::read_to_string(repository().join("CONTRACT.md")).expect("the contract is there");
    for (at, line) in text.lines().enumerate() {
        for word in [
            "NRI-1", "NRI-2", "NRI-3", "NRI-4", "NRI-5", "NRI-6", "NRI-7", "CRI-1", "design",
        ] {
            assert!(!line.contains(word), "CONTRACT.md:{}: {word}", at + 1);
        }
    }
}

/// Returns numbers such as `CRI-132` in a text; of ranges, both ends.
fn cited(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for prefix in ["CRI-", "NRI-"] {
        for (at, _) in text.match_indices(prefix) {
            let digits: String = text[at + 4..]
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            if digits.len() >= 3 {
                found.insert(format!("{prefix}{digits}"));
            }
        }
    }
    found
}

#[test]
fn every_cited_requirement_has_its_line() {
    let documents = ["docs/requirements/cri.md", "docs/requirements/nri.md"];
    let mut lines = BTreeSet::new();
    for document in documents {
        let text = fs::read_to_string(repository().join(document)).expect("the document is there");
        let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
        for number in rows.flat_map(|row| cited(row.split(' ').next().unwrap_or_default())) {
            assert!(lines.insert(number.clone()), "{document}: {number} twice");
        }
    }
    let mut missing = Vec::new();
    for tree in ["runtime", "nri", "cni-shim", "tests", "proto"] {
        let root = repository().join(tree);
        for path in cairn_tests::look::tree(&root) {
            if [".rs", ".md", ".proto"]
                .iter()
                .any(|end| path.ends_with(end))
            {
                let text = fs::read_to_string(root.join(&path)).expect("a source file is text");
                let unknown = cited(&text).into_iter().filter(|n| !lines.contains(n));
                missing.extend(unknown.map(|number| format!("{tree}/{path}: {number}")));
            }
        }
    }
    for document in ["ARCHITECTURE.md", "CONTRACT.md"] {
        let text = fs::read_to_string(repository().join(document)).expect("the document is there");
        let unknown = cited(&text).into_iter().filter(|n| !lines.contains(n));
        missing.extend(unknown.map(|number| format!("{document}: {number}")));
    }
    assert!(
        missing.is_empty(),
        "numbers without a line in docs/requirements:\n{}",
        missing.join("\n")
    );
}

/// The directory of a package's modules, and the document with their map.
const MAPS: [(&str, &str); 7] = [
    ("runtime/src", "ARCHITECTURE.md"),
    ("runtime/monitor/src", "ARCHITECTURE.md"),
    ("runtime/create/src", "ARCHITECTURE.md"),
    ("nri/src", "nri/README.md"),
    ("nri/bench/src", "ARCHITECTURE.md"),
    ("nri/wasm/src", "ARCHITECTURE.md"),
    ("cni-shim/src", "cni-shim/README.md"),
];

#[test]
fn each_module_stands_in_the_code_map() {
    let mut missing = Vec::new();
    for (sources, document) in MAPS {
        let text = fs::read_to_string(repository().join(document)).expect("the document is there");
        let in_code: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
        let entries = fs::read_dir(repository().join(sources)).expect("the package is there");
        for entry in entries {
            let name = entry.expect("an entry").file_name();
            let name = name.to_str().expect("a name in ASCII");
            let module = name.strip_suffix(".rs").unwrap_or(name);
            let hidden = ["lib", "main"].contains(&module) || module.ends_with("tests");
            if !hidden && !in_code.iter().any(|code| has_word(code, module)) {
                missing.push(format!("{document} says nothing of {sources}/{name}"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn the_code_map_of_nri_names_only_modules_that_exist() {
    let text = fs::read_to_string(repository().join("nri/README.md")).expect("it is there");
    let map = text.split("**`nri/src`**").nth(1).expect("its map");
    let rows = map.lines().skip(4).take_while(|line| line.starts_with('|'));
    let names: Vec<&str> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`'))
        .map(|name| name.trim().trim_end_matches('/'))
        .filter(|name| !name.is_empty())
        .collect();
    assert!(names.len() > 20, "the map was read: {names:?}");
    let sources = repository().join("nri/src");
    let gone = |name: &&&str| {
        !sources.join(name).is_dir() && !sources.join(format!("{name}.rs")).is_file()
    };
    let gone: Vec<_> = names.iter().filter(gone).collect();
    assert!(gone.is_empty(), "no such modules: {gone:?}");
}

#[test]
fn each_program_for_developers_tells_what_it_does_and_does_nothing_else() {
    let mut asked = 0;
    for entry in fs::read_dir(repository().join("hack")).expect("hack/ is there") {
        let path = entry.expect("hack/ can be listed").path();
        let mode = fs::metadata(&path)
            .expect("it is there")
            .permissions()
            .mode();
        if path.is_dir() || mode & 0o111 == 0 {
            continue;
        }
        let name = path.file_name().expect("a name").to_string_lossy();
        for flag in ["-h", "--help"] {
            let output = Command::new(&path).arg(flag).env_clear().output();
            let output = output.expect("it starts");
            let reported = String::from_utf8(output.stdout).expect("text");
            assert!(output.status.success(), "hack/{name} {flag}");
            assert!(
                reported.starts_with(&format!("hack/{name}: ")),
                "{reported}"
            );
            assert!(
                reported.matches(&format!("  hack/{name}")).count() > 0,
                "{reported}"
            );
            assert!(output.stderr.is_empty(), "hack/{name} {flag}");
        }
        asked += 1;
    }
    assert!(asked > 10, "hack/ has its programs: {asked}");
}
