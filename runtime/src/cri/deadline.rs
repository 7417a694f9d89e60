//! A caller's deadline (`grpc-timeout`). The call ends with DEADLINE_EXCEEDED, the code that the
//! client itself reports if its clock is first (CRI-006).
//!
//! tonic's timer would answer CANCELLED. It never does: this deadline is earlier, and each poll
//! checks the clock, including the polls that tonic's timer causes.

use std::{convert::Infallible, future::Future, pin::pin, task::Poll, time::Duration};

use tokio::time::{Instant, sleep_until};
use tonic::{
    body::Body,
    codegen::http::{HeaderMap, Response},
};

use super::status::overdue;

const HEADER: &str = "grpc-timeout";

type Answer = Result<Response<Body>, Infallible>;

/// Ends the call with its caller's error after [`allowed`]. The time starts with this call.
pub fn in_time(
    allowed: Option<Duration>,
    call: impl Future<Output = Answer>,
) -> impl Future<Output = Answer> {
    let deadline = allowed.map(|allowed| (Instant::now() + allowed, allowed));
    async move {
        let Some((deadline, allowed)) = deadline else {
            return call.await;
        };
        match before(deadline, call).await {
            Some(answer) => answer,
            None => Ok(overdue(allowed).into_http()),
        }
    }
}

/// The result of `work`, if it is ready before `deadline`; otherwise `work` is dropped.
async fn before<F: Future>(deadline: Instant, work: F) -> Option<F::Output> {
    let (mut work, mut timer) = (pin!(work), pin!(sleep_until(deadline)));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(answer) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        // Always polls the timer, because it wakes this task.
        let over = timer.as_mut().poll(cx).is_ready() || Instant::now() >= deadline;
        if over {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// gRPC's form: at most eight digits and a unit. Malformed values are ignored, as in tonic.
pub fn allowed(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, text.parse().expect("a header's value"));
        allowed(&headers)
    }

    #[test]
    fn a_deadline_is_read_as_grpc_writes_it() {
        assert_eq!(parsed("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(parsed("3M"), Some(Duration::from_secs(180)));
        assert_eq!(parsed("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(parsed("998534u"), Some(Duration::from_micros(998_534)));
        assert_eq!(parsed("1m"), Some(Duration::from_millis(1)));
        assert_eq!(parsed("7n"), Some(Duration::from_nanos(7)));
        for bad in ["", "S", "+1S", "1", "1x", "123456789S", "1 S"] {
            assert_eq!(parsed(bad), None, "{bad:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_done_in_time_is_answered_and_what_is_late_is_dropped() {
        let late = || Instant::now() + Duration::from_secs(1);
        assert_eq!(before(late(), async { 7 }).await, Some(7));
        let start = Instant::now();
        assert_eq!(before(late(), std::future::pending::<()>()).await, None);
        assert_eq!(start.elapsed().as_secs(), 1);
    }

    /// The other timer of the same length wakes the task, and this one has not fired yet.
    #[tokio::test]
    async fn a_poll_after_the_deadline_finds_it_over_whoever_woke_it() {
        let deadline = Instant::now() + Duration::from_millis(500);
        let mut call = Box::pin(before(deadline, std::future::pending::<()>()));
        let mut polls = 0;
        let answer = std::future::poll_fn(|cx| {
            polls += 1;
            let first = call.as_mut().poll(cx);
            if polls == 1 {
                assert!(first.is_pending());
                // Blocks the only thread of the runtime: no timer can fire in between.
                std::thread::sleep(Duration::from_millis(600));
                return call.as_mut().poll(cx);
            }
            first
        })
        .await;
        assert_eq!((answer, polls), (None, 1));
    }
}
