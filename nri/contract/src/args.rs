//! The command line.

use std::path::PathBuf;

pub(crate) const USAGE: &str = "\
nri-contract: checks a running CRI runtime against the contract of pods, containers and NRI plugins (CONTRACT.md).

  nri-contract --cri unix://PATH --nri PATH [options]

It runs on the runtime's own host, as root, in the runtime's network and mount namespaces. It checks only the objects that
it makes, which have names of their own, and removes them at the end.

  --cri ENDPOINT      where the runtime serves CRI, such as unix:///run/containerd/containerd.sock
  --nri PATH          its NRI socket, such as /var/run/nri/nri.sock
  --image REF         an image with busybox's sh and applets; pulled if it is missing
                      (default: registry.k8s.io/e2e-test-images/busybox:1.29-2)
  --only GLOBS        only points whose ids match, such as 'C-02.*' or 'G-22/*,C-04.6/*'
  --fast              only points that need not wait for a timeout or restart the runtime
  --list              print the points and end
  --expect FILE       a TOML of the runtime's known deviations: [\"C-02.6/sent-once\"] because = \"one sentence\"
  --restart-cmd CMD   kills the runtime without warning and starts it again; run by sh -c. If REQUIRED, TOLERATE,
                      SETTINGS or TROUBLE in its environment is not empty, the runtime must be configured so
                      (docs/contract.md), or CMD exits with 77 and does not restart it
  --plugin-dir DIR    the directory of the plugins that the runtime launches
  --pod-ips           the runtime takes addresses of pods from answers to RunPodSandbox (experimental; pull request 295
                      of containerd/nri)
  --repeat N          each point N times (default 1)
  --shuffle SEED      in an order drawn from SEED
  --shard K/N         every N-th of them, from the K-th on: for N runtimes side by side
  --json FILE         the results, one object
  --junit FILE        the results as JUnit
  --quiet             no table; the last line and the failures stay

Exit code: 0 if nothing failed but what is expected to, and nothing passed that was expected to fail; 1 otherwise; 2 if
it could not be asked.
";

/// The values of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Args {
    pub cri: String,
    pub nri: PathBuf,
    pub image: String,
    pub only: Option<String>,
    pub fast: bool,
    pub list: bool,
    pub expect: Option<PathBuf>,
    pub restart: Option<String>,
    pub plugin_dir: Option<PathBuf>,
    pub pod_ips: bool,
    pub repeat: u32,
    pub shuffle: Option<u64>,
    /// The number of this shard, counted from one, and the number of shards.
    pub shard: Option<(usize, usize)>,
    pub json: Option<PathBuf>,
    pub junit: Option<PathBuf>,
    pub quiet: bool,
}

impl Args {
    /// # Errors
    /// One line that names the argument. An empty line requests the usage text.
    pub(crate) fn parse(given: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut args = Self {
            image: "registry.k8s.io/e2e-test-images/busybox:1.29-2".to_owned(),
            repeat: 1,
            ..Self::default()
        };
        let mut given = given.into_iter();
        while let Some(flag) = given.next() {
            match &*flag {
                "-h" | "--help" => return Err(String::new()),
                "--fast" => args.fast = true,
                "--list" => args.list = true,
                "--pod-ips" => args.pod_ips = true,
                "--quiet" => args.quiet = true,
                _ => {
                    let value = given
                        .next()
                        .ok_or_else(|| format!("{flag}: no such flag, or its value is missing"))?;
                    args.take(&flag, value)?;
                }
            }
        }
        if !args.list && (args.cri.is_empty() || args.nri.as_os_str().is_empty()) {
            return Err("--cri and --nri are needed".to_owned());
        }
        Ok(args)
    }

    fn take(&mut self, flag: &str, value: String) -> Result<(), String> {
        let wrong = |value: &str| format!("{flag} {value}: not a number");
        match flag {
            "--cri" => self.cri = value,
            "--nri" => self.nri = value.into(),
            "--image" => self.image = value,
            "--only" => self.only = Some(value),
            "--expect" => self.expect = Some(value.into()),
            "--restart-cmd" => self.restart = Some(value),
            "--plugin-dir" => self.plugin_dir = Some(value.into()),
            "--repeat" => self.repeat = value.parse().map_err(|_| wrong(&value))?,
            "--shuffle" => self.shuffle = Some(value.parse().map_err(|_| wrong(&value))?),
            "--shard" => self.shard = Some(shard(&value).ok_or_else(|| wrong(&value))?),
            "--json" => self.json = Some(value.into()),
            "--junit" => self.junit = Some(value.into()),
            _ => return Err(format!("{flag}: no such flag")),
        }
        Ok(())
    }
}

/// Parses `2/3`.
fn shard(value: &str) -> Option<(usize, usize)> {
    let (k, n) = value.split_once('/')?;
    let (k, n) = (k.parse().ok()?, n.parse().ok()?);
    (1..=n).contains(&k).then_some((k, n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn both_sockets_are_needed_and_wrong_flags_are_named() {
        assert!(parse("--cri unix:///x").unwrap_err().contains("--nri"));
        let args = parse("--cri unix:///x --nri /y --repeat 3 --only C-01.*").expect("good");
        assert_eq!((args.repeat, args.only.as_deref()), (3, Some("C-01.*")));
        for bad in [
            "--cri a --nri b --nope x",
            "--repeat x",
            "--shuffle",
            "--shard 0/2",
            "--shard 3/2",
        ] {
            let error = parse(bad).expect_err(bad);
            assert!(error.starts_with("--"), "{error}");
        }
        assert_eq!(parse("--help"), Err(String::new()));
    }
}
