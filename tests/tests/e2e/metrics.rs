//! The metrics for Prometheus, and a check that the alerts use no others.

use std::{collections::BTreeSet, fs};

use cairn_tests::{Daemon, Setup, bins::repository, cri};

const LISTEN: &str = "127.0.0.1:9464";

pub(crate) async fn scraped(daemon: &Daemon) -> String {
    let (host, port) = LISTEN.split_once(':').expect("an address");
    let script = format!(
        "exec 3<>/dev/tcp/{host}/{port}; printf 'GET /metrics HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&3; cat <&3"
    );
    let output = daemon.yard.command("bash").args(["-c", &script]).output();
    let output = output.await.expect("bash runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}

/// Returns the value of a series; 0 if it is missing.
fn value(text: &str, series: &str) -> f64 {
    let found = text.lines().find_map(|line| line.strip_prefix(series));
    found.map_or(0.0, |rest| rest.trim().parse().expect("a number"))
}

#[tokio::test]
async fn each_call_is_counted_by_its_code_and_objects_by_their_state() {
    let setup = Setup::default().toml(&format!("[metrics]\nlisten = \"{LISTEN}\""));
    let daemon = Daemon::with(setup).await;
    let before = scraped(&daemon).await;
    let pod = daemon.cri().pod("counted").await;
    pod.sleeper("runs").await;
    pod.run("ended", &["true"]).await.exited().await;
    let nobody = daemon.cri().pod_status("nosuch").await;
    assert!(nobody.is_err());
    let text = scraped(&daemon).await;
    let added = |method: &str, code: &str| {
        let series = format!(
            "cairn_grpc_calls_total{{service=\"RuntimeService\",method=\"{method}\",code=\"{code}\"}}"
        );
        value(&text, &series) - value(&before, &series)
    };
    assert_eq!(added("RunPodSandbox", "Ok"), 1.0, "{text}");
    assert_eq!(added("CreateContainer", "Ok"), 2.0);
    assert_eq!(added("PodSandboxStatus", "NotFound"), 1.0);
    let of_run = "{service=\"RuntimeService\",method=\"RunPodSandbox\"";
    let all = format!("cairn_grpc_call_seconds_bucket{of_run},le=\"+Inf\"}}");
    assert_eq!(value(&text, &all), 1.0);
    assert!(value(&text, &format!("cairn_grpc_call_seconds_sum{of_run}}}")) > 0.0);
    for (series, expected) in [
        ("cairn_pods{state=\"ready\"}", 1.0),
        ("cairn_containers{state=\"running\"}", 1.0),
        ("cairn_containers{state=\"exited\"}", 1.0),
        ("cairn_held{kind=\"sandbox\"}", 0.0),
        ("cairn_pulls_under_way", 0.0),
        ("cairn_events_lost_total", 0.0),
    ] {
        assert!(text.contains(series), "{series} is not in\n{text}");
        assert_eq!(value(&text, series), expected, "{series}");
    }
    assert!(value(&text, "cairn_image_layers_bytes") > 0.0);
    let version = concat!(
        "cairn_build_info{version=\"",
        env!("CARGO_PKG_VERSION"),
        "\"}"
    );
    assert_eq!(value(&text, version), 1.0);
    let image = cri::ListImagesRequest::default();
    let mut images = daemon.cri().client.image;
    images.list_images(image).await.expect("ListImages");
    let listed =
        "cairn_grpc_calls_total{service=\"ImageService\",method=\"ListImages\",code=\"Ok\"}";
    assert!(value(&scraped(&daemon).await, listed) >= 1.0);
    pod.end().await;
}

/// Returns the words with the prefix of metrics, without a histogram's suffixes.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours = words.filter(|word| word.starts_with("cairn_"));
    let plain = ours.map(|word| {
        let parts = ["_bucket", "_sum", "_count"];
        let part = parts.into_iter().find_map(|part| word.strip_suffix(part));
        part.unwrap_or(word).to_owned()
    });
    plain.collect()
}

#[tokio::test]
async fn the_alerts_ask_only_for_what_is_told() {
    let setup = Setup::default().toml(&format!("[metrics]\nlisten = \"{LISTEN}\""));
    let daemon = Daemon::with(setup).await;
    let text = scraped(&daemon).await;
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let reported: BTreeSet<_> = types
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect();
    let asked = fs::read_to_string(repository().join("docs/alerts.yml"));
    let asked = names(&asked.expect("the file is there"));
    assert!(asked.len() >= 4, "the alerts ask for {asked:?}");
    let unknown: Vec<_> = asked.difference(&reported).collect();
    assert!(unknown.is_empty(), "no metric is called {unknown:?}");
}
