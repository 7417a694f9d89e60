//! The process of a container: arguments (CRI-126), environment (CRI-127), directory, OOM score.

use proto_cri::v1::{ContainerConfig, KeyValue};

use super::{
    error::SpecError,
    facts::{HostFacts, ImageFacts},
    user::ResolvedUser,
};

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The argument vector by the table of CRI-126: a command replaces entrypoint and image arguments.
pub fn args(config: &ContainerConfig, image: &ImageFacts) -> Result<Vec<String>, SpecError> {
    let (first, second) = match (config.command.is_empty(), config.args.is_empty()) {
        (true, true) => (&image.entrypoint, &image.cmd),
        (true, false) => (&image.entrypoint, &config.args),
        (false, _) => (&config.command, &config.args),
    };
    let args: Vec<String> = first.iter().chain(second).cloned().collect();
    match args.first() {
        None => Err(SpecError::NoCommand),
        Some(program) if program.is_empty() => {
            Err(SpecError::invalid("command", "the program name is empty"))
        }
        Some(_) if args.iter().any(|a| a.contains('\0')) => Err(SpecError::invalid(
            "command",
            "an argument contains a NUL byte",
        )),
        Some(_) => Ok(args),
    }
}

/// The environment: image, `HOSTNAME`, `TERM`, the container's own, `HOME`. A repeated name keeps
/// its place and gets the later value. Errors never contain values.
pub fn env(
    config: &ContainerConfig,
    image: &ImageFacts,
    hostname: &str,
    user: &ResolvedUser,
) -> Result<Vec<String>, SpecError> {
    let mut env = Environment::default();
    for entry in &image.env {
        // Entries of an image without a name are ignored.
        if let Some((name, _)) = entry.split_once('=')
            && !name.is_empty()
            && !entry.contains('\0')
        {
            env.set(entry.clone());
        }
    }
    if !env.has("PATH") {
        env.set(DEFAULT_PATH.to_owned());
    }
    env.set(format!("HOSTNAME={hostname}"));
    if config.tty {
        env.set("TERM=xterm".to_owned());
    }
    for variable in &config.envs {
        env.set(entry(variable)?);
    }
    if !env.has("HOME") {
        env.set(format!("HOME={}", user.home.as_deref().unwrap_or("/")));
    }
    Ok(env.0)
}

fn entry(variable: &KeyValue) -> Result<String, SpecError> {
    let name = &variable.key;
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(SpecError::invalid(
            "envs",
            format!("invalid variable name {name:?}"),
        ));
    }
    let value = std::str::from_utf8(&variable.value).map_err(|_| {
        SpecError::unsupported(
            "envs",
            format!("the value of {name} is not UTF-8, which an OCI spec cannot carry"),
        )
    })?;
    if value.contains('\0') {
        return Err(SpecError::invalid(
            "envs",
            format!("the value of {name} contains a NUL byte"),
        ));
    }
    Ok(format!("{name}={value}"))
}

#[derive(Default)]
struct Environment(Vec<String>);

impl Environment {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|e| name_of(e) == name)
    }

    fn set(&mut self, entry: String) {
        let same = self.0.iter().position(|e| name_of(e) == name_of(&entry));
        match same {
            Some(place) => self.0[place] = entry,
            None => self.0.push(entry),
        }
    }
}

/// The part before the first `=`, or all of it.
pub(super) fn name_of(entry: &str) -> &str {
    entry.split_once('=').map_or(entry, |(name, _)| name)
}

/// The working directory (CRI-128).
pub fn cwd(config: &ContainerConfig, image: &ImageFacts) -> Result<String, SpecError> {
    let cwd = [&config.working_dir, &image.working_dir]
        .into_iter()
        .find(|dir| !dir.is_empty())
        .map_or("/", String::as_str);
    // An image may omit the slash; a container's own path must be absolute.
    if !cwd.starts_with('/') && !config.working_dir.is_empty() {
        return Err(SpecError::invalid(
            "working_dir",
            format!("{cwd:?} must be absolute"),
        ));
    }
    Ok(if cwd.starts_with('/') {
        cwd.to_owned()
    } else {
        format!("/{cwd}")
    })
}

/// The score of the process: at least the daemon's own (CRI-233).
pub fn oom_score_adj(asked: i64, host: &HostFacts) -> Result<i32, SpecError> {
    let score = i32::try_from(asked)
        .ok()
        .filter(|s| (-1000..=1000).contains(s))
        .ok_or_else(|| {
            SpecError::invalid(
                "linux.resources.oom_score_adj",
                format!("{asked} is out of range (-1000 to 1000)"),
            )
        })?;
    Ok(score.max(host.oom_score_adj))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn own(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    fn variable(key: &str, value: &[u8]) -> KeyValue {
        KeyValue {
            key: key.to_owned(),
            value: value.to_vec(),
        }
    }

    #[test]
    fn the_argument_table_holds() {
        let image = ImageFacts {
            entrypoint: own(&["entry"]),
            cmd: own(&["cmd"]),
            ..ImageFacts::default()
        };
        let resolve = |command: &[&str], args_given: &[&str]| {
            let config = ContainerConfig {
                command: own(command),
                args: own(args_given),
                ..ContainerConfig::default()
            };
            args(&config, &image).expect("a command")
        };
        assert_eq!(resolve(&[], &[]), ["entry", "cmd"]);
        assert_eq!(resolve(&[], &["a"]), ["entry", "a"]);
        assert_eq!(resolve(&["c"], &[]), ["c"]);
        assert_eq!(resolve(&["c"], &["a"]), ["c", "a"]);
    }

    #[test]
    fn nothing_to_run_is_an_error_and_variables_are_not_expanded() {
        let mut config = ContainerConfig::default();
        assert_eq!(
            args(&config, &ImageFacts::default()),
            Err(SpecError::NoCommand)
        );
        config.args = own(&["$(VAR)"]);
        assert_eq!(
            args(&config, &ImageFacts::default()).expect("args"),
            ["$(VAR)"]
        );
        config.command = own(&[""]);
        assert!(args(&config, &ImageFacts::default()).is_err());
        config.command = own(&["a\0b"]);
        assert!(args(&config, &ImageFacts::default()).is_err());
    }

    #[test]
    fn the_environment_has_path_hostname_term_and_home_unless_given() {
        let config = ContainerConfig {
            tty: true,
            ..ContainerConfig::default()
        };
        let user = ResolvedUser {
            home: Some("/srv".to_owned()),
            ..ResolvedUser::default()
        };
        let found = env(&config, &ImageFacts::default(), "pod", &user).expect("valid");
        assert_eq!(
            found,
            [DEFAULT_PATH, "HOSTNAME=pod", "TERM=xterm", "HOME=/srv"]
        );
        let image = ImageFacts {
            env: own(&["PATH=/x", "HOME=/h", "junk", "=y"]),
            ..ImageFacts::default()
        };
        let config = ContainerConfig::default();
        let found = env(&config, &image, "pod", &user).expect("valid");
        assert_eq!(found, ["PATH=/x", "HOME=/h", "HOSTNAME=pod"]);
    }

    #[test]
    fn a_later_value_takes_the_place_of_the_earlier() {
        let image = ImageFacts {
            env: own(&["PATH=/x", "A=1", "B=2"]),
            ..ImageFacts::default()
        };
        let config = ContainerConfig {
            envs: vec![
                variable("A", b"3"),
                variable("HOSTNAME", b"mine"),
                variable("C", b"a=b"),
                variable("A", b"4"),
            ],
            ..ContainerConfig::default()
        };
        let found = env(&config, &image, "pod", &ResolvedUser::default()).expect("valid");
        assert_eq!(
            found,
            ["PATH=/x", "A=4", "B=2", "HOSTNAME=mine", "C=a=b", "HOME=/"]
        );
    }

    #[test]
    fn an_error_about_a_variable_names_it_and_hides_its_value() {
        for value in [&b"secret\xff"[..], b"secret\0"] {
            let config = ContainerConfig {
                envs: vec![variable("TOKEN", value)],
                ..ContainerConfig::default()
            };
            let error = env(
                &config,
                &ImageFacts::default(),
                "pod",
                &ResolvedUser::default(),
            )
            .expect_err("refused");
            assert!(error.to_string().contains("TOKEN"));
            assert!(!format!("{error} {error:?}").contains("secret"));
        }
        for key in ["", "A=B", "A\0"] {
            assert!(entry(&variable(key, b"secret")).is_err());
        }
    }

    #[test]
    fn the_working_directory_is_the_containers_then_the_images_then_the_root() {
        let mut config = ContainerConfig::default();
        let mut image = ImageFacts::default();
        assert_eq!(cwd(&config, &image).expect("valid"), "/");
        image.working_dir = "srv".to_owned();
        assert_eq!(cwd(&config, &image).expect("valid"), "/srv");
        config.working_dir = "/mine".to_owned();
        assert_eq!(cwd(&config, &image).expect("valid"), "/mine");
        config.working_dir = "relative".to_owned();
        assert!(cwd(&config, &image).is_err());
    }

    #[test]
    fn a_score_is_not_below_the_daemons() {
        let host = HostFacts {
            oom_score_adj: -100,
            ..HostFacts::default()
        };
        assert_eq!(oom_score_adj(-998, &host), Ok(-100));
        assert_eq!(oom_score_adj(1000, &host), Ok(1000));
        assert!(oom_score_adj(1001, &host).is_err());
    }

    proptest! {
        #[test]
        fn each_name_appears_once_with_its_last_value_in_order_of_first_appearance(
            given in proptest::collection::vec(("[A-E]", "[a-z]{0,3}"), 0..20)
        ) {
            let config = ContainerConfig {
                envs: given.iter().map(|(k, v)| variable(k, v.as_bytes())).collect(),
                ..ContainerConfig::default()
            };
            let found = env(&config, &ImageFacts::default(), "h", &ResolvedUser::default())
                .expect("valid");
            let mut expected: Vec<(String, String)> = Vec::new();
            for (name, value) in given {
                match expected.iter_mut().find(|(n, _)| *n == name) {
                    Some(place) => place.1 = value,
                    None => expected.push((name, value)),
                }
            }
            let expected: Vec<String> = expected.into_iter().map(|(n, v)| format!("{n}={v}")).collect();
            prop_assert_eq!(&found[2..found.len() - 1], &expected[..]);
        }
    }
}
