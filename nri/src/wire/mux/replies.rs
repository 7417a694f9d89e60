//! Packs answers into few frames, for a peer with a short queue.
//!
//! Go's mux queues 256 frames for each logical connection and closes everything when one more
//! arrives (NRI-108). A plugin that sends hundreds of calls at once gets as many answers, each a
//! frame of a few bytes. If its mux reads while the goroutine that empties the queue does not run
//! (one processor, a quota, garbage collection), valid answers end the connection. Open calls are
//! bounded; nothing reports that an answer was read. So:
//!
//! - the first [`BURST`] frames, a quarter of that queue, are sent unchanged;
//! - after them one frame may be sent each [`PAUSE`]; answers in between are buffered and sent
//!   together in one frame of at most [`PACKED`] bytes, enough for hundreds;
//! - unused frames accumulate, up to `BURST`.
//!
//! So a plugin may leave its queue unread for 190 ms. The cost: a plugin that sends more than a
//! thousand calls in sequence per second waits a millisecond for each. The plugin side does not
//! need this, because a runtime sends it one event at a time.
//!
//! A frame of at most 4096 bytes may contain several messages, or parts (NRI-110, NRI-111).

use std::{io, time::Duration};

use tokio::time::Instant;

/// Frames that may be sent at once.
pub(super) const BURST: u32 = 64;
/// Time that earns one frame.
const PAUSE: Duration = Duration::from_millis(1);
/// The size a Go reader takes at once at the start of a message.
const PACKED: usize = 4096;

/// The answers of one logical connection. The caller passes the time.
#[derive(Debug)]
pub(super) struct Replies {
    pub(super) id: u32,
    /// Frames that may be sent now.
    frames: u32,
    /// The time up to which `frames` is counted.
    counted: Instant,
    /// Buffered answers, at most one frame.
    held: Vec<u8>,
    /// A writer was blocked and must be woken.
    awaited: bool,
}

impl Replies {
    pub(super) fn new(id: u32, now: Instant) -> Self {
        Self {
            id,
            frames: BURST,
            counted: now,
            held: Vec::new(),
            awaited: false,
        }
    }

    /// Takes one write. False: the writer must retry after [`Replies::release`].
    pub(super) fn put(
        &mut self,
        bytes: &[u8],
        now: Instant,
        mut send: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        self.count(now);
        self.let_go(&mut send)?;
        if self.held.is_empty() && self.frames > 0 {
            self.frames -= 1;
            send(bytes)?;
            return Ok(true);
        }
        if self.held.len() + bytes.len() <= PACKED {
            self.held.extend(bytes);
            return Ok(true);
        }
        self.awaited = true;
        Ok(false)
    }

    /// Sends buffered answers that are due. True: wake the blocked writers.
    pub(super) fn release(
        &mut self,
        now: Instant,
        mut send: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        self.count(now);
        self.let_go(&mut send)?;
        Ok(self.frames > 0 && std::mem::take(&mut self.awaited))
    }

    /// When to call [`Replies::release`], if anything waits.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.awaited || !self.held.is_empty()).then(|| self.counted + PAUSE)
    }

    fn let_go(&mut self, send: &mut impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        if !self.held.is_empty() && self.frames > 0 {
            self.frames -= 1;
            send(&self.held)?;
            self.held.clear();
        }
        Ok(())
    }

    fn count(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.counted).as_micros() / PAUSE.as_micros();
        let fresh = u32::try_from(passed).unwrap_or(u32::MAX).min(BURST);
        self.frames = (self.frames + fresh).min(BURST);
        self.counted = if fresh == BURST {
            now
        } else {
            self.counted + PAUSE * fresh
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes writes at their times; returns the frames with the time of each.
    fn frames(writes: &[(u64, Vec<u8>)]) -> Vec<(u64, Vec<u8>)> {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let since = |now: Instant| u64::try_from((now - start).as_millis()).unwrap();
        let mut replies = Replies::new(2, start);
        let mut out = Vec::new();
        let mut now = start;
        for (ms, bytes) in writes {
            now = now.max(at(*ms));
            loop {
                while let Some(due) = replies.due().filter(|due| *due <= now) {
                    let send = |f: &[u8]| {
                        out.push((since(due), f.to_vec()));
                        Ok(())
                    };
                    replies.release(due, send).unwrap();
                }
                let send = |f: &[u8]| {
                    out.push((since(now), f.to_vec()));
                    Ok(())
                };
                if replies.put(bytes, now, send).unwrap() {
                    break;
                }
                now = replies.due().unwrap();
            }
        }
        while let Some(due) = replies.due() {
            let send = |f: &[u8]| {
                out.push((since(due), f.to_vec()));
                Ok(())
            };
            replies.release(due, send).unwrap();
        }
        out
    }

    fn all(bytes: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Vec<u8> {
        bytes.into_iter().flat_map(|(_, b)| b).collect()
    }

    #[test]
    fn a_few_answers_go_out_as_they_are() {
        let writes: Vec<_> = (0..BURST as u8).map(|n| (0, vec![n; 30])).collect();
        assert_eq!(frames(&writes), writes);
    }

    #[test]
    fn thousands_of_small_answers_at_once_are_few_frames() {
        let writes: Vec<_> = (0..2000u32)
            .map(|n| (0, n.to_be_bytes().to_vec()))
            .collect();
        let out = frames(&writes);
        assert!(out.len() <= BURST as usize + 2, "{} frames", out.len());
        assert!(out.iter().all(|(_, f)| f.len() <= PACKED));
        assert_eq!(all(out), all(writes));
    }

    #[test]
    fn answers_that_trickle_are_one_frame_a_millisecond() {
        let writes: Vec<_> = (0..1500u64).map(|n| (n / 10, vec![7; 30])).collect();
        let out = frames(&writes);
        assert!(out.len() <= BURST as usize + 151, "{} frames", out.len());
        assert_eq!(all(out), all(writes));
    }

    #[test]
    fn long_messages_keep_their_two_frames_and_wait_for_them() {
        // As ttrpc writes: 4096 bytes, then the rest.
        let message = || [(0, vec![1; 4096]), (0, vec![2; 100_000])];
        let writes: Vec<_> = (0..50).flat_map(|_| message()).collect();
        let out = frames(&writes);
        assert_eq!(out.len(), 100);
        let sizes: Vec<_> = out.iter().map(|(_, f)| f.len()).collect();
        assert!(sizes.chunks(2).all(|two| two == [4096, 100_000]));
        assert_eq!(out.last().unwrap().0, 100 - u64::from(BURST));
    }

    #[test]
    fn frames_that_were_not_used_are_saved_up() {
        let burst = |ms| (0..BURST).map(move |_| (ms, vec![3; 30]));
        let writes: Vec<_> = burst(0).chain(burst(64)).collect();
        assert_eq!(frames(&writes), writes);
    }
}
