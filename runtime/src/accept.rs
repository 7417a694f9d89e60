//! Accepts clients of listeners. An error of accept neither ends the daemon nor makes it spin: with
//! a full descriptor table, the next attempt waits.
//!
//! Every user of the host, and every container in the daemon's network namespace, may connect to a
//! TCP port, but cannot lock the others out: connections are bounded in two stages, and in a full
//! stage a new connection evicts the oldest.
//! ```text
//!  accept ──► without head ── Place::head_read ──► with head ── Place dropped ──► ended, or
//!             512, each 2 s                        32                             a session
//! ```

use std::{
    collections::BTreeMap, convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration,
};

use futures_util::stream::{Stream, unfold};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::{net::Listener, sync::CancellationToken};

/// Pause after an error of accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections with an unread request. A local client's arrives within 1 ms, before this many
/// others.
const WITHOUT_HEAD: usize = 512;
/// Connections being answered.
const WITH_HEAD: usize = 32;

/// The next client; `name` is the listener's name in the log.
pub async fn next<L: Listener>(listener: &mut L, name: &str) -> (L::Io, L::Addr) {
    loop {
        match listener.accept().await {
            Ok(client) => return client,
            Err(error) => {
                tracing::warn!(%error, "{name}: accept: retrying in {PAUSE:?}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Clients of a Unix socket, one at a time.
pub fn clients(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    unfold(listener, async |mut listener| {
        let (client, _) = next(&mut listener, "CRI socket").await;
        Some((Ok(client), listener))
    })
}

/// Passes each client of a TCP port to `serve`, in a task that ends when its place is evicted. Runs
/// until dropped; served connections then continue.
pub async fn serve<F>(
    mut listener: TcpListener,
    name: &'static str,
    serve: impl Fn(TcpStream, SocketAddr, Place) -> F,
) -> Infallible
where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::<Places>::default();
    loop {
        let (stream, peer) = next(&mut listener, name).await;
        let (place, evicted) = places.enter();
        let served = serve(stream, peer, place);
        tokio::spawn(evicted.run_until_cancelled_owned(served));
    }
}

/// Timeout for a request's head, and for a TLS handshake. Over a network a packet may be lost three
/// times, and is sent again after 1, 2 and 4 s.
pub fn time_for_head(peer: SocketAddr) -> Duration {
    if peer.ip().to_canonical().is_loopback() {
        Duration::from_secs(2)
    } else {
        Duration::from_secs(10)
    }
}

#[derive(Default)]
struct Places(Mutex<Stages>);

#[derive(Default)]
struct Stages {
    next: u64,
    without_head: Stage,
    with_head: Stage,
}

/// Connections by their number, oldest first.
#[derive(Default)]
struct Stage(BTreeMap<u64, CancellationToken>);

impl Stage {
    fn insert(&mut self, most: usize, number: u64, evict: CancellationToken) {
        if self.0.len() >= most
            && let Some((_, oldest)) = self.0.pop_first()
        {
            oldest.cancel();
        }
        self.0.insert(number, evict);
    }
}

impl Places {
    fn enter(self: &Arc<Self>) -> (Place, CancellationToken) {
        let evict = CancellationToken::new();
        let mut stages = self.0.lock();
        let number = stages.next;
        stages.next += 1;
        let stage = &mut stages.without_head;
        stage.insert(WITHOUT_HEAD, number, evict.clone());
        drop(stages);
        let places = Arc::clone(self);
        (Place { places, number }, evict)
    }
}

/// The place of a bounded connection; dropping it frees the place.
pub struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Place {
    /// Moves to the second stage: the request was read.
    pub fn head_read(&self) {
        let mut stages = self.places.0.lock();
        if let Some(evict) = stages.without_head.0.remove(&self.number) {
            stages.with_head.insert(WITH_HEAD, self.number, evict);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut stages = self.places.0.lock();
        stages.without_head.0.remove(&self.number);
        stages.with_head.0.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_without_a_head_is_evicted_first_and_one_with_a_head_stays() {
        let places = Arc::<Places>::default();
        let (answered, answered_evicted) = places.enter();
        answered.head_read();
        let mut all: Vec<_> = (0..WITHOUT_HEAD).map(|_| places.enter()).collect();
        assert!(all.iter().all(|(_, evicted)| !evicted.is_cancelled()));
        all.push(places.enter());
        let evicted: Vec<_> = all.iter().map(|(_, e)| e.is_cancelled()).collect();
        assert!(evicted[0] && !evicted[1..].contains(&true));
        // A freed place makes room.
        drop(all.pop());
        let (_place, _) = places.enter();
        assert!(!all[1].1.is_cancelled() && !answered_evicted.is_cancelled());
    }

    #[test]
    fn connections_that_are_answered_are_bounded_and_the_oldest_is_evicted_first() {
        let places = Arc::<Places>::default();
        let all: Vec<_> = (0..=WITH_HEAD).map(|_| places.enter()).collect();
        for (place, _) in &all {
            place.head_read();
        }
        let evicted = all.iter().map(|(_, e)| e.is_cancelled());
        let expected = (0..=WITH_HEAD).map(|n| n == 0);
        assert!(evicted.eq(expected));
        drop(all);
        let stages = places.0.lock();
        assert!(stages.with_head.0.is_empty() && stages.without_head.0.is_empty());
    }

    #[test]
    fn a_client_on_this_machine_has_less_time_than_one_behind_a_network() {
        let time = |peer: &str| time_for_head(peer.parse().expect("an address")).as_secs();
        assert_eq!(time("127.0.0.9:1"), 2);
        assert_eq!(time("[::1]:1"), 2);
        assert_eq!(time("[::ffff:127.0.0.1]:1"), 2);
        assert_eq!(time("10.0.0.1:1"), 10);
    }
}
