//! default-validator as a program of its own: what it rejects, from whomever.

use std::sync::Arc;

use cairn_tests::{Daemon, Setup, bins, client::Cri, cri, plugin::Plugin, until};
use nri::{
    adjust::{Adjust, HookKind},
    proto::{ContainerAdjustment, Event, Hook, LinuxSeccomp},
};
use parking_lot::Mutex;
use tonic::Status;

use serde_json::Value;

use super::{LAUNCHED, active, annotated, connect, refused, tells, write};

const RULES: &str = "rejectOCIHookAdjustment: true
rejectSysctlAdjustment: true
rejectNamespaceAdjustment: true
rejectRuntimeDefaultSeccompAdjustment: true
rejectCustomSeccompAdjustment: false
";

/// A container under this seccomp profile.
async fn create(
    cri: &Cri,
    name: &str,
    profile: cri::security_profile::ProfileType,
) -> Result<(), Status> {
    let pod = cri.pod(name).await;
    let mut config = cri.container_config("c", &["true"]);
    let linux = config.linux.get_or_insert_default();
    linux.security_context.get_or_insert_default().seccomp = Some(cri::SecurityProfile {
        profile_type: profile.into(),
        ..Default::default()
    });
    let created = pod.try_create(config).await.map(drop);
    assert_eq!(cri.containers().await.len(), usize::from(created.is_ok()));
    pod.end().await;
    created
}

fn hook() -> ContainerAdjustment {
    let mut adjust = ContainerAdjustment::default();
    let hook = Hook {
        path: "/bin/true".into(),
        ..Default::default()
    };
    adjust.add_hook(HookKind::CreateRuntime, hook);
    adjust
}

fn sysctl() -> ContainerAdjustment {
    let mut adjust = ContainerAdjustment::default();
    adjust.add_sysctl("net.core.somaxconn", "257");
    adjust
}

fn namespace() -> ContainerAdjustment {
    let mut adjust = ContainerAdjustment::default();
    adjust.add_namespace("cgroup", "");
    adjust
}

fn seccomp() -> ContainerAdjustment {
    let mut adjust = ContainerAdjustment::default();
    adjust.seccomp_policy(LinuxSeccomp {
        default_action: "SCMP_ACT_ALLOW".into(),
        ..Default::default()
    });
    adjust
}

fn nothing() -> ContainerAdjustment {
    let mut adjust = ContainerAdjustment::default();
    adjust.add_env("HARMLESS", "yes");
    adjust
}

#[tokio::test]
async fn a_launched_validator_rejects_what_other_plugins_may_not_adjust() {
    let program = bins::built("default-validator");
    let setup = Setup::default().plugin_with("99-default-validator", program, RULES);
    let daemon = Daemon::with(setup).await;
    active(&daemon, "99-default-validator", LAUNCHED).await;
    let other = [Event::CreateContainer];
    let other = Plugin::subscribed(&daemon.nri_socket(), "10", "other", &other).await;
    let next = Arc::new(Mutex::new(nothing()));
    let answer = next.clone();
    other.adjusts(move |_, _| Some(answer.lock().clone()));
    let cri = daemon.cri();
    let (default, unconfined) = (
        cri::security_profile::ProfileType::RuntimeDefault,
        cri::security_profile::ProfileType::Unconfined,
    );
    for (name, adjust, profile, told) in [
        ("harmless", nothing(), default, None),
        ("hook", hook(), default, Some("may not adjust OCI hooks")),
        ("sysctl", sysctl(), default, Some("may not adjust sysctls")),
        (
            "namespace",
            namespace(),
            default,
            Some("may not adjust namespaces"),
        ),
        (
            "seccomp",
            seccomp(),
            default,
            Some("may not adjust the runtime default seccomp"),
        ),
        ("unconfined", seccomp(), unconfined, None),
    ] {
        *next.lock() = adjust;
        match (create(&cri, name, profile).await, told) {
            (Ok(()), None) => {}
            (Err(error), Some(told)) => {
                tells(&error, &["99-default-validator", "10-other", told]);
            }
            (done, _) => panic!("{name}: {done:?}"),
        }
    }
}

#[tokio::test]
async fn a_connected_validator_wants_required_plugins_unless_the_pod_tolerates_their_absence() {
    let mut daemon = Daemon::start().await;
    let rules = "requiredPlugins: [template]\ntolerateMissingPluginsAnnotation: tolerate.test\n";
    write(&daemon, "/run/rules.yaml", rules);
    let flags = ["-idx", "99", "-config", "/run/rules.yaml"];
    connect(
        &mut daemon,
        "default-validator",
        &flags,
        &["99-default-validator"],
    )
    .await;
    let cri = daemon.cri();
    let error = refused(&cri, "missing", &[]).await;
    tells(
        &error,
        &[
            "99-default-validator",
            "required plugin(s) missing: template",
        ],
    );
    let tolerant = [
        ("tolerate.test/container.c", "true"),
        ("tolerate.test", "false"),
    ];
    let pod = cri
        .try_pod(annotated(&cri, "tolerant", &tolerant))
        .await
        .expect("a pod");
    pod.run("c", &["true"]).await.exited().await;
    pod.end().await;
    let error = refused(&cri, "odd", &[("tolerate.test", "perhaps")]).await;
    tells(&error, &["tolerate.test", "\"perhaps\" is not a boolean"]);

    let template = connect(&mut daemon, "template", &["-idx", "10"], &["10-template"]).await;
    let pod = cri.pod("there").await;
    pod.create("c", &["true"]).await;
    pod.end().await;
    let more = [("required-plugins.noderesource.dev", "[10-template, logger]")];
    tells(&refused(&cri, "more", &more).await, &["missing: logger"]);
    daemon.yard.kill(template.pid, 9).await;
    until("it is gone", || async {
        let all = daemon.plugins().await;
        let active = |p: &Value| p["id"] == "10-template" && p["state"] == "active";
        (!all.iter().any(active)).then_some(())
    })
    .await;
    tells(&refused(&cri, "gone", &[]).await, &["missing: template"]);
}
