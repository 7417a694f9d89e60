//! Rules for any bytes of a configuration and of a CNI program.

use super::conflist::{ConfList, Version};
use super::result::{addresses, parse_error, parse_result};

/// Checks a configuration: a list or a single plugin.
pub fn conflist(data: &[u8]) {
    if let Ok(list) = ConfList::parse(data) {
        let again = ConfList::from_value(&list.to_value()).expect("we wrote it");
        assert_eq!(again.to_value(), list.to_value());
    }
}

/// Checks a program's output: a result and an error.
pub fn result(data: &[u8]) {
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let version = Version::known(version).expect("it is known");
        let Ok(result) = parse_result(data, version) else {
            continue;
        };
        if let Ok(found) = addresses(&result, "eth0") {
            assert!(!found.is_empty());
            assert!(found.is_sorted_by_key(std::net::IpAddr::is_ipv6));
        }
    }
    let _ = parse_error(data, data);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_seed_keeps_the_rules_and_the_good_ones_are_taken() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/fuzz/seeds");
        let mut run = 0;
        for (target, check) in [
            ("cni_conflist", conflist as fn(&[u8])),
            ("cni_result", result),
        ] {
            for seed in fs::read_dir(seeds.join(target)).unwrap() {
                check(&fs::read(seed.unwrap().path()).unwrap());
                run += 1;
            }
        }
        assert!(run >= 4);
        let good = |target: &str| fs::read(seeds.join(target).join("good")).unwrap();
        assert!(ConfList::parse(&good("cni_conflist")).is_ok());
        let result = parse_result(&good("cni_result"), Version::known("1.0.0").unwrap());
        assert_eq!(addresses(&result.unwrap(), "eth0").unwrap().len(), 2);
    }
}
