//! Attempts of a plugin to use another plugin's name.

use std::{fs, os::unix::fs::MetadataExt, path::Path, process::Stdio};

use cairn_tests::{Daemon, Setup, bins, plugin::Plugin, until};
use nri::{
    adjust::Adjust,
    proto::{ContainerAdjustment, Event},
};
use tokio::process::Child;

use crate::policy::{info, until_state};

/// Starts a plugin program in the yard, where the daemon can see its process. It ends with the
/// yard.
fn connects(daemon: &Daemon, program: &Path, user: &str, index: &str) -> Child {
    let mut command = daemon.yard.command("setpriv");
    command
        .args(["--reuid", user, "--clear-groups", "--"])
        .arg(program)
        .args(["-idx", index, "-name", "own", "-socket-path"])
        .arg(daemon.nri_socket())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().expect("setpriv (util-linux) is there")
}

async fn is_refused(daemon: &Daemon, why: &str) {
    until(&format!("refused: {why}"), || async {
        let log = daemon.log();
        let mut lines = log.lines().filter(|line| line.contains("Rejected"));
        lines.any(|line| line.contains(why)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_plugin_has_the_rights_of_a_name_only_if_it_is_the_user_and_program_of_its_table() {
    let logger = bins::built("logger");
    let toml = format!(
        "[nri]\nrequest_timeout = \"10s\"\n\
         [nri.plugin.\"10-own\"]\nprogram = {logger:?}\n\
         [nri.plugin.\"11-own\"]\nprogram = \"/bin/sleep\"\n\
         [nri.plugin.\"12-own\"]\nuid = 65534\n\
         [nri.plugin.\"13-own\"]\nuid = 0"
    );
    let daemon = Daemon::with(Setup::default().toml(&toml)).await;
    // The check uses the identity of the file, not its name or content.
    let copy = daemon.path("logger");
    fs::copy(&logger, &copy).expect("a copy");
    let other = daemon.path("other");
    std::os::unix::fs::symlink(&logger, &other).expect("a link");
    let copied = connects(&daemon, &copy, "0", "10");
    is_refused(&daemon, "not 10-own: its process does not run").await;
    let _linked = connects(&daemon, &other, "0", "10");
    until_state(&daemon, "10-own", "active").await;
    let _program = connects(&daemon, &logger, "0", "11");
    is_refused(
        &daemon,
        "not 11-own: its process does not run \\\"/bin/sleep\\\"",
    )
    .await;
    let _user = connects(&daemon, &logger, "0", "12");
    is_refused(
        &daemon,
        "not 12-own: its process has user 0, must have 65534",
    )
    .await;
    let _root = connects(&daemon, &logger, "0", "13");
    until_state(&daemon, "13-own", "active").await;
    drop(copied);
}

#[tokio::test]
async fn a_plugin_under_a_name_of_no_table_has_the_default_rights() {
    let toml = "[nri]\nrequest_timeout = \"10s\"\n\
        default_fields = \"Annotations\"\ndefault_events = \"CreateContainer\"\n\
        [nri.plugin.\"40-meek\"]\nfields = \"Annotations\"\n\
        [nri.plugin.\"42-free\"]\nfields = \"Env\"";
    let daemon = Daemon::with(Setup::default().toml(toml)).await;
    let pod = daemon.cri().pod("p").await;
    for (index, name, may) in [
        ("40", "meek", false),
        ("40", "meek2", false),
        ("41", "meek", false),
        ("42", "free", true),
    ] {
        let plugin = Plugin::join(&daemon.nri_socket(), index, name).await;
        plugin.adjusts(|_, _| {
            let mut adjust = ContainerAdjustment::default();
            adjust.add_env("STOLEN", "1");
            Some(adjust)
        });
        let config = pod.cri.container_config(name, &["true"]);
        let created = pod.try_create(config).await;
        assert_eq!(created.is_ok(), may, "{index}-{name}");
        assert_eq!(plugin.events(), [Event::CreateContainer], "{index}-{name}");
        drop(plugin);
        until(&format!("{name} has ended"), || async {
            let state = info(&daemon, &format!("{index}-{name}")).await["state"].clone();
            (state != "active").then_some(())
        })
        .await;
    }
    pod.end().await;
}

#[tokio::test]
async fn users_who_may_connect_reach_the_socket_by_its_group_or_mode() {
    let toml = "[nri]\nrequest_timeout = \"10s\"\nallowed_uids = [0, 65534]\n\
        socket_group = 65533\nsocket_mode = \"0666\"";
    let daemon = Daemon::with(Setup::default().toml(toml)).await;
    let socket = fs::metadata(daemon.nri_socket()).expect("it is there");
    assert_eq!((socket.gid(), socket.mode() & 0o777), (65533, 0o666));
    // At a path where every user can execute it.
    let logger = daemon.path("logger");
    fs::copy(bins::built("logger"), &logger).expect("a copy");
    let _nobody = connects(&daemon, &logger, "65534", "10");
    until_state(&daemon, "10-own", "active").await;
    let _stranger = connects(&daemon, &logger, "65532", "10");
    is_refused(&daemon, "user 65532 may not connect").await;
}
