//! The registry of `testkit` in a yard's network, where the daemon finds it.

use std::{fs::File, io, net::TcpListener, os::fd::AsFd, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use testkit::registry::{self, Served};

use crate::{image::Blobs, yard::Yard};

pub use testkit::registry::{Registry, Reply, Request};

/// Serves `images` by `repository:tag` and by digest at an address of the yard, such as
/// `127.0.0.1:5001`. `first` may answer a request before that.
///
/// # Panics
/// If it cannot listen there.
pub fn start(
    yard: &Yard,
    host: &str,
    images: Vec<(&str, Blobs)>,
    first: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
) -> Registry {
    let listener = listen(yard.pid(), host).expect("a listener in the yard");
    let served = images.into_iter().map(|(name, image)| Served {
        name: name.to_owned(),
        manifest: image.manifest,
        blobs: image.blobs,
    });
    registry::Registry::start(listener, served.collect(), first)
}

/// Makes the socket in a thread that enters the yard's network, because a socket keeps its network.
///
/// # Errors
/// The kernel's.
///
/// # Panics
/// Never.
pub fn listen(yard: u32, host: &str) -> io::Result<TcpListener> {
    let network = File::open(format!("/proc/{yard}/ns/net"))?;
    let host = host.to_owned();
    let made = thread::spawn(move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        TcpListener::bind(host)
    });
    made.join().expect("no panic")
}
