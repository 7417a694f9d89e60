//! The current span of a task, and the spans below it.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::rand::{GetRandomFlags, getrandom};
use tokio::sync::mpsc;
use tonic::codegen::http::HeaderMap;

use super::{
    parent::{HEADER, Parent, SpanId, TraceId},
    wire::{INTERNAL, KeyValue, SERVER, Span, Status, Value},
};
use crate::clock;

const MILLION: u32 = 1_000_000;
/// Limit of names, attributes and errors, in characters.
const TEXT_MAX: usize = 1024;

tokio::task_local! {
    static CURRENT: Context;
}

/// The parent of spans; empty if the work is not traced.
#[derive(Clone, Default)]
pub struct Context(Option<Arc<Place>>);

struct Place {
    recorder: Recorder,
    trace: TraceId,
    span: SpanId,
    epoch: Epoch,
}

/// The time of one trace: its steps stay nested, even if the clock changes.
#[derive(Clone, Copy)]
struct Epoch {
    begun: Instant,
    unix_nano: u64,
}

impl Epoch {
    fn begin() -> Self {
        Self {
            begun: Instant::now(),
            unix_nano: u64::try_from(clock::now_ns()).unwrap_or(0),
        }
    }

    fn now(self) -> u64 {
        let since = clock::nanoseconds(self.begun.elapsed());
        self.unix_nano.saturating_add(since)
    }
}

pub fn here() -> Context {
    CURRENT.try_with(Clone::clone).unwrap_or_default()
}

impl Context {
    /// Runs the work in this context, in any task.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        match self.0 {
            None => work.await,
            Some(_) => CURRENT.scope(self, work).await,
        }
    }

    fn child(&self, name: &str) -> Option<Open> {
        let place = self.0.as_deref()?;
        let (recorder, parent) = (place.recorder.clone(), Some(place.span));
        Open::new(recorder, place.trace, parent, name, INTERNAL, place.epoch)
    }
}

/// Runs one step of the task's work; traced steps get a span.
pub async fn step<T, E: Display>(
    name: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match here().child(name) {
        None => work.await,
        Some(span) => span.during(work).await,
    }
}

/// As [`step`], with an attribute for its object.
pub async fn step_of<T, E: Display>(
    name: &'static str,
    key: &'static str,
    what: &(impl Display + ?Sized),
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match here().child(name) {
        None => work.await,
        Some(mut span) => {
            span.say(key, Value::Text(clipped(&what.to_string())));
            span.during(work).await
        }
    }
}

/// Adds a step that was measured elsewhere and has just ended.
pub fn ended(
    took: Duration,
    describe: impl FnOnce() -> (String, Vec<(&'static str, String)>, Option<String>),
) {
    let context = here();
    if context.0.is_none() {
        return;
    }
    let (name, attributes, error) = describe();
    if let Some(mut span) = context.child(&name) {
        span.began_before(took);
        for (key, text) in attributes {
            span.say(key, Value::Text(clipped(&text)));
        }
        span.end(error);
    }
}

/// Collects ended spans; clones share it.
#[derive(Clone)]
pub struct Recorder(Arc<Shared>);

struct Shared {
    queue: mpsc::Sender<Span>,
    per_million: u32,
    /// A loss of spans has been logged.
    overflowed: AtomicBool,
}

impl Recorder {
    /// Traces `per_million` of a million calls that have no parent trace.
    pub fn new(queue: mpsc::Sender<Span>, per_million: u32) -> Self {
        Self(Arc::new(Shared {
            queue,
            per_million,
            overflowed: AtomicBool::new(false),
        }))
    }

    /// The span of a call, if sampled: by its parent trace, otherwise by chance.
    pub fn call(&self, name: &str, headers: &HeaderMap) -> Option<Open> {
        let parent = headers.get(HEADER).and_then(|value| value.to_str().ok());
        let parent = parent.and_then(Parent::parse);
        let (trace, above) = match parent {
            Some(parent) => (parent.sampled.then_some(parent.trace)?, Some(parent.span)),
            None => (self.by_chance()?, None),
        };
        Open::new(self.clone(), trace, above, name, SERVER, Epoch::begin())
    }

    fn by_chance(&self) -> Option<TraceId> {
        if self.0.per_million == 0 {
            return None;
        }
        let trace: TraceId = random()?;
        let [.., a, b, c, d] = trace;
        let drawn = u64::from(u32::from_be_bytes([a, b, c, d]));
        let chance = (drawn * u64::from(MILLION)) >> 32;
        (chance < u64::from(self.0.per_million)).then_some(trace)
    }

    fn record(&self, span: Span) {
        if self.0.queue.try_send(span).is_err() && !self.0.overflowed.swap(true, Ordering::Relaxed)
        {
            tracing::debug!("tracing: dropping spans: the queue is full");
        }
    }
}

/// An open span. Dropping it ends it, with an error unless [`Self::end`] was called.
pub struct Open {
    recorder: Recorder,
    epoch: Epoch,
    trace: TraceId,
    id: SpanId,
    /// Taken at its end.
    span: Option<Span>,
}

impl Open {
    fn new(
        recorder: Recorder,
        trace: TraceId,
        parent: Option<SpanId>,
        name: &str,
        kind: i32,
        epoch: Epoch,
    ) -> Option<Self> {
        let start = epoch.now();
        let id = random()?;
        let cut_short = "cut short: its caller has left".to_owned();
        Some(Self {
            recorder,
            epoch,
            trace,
            id,
            span: Some(Span {
                trace_id: trace.to_vec(),
                span_id: id.to_vec(),
                parent_span_id: parent.map_or_else(Vec::new, |id| id.to_vec()),
                name: clipped(name),
                kind,
                start_time_unix_nano: start,
                end_time_unix_nano: start,
                attributes: Vec::new(),
                status: Some(Status::error(cut_short)),
            }),
        })
    }

    fn began_before(&mut self, took: Duration) {
        if let Some(span) = &mut self.span {
            let start = &mut span.start_time_unix_nano;
            *start = start.saturating_sub(clock::nanoseconds(took));
        }
    }

    pub fn say(&mut self, key: &'static str, value: Value) {
        if let Some(span) = &mut self.span {
            span.attributes.push(KeyValue::new(key, value));
        }
    }

    /// The context of the span's work.
    pub fn context(&self) -> Context {
        Context(Some(Arc::new(Place {
            recorder: self.recorder.clone(),
            trace: self.trace,
            span: self.id,
            epoch: self.epoch,
        })))
    }

    async fn during<T, E: Display>(self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let result = self.context().scope(work).await;
        self.end(result.as_ref().err().map(ToString::to_string));
        result
    }

    /// Ends the span, with the error of its work if any.
    pub fn end(mut self, error: Option<String>) {
        if let Some(span) = &mut self.span {
            span.status = error.map(|error| Status::error(clipped(&error)));
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(mut span) = self.span.take() {
            span.end_time_unix_nano = self.epoch.now();
            self.recorder.record(span);
        }
    }
}

/// Bounds a text of unknown length.
fn clipped(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// `None` if the kernel has no random bytes; then no span is made.
fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let length = getrandom(&mut bytes[..], GetRandomFlags::NONBLOCK).ok()?;
    (length == N && bytes != [0; N]).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn recorder(per_million: u32) -> (Recorder, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(8);
        (Recorder::new(queue, per_million), spans)
    }

    fn headers(parent: Option<&'static str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(parent) = parent {
            headers.insert(HEADER, parent.parse().expect("a header"));
        }
        headers
    }

    fn all(spans: &mut mpsc::Receiver<Span>) -> Vec<Span> {
        std::iter::from_fn(|| spans.try_recv().ok()).collect()
    }

    #[tokio::test]
    async fn steps_hang_below_the_call_also_in_another_task_and_the_call_below_its_caller() {
        let (recorder, mut spans) = recorder(0);
        let call = recorder
            .call("call", &headers(Some(PARENT)))
            .expect("sampled");
        let work = async {
            let inner = async { step("inner", async { Ok::<_, String>(()) }).await };
            let _ = step("outer", inner).await;
            let elsewhere = here().scope(step("elsewhere", async { Err::<(), _>("no") }));
            tokio::spawn(elsewhere).await.expect("no panic")
        };
        let _ = call.context().scope(work).await;
        call.end(None);
        let spans = all(&mut spans);
        let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
        assert_eq!(names, ["inner", "outer", "elsewhere", "call"]);
        let [inner, outer, elsewhere, call] = &spans[..] else {
            panic!("four");
        };
        assert_eq!(
            call.parent_span_id,
            [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]
        );
        assert_eq!(
            (&outer.parent_span_id, &elsewhere.parent_span_id),
            (&call.span_id, &call.span_id)
        );
        assert_eq!(inner.parent_span_id, outer.span_id);
        assert_eq!(
            (&elsewhere.status, &outer.status),
            (&Some(Status::error("no".into())), &None)
        );
        assert!(spans.iter().all(|span| span.trace_id == call.trace_id));
        assert!(outer.start_time_unix_nano <= inner.start_time_unix_nano);
        assert!(inner.end_time_unix_nano <= outer.end_time_unix_nano);
    }

    #[tokio::test]
    async fn unsampled_calls_make_no_span() {
        let (off, mut spans) = recorder(0);
        let (on, _) = recorder(MILLION);
        assert!(off.call("call", &headers(None)).is_none());
        assert!(on.call("call", &headers(None)).is_some());
        // The caller's flag decides, either way.
        let not = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        assert!(on.call("call", &headers(Some(not))).is_none());
        let _ = step("alone", async { Ok::<_, String>(()) }).await;
        ended(Duration::ZERO, || panic!("it is not asked for"));
        assert!(all(&mut spans).is_empty());
        let (some, _) = recorder(250_000);
        let sampled = (0..4000).filter(|_| some.call("call", &headers(None)).is_some());
        assert!((700..1300).contains(&sampled.count()));
    }

    #[tokio::test]
    async fn a_span_that_is_dropped_has_an_error_and_a_full_queue_blocks_no_call() {
        let (recorder, mut spans) = recorder(MILLION);
        for _ in 0..20 {
            drop(recorder.call("call", &headers(None)));
        }
        let spans = all(&mut spans);
        assert_eq!(spans.len(), 8);
        assert!(
            spans[0]
                .status
                .as_ref()
                .is_some_and(|s| s.code == 2 && s.message.starts_with("cut short"))
        );
        assert!(spans[0].parent_span_id.is_empty());
    }
}
