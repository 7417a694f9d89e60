//! The page of `cairn timeline --html` in a browser: what is seen with few and with many pods, on wide and narrow
//! windows, by mouse-less hands, and of a stranger's text.
//!
//! `CAIRN_TEST_PICTURES=DIR` keeps what the browser saw.

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

/// A log of events, one JSON object a line, with times in microseconds.
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

    /// A pod with a container, that is refused if `why` is given.
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
    // Then nothing for a day.
    log.event(
        86_400_000_000,
        &json!({}),
        json!({ "kind": "step", "step": "daemon_stopping" }),
    );
    log
}

fn keep(browser: &mut Browser, name: &str) {
    if let Some(dir) = std::env::var_os("CAIRN_TEST_PICTURES") {
        let url = format!("{}\n", browser.screenshot());
        fs::write(Path::new(&dir).join(format!("{name}.base64")), url).expect("a picture");
    }
}

/// Nothing is wider than the window, and what failed is said and seen in it.
fn fits(browser: &mut Browser, page: &Path, pods: usize, width: u32, height: u32, scheme: &str) {
    browser.open(page, width, height, scheme);
    keep(browser, &format!("timeline-{pods}-{width}-{scheme}"));
    let at = format!("{pods} pods, {width} pixels, {scheme}");
    let wide = browser.eval("document.documentElement.scrollWidth");
    assert!(
        wide.as_u64() <= Some(width.into()),
        "{at}: {wide} pixels wide"
    );
    let said = browser.eval("document.getElementById('verdict').innerText");
    let said = said.as_str().expect("text");
    assert!(
        said.contains("CreateContainer app failed") && said.contains(WHY),
        "{at}: {said}"
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
        // Not all of 300 pods are drawn, and each is a row.
        let rows = browser.eval("document.querySelectorAll('.group').length");
        assert_eq!(rows, count + 1);
        let drawn = browser.eval("document.querySelectorAll('.item').length");
        assert!(drawn.as_u64() < Some(2000), "{drawn} elements");
    }
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
    // The second wall: also markup that got in would run nothing.
    browser.eval(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit=1\">')",
    );
    let added = "const script = document.createElement('script'); script.textContent = 'window.hit=1'; document.body.append(script);";
    browser.eval(&format!("(() => {{ {added} }})()"));
    browser.press("0");
    assert_eq!(browser.eval("window.hit === undefined"), true);
}
