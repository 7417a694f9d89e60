//! `cairn-bridge`: the built-in network as a program of CNI 1.1, for a list of another runtime.
//!
//! ```text
//!   <dataDir>/<bridge>.bridge   whose bridge it is
//!   <dataDir>/<network>/
//!   ├── lock              one call at a time
//!   ├── applied.json      what the bridge and its rules were last made of
//!   └── attachments/      records, as the daemon's; a sandbox is named <container id>@<interface>
//! ```
//! The same code as the daemon's makes and removes everything; what the daemon has in memory is read from the records by
//! each call. A call that died is made up for by the next: a record whose link is gone holds nothing.

mod applied;
mod config;
mod fault;
mod verbs;

use std::io::{self, Read, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::cni::{NEWEST, VERSIONS, Verb};
use fault::Fault;

/// More on standard input is refused.
const INPUT_MAX: u64 = 4 << 20;

/// The whole of the program: environment and standard input in, result or error on standard output, and the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let mut input = Vec::new();
    let read = io::stdin()
        .lock()
        .take(INPUT_MAX + 1)
        .read_to_end(&mut input);
    let answer = read
        .map_err(|cause| Fault::io(format!("read standard input: {cause}")))
        .and_then(|_| answer(&input, |name| std::env::var(name).ok()));
    let (text, code) = match answer {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(result)) => (result, ExitCode::SUCCESS),
        Err(fault) => (fault.to_json(version_of(&input)), ExitCode::FAILURE),
    };
    // A runtime that does not read learns nothing; there is nobody else to tell.
    let _ = writeln!(io::stdout(), "{text}");
    code
}

/// What is answered to a call; nothing, to a verb that has no result.
fn answer(
    input: &[u8],
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<Value>, Fault> {
    let command = environment("CNI_COMMAND").unwrap_or_default();
    if command.is_empty() {
        return Err(Fault::environment(
            "CNI_COMMAND is not set: this is a CNI program, which a container runtime starts",
        ));
    }
    let Some(verb) = Verb::named(&command) else {
        let shown: String = command.chars().take(32).collect();
        return Err(Fault::environment(format!("unknown CNI_COMMAND {shown:?}")));
    };
    if verb == Verb::Version {
        let version = version_of(input).unwrap_or(NEWEST);
        return Ok(Some(
            json!({ "cniVersion": version, "supportedVersions": VERSIONS }),
        ));
    }
    if input.len() as u64 > INPUT_MAX {
        return Err(Fault::decode("standard input is too long"));
    }
    let config = config::read(input, verb)?;
    verbs::run(verb, &config, &environment)
}

/// The version that the caller speaks, if it is one of ours.
fn version_of(input: &[u8]) -> Option<&'static str> {
    let value: Value = serde_json::from_slice(input).ok()?;
    let asked = value.get("cniVersion")?.as_str()?;
    VERSIONS.into_iter().find(|version| *version == asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(verb: &'static str, input: &str) -> Result<Option<Value>, Fault> {
        answer(input.as_bytes(), move |name| {
            (name == "CNI_COMMAND").then(|| verb.to_owned())
        })
    }

    #[test]
    fn version_is_told_without_a_configuration_of_ours() {
        let told = asked("VERSION", r#"{"cniVersion":"0.4.0"}"#).expect("is told");
        let told = told.expect("has a result");
        assert_eq!(told["cniVersion"], "0.4.0");
        assert_eq!(told["supportedVersions"], json!(VERSIONS));
        let unknown = asked("VERSION", "").expect("is told").expect("a result");
        assert_eq!(unknown["cniVersion"], "1.1.0");
    }

    #[test]
    fn each_kind_of_mistake_has_the_code_of_the_specification() {
        let good = r#""cniVersion":"1.1.0","name":"n","type":"cairn-bridge""#;
        for (verb, input, code) in [
            ("", "{}".to_owned(), 4),
            ("FROB", "{}".to_owned(), 4),
            ("ADD", "{".to_owned(), 6),
            ("ADD", "[]".to_owned(), 6),
            ("ADD", r#"{"cniVersion":"9.9.9","name":"n"}"#.to_owned(), 1),
            ("ADD", format!("{{{good},\"ipam\":{{}}}}"), 2),
            ("ADD", format!("{{{good},\"spoofcheck\":true}}"), 2),
            ("ADD", format!("{{{good},\"mtu\":-1}}"), 7),
            ("ADD", format!("{{{good},\"subnets\":[\"10.0.0.0\"]}}"), 7),
            ("ADD", format!("{{{good},\"bridge\":\"../x\"}}"), 7),
            (
                "ADD",
                r#"{"cniVersion":"1.1.0","name":"../x"}"#.to_owned(),
                7,
            ),
            ("ADD", format!("{{{good},\"prevResult\":{{}}}}"), 7),
            // No container is named.
            ("ADD", format!("{{{good}}}"), 4),
            ("DEL", format!("{{{good}}}"), 4),
            ("GC", format!("{{{good}}}"), 7),
        ] {
            let fault = asked(verb, &input).expect_err(&input);
            let told = fault.to_json(Some("1.1.0"));
            assert_eq!(told["code"], code, "{verb} {input}: {told}");
            assert!(
                told["msg"]
                    .as_str()
                    .is_some_and(|text| !text.contains('\n'))
            );
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), verb in 0usize..5) {
            let verb = ["ADD", "CHECK", "STATUS", "GC", "VERSION"][verb];
            let _ = answer(&bytes, |name| (name == "CNI_COMMAND").then(|| verb.to_owned()));
        }
    }
}
