//! Device rules: v1 `devices.allow`/`devices.deny`, or an equivalent BPF program on v2.
//!
//! For each requested kind of access (make, read, write) the last rule that names the device and
//! that access decides. An access without a rule is denied.

use super::error::{Error, Result};
use super::group::Cgroup;
use super::host::Place;
use super::{bpf, io};
use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType};

/// Most rules of one container; a privileged one needs a single rule.
const MAX_RULES: usize = 1024;

const MAKE: u8 = 1;
const READ: u8 = 2;
const WRITE: u8 = 4;
const ALL: u8 = MAKE | READ | WRITE;

/// Kinds of device nodes, by their numbers in the BPF context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Block = 1,
    Char = 2,
}

/// One checked OCI rule. `None` means any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    allow: bool,
    kind: Option<Kind>,
    major: Option<u32>,
    minor: Option<u32>,
    access: u8,
}

/// Replaces the device rules of the cgroup.
pub(super) fn apply(group: &Cgroup, rules: &[LinuxDeviceCgroup]) -> Result<()> {
    let rules = check(group, rules)?;
    if let Some(Place::V1(_)) = group.host().place("devices") {
        return apply_v1(group, &rules);
    }
    let Some(dir) = group.unified_dir() else {
        let path = group.path().as_str();
        return Err(Error::no_controller(path, "device rules", "devices"));
    };
    if allows_all(&rules) {
        return Ok(());
    }
    bpf::replace_device_filter(&dir, &program(&rules)).map_err(|(step, source)| {
        Error::DeviceFilter {
            cgroup: group.path().to_string(),
            step,
            source,
        }
    })
}

fn apply_v1(group: &Cgroup, rules: &[Rule]) -> Result<()> {
    let dir = group.dir_of("devices").unwrap_or_default();
    let open = io::read_if_there(&dir.join("devices.list"))?;
    if allows_all(rules) && open.as_deref() == Some("a *:* rwm") {
        return Ok(());
    }
    for rule in rules {
        let file = if rule.allow {
            "devices.allow"
        } else {
            "devices.deny"
        };
        let line = rule.v1_line();
        io::write(&dir.join(file), &line).map_err(|source| Error::Write {
            cgroup: group.path().to_string(),
            file: file.to_owned(),
            value: line,
            source,
            restore: None,
        })?;
    }
    Ok(())
}

fn check(group: &Cgroup, rules: &[LinuxDeviceCgroup]) -> Result<Vec<Rule>> {
    let bad = |rule: &dyn ToString| Error::BadValue {
        cgroup: group.path().to_string(),
        setting: "device rule".to_owned(),
        value: rule.to_string(),
    };
    if rules.len() > MAX_RULES {
        return Err(bad(&format!("{} rules", rules.len())));
    }
    let mut checked = Vec::with_capacity(rules.len());
    for rule in rules {
        checked.extend(parse(rule).ok_or_else(|| bad(rule))?);
    }
    Ok(checked)
}

/// One or two rules: "any kind" with numbers becomes a block and a character rule, because v1 reads
/// everything after `a` as "all devices".
fn parse(rule: &LinuxDeviceCgroup) -> Option<Vec<Rule>> {
    let kind = match rule.typ() {
        None | Some(LinuxDeviceType::A) => None,
        Some(LinuxDeviceType::B) => Some(Kind::Block),
        Some(LinuxDeviceType::C | LinuxDeviceType::U) => Some(Kind::Char),
        Some(LinuxDeviceType::P) => return None,
    };
    let number = |n: Option<i64>| match n {
        None | Some(-1) => Some(None),
        Some(n) => u32::try_from(n).ok().map(Some),
    };
    let mut access = 0;
    for letter in rule.access().as_deref().unwrap_or("rwm").chars() {
        access |= match letter {
            'm' => MAKE,
            'r' => READ,
            'w' => WRITE,
            _ => return None,
        };
    }
    let one = Rule {
        allow: rule.allow(),
        kind,
        major: number(rule.major())?,
        minor: number(rule.minor())?,
        access,
    };
    if access == 0 {
        return Some(Vec::new());
    }
    if kind.is_some() || one.names_all() {
        return Some(vec![one]);
    }
    let of = |kind| Rule {
        kind: Some(kind),
        ..one
    };
    Some(vec![of(Kind::Block), of(Kind::Char)])
}

impl Rule {
    fn names_all(&self) -> bool {
        self.kind.is_none() && self.major.is_none() && self.minor.is_none() && self.access == ALL
    }

    fn v1_line(&self) -> String {
        let any = |n: Option<u32>| n.map_or("*".to_owned(), |n| n.to_string());
        let kind = match self.kind {
            None => return "a".to_owned(),
            Some(Kind::Block) => 'b',
            Some(Kind::Char) => 'c',
        };
        let access: String = [(READ, 'r'), (WRITE, 'w'), (MAKE, 'm')]
            .iter()
            .filter(|(bit, _)| self.access & bit != 0)
            .map(|(_, letter)| letter)
            .collect();
        format!("{kind} {}:{} {access}", any(self.major), any(self.minor))
    }
}

/// Whether no request is ever denied: a privileged container needs no filter.
fn allows_all(rules: &[Rule]) -> bool {
    rules
        .iter()
        .rev()
        .take_while(|rule| rule.allow)
        .any(Rule::names_all)
}

/// One BPF instruction: code, registers (destination low, source high), jump offset, constant.
fn op(code: u8, dst: u8, src: u8, off: i16, imm: u32) -> u64 {
    u64::from(code)
        | u64::from(dst | src << 4) << 8
        | u64::from(off.cast_unsigned()) << 16
        | u64::from(imm) << 32
}

mod code {
    pub(super) const LOAD_U32: u8 = 0x61;
    pub(super) const MOVE_REG: u8 = 0xbf;
    pub(super) const MOVE: u8 = 0xb7;
    pub(super) const AND: u8 = 0x57;
    pub(super) const SHIFT_RIGHT: u8 = 0x77;
    pub(super) const JUMP: u8 = 0x05;
    pub(super) const JUMP_NOT_EQUAL: u8 = 0x55;
    pub(super) const JUMP_NOT_EQUAL_U32: u8 = 0x56;
    pub(super) const JUMP_ANY_SET: u8 = 0x45;
    pub(super) const EXIT: u8 = 0x95;
}

/// The program for `rules`. Register 3 has the undecided accesses: an allowing rule removes its own
/// and allows the request when none is left; a denying rule denies it if it names one.
fn program(rules: &[Rule]) -> Vec<u64> {
    use code::*;
    const RESULT: u8 = 0;
    const CONTEXT: u8 = 1;
    const KIND: u8 = 2;
    const LEFT: u8 = 3;
    const MAJOR: u8 = 4;
    const MINOR: u8 = 5;
    let answer = |yes: bool| [op(MOVE, RESULT, 0, 0, yes.into()), op(EXIT, 0, 0, 0, 0)];
    // The context: u32 access << 16 | kind, u32 major, u32 minor.
    let mut out = vec![
        op(LOAD_U32, KIND, CONTEXT, 0, 0),
        op(MOVE_REG, LEFT, KIND, 0, 0),
        op(SHIFT_RIGHT, LEFT, 0, 0, 16),
        op(AND, KIND, 0, 0, 0xffff),
        op(LOAD_U32, MAJOR, CONTEXT, 4, 0),
        op(LOAD_U32, MINOR, CONTEXT, 8, 0),
    ];
    for rule in rules.iter().rev() {
        let decide = if rule.allow {
            let mut ops = vec![
                op(AND, LEFT, 0, 0, u32::from(ALL & !rule.access)),
                op(JUMP_NOT_EQUAL, LEFT, 0, 2, 0),
            ];
            ops.extend(answer(true));
            ops
        } else {
            let mut ops = vec![
                op(JUMP_ANY_SET, LEFT, 0, 1, u32::from(rule.access)),
                op(JUMP, 0, 0, 2, 0),
            ];
            ops.extend(answer(false));
            ops
        };
        let conditions = [
            (KIND, rule.kind.map(|kind| kind as u32)),
            (MAJOR, rule.major),
            (MINOR, rule.minor),
        ];
        let conditions: Vec<(u8, u32)> = conditions
            .into_iter()
            .filter_map(|(register, value)| Some((register, value?)))
            .collect();
        // Each failed condition jumps over the later conditions and the decision.
        for (at, (register, value)) in conditions.iter().enumerate() {
            let skip = (conditions.len() - at - 1 + decide.len()) as i16;
            out.push(op(JUMP_NOT_EQUAL_U32, *register, 0, skip, *value));
        }
        out.extend(decide);
    }
    out.extend(answer(false));
    out
}

#[cfg(test)]
#[path = "devices_tests.rs"]
mod tests;
