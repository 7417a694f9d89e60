//! The page of `cairn timeline --html` in a browser: its display with few and many pods, in wide
//! and narrow windows, by keyboard, and with untrusted texts.
//!
//! `CAIRN_TEST_PICTURES=DIR` saves screenshots.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use cairn_tests::{bins, browser::Browser};
use serde_json::{Value, json};
use tempfile::TempDir;

const NO_BROWSER: &str = "needs Chromium: apt-get install chromium, then hack/test page";

/// A log of events, one JSON object per line, with times in microseconds.
#[derive(Default)]
struct Log {
    lines: String,
    now: u64,
}

impl Log {
    fn event(&mut self, after: u64, subject: &Value, what: Value) -> &mut Self {
        self.now += after;
        let mut event = json!({
            "schema": 1, "seq": 1,
            "wall_ns": 1_795_229_467_120_000_000 + self.now * 1000,
            "mono_ns": self.now * 1000,
        });
        for part in [subject, &what] {
            for (key, value) in part.as_object().expect("an object") {
                event[key] = value.clone();
            }
        }
        writeln!(self.lines, "{event}").expect("a string");
        self
    }

    fn call(&mut self, subject: &Value, point: &str, hook: &str, refused: Option<&str>) {
        let begun = self.now;
        self.event(400, subject, json!({ "kind": "call_begun" }))
            .event(
                900,
                subject,
                json!({ "kind": "point", "point": point, "hook": hook }),
            );
        for (plugin, took) in [("10-device-injector", 700), ("30-quota", 2400)] {
            let refuses = refused.filter(|_| plugin == "30-quota");
            let mut answer = json!({
                "kind": "plugin", "hook": hook, "plugin": plugin, "took_ns": took * 1000,
                "outcome": if refuses.is_some() { "refused" } else { "answered" },
            });
            if let Some(why) = refuses {
                answer["reason"] = json!(why);
            } else if hook == "CreateContainer" {
                answer["changed"] = json!(["env DEMO", "mount /data"]);
            }
            self.event(took, subject, answer);
        }
        let error = refused.map(|why| format!("30-quota refused {hook}: {why}"));
        let mut passed = json!({ "kind": "passed", "hook": hook, "took_ns": 3_100_000 });
        let mut ended = json!({ "kind": "call_ended" });
        if let Some(error) = error {
            passed["aborted"] = json!(error);
            ended["error"] = json!(error);
        }
        self.event(30, subject, passed);
        ended["took_ns"] = json!((self.now + 200 - begun - 400) * 1000);
        self.event(200, subject, ended);
    }

    /// A contract point whose plugins answer within a tenth of a millisecond; one that times out
    /// takes two seconds.
    fn hook(&mut self, subject: &Value, point: &str, hook: &str, answers: [&Value; 2]) {
        let reached = json!({ "kind": "point", "point": point, "hook": hook });
        self.event(50, subject, reached);
        for (plugin, answer) in ["20-pinner", "30-quota"].into_iter().zip(answers) {
            let took = if answer["outcome"] == "timed_out" {
                2_000_000
            } else {
                100
            };
            let mut line =
                json!({ "kind": "plugin", "hook": hook, "plugin": plugin, "took_ns": took * 1000 });
            for (key, value) in answer.as_object().expect("an object") {
                line[key] = value.clone();
            }
            self.event(took, subject, line);
        }
        let mut passed = json!({ "kind": "passed", "hook": hook, "took_ns": 200_000 });
        if let Some(why) = answers.iter().find_map(|answer| answer["reason"].as_str()) {
            passed["aborted"] = json!(why);
        }
        self.event(20, subject, passed);
    }

    /// A pod with a container; the container is rejected if `why` is given.
    fn pod(&mut self, name: &str, why: Option<&str>) {
        let mut subject = json!({
            "pod": format!("{name}-3f2a9c1d0e4b"), "pod_name": format!("default/{name}"), "call": "RunPodSandbox",
        });
        self.event(
            2000,
            &subject,
            json!({ "kind": "step", "step": "namespaces" }),
        );
        let network = json!({ "kind": "step", "step": "network", "ips": ["10.88.0.5"] });
        self.event(7000, &subject, network);
        self.call(&subject, "C-01", "RunPodSandbox", None);
        subject["container"] = json!("c1c1c1c1");
        subject["container_name"] = json!("app");
        subject["call"] = json!("CreateContainer");
        self.call(&subject, "C-04", "CreateContainer", why);
        if why.is_none() {
            subject["call"] = json!("StartContainer");
            let created = json!({ "kind": "step", "step": "created", "pid": 4242 });
            self.event(3000, &subject, created);
            self.call(&subject, "C-06", "StartContainer", None);
            self.event(100, &subject, json!({ "kind": "step", "step": "started" }));
        }
    }

    fn page(&self, dir: &TempDir) -> PathBuf {
        let (log, page) = (dir.path().join("log"), dir.path().join("page.html"));
        fs::write(&log, &self.lines).expect("the log");
        let output = Command::new(bins::cairn())
            .args(["timeline", "--from"])
            .arg(&log)
            .arg("--html")
            .arg(&page)
            .output()
            .expect("cairn runs");
        assert!(output.status.success(), "{output:?}");
        page
    }
}

const WHY: &str = "memory limit 4 GiB is over what the tenant has left: ask for less";

fn pods(count: usize, failing: usize) -> Log {
    let mut log = Log::default();
    for n in 0..count {
        log.pod(&format!("web-{n:03}"), (n == failing).then_some(WHY));
    }
    // No events for a day.
    log.event(
        86_400_000_000,
        &json!({}),
        json!({ "kind": "step", "step": "daemon_stopping" }),
    );
    log
}

/// The failures of a container: the answers of 20-pinner and 30-quota, and the error of
/// CreateContainer. The last container starts, and then a plugin's request for it fails.
fn failures() -> [(Value, Value, &'static str); 6] {
    let fine = || json!({ "outcome": "answered", "changed": ["mounts[\"/data\"]", "linux.resources.cpu.cpus"] });
    let quiet = || json!({ "outcome": "not_subscribed" });
    let failed = |outcome: &str, why: &str| json!({ "outcome": outcome, "reason": why });
    [
        (
            fine(),
            failed("refused", "no quota left"),
            "30-quota refused CreateContainer: no quota left",
        ),
        (
            fine(),
            quiet(),
            "adjust.mounts[\"/data\"] (set by 20-pinner): \"readonly\" is not an option",
        ),
        (
            json!({ "outcome": "timed_out" }),
            quiet(),
            "20-pinner (required) timed out",
        ),
        (
            failed("lost", "connection closed by the peer"),
            quiet(),
            "20-pinner (required) lost its connection",
        ),
        (
            fine(),
            quiet(),
            "adjust.cdi_devices (set by 20-pinner): device \"example.com/gpu=7\" not found",
        ),
        (fine(), json!({ "outcome": "answered" }), ""),
    ]
}

/// Forty pods, the odd ones of which fail. A failed creation and its undo take two milliseconds.
fn forty() -> Log {
    let mut log = Log::default();
    let life = |name: &str| json!({ "kind": "plugin_life", "plugin": name, "life": "launched" });
    log.event(0, &json!({}), life("launched:20-pinner[0]"));
    log.event(0, &json!({}), life("external:30-quota[4242]"));
    for n in 0..40_u64 {
        let id = |n: u64| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(4);
        let mut subject = json!({
            "pod": id(2 * n + 1), "pod_name": format!("default/web-{n:02}"), "call": "RunPodSandbox",
        });
        log.event(
            1_700_000,
            &subject,
            json!({ "kind": "step", "step": "namespaces" }),
        );
        log.call(&subject, "C-01", "RunPodSandbox", None);
        subject["container"] = json!(id(2 * n + 2));
        subject["container_name"] = json!("app");
        subject["call"] = json!("CreateContainer");
        if n % 2 == 0 {
            log.call(&subject, "C-04", "CreateContainer", None);
            subject["call"] = json!("StartContainer");
            log.call(&subject, "C-06", "StartContainer", None);
            log.event(100, &subject, json!({ "kind": "step", "step": "started" }));
            continue;
        }
        let (pinner, quota, error) = &failures()[(n as usize / 2) % 6];
        log.event(400, &subject, json!({ "kind": "call_begun" }));
        log.hook(&subject, "C-04", "CreateContainer", [pinner, quota]);
        if error.is_empty() {
            let why = format!("container {}: not found", id(999));
            let request = json!({ "kind": "step", "step": "request_failed", "plugin": "30-quota", "target": id(999), "why": why });
            log.event(20, &subject, request);
            log.event(
                20,
                &subject,
                json!({ "kind": "call_ended", "took_ns": 1_000_000 }),
            );
            continue;
        }
        let silent = json!({ "outcome": "not_subscribed" });
        log.hook(&subject, "C-10", "StopContainer", [&silent, &silent]);
        log.hook(&subject, "C-11", "RemoveContainer", [&silent, &silent]);
        log.event(
            20,
            &subject,
            json!({ "kind": "call_ended", "took_ns": 2_000_000, "error": error }),
        );
    }
    log
}

fn keep(browser: &mut Browser, name: &str) {
    if let Some(dir) = std::env::var_os("CAIRN_TEST_PICTURES") {
        let url = format!("{}\n", browser.screenshot());
        fs::write(Path::new(&dir).join(format!("{name}.base64")), url).expect("a picture");
    }
}

/// Checks that the page is not wider than the window, and that failures are visible in text and
/// chart.
fn fits(browser: &mut Browser, page: &Path, pods: usize, width: u32, height: u32, scheme: &str) {
    browser.open(page, width, height, scheme);
    keep(browser, &format!("timeline-{pods}-{width}-{scheme}"));
    let at = format!("{pods} pods, {width} pixels, {scheme}");
    let wide = browser.eval("document.documentElement.scrollWidth");
    assert!(
        wide.as_u64() <= Some(width.into()),
        "{at}: {wide} pixels wide"
    );
    let printed = browser.eval("document.getElementById('verdict').innerText");
    let printed = printed.as_str().expect("text");
    assert!(
        printed.contains("CreateContainer app failed") && printed.contains(WHY),
        "{at}: {printed}"
    );
    for element in ["#verdict", "#why", ".item.current"] {
        let seen = browser.eval(&format!(
            "(() => {{ const box = document.querySelector('{element}').getBoundingClientRect();
            return box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth }})()"
        ));
        assert_eq!(seen, true, "{at}: {element} is out of sight");
    }
    let focus = browser.eval("document.activeElement.getAttribute('aria-label')");
    let focus = focus.as_str().unwrap_or_default();
    assert!(focus.contains("CreateContainer refused"), "{at}: {focus}");
}

#[test]
#[ignore = "needs Chromium: apt-get install chromium, then hack/test page"]
fn the_first_failure_is_seen_and_nothing_is_cut_off_with_3_and_300_pods_on_wide_and_narrow_windows()
{
    assert!(bins::system("chromium").is_some(), "{NO_BROWSER}");
    let mut browser = Browser::start();
    for (count, failing) in [(3, 2), (300, 217)] {
        let dir = TempDir::with_prefix(cairn_tests::daemon::PREFIX).expect("a directory");
        let page = pods(count, failing).page(&dir);
        let length = fs::metadata(&page).expect("the page").len();
        assert!(length < 2_000_000, "{count} pods: {length} bytes");
        for (width, height) in [(1280, 800), (390, 844)] {
            for scheme in ["light", "dark"] {
                fits(&mut browser, &page, count, width, height, scheme);
            }
        }
        // Each of the 300 pods has a row, although not all are drawn.
        let rows = browser.eval("document.querySelectorAll('.group').length");
        assert_eq!(rows, count + 1);
        let drawn = browser.eval("document.querySelectorAll('.item').length");
        assert!(drawn.as_u64() < Some(2000), "{drawn} elements");
    }
}

/// Checks each mark in each lane as it scrolls into view: the worst of its events determines color
/// and label, and a failure is drawn on top.
const WORST_IS_SEEN: &str = r"(async () => {
  const wrong = [];
  let marks = 0;
  for (const svg of document.querySelectorAll('svg.rows')) {
    if (!svg.checkVisibility({ visibilityProperty: true })) continue;
    svg.scrollIntoView({ block: 'center' });
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    for (const g of svg.querySelectorAll('.item')) {
      const worst = g.cluster.items.reduce((a, b) => b.tint > a.tint ? b : a), name = g.getAttribute('aria-label');
      const say = what => wrong.push(`${svg.getAttribute('aria-label')}: ${name}: ${what}`);
      marks++;
      if (!g.classList.contains(`t${worst.tint}`)) say('not the tint of the worst');
      if (worst.tint < 4) continue;
      if (!name.includes(worst.label.slice(0, 20))) say('not the label of the worst');
      if (!g.querySelector('.glyph')) say('no sign');
      if (![...g.querySelectorAll('text')].some(text => text.textContent.length > 7)) say('no label');
      const box = g.querySelector('.body').getBoundingClientRect();
      const top = document.elementFromPoint(Math.max(box.left, svg.getBoundingClientRect().left) + 6, box.top + box.height / 2);
      const over = top && top.closest('.item');
      if (!over || over.cluster.tint < worst.tint) say('covered');
    }
  }
  return { marks, wrong };
})()";

fn worst_is_seen(browser: &mut Browser, least: u64, at: &str) {
    let seen = browser.eval(WORST_IS_SEEN);
    assert_eq!(seen["wrong"], json!([]), "{at}");
    assert!(seen["marks"].as_u64() >= Some(least), "{at}: {seen}");
    browser.eval("scrollTo(0, 0)");
}

#[test]
#[ignore = "needs Chromium: apt-get install chromium, then hack/test page"]
fn of_forty_pods_the_twenty_failures_are_seen_folded_and_open_with_their_causes() {
    assert!(bins::system("chromium").is_some(), "{NO_BROWSER}");
    let dir = TempDir::with_prefix(cairn_tests::daemon::PREFIX).expect("a directory");
    let page = forty().page(&dir);
    if let Some(dir) = std::env::var_os("CAIRN_TEST_PICTURES") {
        fs::copy(&page, Path::new(&dir).join("forty.html")).expect("a copy");
    }
    for (width, height) in [(1300, 900), (800, 900), (390, 844)] {
        let mut browser = Browser::start();
        for scheme in ["light", "dark"] {
            browser.open(&page, width, height, scheme);
            keep(&mut browser, &format!("timeline-forty-{width}-{scheme}"));
        }
        let causes =
            browser.eval("[...document.querySelectorAll('.cause.t5')].map(e => e.textContent)");
        let causes: Vec<&str> = causes
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(causes.len(), 20, "{causes:?}");
        for (_, _, error) in failures() {
            assert!(
                causes.contains(&error) || error.is_empty(),
                "{error}: {causes:?}"
            );
        }
        worst_is_seen(&mut browser, 40, &format!("{width}, folded"));
        browser.eval("document.querySelectorAll('.toggle[aria-expanded=false]').forEach(toggle => toggle.click())");
        keep(&mut browser, &format!("timeline-forty-{width}-open"));
        worst_is_seen(&mut browser, 200, &format!("{width}, open"));
        let lane =
            browser.eval("document.querySelector('.lanes svg').getBoundingClientRect().width");
        assert!(
            lane.as_f64() > Some(f64::from(width) * 0.55),
            "{width}: lanes of {lane}"
        );
        let names = browser.eval(
            "[...new Set([...document.querySelectorAll('.lanes .label')].map(e => e.textContent))]",
        );
        let names_wanted = json!([
            "CRI calls",
            "runtime",
            "10-device-injector",
            "20-pinner",
            "30-quota",
            "processes"
        ]);
        assert_eq!(names, names_wanted);
    }
}

#[test]
#[ignore = "needs Chromium: apt-get install chromium, then hack/test page"]
fn ids_are_short_and_a_button_copies_all_of_one_and_times_have_one_unit() {
    assert!(bins::system("chromium").is_some(), "{NO_BROWSER}");
    let dir = TempDir::with_prefix(cairn_tests::daemon::PREFIX).expect("a directory");
    let page = forty().page(&dir);
    let mut browser = Browser::start();
    browser.open(&page, 1300, 900, "light");
    let unit = browser.eval("document.querySelector('#axis .label').textContent");
    assert_eq!(unit, "time, min:s");
    let ticks = browser.eval("[...document.querySelectorAll('#axis text')].map(e => e.textContent).every(t => /^\\d:\\d\\d/.test(t))");
    assert_eq!(ticks, true);
    browser.eval(
        "document.addEventListener('copy', () => { window.copied = document.activeElement.value })",
    );
    for button in ["Copy the id", "Close"] {
        let there =
            format!("document.querySelectorAll('#panel [aria-label^=\"{button}\"]').length > 0");
        assert_eq!(browser.eval(&there), true, "{button}");
    }
    let ids = browser
        .eval("[...document.querySelectorAll('#panel code')].map(e => e.textContent.length)");
    assert_eq!(ids, json!([13, 13]));
    browser.eval("document.querySelector('#panel .copy').click()");
    let id = browser.eval("window.copied");
    assert_eq!(id.as_str().map(str::len), Some(64), "{id}");
    let long = browser.eval("/[0-9a-f]{64}/.test(document.body.innerText)");
    assert_eq!(long, false);
}

#[test]
#[ignore = "needs Chromium: apt-get install chromium, then hack/test page"]
fn keys_go_from_event_to_event_open_one_and_come_back() {
    assert!(bins::system("chromium").is_some(), "{NO_BROWSER}");
    let dir = TempDir::with_prefix(cairn_tests::daemon::PREFIX).expect("a directory");
    let page = pods(3, 2).page(&dir);
    let mut browser = Browser::start();
    for width in [1280, 390] {
        browser.open(&page, width, 800, "light");
        let label = |browser: &mut Browser| {
            let label = browser.eval("document.activeElement.getAttribute('aria-label')");
            label.as_str().unwrap_or_default().to_owned()
        };
        assert!(label(&mut browser).contains("CreateContainer refused"));
        browser.press("ArrowUp");
        assert!(
            label(&mut browser).contains("CreateContainer answered"),
            "the plugin before it"
        );
        browser.press("ArrowDown");
        assert!(label(&mut browser).contains("CreateContainer refused"));
        browser.press("ArrowLeft");
        assert!(label(&mut browser).contains("RunPodSandbox answered"));
        browser.press("ArrowRight");
        browser.press("Enter");
        let panel =
            "document.activeElement.id === 'panel' && document.getElementById('panel').innerText";
        let panel = browser.eval(panel);
        let text = panel.as_str().unwrap_or_default().to_lowercase();
        for part in [
            "c-04 createcontainer app",
            "refused: memory limit",
            "default/web-002",
        ] {
            assert!(text.contains(part), "{width}: {part}: {text}");
        }
        browser.press("Escape");
        assert!(
            label(&mut browser).contains("CreateContainer refused"),
            "back at {width}"
        );
        let wide = |browser: &mut Browser| {
            let wide =
                "document.querySelector('.item.current .body').getBoundingClientRect().width";
            browser.eval(wide).as_f64().unwrap_or_default()
        };
        let before = wide(&mut browser);
        for _ in 0..12 {
            browser.press("+");
        }
        let after = wide(&mut browser);
        assert!(after > before * 2.0, "{width}: {before} to {after}");
        assert!(
            label(&mut browser).contains("CreateContainer refused"),
            "the focus stays"
        );
        browser.press("0");
        assert!((wide(&mut browser) - before).abs() < 1.0);
    }
}

#[test]
#[ignore = "needs Chromium: apt-get install chromium, then hack/test page"]
fn a_strangers_text_is_shown_as_text_and_runs_nothing() {
    assert!(bins::system("chromium").is_some(), "{NO_BROWSER}");
    let dir = TempDir::with_prefix(cairn_tests::daemon::PREFIX).expect("a directory");
    let hostile =
        "</script><img src=x onerror=\"window.hit=1\"><script>window.hit=1</script><b id=hit>x</b>";
    let mut log = Log::default();
    log.pod(hostile, Some(hostile));
    let page = log.page(&dir);
    let mut browser = Browser::start();
    browser.open(&page, 1280, 800, "light");
    browser.press("Enter");
    assert_eq!(browser.eval("window.hit === undefined"), true);
    assert_eq!(
        browser.eval("document.querySelectorAll('img, #hit').length"),
        0
    );
    assert_eq!(browser.eval("document.scripts.length"), 2);
    for element in ["why", "panel"] {
        let text = browser.eval(&format!("document.getElementById('{element}').innerText"));
        let text = text.as_str().unwrap_or_default();
        assert!(text.contains(hostile), "{element}: {text}");
    }
    // The second line of defense: injected markup could not run code either.
    browser.eval(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit=1\">')",
    );
    let added = "const script = document.createElement('script'); script.textContent = 'window.hit=1'; document.body.append(script);";
    browser.eval(&format!("(() => {{ {added} }})()"));
    browser.press("0");
    assert_eq!(browser.eval("window.hit === undefined"), true);
}
