//! Launched plugins: their environment, the accepted files, their end, and their restart.
//!
//! The test program is also the plugin: started with `NRI_PLUGIN_SOCKET`, it serves instead of
//! testing, and its name selects its behaviour. Therefore it does not use Rust's test harness.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

mod common;

use std::{
    collections::BTreeMap, env, fs, os::unix::fs::PermissionsExt, path::Path, process::ExitCode,
    time::Duration,
};

use common::{Place, container, pod, until, until_active};
use nri::{
    Adaptation, Handlers, Outcome, PluginEvent, PluginSettings, Restart, proto::*, stub::Stub,
};

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    if env::var_os("NRI_PLUGIN_SOCKET").is_some() {
        return runtime.block_on(plugin());
    }
    let only = env::args().skip(1).find(|a| !a.starts_with('-'));
    let mut failed = 0;
    macro_rules! tests {
        ($($name:ident)*) => {
            $(if only.as_deref().is_none_or(|only| stringify!($name).contains(only)) {
                let passed = runtime.block_on(async { tokio::spawn($name()).await.is_ok() });
                println!("test {} ... {}", stringify!($name), if passed { "ok" } else { "FAILED" });
                failed += usize::from(!passed);
            })*
        };
    }
    tests! {
        a_launched_plugin_gets_three_variables_and_a_socket_and_nothing_more
        its_configuration_is_the_file_with_its_index_or_else_with_its_name
        files_that_are_no_plugins_are_left_out_and_the_others_start
        one_that_dies_before_it_registers_is_left_out
        nobody_who_connects_gets_the_id_of_a_launched_one_whether_it_is_there_or_not
        one_that_never_registers_is_ended_after_the_registration_timeout
        one_that_ignores_sigterm_is_killed
        one_that_times_out_is_ended
        one_that_dies_is_started_again_if_it_is_to_be
        an_adaptation_that_is_dropped_leaves_no_process
    }
    println!("\ntest result: {} failed", failed);
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The behaviour of this program as a plugin.
async fn plugin() -> ExitCode {
    let name = env::var("NRI_PLUGIN_NAME").unwrap();
    match name.as_str() {
        "dies" => return ExitCode::FAILURE,
        "silent" => std::future::pending().await,
        "stubborn" => ignore_sigterm(),
        _ => {}
    }
    let config = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let configured = config.clone();
    let handlers = Handlers::new()
        .configure(move |request| {
            *configured.lock().unwrap() = request.config;
            async { Ok(nri::EventMask::NONE) }
        })
        .create_container(move |_, _| {
            let facts = facts(&config.lock().unwrap());
            async move {
                let adjust = ContainerAdjustment {
                    annotations: facts,
                    ..Default::default()
                };
                Ok((Some(adjust), Vec::new()))
            }
        })
        .run_pod_sandbox(|pod| async move {
            match pod.name.as_str() {
                #[allow(
                    clippy::disallowed_methods,
                    reason = "a plugin that dies is what is tested"
                )]
                "name-of-die" => std::process::exit(1),
                "name-of-hang" => std::future::pending().await,
                _ => Ok(()),
            }
        });
    let ended = Stub::builder(handlers).run().await;
    eprintln!("{ended:?}");
    if name == "stubborn" {
        std::future::pending::<()>().await;
    }
    ExitCode::SUCCESS
}

/// Installs a handler without effect: its signal stream is never read.
fn ignore_sigterm() {
    let kind = tokio::signal::unix::SignalKind::terminate();
    std::mem::forget(tokio::signal::unix::signal(kind).unwrap());
}

/// Returns the environment of the plugin. Runs after the stub has opened its descriptor, so that
/// the kernel's list of descriptors is read.
fn facts(config: &str) -> BTreeMap<String, String> {
    let variables: Vec<_> = env::vars().map(|(k, v)| format!("{k}={v}")).collect();
    let stdio: Vec<_> = (0..3)
        .map(|fd| {
            fs::read_link(format!("/proc/self/fd/{fd}"))
                .unwrap()
                .display()
                .to_string()
        })
        .collect();
    BTreeMap::from([
        ("env".into(), variables.join(" ")),
        ("args".into(), env::args().count().to_string()),
        ("stdio".into(), stdio.join(" ")),
        ("config".into(), config.to_owned()),
    ])
}

fn install(place: &Place, names: &[&str]) {
    let dir = place.dir.path().join("plugins");
    fs::create_dir_all(&dir).unwrap();
    for name in names {
        let to = dir.join(name);
        fs::copy(env::current_exe().unwrap(), &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

async fn created(nri: &Adaptation) -> BTreeMap<String, String> {
    let turn = nri.turn(Event::CreateContainer).await;
    let created = nri
        .create_container(&turn, pod("p"), container("c", "p"))
        .await
        .unwrap();
    created.merged.adjust.annotations
}

fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn ids(nri: &Adaptation) -> Vec<String> {
    common::there(nri)
        .iter()
        .map(|p| p.id.to_string())
        .collect()
}

async fn a_launched_plugin_gets_three_variables_and_a_socket_and_nothing_more() {
    let place = Place::new();
    install(&place, &["07-facts"]);
    let nri = place.builder().start().await.unwrap();
    let facts = created(&nri).await;
    let mut variables: Vec<_> = facts["env"].split(' ').collect();
    variables.sort_unstable();
    assert_eq!(
        variables,
        [
            "NRI_PLUGIN_IDX=07",
            "NRI_PLUGIN_NAME=facts",
            "NRI_PLUGIN_SOCKET=3"
        ]
    );
    assert_eq!(facts["args"], "1");
    let stdio = &facts["stdio"];
    assert!(
        stdio.starts_with("/dev/null /dev/null pipe:["),
        "our log is behind stderr: {stdio}"
    );
    assert_eq!(facts["config"], "");
    let pid = common::there(&nri)[0].pid.unwrap();
    nri.shutdown("over").await;
    assert!(!is_there(pid), "it is not ended and reaped");
}

async fn its_configuration_is_the_file_with_its_index_or_else_with_its_name() {
    let place = Place::new();
    install(&place, &["07-facts"]);
    let conf = place.dir.path().join("conf.d");
    fs::create_dir(&conf).unwrap();
    for (file, text) in [("facts.conf", "by name"), ("07-facts.conf", "by index")] {
        fs::write(conf.join(file), text).unwrap();
        let nri = place.builder().start().await.unwrap();
        assert_eq!(created(&nri).await["config"], text);
        nri.shutdown("next").await;
        drop(nri);
        until("the socket is removed", || !place.socket().exists()).await;
    }
}

async fn nobody_who_connects_gets_the_id_of_a_launched_one_whether_it_is_there_or_not() {
    for replace in [true, false] {
        let place = Place::new();
        install(&place, &["05-good", "06-dies"]);
        let builder = place.builder().replace_same_name(replace);
        let nri = builder.start().await.unwrap();
        assert_eq!(ids(&nri), ["05-good"]);
        let pid = common::there(&nri)[0].pid;
        for id in ["05-good", "06-dies"] {
            let refused = common::plugin(&place, id, common::Record::default().handlers())
                .register()
                .await;
            let refused = refused.map(drop).unwrap_err().to_string();
            assert!(refused.contains("the runtime launches"), "{refused}");
        }
        assert_eq!(common::there(&nri)[0].pid, pid);
        created(&nri).await;
        let mut other = common::plugin(&place, "06-other", common::Record::default().handlers());
        let _other = other.register().await.unwrap();
        until_active(&nri, "06-other").await;
    }
}

async fn files_that_are_no_plugins_are_left_out_and_the_others_start() {
    let place = Place::new();
    install(
        &place,
        &[
            "05-good",
            "bad",
            "1-x",
            "06-writable",
            "08-not,allowed",
            "09-config",
        ],
    );
    let dir = place.dir.path().join("plugins");
    fs::write(dir.join("README"), "no").unwrap();
    fs::write(dir.join("13-mode"), "no").unwrap();
    fs::create_dir(dir.join("10-dir")).unwrap();
    fs::set_permissions(dir.join("06-writable"), fs::Permissions::from_mode(0o777)).unwrap();
    // A dangling link, or a file that cannot be executed, does not affect other plugins.
    std::os::unix::fs::symlink("nowhere", dir.join("11-dangling")).unwrap();
    fs::write(dir.join("12-garbage"), "\u{7f}garbage").unwrap();
    fs::set_permissions(dir.join("12-garbage"), fs::Permissions::from_mode(0o755)).unwrap();
    let conf = place.dir.path().join("conf.d");
    fs::create_dir(&conf).unwrap();
    fs::write(conf.join("config.conf"), [0xff, 0xfe]).unwrap();
    let nri = place.builder().start().await.unwrap();
    assert_eq!(ids(&nri), ["05-good"]);
    let seen = place.seen.plugins.lock().unwrap();
    let rejected: Vec<String> = seen
        .iter()
        .filter_map(|(_, e)| match e {
            PluginEvent::Rejected { reason } => Some(reason.clone()),
            _ => None,
        })
        .collect();
    for file in [
        "/bad",
        "1-x",
        "06-writable",
        "08-not,allowed",
        "09-config",
        "11-dangling",
        "13-mode: is not executable",
    ] {
        let listed = nri.rejections();
        assert!(listed.iter().any(|r| r.reason.contains(file)), "{listed:?}");
        assert!(
            rejected.iter().any(|r| r.contains(file)),
            "{file} is not in {rejected:?}"
        );
    }
    assert!(
        rejected.iter().any(|r| r.contains("12-garbage")),
        "{rejected:?}"
    );
    assert!(
        !rejected
            .iter()
            .any(|r| r.contains("README") || r.contains("10-dir"))
    );
}

async fn one_that_dies_before_it_registers_is_left_out() {
    let place = Place::new();
    install(&place, &["01-dies", "05-good"]);
    let hour = Duration::from_secs(3600);
    let starting = place.builder().registration_timeout(hour).start();
    let started = tokio::time::timeout(Duration::from_secs(60), starting).await;
    let nri = started.expect("it is not waited for").unwrap();
    assert_eq!(ids(&nri), ["05-good"]);
    let status = |e: &PluginEvent| matches!(e, PluginEvent::Rejected { reason } if reason.ends_with("; it exited with status 1"));
    assert!(place.seen.saw("01-dies", status));
    let all = nri.plugins();
    let dead = all.iter().find(|p| p.id.to_string() == "01-dies").unwrap();
    assert!(!is_there(dead.pid.unwrap()), "it is reaped");
}

async fn one_that_never_registers_is_ended_after_the_registration_timeout() {
    let place = Place::new();
    install(&place, &["01-silent"]);
    let limit = Duration::from_millis(300);
    let nri = place
        .builder()
        .registration_timeout(limit)
        .start()
        .await
        .unwrap();
    assert!(common::there(&nri).is_empty());
    assert!(
        place
            .seen
            .saw("01-silent", |e| matches!(e, PluginEvent::Rejected { .. }))
    );
}

async fn one_that_ignores_sigterm_is_killed() {
    let place = Place::new();
    install(&place, &["01-stubborn"]);
    let nri = place.builder().start().await.unwrap();
    let pid = common::there(&nri)[0].pid.unwrap();
    nri.shutdown("over").await;
    assert!(!is_there(pid));
}

async fn one_that_times_out_is_ended() {
    let place = Place::new();
    install(&place, &["01-hangs"]);
    let nri = place.builder().start().await.unwrap();
    let pid = common::there(&nri)[0].pid.unwrap();
    let reported = nri.run_pod_sandbox(pod("hang")).await.unwrap();
    assert_eq!(reported.deliveries[0].outcome, Outcome::TimedOut);
    until("it is ended and reaped", || !is_there(pid)).await;
}

async fn one_that_dies_is_started_again_if_it_is_to_be() {
    let place = Place::new();
    install(&place, &["01-a", "02-b"]);
    let restarts = PluginSettings {
        restart: Restart::OnFailure,
        ..Default::default()
    };
    let settings = BTreeMap::from([("02-b".parse().unwrap(), restarts)]);
    let nri = place.builder().plugins(settings).start().await.unwrap();
    assert_eq!(ids(&nri), ["01-a", "02-b"]);
    let before = common::there(&nri)[1].pid;
    // Each plugin dies at the event; its closed connection is not a veto.
    nri.run_pod_sandbox(pod("die")).await.unwrap();
    until_active(&nri, "02-b").await;
    assert_eq!(ids(&nri), ["02-b"]);
    assert_ne!(common::there(&nri)[0].pid, before);
    let reason = |id: &str| {
        let all = nri.plugins();
        let info = all.into_iter().find(|info| info.id.to_string() == id);
        info.and_then(|info| info.last_error).unwrap_or_default()
    };
    until("its exit status is known", || {
        reason("01-a").ends_with("; it exited with status 1")
    })
    .await;
}

async fn an_adaptation_that_is_dropped_leaves_no_process() {
    let place = Place::new();
    install(&place, &["01-a"]);
    let nri = place.builder().start().await.unwrap();
    let pid = common::there(&nri)[0].pid.unwrap();
    drop(nri);
    until("it is ended and reaped", || !is_there(pid)).await;
}
