//! Counts and durations of gRPC calls, of CRI and of `cairn.v1`, by method and code.
//!
//! This layer is outside of the deadline's, so that an overdue call counts with the code that its
//! caller gets. A call whose caller leaves is `Cancelled`. A stream counts when it begins; its
//! duration is the time until then.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Code, codegen::http::HeaderMap};

/// Upper bounds of the histogram, in seconds.
const BUCKETS: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 60.0];
/// Three services have half as many; clients invent any others.
const METHODS: usize = 128;

/// Service and method: `RuntimeService`, `RunPodSandbox`.
type Key = (String, String);

#[derive(Default)]
struct Method {
    codes: BTreeMap<i32, u64>,
    buckets: [u64; BUCKETS.len()],
    count: u64,
    seconds: f64,
}

/// All calls since the start; clones share it.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<BTreeMap<Key, Method>>>);

impl Calls {
    /// Begins a call; dropping the result counts it.
    pub fn begin(&self, path: &str) -> UnderWay {
        UnderWay {
            calls: self.clone(),
            key: key(path),
            start: Instant::now(),
            code: Code::Cancelled,
        }
    }

    fn count(&self, key: &Key, code: Code, seconds: f64) {
        let mut all = self.0.lock();
        if all.len() >= METHODS && !all.contains_key(key) {
            return;
        }
        let method = all.entry(key.clone()).or_default();
        *method.codes.entry(code.into()).or_default() += 1;
        for (bucket, bound) in method.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= bound);
        }
        method.count += 1;
        method.seconds += seconds;
    }

    /// Returns Prometheus text.
    pub fn render(&self) -> String {
        let all = self.0.lock();
        let mut text = String::from("# TYPE cairn_grpc_calls_total counter\n");
        for ((service, name), method) in &*all {
            for (code, count) in &method.codes {
                let code = Code::from_i32(*code);
                let _ = writeln!(
                    text,
                    "cairn_grpc_calls_total{{service=\"{service}\",method=\"{name}\",code=\"{code:?}\"}} {count}"
                );
            }
        }
        text.push_str("# TYPE cairn_grpc_call_seconds histogram\n");
        for ((service, name), method) in &*all {
            let family = "cairn_grpc_call_seconds";
            let labels = format!("service=\"{service}\",method=\"{name}\"");
            for (count, bound) in method.buckets.iter().zip(BUCKETS) {
                let _ = writeln!(text, "{family}_bucket{{{labels},le=\"{bound}\"}} {count}");
            }
            let count = method.count;
            let _ = writeln!(text, "{family}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(text, "{family}_sum{{{labels}}} {}", method.seconds);
            let _ = writeln!(text, "{family}_count{{{labels}}} {count}");
        }
        text
    }
}

/// `/runtime.v1.RuntimeService/RunPodSandbox`; `None` for other paths.
fn key(path: &str) -> Option<Key> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let service = service.rsplit('.').next()?;
    let is_name = |text: &str| {
        let letters = text.bytes().all(|b| b.is_ascii_alphanumeric());
        letters && (1..=64).contains(&text.len())
    };
    (is_name(service) && is_name(method)).then(|| (service.to_owned(), method.to_owned()))
}

/// A running call; it counts as cancelled if dropped before its answer.
pub struct UnderWay {
    calls: Calls,
    key: Option<Key>,
    start: Instant,
    code: Code,
}

impl UnderWay {
    /// Errors have their code among the headers; without a code the call has begun well.
    pub fn answered(&mut self, headers: &HeaderMap) {
        let code = headers.get("grpc-status");
        self.code = code.map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()));
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            let seconds = self.start.elapsed().as_secs_f64();
            self.calls.count(key, self.code, seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_methods_do_not_grow_the_table_without_end() {
        let calls = Calls::default();
        for n in 0..2 * METHODS {
            calls.count(&("S".into(), format!("M{n}")), Code::Unimplemented, 0.0);
        }
        assert_eq!(calls.0.lock().len(), METHODS);
    }
}
