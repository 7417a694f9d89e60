//! The state of a pod after a crash, where the points of `nri/contract` (G-13 to G-21) cannot
//! inspect it.

use cairn_tests::{
    Daemon,
    cri::{self, PodSandboxState},
    plugin::Plugin,
    pod::pod_namespaces,
    until,
};
use nri::proto::Event;

#[tokio::test]
async fn contract_c01_a_record_that_cannot_be_written_after_run_sends_stop_and_remove() {
    let mut daemon = Daemon::start().await;
    daemon.cri().pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    let mut after_the_hook = 0;
    // The n-th write of a pod's record fails, until a start has fewer writes.
    for n in 1.. {
        daemon.terminate().await;
        daemon.setup_mut().env = vec![("CAIRN_FAULT".into(), format!("store.pod@{n}=error"))];
        daemon.serve().await;
        let plugin = Plugin::join(&daemon.nri_socket(), "10", "told").await;
        let cri = daemon.cri();
        let Err(error) = cri.try_pod(cri.pod_config("p")).await else {
            assert!(n > 2, "a start has more than {n} writes");
            break;
        };
        assert!(error.message().contains("store.pod"), "{error}");
        assert!(cri.pods().await.is_empty(), "write {n}");
        daemon.leaves_only(&before).await;
        let reported = plugin.list();
        if !reported.is_empty() {
            after_the_hook += 1;
            let all = ["RunPodSandbox p", "StopPodSandbox p", "RemovePodSandbox p"];
            assert_eq!(reported, all, "write {n}");
        }
        cri.pod("p").await.end().await;
    }
    assert_eq!(after_the_hook, 1, "one write follows the hook");
}

#[tokio::test]
async fn contract_c02_a_sandbox_found_dead_at_a_restart_still_gets_its_stop_and_only_once() {
    let mut daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "told").await;
    let mut config = daemon.cri().pod_config("dead");
    pod_namespaces(&mut config).pid = cri::NamespaceMode::Pod.into();
    let pod = daemon.cri().try_pod(config).await.expect("RunPodSandbox");
    let pause = plugin.sees(Event::RunPodSandbox, "dead").await.pod.pid;
    assert!(pause > 0);
    let proc = daemon.yard.inside(format!("/proc/{pause}"));
    let pause = i32::try_from(pause).expect("a pid");
    daemon.yard.kill(pause, 9).await;
    until("the pause process has ended", || async {
        (!proc.exists()).then_some(())
    })
    .await;
    daemon.kill_and_restart().await;
    let again = Plugin::join(&daemon.nri_socket(), "10", "told").await;
    assert_eq!(again.synchronised().await.0.len(), 1, "it is listed");
    let pod = daemon.cri().pod_by_id(&pod.id, "dead");
    assert_eq!(pod.status().await.state(), PodSandboxState::SandboxNotready);
    assert!(again.list().is_empty(), "being found dead is no event");
    pod.stop().await.expect("StopPodSandbox");
    pod.stop().await.expect("StopPodSandbox");
    pod.remove().await.expect("RemovePodSandbox");
    assert_eq!(
        again.list(),
        ["StopPodSandbox dead", "RemovePodSandbox dead"]
    );
}
