//! Flags in the style of the Go samples: `-idx 10`, `--idx=10`, `-verbose`, `-verbose=false`.
//!
//! A flag may be repeated; for a single value the last one counts.

use std::fmt::Write as _;

use nri::annotation::go_bool;

/// One flag of a plugin.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Without dashes.
    pub name: &'static str,
    /// Placeholder of its value; empty: it is a switch.
    pub value: &'static str,
    pub help: &'static str,
}

impl Flag {
    /// A flag that takes a value.
    pub const fn value(name: &'static str, value: &'static str, help: &'static str) -> Self {
        Self { name, value, help }
    }

    /// A switch, off by default.
    pub const fn switch(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            value: "",
            help,
        }
    }
}

/// A plugin in three lines: its purpose; its command line; an example to paste, into a shell or, if
/// it begins with `"annotations"`, into the configuration of a pod. The README has them too.
pub type Usage = [&'static str; 3];

/// The flags that every plugin has.
pub const COMMON: &[Flag] = &[
    Flag::value(
        "name",
        "NAME",
        "name to register with (default: that of the program)",
    ),
    Flag::value(
        "idx",
        "NN",
        "two-digit index; without it the program must be called NN-name",
    ),
    Flag::value(
        "socket-path",
        "PATH",
        "NRI socket of the runtime (also: -socket)",
    ),
    Flag::switch("reconnect", "connect again when the connection is lost"),
    Flag::switch("verbose", "say more"),
    Flag::switch("version", "print the version"),
    Flag::switch("help", "print this text"),
];

/// Reason to stop before the plugin starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The user requested this text: the help, or the version.
    Text(String),
    /// The command line is invalid, for this reason.
    Bad(String),
}

/// A parsed command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Args(Vec<(&'static str, String)>);

impl Args {
    /// Parses the arguments after the name of the program.
    pub fn parse(
        name: &str,
        usage: &Usage,
        flags: &[Flag],
        args: impl IntoIterator<Item = String>,
    ) -> Result<Self, Stop> {
        let mut parsed = Vec::new();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let bare = match arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) {
                Some(bare) if !bare.is_empty() => bare,
                _ => return Err(Stop::Bad(format!("unexpected argument {arg:?}"))),
            };
            let (key, value) = match bare.split_once('=') {
                Some((key, value)) => (key, Some(value.to_owned())),
                None => (bare, None),
            };
            let key = match key {
                "socket" => "socket-path",
                "h" => "help",
                key => key,
            };
            let mut known = flags.iter().chain(COMMON);
            let flag = known
                .find(|flag| flag.name == key)
                .ok_or_else(|| Stop::Bad(format!("unknown flag -{key}")))?;
            let value = match value {
                Some(value) => value,
                None if flag.value.is_empty() => "true".to_owned(),
                None => args
                    .next()
                    .ok_or_else(|| Stop::Bad(format!("flag -{key} needs a value")))?,
            };
            if flag.value.is_empty() && go_bool(&value).is_none() {
                return Err(Stop::Bad(format!(
                    "flag -{key}: {value:?} is not a boolean"
                )));
            }
            parsed.push((flag.name, value));
        }
        let args = Self(parsed);
        if args.is("help") {
            return Err(Stop::Text(help(name, usage, flags)));
        }
        if args.is("version") {
            return Err(Stop::Text(format!(
                "{name} {}\n",
                env!("CARGO_PKG_VERSION")
            )));
        }
        Ok(args)
    }

    /// The value of a flag; the last one if it is repeated.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).last()
    }

    /// All values of a flag, in order.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let given = self.0.iter().filter(move |(flag, _)| *flag == name);
        given.map(|(_, value)| value.as_str())
    }

    /// Whether a switch is on.
    pub fn is(&self, name: &str) -> bool {
        self.get(name).and_then(go_bool).unwrap_or(false)
    }
}

fn help(name: &str, [what, start, example]: &Usage, flags: &[Flag]) -> String {
    let mut text = format!("{what}\n\nUsage: {name} [flags]\n  {start}\n  {example}\n\nFlags:\n");
    for flag in flags.iter().chain(COMMON) {
        let left = format!("-{} {}", flag.name, flag.value);
        let _ = writeln!(text, "  {left:<28} {}", flag.help);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &[Flag] = &[Flag::value("events", "LIST", "which events")];

    fn parse(args: &[&str]) -> Result<Args, Stop> {
        Args::parse(
            "x",
            &["An x.", "x -idx 10", "x -events all"],
            FLAGS,
            args.iter().map(|a| a.to_string()),
        )
    }

    #[test]
    fn one_dash_two_dashes_blank_and_equals_sign_are_all_the_same() {
        for args in [
            ["-idx", "10"].as_slice(),
            &["--idx", "10"],
            &["-idx=10"],
            &["--idx=10"],
        ] {
            assert_eq!(parse(args).map(|a| a.get("idx") == Some("10")), Ok(true));
        }
        let args = parse(&["-socket", "/a", "-socket-path=/b=c", "-verbose=false"]);
        let args = args.expect("all known");
        assert_eq!(args.get("socket-path"), Some("/b=c"));
        assert_eq!(args.all("socket-path").count(), 2);
        assert!(!args.is("verbose"));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for (args, reported) in [
            (["-evnts", "x"].as_slice(), "-evnts"),
            (&["-events"], "-events"),
            (&["events"], "events"),
            (&["-"], "\"-\""),
            (&["-verbose=maybe"], "maybe"),
        ] {
            match parse(args) {
                Err(Stop::Bad(reason)) => assert!(reason.contains(reported), "{reason}"),
                other => panic!("{args:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn help_names_every_flag() {
        let Err(Stop::Text(text)) = parse(&["-h"]) else {
            panic!("no help")
        };
        for flag in FLAGS.iter().chain(COMMON) {
            assert!(text.contains(&format!("-{}", flag.name)), "{text}");
        }
    }

    #[test]
    fn the_version_is_that_of_the_package() {
        let expected = format!("x {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(parse(&["--version"]), Err(Stop::Text(expected)));
    }
}
