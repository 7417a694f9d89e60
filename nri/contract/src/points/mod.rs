//! The points, by the guarantees of CONTRACT.md.

mod conflicts;
mod containers;
mod create;
mod failures;
mod fields;
mod joining;
mod launched;
mod order;
mod pods;
mod policy;
mod registration;
mod resources;
pub(crate) mod restarts;
mod run;
mod settings;
mod stop;
mod unsolicited;
mod updates;
mod validators;

use crate::point::Point;

/// Returns every point.
pub(crate) fn all() -> Vec<Point> {
    [
        run::points(),
        stop::points(),
        pods::points(),
        create::points(),
        conflicts::points(),
        fields::points(),
        resources::points(),
        validators::points(),
        containers::points(),
        updates::points(),
        order::points(),
        unsolicited::points(),
        joining::points(),
        registration::points(),
        failures::points(),
        policy::points(),
        restarts::points(),
        launched::points(),
        settings::points(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use crate::point::matches;

    /// Returns the ids in the tables of CONTRACT.md.
    fn guarantees() -> BTreeSet<String> {
        let contract = concat!(env!("CARGO_MANIFEST_DIR"), "/../../CONTRACT.md");
        let text = std::fs::read_to_string(contract).expect("CONTRACT.md");
        let ids = text.lines().filter_map(|line| {
            let id = line.strip_prefix("| ")?.split(' ').next()?;
            (id.starts_with("C-") || id.starts_with("G-")).then(|| id.to_owned())
        });
        ids.collect()
    }

    #[test]
    fn each_point_has_an_id_of_its_own_and_is_of_a_guarantee() {
        let guarantees = guarantees();
        let mut seen = BTreeSet::new();
        for point in super::all() {
            assert!(seen.insert(point.id.clone()), "{} is there twice", point.id);
            assert!(
                guarantees.contains(point.guarantee()),
                "{}: CONTRACT.md has no such guarantee",
                point.id
            );
            assert!(
                point.id.contains('/') && !point.title.is_empty(),
                "{}",
                point.id
            );
        }
        assert!(seen.len() >= 80, "only {} points", seen.len());
    }

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Violation {
        guarantee: String,
        breaks: String,
        #[serde(default)]
        caught_by: Vec<String>,
        #[serde(default)]
        nri: String,
        #[serde(default)]
        because: String,
    }

    /// Returns the heads of the patches by name.
    fn violations() -> BTreeMap<String, Violation> {
        let patches = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/violations");
        let patches = std::fs::read_dir(patches).expect("a directory");
        let heads = patches.map(|patch| {
            let path = patch.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("a patch");
            let (head, _) = text.split_once("\n--- ").expect("a head and a diff");
            let name = path.file_stem().expect("a name").to_string_lossy();
            let head = toml::from_str(head).unwrap_or_else(|e| panic!("{name}: {e}"));
            (name.to_string(), head)
        });
        heads.collect()
    }

    #[test]
    fn each_violation_is_caught_by_points_that_exist() {
        let (all, points, guarantees) = (violations(), super::all(), guarantees());
        for (name, violation) in &all {
            let Violation {
                guarantee,
                breaks,
                caught_by,
                nri,
                because,
            } = violation;
            assert!(guarantees.contains(guarantee), "{name}: {guarantee}");
            assert!(!breaks.is_empty(), "{name}");
            assert_eq!(
                caught_by.is_empty(),
                !nri.is_empty() && !because.is_empty(),
                "{name}"
            );
            for globs in caught_by {
                assert!(
                    points.iter().any(|point| matches(globs, &point.id)),
                    "{name}: no point is called {globs}"
                );
            }
        }
        assert!(all.len() >= 40, "only {} violations", all.len());
    }

    /// Guarantees without a point; their rows in CONTRACT.md give the reason.
    const POINTLESS: [&str; 11] = [
        "C-01.8", "C-08.6", "C-12.4", "G-05", "G-06", "G-12", "G-29", "G-40", "G-42", "G-43",
        "G-44",
    ];

    #[test]
    fn each_guarantee_has_a_point_or_cannot_have_one() {
        let points: BTreeSet<String> = super::all()
            .iter()
            .map(|point| point.guarantee().to_owned())
            .collect();
        let without: BTreeSet<String> = guarantees().difference(&points).cloned().collect();
        assert_eq!(without, POINTLESS.map(String::from).into());
    }
}
