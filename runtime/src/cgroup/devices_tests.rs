//! A small interpreter runs the device filter, which must agree with the rule list.

use super::*;
use proptest::prelude::*;

fn rule(json: serde_json::Value) -> LinuxDeviceCgroup {
    serde_json::from_value(json).unwrap()
}

/// The meaning of the rules: each access on its own, by the last rule that names it.
fn meant(rules: &[Rule], kind: Kind, major: u32, minor: u32, access: u8) -> bool {
    [MAKE, READ, WRITE]
        .iter()
        .filter(|bit| access & **bit != 0)
        .all(|bit| {
            let names = |r: &&Rule| {
                r.kind.is_none_or(|k| k == kind)
                    && r.major.is_none_or(|m| m == major)
                    && r.minor.is_none_or(|m| m == minor)
                    && r.access & bit != 0
            };
            rules.iter().rev().find(names).is_some_and(|r| r.allow)
        })
}

/// Runs the few instructions that the filter uses; panics on any other and on a wild jump.
fn run(program: &[u64], kind: Kind, major: u32, minor: u32, access: u8) -> bool {
    let context = [u32::from(access) << 16 | kind as u32, major, minor];
    let mut r = [0_u64; 11];
    let mut at = 0_i64;
    for _ in 0..program.len() + 1 {
        let word = program[usize::try_from(at).unwrap()];
        let (dst, src) = ((word >> 8 & 15) as usize, (word >> 12 & 15) as usize);
        let off = i64::from((word >> 16) as u16 as i16);
        let imm = i64::from((word >> 32) as u32 as i32) as u64;
        at += 1;
        match word as u8 {
            code::LOAD_U32 => r[dst] = context[off as usize / 4].into(),
            code::MOVE_REG => r[dst] = r[src],
            code::MOVE => r[dst] = imm,
            code::AND => r[dst] &= imm,
            code::SHIFT_RIGHT => r[dst] >>= imm,
            code::JUMP => at += off,
            code::JUMP_NOT_EQUAL if r[dst] != imm => at += off,
            code::JUMP_NOT_EQUAL_U32 if r[dst] as u32 != imm as u32 => at += off,
            code::JUMP_ANY_SET if r[dst] & imm != 0 => at += off,
            code::JUMP_NOT_EQUAL | code::JUMP_NOT_EQUAL_U32 | code::JUMP_ANY_SET => {}
            code::EXIT => return r[0] == 1,
            other => panic!("unknown instruction {other:#x}"),
        }
    }
    panic!("the filter does not end");
}

fn rules(json: serde_json::Value) -> Vec<Rule> {
    let list: Vec<LinuxDeviceCgroup> = serde_json::from_value(json).unwrap();
    list.iter().flat_map(|r| parse(r).unwrap()).collect()
}

#[test]
fn a_default_container_reads_null_and_cannot_make_the_hosts_disk() {
    let rules = rules(serde_json::json!([
        {"allow": false, "access": "rwm"},
        {"allow": true, "type": "c", "access": "m"},
        {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
        {"allow": true, "type": "c", "major": 136, "minor": -1, "access": "rw"}
    ]));
    let filter = program(&rules);
    assert!(run(&filter, Kind::Char, 1, 3, READ | WRITE));
    assert!(run(&filter, Kind::Char, 9, 9, MAKE));
    assert!(run(&filter, Kind::Char, 136, 5, READ));
    assert!(!run(&filter, Kind::Block, 8, 0, MAKE));
    assert!(!run(&filter, Kind::Block, 8, 0, READ));
    assert!(!run(&filter, Kind::Char, 1, 1, READ));
}

#[test]
fn read_by_one_rule_and_write_by_another_allow_both_at_once() {
    let rules = rules(serde_json::json!([
        {"allow": true, "type": "b", "major": 8, "minor": 0, "access": "r"},
        {"allow": true, "type": "b", "major": 8, "minor": 0, "access": "w"}
    ]));
    assert!(run(&program(&rules), Kind::Block, 8, 0, READ | WRITE));
    assert!(!run(&program(&rules), Kind::Block, 8, 0, READ | MAKE));
}

#[test]
fn any_kind_with_numbers_never_becomes_v1s_all_devices() {
    let one = rule(serde_json::json!({"allow": true, "type": "a", "major": 1, "minor": 3}));
    let lines: Vec<String> = parse(&one).unwrap().iter().map(Rule::v1_line).collect();
    assert_eq!(lines, ["b 1:3 rwm", "c 1:3 rwm"]);
    let all = rule(serde_json::json!({"allow": true, "access": "rwm"}));
    assert_eq!(parse(&all).unwrap()[0].v1_line(), "a");
}

#[test]
fn senseless_rules_are_refused() {
    for bad in [
        serde_json::json!({"allow": true, "type": "c", "access": "rx"}),
        serde_json::json!({"allow": true, "type": "p", "access": "r"}),
        serde_json::json!({"allow": true, "type": "c", "major": -2, "access": "r"}),
        serde_json::json!({"allow": true, "type": "c", "major": 1i64 << 40, "access": "r"}),
    ] {
        assert_eq!(parse(&rule(bad.clone())), None, "{bad}");
    }
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let kind = prop_oneof![Just(None), Just(Some(Kind::Block)), Just(Some(Kind::Char))];
    let number = || proptest::option::of(0_u32..3);
    (any::<bool>(), kind, number(), number(), 1_u8..8).prop_map(
        |(allow, kind, major, minor, access)| Rule {
            allow,
            kind,
            major,
            minor,
            access,
        },
    )
}

proptest! {
    #[test]
    fn the_filter_says_what_the_rules_mean(
        rules in prop::collection::vec(any_rule(), 0..12),
        block in any::<bool>(), major in 0_u32..4, minor in 0_u32..4, access in 1_u8..8,
    ) {
        let kind = if block { Kind::Block } else { Kind::Char };
        let filter = program(&rules);
        let expected = meant(&rules, kind, major, minor, access);
        prop_assert_eq!(run(&filter, kind, major, minor, access), expected);
        if allows_all(&rules) {
            prop_assert!(expected);
        }
    }
}

/// A cgroup of our own in the unified tree, removed when dropped.
struct OwnDir(std::path::PathBuf);

impl Drop for OwnDir {
    fn drop(&mut self) {
        // The last process was reaped, so rmdir finds it empty.
        let removed = std::fs::remove_dir(&self.0);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

/// Whether a process in the cgroup at `dir` may read and write these devices, in order.
fn opens(dir: &std::path::Path, devices: &[&str]) -> Vec<bool> {
    let script = format!("echo 0 > '{}/cgroup.procs' || exit 9\n", dir.display());
    let script = devices.iter().fold(script, |script, device| {
        script + &format!("(exec 3<>{device}) 2>/dev/null && echo y || echo n\n")
    });
    let shell = std::process::Command::new("sh")
        .arg("-c")
        .arg(script)
        .output();
    let output = shell.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line == "y").collect()
}

/// Needs root and a unified tree, which v2 and hybrid machines have.
#[test]
fn the_kernel_takes_the_filter_enforces_it_and_replaces_it() {
    let host = crate::cgroup::Host::detect().unwrap();
    let Some(unified) = host.unified() else {
        return; // pure v1: there are no filters
    };
    let dir = unified
        .mount
        .join(format!("cairn-test-bpf-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let own = OwnDir(dir);
    let devices = ["/dev/null", "/dev/zero"];
    assert_eq!(opens(&own.0, &devices), [true, true]);
    let null_only = rules(serde_json::json!([
        {"allow": false, "access": "rwm"},
        {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw"}
    ]));
    bpf::replace_device_filter(&own.0, &program(&null_only)).unwrap();
    assert_eq!(opens(&own.0, &devices), [true, false]);
    let both = rules(serde_json::json!([
        {"allow": true, "type": "c", "major": 1, "access": "rw"}
    ]));
    // If the first filter were still there, both would have to agree.
    bpf::replace_device_filter(&own.0, &program(&both)).unwrap();
    assert_eq!(opens(&own.0, &devices), [true, true]);
    let longest = vec![both[0]; MAX_RULES];
    bpf::replace_device_filter(&own.0, &program(&longest)).unwrap();
    assert_eq!(opens(&own.0, &devices), [true, true]);
}
