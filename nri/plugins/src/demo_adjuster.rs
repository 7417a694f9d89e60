//! Makes one adjustment of each kind to containers, by flags, to test a runtime.

use nri::{
    Context, CreateAnswer, Error, Plugin,
    adjust::{Adjust, SetResources, Strip},
    proto::{
        Container, ContainerAdjustment, Hook, LinuxDevice, Mount, OptionalFileMode, PodSandbox,
    },
};

use crate::{
    cli::{Args, Flag, Usage},
    hook_injector::stage,
    log::Log,
    plugin::{Sample, display},
};

/// See the module.
#[derive(Debug)]
pub struct DemoAdjuster {
    adjust: ContainerAdjustment,
    /// Only containers of this name.
    container: Option<String>,
    log: Log,
}

impl Sample for DemoAdjuster {
    const NAME: &'static str = "demo-adjuster";
    const USAGE: Usage = [
        "Makes the adjustments of containers that its flags name.",
        "demo-adjuster -idx 10 -container c0 -args 'sleep 5' -memory 67108864 -cpu-shares 512 -pids 64",
        "demo-adjuster -idx 10 -env DEMO=1 -annotation demo=1 -mount /etc:/demo:ro -device /dev/demo:c:1:3:666 -rlimit nofile=512:1024 -hook createRuntime:/bin/true",
    ];
    const FLAGS: &'static [Flag] = &[
        Flag::value("container", "NAME", "only containers of this name"),
        Flag::value("annotation", "KEY=VALUE", "set an annotation"),
        Flag::value("env", "NAME=VALUE", "set a variable"),
        Flag::value("args", "WORDS", "replace the command line, split at blanks"),
        Flag::value(
            "mount",
            "SRC:DST[:OPTS]",
            "bind mount; options with commas between",
        ),
        Flag::value("hook", "KIND:PATH", "OCI hook, as createRuntime:/bin/true"),
        Flag::value("device", "PATH:c:MAJ:MIN[:MODE]", "device; mode is octal"),
        Flag::value("rlimit", "TYPE=SOFT:HARD", "rlimit, as nofile=1024:4096"),
        Flag::value("memory", "BYTES", "memory limit"),
        Flag::value("cpu-shares", "N", "CPU shares"),
        Flag::value("pids", "N", "limit of processes"),
    ];

    fn new(args: &Args, log: Log) -> Result<Self, String> {
        Ok(Self {
            adjust: adjustment(args)?,
            container: args.get("container").map(str::to_owned),
            log,
        })
    }
}

impl Plugin for DemoAdjuster {
    async fn create_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateAnswer, Error> {
        let meant = match &self.container {
            Some(name) => *name == container.name,
            None => true,
        };
        let adjust = meant.then(|| self.adjust.clone().strip()).flatten();
        let what = match adjust {
            Some(_) => "adjusted",
            None => "left alone",
        };
        self.log
            .info(format_args!("{}: {what}", display(&pod, &container)));
        Ok(adjust.into())
    }
}

/// Parses the flags. An error names the flag and its value.
fn adjustment(args: &Args) -> Result<ContainerAdjustment, String> {
    let mut adjust = ContainerAdjustment::default();
    for text in args.all("annotation") {
        let (key, value) = pair("annotation", text, '=')?;
        adjust.set_annotation(key, value);
    }
    for text in args.all("env") {
        let (name, value) = pair("env", text, '=')?;
        adjust.set_env(name, value);
    }
    if let Some(words) = args.get("args") {
        adjust.set_args(words.split_whitespace());
    }
    for text in args.all("mount") {
        adjust.set_mount(mount(text)?);
    }
    for text in args.all("hook") {
        let (kind, path) = pair("hook", text, ':')?;
        let kind =
            stage(kind).ok_or_else(|| format!("flag -hook: unknown kind of OCI hook {kind:?}"))?;
        let path = path.to_owned();
        let args = vec![path.clone()];
        let hook = Hook {
            path,
            args,
            ..Default::default()
        };
        adjust.add_hook(kind, hook);
    }
    for text in args.all("device") {
        adjust.set_device(device(text).ok_or_else(|| bad("device", text))?);
    }
    for text in args.all("rlimit") {
        let (kind, limits) = pair("rlimit", text, '=')?;
        let (soft, hard) = pair("rlimit", limits, ':')?;
        adjust.add_rlimit(kind, number("rlimit", hard)?, number("rlimit", soft)?);
    }
    if let Some(bytes) = args.get("memory") {
        adjust.memory_limit(number("memory", bytes)?);
    }
    if let Some(shares) = args.get("cpu-shares") {
        adjust.cpu_shares(number("cpu-shares", shares)?);
    }
    if let Some(limit) = args.get("pids") {
        adjust.pids_limit(number("pids", limit)?);
    }
    Ok(adjust)
}

fn bad(flag: &str, text: &str) -> String {
    format!("flag -{flag}: malformed {text:?}; -help shows the form")
}

fn pair<'a>(flag: &str, text: &'a str, at: char) -> Result<(&'a str, &'a str), String> {
    text.split_once(at).ok_or_else(|| bad(flag, text))
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| bad(flag, text))
}

fn mount(text: &str) -> Result<Mount, String> {
    let (source, rest) = pair("mount", text, ':')?;
    let (destination, options) = match rest.split_once(':') {
        Some((destination, options)) => (destination, options),
        None => (rest, "rbind,ro"),
    };
    let mut options: Vec<String> = options.split(',').map(str::to_owned).collect();
    if !options.iter().any(|o| o == "bind" || o == "rbind") {
        options.insert(0, "rbind".into());
    }
    Ok(Mount {
        destination: destination.into(),
        r#type: "bind".into(),
        source: source.into(),
        options,
    })
}

fn device(text: &str) -> Option<LinuxDevice> {
    let mut parts = text.split(':');
    let device = LinuxDevice {
        path: parts.next()?.to_owned(),
        r#type: parts
            .next()
            .filter(|kind| ["b", "c", "p"].contains(kind))?
            .to_owned(),
        major: parts.next()?.parse().ok()?,
        minor: parts.next()?.parse().ok()?,
        file_mode: match parts.next() {
            None => None,
            Some(mode) => Some(OptionalFileMode {
                value: u32::from_str_radix(mode, 8).ok()?,
            }),
        },
        ..Default::default()
    };
    parts.next().is_none().then_some(device)
}
