//! The output of `nri-bench init` is a valid scenario.

mod common;

use std::fs;

use common::{Bench, broken};

const POD: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata:
  name: "web.front"
  namespace: shop
spec:
  replicas: 3
  template:
    metadata:
      labels: {app: web}
      annotations:
        example.com/note: "says \"hello\""
    spec:
      runtimeClassName: fast
      initContainers:
      - name: setup
        image: busybox
      containers:
      - name: greeter
        image: busybox
        command: [sh, -c]
        args: ["echo $A"]
        env:
        - {name: A, value: "1=2"}
        - name: FROM_ELSEWHERE
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        resources:
          requests: {cpu: 250m}
          limits: {cpu: "1.5", memory: 64Mi}
        volumeMounts:
        - {name: data, mountPath: /data, readOnly: true}
"#;

fn init(args: &[&str]) -> (u8, String) {
    let mut out = Vec::new();
    let args = ["nri-bench", "init"].iter().chain(args).map(Into::into);
    let code = nri_bench::cli::answer_to(args, &mut out, &mut std::io::stderr());
    (code, String::from_utf8_lossy(&out).into_owned())
}

#[test]
fn the_scenario_with_comments_runs_also_with_all_that_is_commented_out_but_expectations() {
    let (code, text) = init(&[]);
    assert_eq!(code, 0);
    let run = Bench::new().run(&text, &[], &broken("none"));
    assert_eq!(run.code, 0, "{}", run.text);
    let keys = |line: &str| {
        let bare = line.strip_prefix("# ").unwrap_or_default();
        let key = bare.starts_with(['['])
            || bare
                .split_once(" = ")
                .is_some_and(|(k, _)| !k.contains(' '));
        key && !bare.starts_with("expect.")
    };
    let lines = text.lines().map(|line| {
        if keys(line) {
            line.trim_start_matches("# ")
        } else {
            line
        }
    });
    let all = lines.collect::<Vec<_>>().join("\n");
    assert!(
        all.contains("\nspeaks = ") && all.contains("\n[[other]]"),
        "{all}"
    );
    let run = Bench::new().run(&all, &[], &broken("none"));
    assert_eq!(run.code, 0, "{}", run.text);
}

#[test]
fn a_pod_of_kubernetes_becomes_a_scenario_of_its_whole_life() {
    let bench = Bench::new();
    let file = bench.path("pod.yaml");
    fs::write(&file, POD).expect("a file");
    let (code, text) = init(&[file.to_str().expect("a name")]);
    assert_eq!(code, 0, "{text}");
    let scenario = nri_bench::scenario::read("x", &text).expect("a scenario");
    let pod = &scenario.pods["web.front"];
    assert_eq!(
        (pod.namespace.as_str(), pod.runtime_handler.as_str()),
        ("shop", "fast")
    );
    assert_eq!(pod.labels["app"], "web");
    assert_eq!(pod.annotations["example.com/note"], "says \"hello\"");
    let container = &scenario.containers["greeter"];
    assert_eq!(container.args, ["sh", "-c", "echo $A"]);
    assert_eq!(container.env, ["A=1=2"]);
    let data = container.mounts.iter().find(|m| m.destination == "/data");
    assert_eq!(data.expect("mounted").options, ["rbind", "ro"]);
    let resources = container
        .linux
        .clone()
        .and_then(|l| l.resources)
        .expect("given");
    let cpu = resources.cpu.expect("given");
    assert_eq!(
        resources.memory.and_then(|m| m.limit).map(|l| l.value),
        Some(64 << 20)
    );
    assert_eq!(
        (
            cpu.shares.map(|s| s.value),
            cpu.quota.map(|q| q.value),
            cpu.period.map(|p| p.value)
        ),
        (Some(256), Some(150_000), Some(100_000))
    );
    let run = bench.run(&text, &[], &broken("none"));
    assert_eq!(run.code, 0, "{}", run.text);
    assert!(run.text.contains("create web.front/setup"), "{}", run.text);
}

#[test]
fn what_is_no_pod_is_refused_in_one_line() {
    let bench = Bench::new();
    let file = bench.path("pod.yaml");
    for text in [
        "kind: Service",
        "a: [",
        "kind: Pod\nspec: {containers: [{image: x}]}",
        "spec: {containers: [{name: c, resources: {limits: {memory: lots}}}]}",
    ] {
        fs::write(&file, text).expect("a file");
        let (code, out) = init(&[file.to_str().expect("a name")]);
        assert_eq!((code, out.as_str()), (2, ""), "{text}");
    }
}
