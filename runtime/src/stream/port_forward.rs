//! Ports of a pod for one client: each forwarded connection is a pair of streams, one for its bytes
//! and one for its errors. Pairs end independently.
//!
//! client-go closes the entire connection when text comes on any error stream. Therefore only an
//! unreachable port is reported there; a connection that fails later has its stream reset.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::AsyncReadExt as _,
    net::tcp::OwnedReadHalf,
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    dial::dial,
    limits::{CREATION, Limits, cut},
    link::{Input, Link, Output, PIECE},
    pump::feed,
    spdy::Opened,
    wire::{headers::Headers, spdy::Reset},
};
use crate::pod::{record::PodPhase, state::Pod};

/// Streams of one client: half as many forwarded connections.
pub(super) const MAX_STREAMS: usize = 1024;
/// Interval of checks that the pod is still ready: its sockets would keep its network.
const LOOK: Duration = Duration::from_secs(1);

/// An incomplete pair and its deadline.
struct Half {
    until: Instant,
    data: Option<(Input, Output)>,
    error: Option<Output>,
}

/// Forwards until the client leaves.
pub(super) async fn by_spdy(
    link: Link,
    mut opened: mpsc::Receiver<Opened>,
    pod: Arc<Pod>,
    limits: &Limits,
) {
    let mut halves: HashMap<String, Half> = HashMap::new();
    let mut forwards = JoinSet::new();
    {
        let (cut, ended) = (cut(&link, limits), ended(&pod));
        tokio::pin!(cut, ended);
        loop {
            let late = halves.values().map(|half| half.until).min();
            tokio::select! {
                _ = &mut cut => break,
                () = &mut ended => break,
                Some(stream) = opened.recv() => {
                    if let Some((port, id, half)) = pair(&mut halves, stream).await {
                        tracing::debug!(pod = %pod.id, port, request = %id, "forwarding a port");
                        let pod = Arc::clone(&pod);
                        forwards.spawn(async move { forward(&pod, port, half.0, half.1, half.2).await });
                    }
                }
                Some(_) = forwards.join_next() => {}
                () = until(late) => expire(&mut halves).await,
            }
        }
    }
    forwards.shutdown().await;
    link.close(CREATION).await;
}

/// Forwards the n-th port on channels 2n and 2n+1; the first message on each is the port.
pub(super) async fn by_channels(
    link: Link,
    streams: Vec<(Input, Output)>,
    ports: Vec<u16>,
    pod: Arc<Pod>,
    limits: &Limits,
) {
    let mut forwards = JoinSet::new();
    let mut streams = streams.into_iter();
    for port in ports {
        let (Some((input, output)), Some((_, error))) = (streams.next(), streams.next()) else {
            break;
        };
        let pod = Arc::clone(&pod);
        forwards.spawn(async move {
            let first = Bytes::copy_from_slice(&port.to_le_bytes());
            let _ = output.send(first.clone()).await;
            let _ = error.send(first).await;
            forward(&pod, port, input, output, error).await;
        });
    }
    tokio::select! {
        () = async { while forwards.join_next().await.is_some() {} } => {}
        _ = cut(&link, limits) => {}
        () = ended(&pod) => {}
    }
    forwards.shutdown().await;
    link.close(CREATION).await;
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Returns when the pod is no longer ready.
async fn ended(pod: &Pod) {
    while pod.cell.get().phase == PodPhase::Ready {
        tokio::time::sleep(LOOK).await;
    }
}

/// Accepts a stream with complete headers; the second one of a pair completes it.
async fn pair(
    halves: &mut HashMap<String, Half>,
    stream: Opened,
) -> Option<(u16, String, (Input, Output, Output))> {
    let (Some(port), Some(data)) = (port(&stream.headers), is_data(&stream.headers)) else {
        stream.refuse().await;
        return None;
    };
    let id = match stream.headers.get("requestid") {
        Some(id) if !id.is_empty() => id.to_owned(),
        // Very old clients send no ids: the data stream follows its error stream.
        _ if data => stream.id.saturating_sub(2).to_string(),
        _ => stream.id.to_string(),
    };
    let half = halves.entry(id.clone()).or_insert_with(|| Half {
        until: Instant::now() + CREATION,
        data: None,
        error: None,
    });
    if (data && half.data.is_some()) || (!data && half.error.is_some()) {
        stream.refuse().await;
        return None;
    }
    let (input, output) = stream.accept().await;
    if data {
        half.data = Some((input, output));
    } else {
        half.error = Some(output);
    }
    if half.data.is_none() || half.error.is_none() {
        return None;
    }
    let half = halves.remove(&id)?;
    let ((input, output), error) = half.data.zip(half.error)?;
    Some((port, id, (input, output, error)))
}

fn port(headers: &Headers) -> Option<u16> {
    headers.get("port")?.parse().ok().filter(|port| *port > 0)
}

fn is_data(headers: &Headers) -> Option<bool> {
    match headers.get("streamtype")? {
        "data" => Some(true),
        "error" => Some(false),
        _ => None,
    }
}

async fn expire(halves: &mut HashMap<String, Half>) {
    let now = Instant::now();
    let late: Vec<Half> = halves
        .extract_if(|_, half| half.until <= now)
        .map(|(_, half)| half)
        .collect();
    for half in late {
        if let Some((_, output)) = half.data {
            output.reset(Reset::Cancel).await;
        }
        if let Some(error) = half.error {
            let _ = error
                .send("its data stream was not opened in time".into())
                .await;
            error.end().await;
        }
    }
}

/// Forwards one connection, to the end of both directions.
async fn forward(pod: &Pod, port: u16, input: Input, output: Output, error: Output) {
    let stream = match dial(pod, port).await {
        Ok(stream) => stream,
        Err(why) => {
            let _ = error.send(why.into()).await;
            error.end().await;
            return output.reset(Reset::Cancel).await;
        }
    };
    let (reads, writes) = stream.into_split();
    let reset = input.reset();
    let both = async { tokio::join!(feed(input, writes), to_client(reads, &output)) };
    tokio::select! {
        ((), ()) = both => {}
        () = reset.cancelled() => {}
    }
    error.end().await;
}

async fn to_client(mut from: OwnedReadHalf, output: &Output) {
    loop {
        let mut piece = BytesMut::with_capacity(PIECE);
        match from.read_buf(&mut piece).await {
            Ok(0) => return output.end().await,
            Ok(_) => {
                if output.send(piece.freeze()).await.is_err() {
                    return;
                }
            }
            Err(_) => return output.reset(Reset::Cancel).await,
        }
    }
}
