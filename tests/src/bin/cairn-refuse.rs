//! cairn-refuse RULE... -- PROGRAM ARGS...: runs a program and its children, for which the kernel
//! answers some system calls like an older one.
//!
//! A rule is `CALL=ANSWER`: a name, and ENOSYS, EPERM, or OK for a call without effect.
//! `CALL/N&BITS` is the call with all of these bits in argument N, `CALL/N:VALUE` the one with this
//! value there, both in hexadecimal.
//!
//! `mount_setattr=ENOSYS unshare/0&10000000=EPERM fsconfig/1:0=OK -- true`

use std::{env, os::unix::process::CommandExt, process::Command};

use libseccomp::{
    ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall, error::SeccompError,
};

fn main() -> Result<(), String> {
    let mut args = env::args().skip(1);
    let rules: Vec<String> = args.by_ref().take_while(|arg| arg != "--").collect();
    let program = args
        .next()
        .ok_or("usage: cairn-refuse RULE... -- PROGRAM ARGS...")?;
    let failed = |e: SeccompError| format!("seccomp: {e}");
    let mut filter = ScmpFilterContext::new(ScmpAction::Allow).map_err(failed)?;
    for rule in &rules {
        let bad = |why: &str| format!("{rule}: {why}");
        let (call, answer) = rule.rsplit_once('=').ok_or_else(|| bad("no answer"))?;
        let (call, argument) = match call.split_once('/') {
            None => (call, None),
            Some((call, argument)) => {
                let argument = compare(argument).ok_or_else(|| bad("no such argument"))?;
                (call, Some(argument))
            }
        };
        let call = ScmpSyscall::from_name(call).map_err(|e| bad(&e.to_string()))?;
        let action = ScmpAction::Errno(match answer {
            "OK" => 0,
            "EPERM" => 1,
            "ENOSYS" => 38,
            _ => return Err(bad("no such answer")),
        });
        let added = match argument {
            None => filter.add_rule(action, call),
            Some(argument) => filter.add_rule_conditional(action, call, &[argument]),
        };
        added.map_err(failed)?;
    }
    // The filter must not take root's privileges from the program.
    filter.set_ctl_nnp(false).map_err(failed)?;
    filter.load().map_err(failed)?;
    Err(format!(
        "{program}: {}",
        Command::new(&program).args(args).exec()
    ))
}

/// `N&BITS` or `N:VALUE`.
fn compare(argument: &str) -> Option<ScmpArgCompare> {
    let (number, value) = argument.split_once(['&', ':'])?;
    let (number, value) = (number.parse().ok()?, u64::from_str_radix(value, 16).ok()?);
    let how = if argument.contains('&') {
        ScmpCompareOp::MaskedEqual(value)
    } else {
        ScmpCompareOp::Equal
    };
    Some(ScmpArgCompare::new(number, how, value))
}
