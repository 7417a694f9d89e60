//! What is asked, by the guarantees of CONTRACT.md.

mod conflicts;
mod containers;
mod create;
mod failures;
mod fields;
mod joining;
mod order;
mod pods;
mod policy;
mod registration;
mod restarts;
mod run;
mod stop;
mod unsolicited;
mod updates;
mod validators;

use crate::point::Point;

/// Every point there is.
pub fn all() -> Vec<Point> {
    [
        run::points(),
        stop::points(),
        pods::points(),
        create::points(),
        conflicts::points(),
        fields::points(),
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
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use crate::point::matches;

    /// The ids in the tables of CONTRACT.md.
    fn guarantees() -> BTreeSet<String> {
        let contract = concat!(env!("CARGO_MANIFEST_DIR"), "/../CONTRACT.md");
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

    #[test]
    fn each_violation_is_caught_by_points_that_exist() {
        #[derive(serde::Deserialize)]
        struct Violation {
            breaks: String,
            caught_by: Vec<String>,
        }
        let all: BTreeMap<String, Violation> =
            toml::from_str(include_str!("../violations.toml")).expect("TOML");
        let points = super::all();
        for (name, violation) in &all {
            assert!(
                !violation.breaks.is_empty() && !violation.caught_by.is_empty(),
                "{name}"
            );
            for globs in &violation.caught_by {
                assert!(
                    points.iter().any(|point| matches(globs, &point.id)),
                    "{name}: no point is called {globs}"
                );
            }
        }
        assert!(all.len() >= 40, "only {} violations", all.len());
    }
}
