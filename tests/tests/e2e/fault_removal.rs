//! Failing steps of a removal: reported by name, and not blocking later attempts.

use std::{fs, path::Path};

use cairn_tests::{
    Daemon, Setup, bins,
    daemon::PREFIX,
    output::{shown, stdout},
};
use tempfile::TempDir;

const CONFLIST: &str = r#"{ "cniVersion": "1.0.0", "name": "testnet", "plugins": [
  { "type": "bridge", "bridge": "cni-test0", "isGateway": true,
    "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.77.0.0/24" }]] } },
  { "type": "passer" } ] }"#;

/// Installs a program that runs `on_del` at DEL, and passes the result on at ADD.
fn install(at: &Path, on_del: &str) {
    let script = format!(
        "#!/bin/sh\ncase $CNI_COMMAND in\nADD) exec python3 -c 'import json,sys; print(json.dumps(json.load(sys.stdin)[\"prevResult\"]))' ;;\nDEL) {on_del} ;;\nesac\n"
    );
    fs::write(at, script).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(at, mode).expect("made a program");
}

/// A daemon with its CNI programs in a directory from which the test can remove one.
async fn daemon(on_del: &str) -> (TempDir, Daemon) {
    let programs = tempfile::Builder::new()
        .prefix(PREFIX)
        .tempdir()
        .expect("a temporary directory");
    for name in ["bridge", "host-local"] {
        fs::copy(bins::peer(name), programs.path().join(name)).expect("copied");
    }
    install(&programs.path().join("passer"), on_del);
    let setup = Setup {
        cni_programs: Some(programs.path().into()),
        ..Setup::default().cni(CONFLIST)
    };
    (programs, Daemon::with(setup).await)
}

#[tokio::test]
async fn a_pod_whose_cni_program_is_gone_can_be_removed_after_some_tries() {
    let (programs, daemon) = daemon("true").await;
    daemon.cri().pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    let pod = daemon.cri().pod("orphan").await;
    fs::remove_file(programs.path().join("passer")).expect("it was there");
    let mut failures = 0;
    while let Err(error) = pod.stop().await {
        assert!(
            error.message().contains("passer"),
            "the program is named: {error}"
        );
        failures += 1;
        assert!(failures < 10, "it is never removed: {error}");
    }
    assert!(failures > 1, "a program may be missing for a moment");
    pod.end().await;
    daemon.leaves_only(&before).await;
}

#[tokio::test]
async fn a_pod_whose_cni_program_fails_is_removed_by_force_and_the_step_is_named() {
    let (_programs, daemon) = daemon("echo '{\"code\":11,\"msg\":\"never ever\"}'; exit 1").await;
    let pod = daemon.cri().pod("stuck").await;
    for _ in 0..7 {
        let error = pod.stop().await.expect_err("its program fails");
        assert!(error.message().contains("never ever"), "{error}");
    }
    let refused = daemon.cairn(&["rm", &pod.id]).await;
    assert!(!refused.status.success(), "{}", shown(&refused));
    let gone = daemon.cairn(&["rm", "--force", &pod.id]).await;
    assert!(gone.status.success(), "{}", shown(&gone));
    assert_eq!(stdout(&gone).trim(), pod.id);
    let printed = shown(&gone);
    assert!(
        printed.contains("skipped: network") && printed.contains("never ever"),
        "{printed}"
    );
    assert!(daemon.cri().pods().await.is_empty());
}
