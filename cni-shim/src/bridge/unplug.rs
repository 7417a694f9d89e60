//! Deletes links without waiting for the kernel's cleanup.
//!
//! The kernel removes a link from its tables within 0.6 to 1.6 ms and sends an event. It answers
//! the request only after an RCU barrier, some 20 ms later. So a thread waits for the answer, and
//! the caller waits for the event or the answer, whichever is first.

use std::io;
use std::sync::mpsc;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::link;
use crate::netlink::{Family, NetlinkError, Socket};

/// Longer than any deletion; equal to the answer's timeout.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// Deletes a link of the thread's network namespace and waits for that. A missing one is fine.
pub(crate) fn delete_link(name: &str) -> Result<(), NetlinkError> {
    let failed = |errno| NetlinkError {
        step: format!("delete link {name}"),
        errno,
    };
    let refused = |error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    let listener = Socket::listen(Family::Route, link::RTMGRP_LINK)?;
    let mut socket = Socket::open(Family::Route)?;
    if link::find(&mut socket, name)?.is_none() {
        return Ok(());
    }
    let (answered, answer) = mpsc::sync_channel(1);
    // The thread closes the writing end when it is done, which wakes the poll.
    let (wake, closed_when_done) = io::pipe().map_err(refused)?;
    let request = link::delete(name);
    thread::Builder::new()
        .name("unplug".into())
        .spawn(move || {
            // Fails if the event came first; the deletion then succeeded.
            let _ = answered.send(socket.run(&[request]));
            drop(closed_when_done);
        })
        .map_err(refused)?;

    let mut listening = true;
    loop {
        let events = if listening {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut sources = [
            PollFd::new(&wake, PollFlags::IN),
            PollFd::new(&listener, events),
        ];
        let ready =
            rustix::io::retry_on_intr(|| poll(&mut sources, Some(&PATIENCE))).map_err(failed)?;
        if ready == 0 {
            return Err(failed(Errno::TIMEDOUT));
        }
        if !sources[0].revents().is_empty() {
            return answer.recv().map_err(|_| failed(Errno::CANCELED))?;
        }
        match listener.next_events() {
            Ok(events) if events.iter().any(|event| link::is_gone(event, name)) => return Ok(()),
            Ok(_) => {}
            // Events were lost under load: wait for the answer alone.
            Err(error) if error.errno == Errno::NOBUFS => listening = false,
            Err(error) => return Err(error),
        }
    }
}
