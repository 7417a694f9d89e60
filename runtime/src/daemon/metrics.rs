//! Prometheus text on a loopback port, if configured: `GET /metrics`.
//!
//! Connections are bounded in number (`accept.rs`) and in time.

use std::{convert::Infallible, fmt::Write as _, sync::Arc, time::Duration};

use hyper::{Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

use proto_cri::v1 as cri;

use super::calls::Calls;
use crate::{
    accept::{self, Place, time_for_head},
    cri::view,
    pod::pods::Pods,
};

/// A connection is closed after this time in any case.
const LIFETIME: Duration = Duration::from_secs(30);

/// The sources of the metrics, all in memory.
pub struct Sources {
    pub calls: Calls,
    pub pods: Arc<Pods>,
}

impl Sources {
    fn text(&self) -> String {
        let mut text = format!(
            "# TYPE cairn_build_info gauge\ncairn_build_info{{version=\"{}\"}} 1\n",
            env!("CARGO_PKG_VERSION")
        );
        self.objects(&mut text);
        let one = |text: &mut String, name: &str, value: u64| {
            let _ = writeln!(text, "# TYPE {name} gauge\n{name} {value}");
        };
        let pulls = self.pods.node.images.pulls().len() as u64;
        one(&mut text, "cairn_pulls_under_way", pulls);
        let layers = self.pods.node.images.fs_info().used_bytes;
        one(&mut text, "cairn_image_layers_bytes", layers);
        let _ = writeln!(
            text,
            "# TYPE cairn_events_lost_total counter\ncairn_events_lost_total {}",
            self.pods.notices.log.lost()
        );
        text.push_str(&self.calls.render());
        text.push_str(&self.pods.notices.hooks.metrics());
        text
    }

    /// Pods and containers by state, as in the lists of CRI, and held ones.
    fn objects(&self, text: &mut String) {
        use cri::{ContainerState, PodSandboxState};
        let pods = self.pods.registry.pods();
        let pods: Vec<_> = pods
            .iter()
            .map(|pod| view::pod_state(&pod.cell.get()))
            .collect();
        let of = |state| pods.iter().filter(|one| **one == state).count();
        let states = [
            ("ready", of(PodSandboxState::SandboxReady)),
            ("notready", of(PodSandboxState::SandboxNotready)),
        ];
        family(text, "cairn_pods", "state", &states);
        let containers = self.pods.registry.containers();
        let containers: Vec<_> = containers
            .iter()
            .map(|(_, container)| view::container_state(&container.cell.get()))
            .collect();
        let of = |state| containers.iter().filter(|one| **one == state).count();
        let states = [
            ("created", of(ContainerState::ContainerCreated)),
            ("running", of(ContainerState::ContainerRunning)),
            ("exited", of(ContainerState::ContainerExited)),
            ("unknown", of(ContainerState::ContainerUnknown)),
        ];
        family(text, "cairn_containers", "state", &states);
        let held = self.pods.registry.held();
        let kinds = [
            ("sandbox", held.pods.len()),
            ("container", held.containers.len()),
        ];
        family(text, "cairn_held", "kind", &kinds);
    }
}

fn family(text: &mut String, name: &str, label: &str, values: &[(&str, usize)]) {
    let _ = writeln!(text, "# TYPE {name} gauge");
    for (value, count) in values {
        let _ = writeln!(text, "{name}{{{label}=\"{value}\"}} {count}");
    }
}

/// Serves until dropped.
pub async fn serve(listener: TcpListener, sources: Sources) -> Infallible {
    let sources = Arc::new(sources);
    let connection = |stream: TcpStream, peer, place: Place| {
        let sources = Arc::clone(&sources);
        async move {
            let service = service_fn(|request| {
                place.head_read();
                answer(&sources, &request)
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(time_for_head(peer))
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A slow or absent scraper needs no report.
            let _ = timeout(LIFETIME, connection).await;
        }
    };
    accept::serve(listener, "metrics", connection).await
}

fn answer(
    sources: &Sources,
    request: &Request<Incoming>,
) -> std::future::Ready<Result<Response<String>, Infallible>> {
    let (status, text) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, sources.text()),
        _ => (StatusCode::NOT_FOUND, "only /metrics is here\n".to_owned()),
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4");
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, kind);
    std::future::ready(Ok(response))
}
