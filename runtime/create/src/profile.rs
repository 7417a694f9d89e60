//! Seccomp: compiles an OCI profile to BPF by libseccomp, once per profile (16 to 20 ms).
//!
//! The cache has a file per profile, named by a hash, and used only if its profile is equal.
//!
//! A system call that is newer than all calls in the profile counts as unknown, not forbidden: it
//! returns ENOSYS, and programs fall back to an older one (the rule of the OCI runtime
//! specification for `linux.seccomp`; runc does the same).

#![expect(clippy::disallowed_methods, reason = "the cache of compiled filters")]

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cairn_monitor::filter::Filter;
use cairn_monitor::sys;
use libseccomp::{
    ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall,
};
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction as Action, LinuxSeccompArg,
    LinuxSeccompFilterFlag as Flag, LinuxSeccompOperator as Op, LinuxSyscall,
};

/// The version of the compilation: the cache may be an older version's.
const COMPILER: u32 = 2;

/// The filter and its path in the cache.
pub(crate) fn filter(profile: &LinuxSeccomp, cache: &Path) -> Result<(Filter, PathBuf), String> {
    let text = serde_json::to_vec(profile).map_err(|e| format!("seccomp profile: {e}"))?;
    let path = cache.join(format!("{:016x}.{COMPILER}.bpf", hash(&text)));
    if let Ok(bytes) = fs::read(&path)
        && let Ok(filter) = Filter::decode(&bytes)
        && filter.profile == text
    {
        return Ok((filter, path));
    }
    let program = compile(profile)?;
    let filter = Filter {
        flags: flags(profile),
        profile: text,
        program,
    };
    save(&filter, cache, &path).map_err(|e| format!("save {}: {e}", path.display()))?;
    Ok((filter, path))
}

/// FNV-1a; only a name.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Atomic: other helpers may compile the same profile now.
fn save(filter: &Filter, cache: &Path, path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(cache)?;
    let temporary = cache.join(format!("{}.tmp", std::process::id()));
    sys::create_private(&temporary)?.write_all(&filter.encode())?;
    fs::rename(&temporary, path)
}

/// Flags for seccomp(2), without TSYNC: there is one thread.
fn flags(profile: &LinuxSeccomp) -> u32 {
    profile.flags().iter().flatten().fold(0, |all, flag| {
        all | match flag {
            Flag::SeccompFilterFlagLog => libc::SECCOMP_FILTER_FLAG_LOG as u32,
            Flag::SeccompFilterFlagSpecAllow => libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW as u32,
            Flag::SeccompFilterFlagTsync | Flag::SeccompFilterFlagWaitKillableRecv => 0,
        }
    })
}

fn compile(profile: &LinuxSeccomp) -> Result<Vec<u8>, String> {
    let at = |e: libseccomp::error::SeccompError| format!("compile the seccomp profile: {e}");
    let default = action(profile.default_action(), profile.default_errno_ret())?;
    let mut context = ScmpFilterContext::new(default).map_err(at)?;
    for arch in profile.architectures().iter().flatten() {
        context.add_arch(architecture(*arch)?).map_err(at)?;
    }
    // A binary tree instead of a list: fewer instructions per system call.
    let _ = context.set_ctl_optimize(2); // old libraries lack it
    for rule in profile.syscalls().iter().flatten() {
        add(&mut context, rule, default)?;
    }
    // At most 4096 instructions of 8 bytes, which fit a pipe.
    let (read, write) = sys::pipe().map_err(|e| format!("compile the seccomp profile: {e}"))?;
    context.export_bpf(&write).map_err(at)?;
    drop(write);
    let mut program = unknown_calls(profile);
    fs::File::from(read)
        .read_to_end(&mut program)
        .map_err(|e| format!("compile the seccomp profile: {e}"))?;
    Ok(program)
}

/// Code before the compiled rules: ENOSYS for calls above the highest that the profile names, per
/// architecture. Empty if other calls are allowed or left to a tracer.
fn unknown_calls(profile: &LinuxSeccomp) -> Vec<u8> {
    use Action as A;
    let refuses = matches!(
        profile.default_action(),
        A::ScmpActErrno
            | A::ScmpActTrap
            | A::ScmpActKill
            | A::ScmpActKillThread
            | A::ScmpActKillProcess
    );
    if !refuses {
        return Vec::new();
    }
    let named = profile.architectures().iter().flatten();
    let mut tokens: Vec<(u32, ScmpArch)> = named
        .filter_map(|arch| architecture(*arch).ok())
        .chain([ScmpArch::native()])
        .filter_map(|arch| Some((audit_token(arch)?, arch)))
        .collect();
    tokens.sort_unstable_by_key(|(token, _)| *token);
    tokens.dedup_by_key(|(token, _)| *token);
    let highest = tokens
        .into_iter()
        .filter_map(|(token, arch)| Some((token, highest_call(profile, arch)?)));
    enosys_above(&highest.collect::<Vec<_>>())
}

/// The highest named call. Calls that an architecture lacks have negative pseudo numbers.
fn highest_call(profile: &LinuxSeccomp, arch: ScmpArch) -> Option<u32> {
    let rules = profile.syscalls().iter().flatten();
    let numbers = rules.flat_map(LinuxSyscall::names).filter_map(|name| {
        let call = ScmpSyscall::from_name_by_arch(name, arch).ok()?;
        u32::try_from(call.as_raw_syscall()).ok()
    });
    numbers.max()
}

/// AUDIT_ARCH_* for seccomp. x32 shares x86_64's and numbers its calls from bit 30 on: these, and
/// unlisted architectures, are left to the rules.
fn audit_token(arch: ScmpArch) -> Option<u32> {
    const WIDE: u32 = 1 << 31;
    const LITTLE: u32 = 1 << 30;
    Some(match arch {
        ScmpArch::X86 => 3 | LITTLE,
        ScmpArch::X8664 => 62 | WIDE | LITTLE,
        ScmpArch::Arm => 40 | LITTLE,
        ScmpArch::Aarch64 => 183 | WIDE | LITTLE,
        ScmpArch::Ppc64Le => 21 | WIDE | LITTLE,
        ScmpArch::S390X => 22 | WIDE,
        ScmpArch::S390 => 22,
        ScmpArch::Riscv64 => 243 | WIDE | LITTLE,
        ScmpArch::Loongarch64 => 258 | WIDE | LITTLE,
        _ => return None,
    })
}

/// Classic BPF: ENOSYS above these numbers, otherwise falls through to its end.
fn enosys_above(highest: &[(u32, u32)]) -> Vec<u8> {
    /// The first number of x32.
    const X32: u32 = 1 << 30;
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const IF_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
    const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    // Offsets in struct seccomp_data.
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    let enosys = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    // Code, instructions to skip if true, if false, operand.
    let mut program: Vec<(u16, u8, u8, u32)> = Vec::new();
    for (token, number) in highest {
        program.extend([
            (LOAD, 0, 0, ARCHITECTURE),
            (IF_EQUAL, 0, 4, *token),
            (LOAD, 0, 0, NUMBER),
            (IF_AT_LEAST, 2, 0, X32),
            (IF_GREATER, 0, 1, *number),
            (RETURN, 0, 0, enosys),
        ]);
    }
    let bytes = program.into_iter().flat_map(|(code, yes, no, k)| {
        let [a, b] = code.to_ne_bytes();
        let [c, d, e, f] = k.to_ne_bytes();
        [a, b, yes, no, c, d, e, f]
    });
    bytes.collect()
}

fn add(
    context: &mut ScmpFilterContext,
    rule: &LinuxSyscall,
    default: ScmpAction,
) -> Result<(), String> {
    let wanted = action(rule.action(), rule.errno_ret())?;
    if wanted == default {
        return Ok(());
    }
    let args = rule.args().as_deref().unwrap_or_default();
    for name in rule.names() {
        let at = |e| format!("compile the seccomp profile: {name}: {e}");
        // Unknown to this library: the default action applies.
        let Ok(call) = ScmpSyscall::from_name(name) else {
            continue;
        };
        let comparisons: Vec<ScmpArgCompare> = args.iter().map(comparison).collect();
        let twice = (1..args.len()).any(|i| args[..i].iter().any(|a| a.index() == args[i].index()));
        if comparisons.is_empty() {
            context.add_rule(wanted, call).map_err(at)?;
        } else if twice {
            // A rule can compare an argument only once: any of several rules matches, as in runc.
            for one in comparisons {
                context
                    .add_rule_conditional(wanted, call, &[one])
                    .map_err(at)?;
            }
        } else {
            context
                .add_rule_conditional(wanted, call, &comparisons)
                .map_err(at)?;
        }
    }
    Ok(())
}

fn comparison(arg: &LinuxSeccompArg) -> ScmpArgCompare {
    let op = match arg.op() {
        Op::ScmpCmpNe => ScmpCompareOp::NotEqual,
        Op::ScmpCmpLt => ScmpCompareOp::Less,
        Op::ScmpCmpLe => ScmpCompareOp::LessOrEqual,
        Op::ScmpCmpEq => ScmpCompareOp::Equal,
        Op::ScmpCmpGe => ScmpCompareOp::GreaterEqual,
        Op::ScmpCmpGt => ScmpCompareOp::Greater,
        // The mask is the first value, the result the second.
        Op::ScmpCmpMaskedEq => ScmpCompareOp::MaskedEqual(arg.value()),
    };
    let datum = match arg.op() {
        Op::ScmpCmpMaskedEq => arg.value_two().unwrap_or(0),
        _ => arg.value(),
    };
    ScmpArgCompare::new(arg.index() as u32, op, datum)
}

fn action(action: Action, errno: Option<u32>) -> Result<ScmpAction, String> {
    let errno = errno.map_or(libc::EPERM, |e| i32::try_from(e).unwrap_or(libc::EPERM));
    Ok(match action {
        Action::ScmpActAllow => ScmpAction::Allow,
        Action::ScmpActLog => ScmpAction::Log,
        Action::ScmpActErrno => ScmpAction::Errno(errno),
        Action::ScmpActTrap => ScmpAction::Trap,
        Action::ScmpActKill | Action::ScmpActKillThread => ScmpAction::KillThread,
        Action::ScmpActKillProcess => ScmpAction::KillProcess,
        Action::ScmpActTrace => ScmpAction::Trace(u16::try_from(errno).unwrap_or(1)),
        Action::ScmpActNotify => return Err("seccomp: SCMP_ACT_NOTIFY is not supported".to_owned()),
    })
}

/// Both crates use the same names.
fn architecture(arch: Arch) -> Result<ScmpArch, String> {
    let known = arch.to_string().parse();
    known.map_err(|e| format!("compile the seccomp profile: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oci_spec::runtime::{LinuxSeccompBuilder, LinuxSyscallBuilder};

    fn profile(default: Action) -> LinuxSeccomp {
        let rule = LinuxSyscallBuilder::default()
            .names(vec!["read".to_owned(), "clone3".to_owned()])
            .action(Action::ScmpActAllow);
        LinuxSeccompBuilder::default()
            .default_action(default)
            .syscalls(vec![rule.build().expect("a rule")])
            .build()
            .expect("a profile")
    }

    #[test]
    fn every_architecture_of_a_profile_is_one_of_the_librarys() {
        let names = "NATIVE X86 X86_64 X32 ARM AARCH64 MIPS MIPS64 MIPS64N32 MIPSEL MIPSEL64 MIPSEL64N32 PPC PPC64 PPC64LE \
                     S390 S390X PARISC PARISC64 RISCV64 LOONGARCH64 M68K SH SHEB";
        for name in names.split(' ') {
            let name = format!("SCMP_ARCH_{name}");
            let arch: Arch = name.parse().expect("an architecture");
            assert_eq!(architecture(arch), Ok(name.parse().expect("one of its")));
        }
    }

    #[test]
    fn a_profile_that_refuses_by_default_has_a_highest_number() {
        let clone3 = highest_call(&profile(Action::ScmpActErrno), ScmpArch::X8664);
        assert_eq!(clone3, Some(435));
        let before = unknown_calls(&profile(Action::ScmpActErrno));
        assert_eq!(before.len(), 6 * 8, "one architecture");
        assert!(unknown_calls(&profile(Action::ScmpActAllow)).is_empty());
        assert!(unknown_calls(&profile(Action::ScmpActTrace)).is_empty());
    }

    /// The action of a compiled program for a call.
    fn answer(program: &[u8], arch: u32, call: u32, first_argument: u64) -> u32 {
        let mut data = [0_u8; 64];
        data[..4].copy_from_slice(&call.to_ne_bytes());
        data[4..8].copy_from_slice(&arch.to_ne_bytes());
        data[16..24].copy_from_slice(&first_argument.to_ne_bytes());
        let instruction = |at: usize| {
            let [a, b, yes, no, c, d, e, f] = program[at * 8..][..8] else {
                unreachable!("eight bytes");
            };
            let k = u32::from_ne_bytes([c, d, e, f]);
            (u32::from(u16::from_ne_bytes([a, b])), yes, no, k)
        };
        let (mut at, mut word) = (0, 0_u32);
        loop {
            let (code, yes, no, k) = instruction(at);
            let jump = |holds: bool| usize::from(if holds { yes } else { no });
            at += 1;
            match (code & 0x07, code & 0xf0) {
                (libc::BPF_LD, _) => {
                    let bytes = data[k as usize..][..4].try_into().expect("four bytes");
                    word = u32::from_ne_bytes(bytes);
                }
                (libc::BPF_ALU, libc::BPF_AND) => word &= k,
                (libc::BPF_JMP, libc::BPF_JA) => at += k as usize,
                (libc::BPF_JMP, libc::BPF_JEQ) => at += jump(word == k),
                (libc::BPF_JMP, libc::BPF_JGT) => at += jump(word > k),
                (libc::BPF_JMP, libc::BPF_JGE) => at += jump(word >= k),
                (libc::BPF_JMP, libc::BPF_JSET) => at += jump(word & k != 0),
                (libc::BPF_RET, _) => return k,
                other => panic!("an instruction that libseccomp does not use: {other:?}"),
            }
        }
    }

    /// The default profile of an x86_64 machine, by its golden file.
    #[test]
    fn sockets_of_alg_and_vsock_are_refused_by_each_way_to_make_one() {
        let text = include_str!("../../tests/golden/oci/seccomp_default.json");
        let profile = serde_json::from_str(text).expect("a profile");
        let program = compile(&profile).expect("compiles");
        let (x86_64, i386) = (0xc000_003e, 0x4000_0003);
        let errno = |number: i32| libc::SECCOMP_RET_ERRNO | number as u32;
        let ways = [(x86_64, 41), (x86_64, 41 + (1 << 30)), (i386, 359)];
        // The kernel ignores the upper half of the argument, which 32-bit programs lack.
        for upper in [0, 1 << 32, u64::MAX << 32] {
            for (arch, call) in ways.into_iter().filter(|way| way.0 == x86_64 || upper == 0) {
                for family in 0..256 {
                    let allowed = family < 64 && ![38, 40].contains(&family);
                    let expected = if allowed {
                        libc::SECCOMP_RET_ALLOW
                    } else {
                        errno(libc::EPERM)
                    };
                    let given = answer(&program, arch, call, upper | family);
                    assert_eq!(given, expected, "{arch:x} {call}: {upper:x} {family}");
                }
            }
        }
        for function in 0..=32 {
            let given = answer(&program, i386, 102, function);
            assert_eq!(given, errno(libc::ENOSYS), "socketcall {function}");
        }
        for (call, name) in [(362, "connect"), (361, "bind"), (360, "socketpair")] {
            let given = answer(&program, i386, call, 0);
            assert_eq!(given, libc::SECCOMP_RET_ALLOW, "{name}");
        }
    }
}
