use super::*;

const S: i64 = 1_000_000_000;
const NOW: i64 = 1000 * S;

fn pod(id: &str, name: &str, state: cri::PodSandboxState) -> cri::PodSandbox {
    cri::PodSandbox {
        id: id.repeat(64),
        metadata: Some(cri::PodSandboxMetadata {
            name: name.into(),
            namespace: "default".into(),
            uid: format!("uid-{name}"),
            attempt: 0,
        }),
        state: state.into(),
        created_at: NOW - 300 * S,
        ..Default::default()
    }
}

fn listed(id: &str, pod: &str, name: &str, state: cri::ContainerState) -> Listed {
    let container = cri::Container {
        id: id.repeat(64),
        pod_sandbox_id: pod.repeat(64),
        state: state.into(),
        ..Default::default()
    };
    let status = cri::ContainerStatus {
        id: container.id.clone(),
        metadata: Some(cri::ContainerMetadata {
            name: name.into(),
            attempt: 2,
        }),
        state: state.into(),
        created_at: NOW - 200 * S,
        started_at: NOW - 90 * S,
        finished_at: NOW - 5 * S,
        exit_code: 137,
        reason: "OOMKilled".into(),
        image: Some(cri::ImageSpec {
            image: format!("sha256:{}", "f".repeat(64)),
            user_specified_image: "busybox:1".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    Listed {
        container,
        status,
        pid: None,
    }
}

fn some() -> Vec<Pod> {
    use cri::{ContainerState as C, PodSandboxState as P};
    let mut web = listed("c", "a", "web", C::ContainerRunning);
    web.status.reason = String::new();
    web.pid = Some(4711);
    let late = listed("d", "a", "late\u{1b}[2J", C::ContainerExited);
    let mut first = listed("e", "a", "first", C::ContainerCreated);
    first.status.created_at -= S;
    first.status.reason = String::new();
    let mut lost = listed("9", "", "", C::ContainerUnknown);
    lost.container.pod_sandbox_id = String::new();
    lost.status.reason = "RecordUnreadable".into();
    let list = [
        pod("b", "zoo", P::SandboxNotready),
        pod("a", "app", P::SandboxReady),
    ];
    pods(&list, vec![late, web, first, lost])
}

#[test]
fn containers_stand_below_their_pod_in_the_order_of_creation() {
    let text = table(&some(), NOW, true, false);
    assert_eq!(
        text,
        "\
POD / CONTAINER  STATE     AGE  RESTARTS  ID             IMAGE      PROCESS
default/app      ready     5m   0         aaaaaaaaaaaaa
├─ first         created   3m   2         eeeeeeeeeeeee  busybox:1
├─ late [2J      exited    5s   2         ddddddddddddd  busybox:1  exit 137 OOMKilled
└─ web           running   90s  2         ccccccccccccc  busybox:1  pid 4711
default/zoo      notready  5m   0         bbbbbbbbbbbbb
unknown pod      unknown   -    0
└─ unknown       unknown   3m   2         9999999999999  busybox:1  RecordUnreadable
"
    );
}

#[test]
fn only_a_states_cell_is_painted_and_only_on_a_terminal() {
    let painted = table(&some(), NOW, true, true);
    assert!(painted.contains("  \x1b[32mready   \x1b[0m  "), "{painted}");
    assert!(painted.contains("\x1b[33mexited  \x1b[0m"), "{painted}");
    let plain = painted
        .replace("\x1b[0m", "")
        .replace("\x1b[32m", "")
        .replace("\x1b[33m", "")
        .replace("\x1b[1;31m", "");
    assert_eq!(plain, table(&some(), NOW, true, false));
}

#[test]
fn a_pod_that_is_not_ready_is_active_while_a_container_of_it_has_not_exited() {
    let active = |pods: &[Pod]| {
        let shown = pods.iter().map(|pod| (pod.name.clone(), pod.is_active()));
        shown.collect::<Vec<_>>()
    };
    assert_eq!(
        active(&some()),
        [
            ("app".into(), true),
            ("zoo".into(), false),
            (String::new(), true)
        ]
    );
    let state = cri::PodSandboxState::SandboxNotready;
    let runs = listed("c", "b", "c", cri::ContainerState::ContainerRunning);
    let pods = pods(&[pod("b", "zoo", state)], vec![runs]);
    assert_eq!(active(&pods), [("zoo".into(), true)]);
}

#[test]
fn json_has_the_pid_or_the_exit_code_and_whole_ids() {
    let value = json(&some());
    let app = &value["pods"][0];
    assert_eq!(app["id"], "a".repeat(64));
    assert_eq!(app["containers"][2]["pid"], 4711);
    assert_eq!(app["containers"][2]["exit_code"], serde_json::Value::Null);
    assert_eq!(app["containers"][1]["exit_code"], 137);
    assert_eq!(app["containers"][1]["finished_at_ns"], NOW - 5 * S);
}

#[test]
fn nothing_is_told_by_a_line() {
    assert_eq!(table(&[], NOW, true, false), "there is no pod\n");
    assert!(table(&[], NOW, false, false).contains("--all"));
}
