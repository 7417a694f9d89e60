//! A headless Chromium, driven over its DevTools pipe: no port, no library.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bins;

/// One window with one page. Dropping it ends the browser.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: String,
    last: u64,
    /// Its profile, removed with the browser.
    _home: TempDir,
}

impl Browser {
    /// # Panics
    /// If there is no Chromium, or it does not start.
    pub fn start() -> Self {
        let program = bins::system("chromium").expect("chromium: apt-get install chromium");
        let home = tempfile::Builder::new()
            .prefix(crate::daemon::PREFIX)
            .tempdir()
            .expect("a directory");
        // It reads from descriptor 3 and writes to 4; a shell connects them. A timeout ends it.
        let mut child = Command::new("sh")
            .args([
                "-c",
                "exec timeout 120 \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1",
                "sh",
            ])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .arg("--remote-debugging-pipe")
            .arg(format!("--user-data-dir={}", home.path().display()))
            .arg("about:blank")
            .env("HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh runs");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        let mut browser = Self {
            child,
            to,
            from,
            session: String::new(),
            last: 0,
            _home: home,
        };
        let target = browser.ask("Target.createTarget", &json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.ask("Target.attachToTarget", &target);
        session["sessionId"]
            .as_str()
            .expect("a session")
            .clone_into(&mut browser.session);
        browser.ask("Page.enable", &json!({}));
        browser
    }

    /// Sends a command and returns its result; earlier messages are skipped.
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        write!(self.to, "{message}\0").expect("the browser reads");
        loop {
            let answer = self.hear();
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
        }
    }

    fn hear(&mut self) -> Value {
        let mut message = Vec::new();
        let read = self.from.read_until(0, &mut message).expect("the pipe");
        assert!(read > 0, "the browser has ended");
        message.pop();
        serde_json::from_slice(&message).expect("JSON")
    }

    /// Opens a file in a window of this size and color scheme, and waits until it is drawn.
    pub fn open(&mut self, file: &Path, width: u32, height: u32, scheme: &str) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", &size);
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.ask("Emulation.setEmulatedMedia", &features);
        let url = format!("file://{}", file.display());
        self.ask("Page.navigate", &json!({ "url": url }));
        while self.hear()["method"] != "Page.loadEventFired" {}
        // Two frames: the first may bring more into view, which the second draws.
        self.eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))");
    }

    /// The value of an expression in the page, awaited if it is a promise.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true,
        });
        let answer = self.ask("Runtime.evaluate", &params);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Presses a key, and waits for the drawing.
    pub fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.ask(
                "Input.dispatchKeyEvent",
                &json!({ "type": kind, "key": key }),
            );
        }
        self.eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))");
    }

    /// The visible part as a PNG in base64.
    pub fn screenshot(&mut self) -> String {
        let shot = self.ask("Page.captureScreenshot", &json!({ "format": "png" }));
        shot["data"].as_str().expect("a picture").to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends its helpers itself; a timeout ends a hung one.
        let _ = write!(
            self.to,
            "{}\0",
            json!({ "id": 0, "method": "Browser.close" })
        );
        let _ = self.child.wait();
    }
}
