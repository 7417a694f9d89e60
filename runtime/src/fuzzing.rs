//! The functions of the fuzz targets in `runtime/fuzz`: each takes bytes and panics if a rule is
//! broken. For the feature `fuzzing`; a test runs them over the seeds.

use crate::{image, oci, pod, spans, stream};

/// One fuzz target.
pub struct Target {
    /// The target's name, and that of its seed directory.
    pub name: &'static str,
    /// Useful length of an input, in bytes.
    pub max_len: usize,
    pub run: fn(&[u8]),
}

pub const TARGETS: [Target; 18] = [
    target("manifest", 2048, image::checks::manifest),
    target("config", 2048, image::checks::config),
    target("image_record", 2048, image::checks::record),
    target("layer", 8192, image::checks::layer),
    target("unpack_report", 1024, image::checks::report),
    target("challenge", 256, image::checks::asked),
    target("registry_answer", 512, image::checks::answer),
    target("hosts_toml", 1024, image::checks::hosts_toml),
    target("reference", 128, image::checks::reference),
    target("accounts", 512, oci::checks::accounts),
    target("cdi_file", 1024, oci::checks::cdi_file),
    target("pod_record", 2048, pod_record),
    target("container_record", 2048, container_record),
    target("spdy_frames", 1024, stream::wire::checks::frames),
    target("stream_messages", 512, stream::wire::checks::messages),
    target("terminal_sizes", 128, stream::wire::checks::sizes),
    target("stream_request", 512, stream::wire::checks::request),
    target("traceparent", 128, spans::check_parent),
];

const fn target(name: &'static str, max_len: usize, run: fn(&[u8])) -> Target {
    Target { name, max_len, run }
}

/// Runs the target of this name.
///
/// # Panics
/// The target does not exist, or a rule is broken.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target of this name").run)(data);
}

fn pod_record(data: &[u8]) {
    let record = crate::store::parse_record::<pod::record::PodRecord>(data);
    if let Ok(record) = record {
        let _ = (record.metadata(), record.linux(), record.name_key());
        let _ = (
            record.namespace_options(),
            record.host_network(),
            record.cgroup_leaf(),
        );
    }
}

fn container_record(data: &[u8]) {
    let record = crate::store::parse_record::<pod::record::ContainerRecord>(data);
    if let Ok(record) = record {
        let _ = (record.metadata(), record.name_key());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn seeds() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds")
    }

    fn names(dir: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        entries.map(|entry| name(entry.unwrap())).collect()
    }

    #[test]
    fn every_seed_keeps_the_rules_of_its_target() {
        for target in &TARGETS {
            let dir = seeds().join(target.name);
            let names = names(&dir);
            assert!(!names.is_empty(), "{} has no seeds", target.name);
            for name in names {
                let bytes = fs::read(dir.join(&name)).unwrap();
                assert!(bytes.len() <= target.max_len, "{}/{name}", target.name);
                let done = std::panic::catch_unwind(|| run(target.name, &bytes));
                assert!(done.is_ok(), "{}/{name} breaks a rule", target.name);
            }
        }
    }

    /// Without a fuzzer: seeds with bytes changed, inserted, removed, repeated, or taken from
    /// another seed. `CAIRN_FUZZ_RUNS` is the number of runs per target, by default a thousand.
    #[test]
    fn seeds_with_random_changes_keep_the_rules_too() {
        let runs = std::env::var("CAIRN_FUZZ_RUNS").ok();
        let runs: usize = runs.map_or(1000, |n| n.parse().expect("a number"));
        for target in &TARGETS {
            let dir = seeds().join(target.name);
            let all: Vec<_> = names(&dir)
                .iter()
                .map(|name| fs::read(dir.join(name)).unwrap())
                .collect();
            let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
            for n in 0..runs {
                let mut bytes = all[chance.below(all.len())].clone();
                for _ in 0..=chance.below(6) {
                    chance.change(&mut bytes, &all);
                }
                bytes.truncate(target.max_len);
                let done = std::panic::catch_unwind(|| (target.run)(&bytes));
                assert!(
                    done.is_ok(),
                    "{} run {n}: {:?}",
                    target.name,
                    bytes.escape_ascii().to_string()
                );
            }
        }
    }

    struct Chance(u64);

    impl Chance {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            usize::try_from(self.0 >> 33).unwrap() % n.max(1)
        }

        fn change(&mut self, bytes: &mut Vec<u8>, all: &[Vec<u8>]) {
            let at = self.below(bytes.len() + 1);
            let end = at + self.below((bytes.len() - at + 1).min(64));
            match self.below(6) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = b"\0\n\":,{}[]-0"[self.below(11)],
                2 => bytes.insert(at, u8::try_from(self.below(256)).unwrap()),
                3 => drop(bytes.drain(at..end)),
                4 => {
                    let twice = bytes[at..end].to_vec();
                    bytes.splice(at..at, twice);
                }
                _ => {
                    let other = &all[self.below(all.len())];
                    let from = self.below(other.len() + 1);
                    bytes.truncate(at);
                    bytes.extend(&other[from..]);
                }
            }
        }
    }

    #[test]
    fn every_directory_of_seeds_has_its_target() {
        // cni-shim tests its own seeds.
        let ours = names(&seeds())
            .into_iter()
            .filter(|n| !n.starts_with("cni_"));
        let targets: BTreeSet<String> = TARGETS.iter().map(|t| t.name.to_owned()).collect();
        assert_eq!(ours.collect::<BTreeSet<_>>(), targets);
    }

    /// A fully accepted seed shows that its target reads at all.
    #[test]
    fn the_seeds_named_good_are_accepted() {
        let good = |target: &str, name: &str| fs::read(seeds().join(target).join(name)).unwrap();
        let text = |target: &str| String::from_utf8(good(target, "good")).unwrap();
        assert!(
            crate::store::parse_record::<pod::record::PodRecord>(&good("pod_record", "good"))
                .is_ok()
        );
        assert!(
            crate::store::parse_record::<pod::record::ContainerRecord>(&good(
                "container_record",
                "good"
            ))
            .is_ok()
        );
        assert!(text("reference").parse::<image::Reference>().is_ok());
        image::checks::tests::good_seeds_are_taken(good);
    }
}
