//! The command line: arguments are checked, absent ones are drawn from the seed.

use std::{path::PathBuf, time::Duration};

use crate::fault::Fault;

pub(crate) const USAGE: &str = "\
cairn-storm: CRI clients, faults, and books of what was acknowledged.

  --seed N        what is done, and when, is drawn from it (default: from the clock; it is printed)
  --minutes M     how long, such as 20 or 0.5 (default: 3)
  --clients N     CRI clients at a time (default: 8)
  --faults A,B    only these faults; none: no fault (default: all). --list-faults names them
  --every A-B     seconds between two faults (default: 1-5)
  --network N     bridge (built in) or cni (CNI programs) (default: by the seed)
  --log LEVEL     the daemon's log level (default: info)
  --keep DIR      where the logs of a run with violations go (default: target/test-logs)
";

/// The backend of pods' networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    Bridge,
    Cni,
}

#[derive(Clone, Debug)]
pub(crate) struct Args {
    pub(crate) seed: u64,
    pub(crate) length: Duration,
    pub(crate) clients: u32,
    pub(crate) faults: Vec<Fault>,
    /// Minimum and maximum of seconds between two faults.
    pub(crate) every: (u64, u64),
    pub(crate) network: Network,
    pub(crate) log: &'static str,
    pub(crate) keep: PathBuf,
}

/// The request of the command line.
#[derive(Debug)]
pub(crate) enum Asked {
    Run(Args),
    /// Print this and end.
    Print(String),
}

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

impl Args {
    /// # Errors
    /// One line that names the argument.
    pub(crate) fn parse(
        given: impl IntoIterator<Item = String>,
        some_seed: u64,
        keep: PathBuf,
    ) -> Result<Asked, String> {
        let mut args = Self {
            seed: some_seed,
            length: Duration::from_secs(180),
            clients: 8,
            faults: Fault::ALL.to_vec(),
            every: (1, 5),
            network: Network::Bridge,
            log: "info",
            keep,
        };
        let mut network = None;
        let mut given = given.into_iter();
        while let Some(flag) = given.next() {
            match &*flag {
                "-h" | "--help" => return Ok(Asked::Print(USAGE.to_owned())),
                "--list-faults" => {
                    let lines = Fault::ALL
                        .iter()
                        .map(|f| format!("{:<16} {}\n", f.name(), f.about()));
                    return Ok(Asked::Print(lines.collect()));
                }
                _ => {}
            }
            let value = given
                .next()
                .ok_or_else(|| format!("{flag}: a value is missing (or see --help)"))?;
            let wrong = || format!("{flag} {value}: not a value of it (see --help)");
            match &*flag {
                "--seed" => args.seed = value.parse().map_err(|_| wrong())?,
                "--minutes" => {
                    let minutes: f64 = value.parse().map_err(|_| wrong())?;
                    args.length =
                        Duration::try_from_secs_f64(minutes * 60.0).map_err(|_| wrong())?;
                }
                "--clients" => args.clients = value.parse().map_err(|_| wrong())?,
                "--faults" => args.faults = faults(&value)?,
                "--every" => {
                    let (low, high) = value.split_once('-').ok_or_else(wrong)?;
                    let read = |text: &str| text.parse::<u64>().map_err(|_| wrong());
                    args.every = (read(low)?, read(high)?);
                }
                "--network" => {
                    network = Some(match &*value {
                        "bridge" => Network::Bridge,
                        "cni" => Network::Cni,
                        _ => return Err(wrong()),
                    });
                }
                "--log" => {
                    let level = LEVELS.into_iter().find(|l| *l == value);
                    args.log = level.ok_or_else(wrong)?;
                }
                "--keep" => args.keep = value.into(),
                _ => return Err(format!("{flag}: no such flag (see --help)")),
            }
        }
        args.network = network.unwrap_or(if args.seed.is_multiple_of(2) {
            Network::Bridge
        } else {
            Network::Cni
        });
        Ok(Asked::Run(args))
    }
}

fn faults(value: &str) -> Result<Vec<Fault>, String> {
    if value == "none" {
        return Ok(Vec::new());
    }
    value
        .split(',')
        .map(|name| {
            let known = Fault::ALL.into_iter().find(|f| f.name() == name);
            known.ok_or_else(|| format!("--faults {name}: no such fault (see --list-faults)"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Asked, String> {
        let given = line.split_whitespace().map(str::to_owned);
        Args::parse(given, 2, PathBuf::new())
    }

    #[test]
    fn what_is_not_given_comes_from_the_seed() {
        let Ok(Asked::Run(args)) = parse("--minutes 0.5 --seed 9") else {
            panic!("it is sound");
        };
        assert_eq!(args.length, Duration::from_secs(30));
        assert_eq!((args.seed, args.network), (9, Network::Cni));
        assert_eq!(args.faults, Fault::ALL);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for line in [
            "--seed x",
            "--faults typhoon",
            "--minutes",
            "--wind 3",
            "--every 5",
        ] {
            let why = parse(line).expect_err(line);
            let flag = line.split(' ').next().expect("a flag");
            assert!(why.starts_with(flag), "{line}: {why}");
        }
    }
}
