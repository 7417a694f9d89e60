//! An in-memory socket whose delays, cuts and half-closes come from a seed.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::rng::Rng;

/// The bytes in transit at which writers wait.
const ROOM: usize = 64 << 10;

/// The faults of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Link {
    pub seed: u64,
    /// The longest delay of bytes in transit.
    pub delay: Duration,
    /// The connection ends after this many bytes in this direction, possibly inside a frame.
    pub cut: Option<(usize, Direction)>,
    /// Only this direction ends; the other stays open.
    pub half: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToPlugin,
    ToRuntime,
}

#[derive(Debug, Default)]
struct Way {
    bytes: VecDeque<(Instant, VecDeque<u8>)>,
    waiting: usize,
    /// No bytes follow the buffered ones.
    ended: bool,
    left: Option<usize>,
}

#[derive(Debug)]
struct Shared {
    ways: [Mutex<Way>; 2],
    /// Per direction: wakes its reader, wakes its writer.
    readable: [Notify; 2],
    writable: [Notify; 2],
    rng: Mutex<Rng>,
    link: Link,
}

/// One end of the socket.
#[derive(Debug)]
pub struct Memory {
    shared: Arc<Shared>,
    reads: usize,
}

impl Memory {
    /// Returns both ends: the runtime's, then the plugin's.
    pub fn pair(link: Link) -> (Self, Self) {
        let way = |direction| {
            let cut = link.cut.filter(|(_, of)| *of == direction);
            Mutex::new(Way {
                left: cut.map(|(bytes, _)| bytes),
                ..Way::default()
            })
        };
        let shared = Arc::new(Shared {
            ways: [way(Direction::ToRuntime), way(Direction::ToPlugin)],
            readable: Default::default(),
            writable: Default::default(),
            rng: Mutex::new(Rng::new(link.seed)),
            link,
        });
        let end = |reads| Self {
            shared: shared.clone(),
            reads,
        };
        (end(0), end(1))
    }

    /// Waits until [`Memory::try_read`] can return bytes.
    pub async fn readable(&self) {
        loop {
            let next = {
                let way = self.shared.ways[self.reads].lock();
                match way.bytes.front() {
                    Some((due, _)) if *due <= Instant::now() => return,
                    Some((due, _)) => Some(*due),
                    None if way.ended => return,
                    None => None,
                }
            };
            match next {
                Some(due) => sleep_until(due).await,
                None => self.shared.readable[self.reads].notified().await,
            }
        }
    }

    /// As [`tokio::net::UnixStream::try_read`].
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut way = self.shared.ways[self.reads].lock();
        let ended = way.ended;
        let read = match way.bytes.front_mut() {
            Some((due, bytes)) if *due <= Instant::now() => {
                let most = bytes.len().min(buffer.len());
                let read = 1 + self.shared.rng.lock().below(most as u64) as usize;
                let pieces = bytes.drain(..read).zip(buffer);
                pieces.for_each(|(byte, place)| *place = byte);
                read
            }
            None if ended => return Ok(0),
            _ => return Err(io::ErrorKind::WouldBlock.into()),
        };
        if way.bytes.front().is_some_and(|(_, bytes)| bytes.is_empty()) {
            way.bytes.pop_front();
        }
        way.waiting -= read;
        self.shared.writable[self.reads].notify_one();
        Ok(read)
    }

    /// Waits until [`Memory::try_write`] can accept bytes.
    pub async fn writable(&self) {
        let to = 1 - self.reads;
        loop {
            let may = {
                let way = self.shared.ways[to].lock();
                way.ended || way.waiting < ROOM
            };
            if may {
                return;
            }
            self.shared.writable[to].notified().await;
        }
    }

    /// As [`tokio::net::UnixStream::try_write`].
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let to = 1 - self.reads;
        let Link { delay, half, .. } = self.shared.link;
        let mut cut = false;
        {
            let mut way = self.shared.ways[to].lock();
            if way.ended {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let room = ROOM.saturating_sub(way.waiting).min(bytes.len());
            if room == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let mut rng = self.shared.rng.lock();
            let mut taken = room;
            if rng.once_in(8) {
                taken = 1 + rng.below(room as u64) as usize;
            }
            if let Some(left) = &mut way.left {
                cut = *left <= taken;
                taken = taken.min(*left);
                *left -= taken;
            }
            let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
            let due = Instant::now() + Duration::from_nanos(rng.below(nanos.max(1)));
            let due = way.bytes.back().map_or(due, |(last, _)| due.max(*last));
            if taken > 0 {
                way.bytes
                    .push_back((due, bytes[..taken].iter().copied().collect()));
                way.waiting += taken;
                self.shared.readable[to].notify_one();
            }
            if !cut {
                return Ok(taken);
            }
        }
        self.shared.end(to);
        if !half {
            self.shared.end(self.reads);
        }
        Err(io::ErrorKind::BrokenPipe.into())
    }

    /// Ends both directions.
    pub fn shutdown(&self) {
        self.shared.end(0);
        self.shared.end(1);
    }
}

impl Shared {
    fn end(&self, way: usize) {
        self.ways[way].lock().ended = true;
        self.readable[way].notify_one();
        self.writable[way].notify_one();
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.shutdown();
    }
}
