//! What monitoring is served: `/live`, `/ready`, `/safe-to-stop` and `/metrics` over HTTP, beside the
//! status page (`status_page`); gRPC health and reflection beside the public service. An HTTP connection
//! carries one request, so that none keeps its slot for longer.
//!
//! What holds here:
//! - With TLS, `/metrics` is served to a certificate of the cluster only; the others to anyone.
//! - No request waits for another one's handler. A handler ends with its connection: when the client
//!   has gone away, when a new connection takes the slot, or after [`REQUEST_TIME`].

use super::incoming::{Connection, Incoming};
use crate::metrics::{Format, Metrics};
use crate::outage::ElectionBlockedState;
use crate::readiness::readiness;
use crate::service::KvService;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use cairn_client::proto;
use cairn_client::proto::kv_server::KvServer;
use cairn_client::shown;
use cairn_raft::Replica;
use cairn_tls::Remote;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

const OPENMETRICS: &str = "application/openmetrics-text";
const OPENMETRICS_CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT_CONTENT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How often the health service checks the replica.
const HEALTH_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Clone)]
struct Probes {
    replica: Replica,
    election_blocked_state: ElectionBlockedState,
    metrics: Arc<Metrics>,
    secured: bool,
}

/// How long a connection may last: for its request to arrive, and its answer to be taken.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(5);

/// The most bytes of a request, whose paths are short and whose content nobody reads.
const REQUEST_BYTES: usize = 16 << 10;

/// Serves each connection for a limited time. Never ends.
pub(super) async fn serve(mut incoming: Incoming, router: Router) {
    loop {
        let connection = incoming.next().await;
        let router = router.clone();
        tokio::spawn(tokio::time::timeout(REQUEST_TIME, answer(connection, router)));
    }
}

/// Answers one request, in HTTP/1 alone: a connection of HTTP/2 carries many.
async fn answer(connection: Connection, router: Router) -> hyper::Result<()> {
    let router = router.layer(Extension(connection.remote().clone()));
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(REQUEST_BYTES);
    http.serve_connection(TokioIo::new(connection), TowerToHyperService::new(router)).await
}

/// The routes, and those of the status page.
pub(super) fn router(
    replica: Replica,
    election_blocked_state: ElectionBlockedState,
    metrics: Arc<Metrics>,
    secured: bool,
    page: Router,
) -> Router {
    let probes: Router = Router::new()
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/safe-to-stop", get(stoppable))
        .route("/metrics", get(render))
        .with_state(Probes { replica, election_blocked_state, metrics, secured });
    probes.merge(page).layer(map_response(close_after))
}

/// Sets the health service to whether the node can serve, when that has changed: each time is a
/// message to everyone who watches it. Never ends.
pub(super) async fn report_health(
    health: HealthReporter,
    replica: Replica,
    state: ElectionBlockedState,
) {
    let mut told = None;
    loop {
        let now = match readiness(&replica, &state) {
            Ok(()) => ServingStatus::Serving,
            Err(_) => ServingStatus::NotServing,
        };
        if told.replace(now) != Some(now) {
            health.set_service_status(KvServer::<KvService>::NAME, now).await;
            health.set_service_status("", now).await;
        }
        tokio::time::sleep(HEALTH_INTERVAL).await;
    }
}

/// The reflection service: it describes what the client address serves.
pub(super) fn reflection()
-> Result<ServerReflectionServer<impl ServerReflection>, tonic_reflection::server::Error> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
}

/// Answers while the process runs: restart it if it does not. A node that stopped because of its
/// disk still answers 200, because a restart would stop it for the same reason.
async fn live() -> &'static str {
    "live\n"
}

async fn ready(State(probes): State<Probes>) -> Response {
    match readiness(&probes.replica, &probes.election_blocked_state) {
        Ok(()) => "ready\n".into_response(),
        Err(why) => {
            // Other members wrote part of it.
            let why = shown::one_line(&why);
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response()
        }
    }
}

/// Whether this member may be stopped, or with `?slot=N` the member of that slot.
async fn stoppable(State(probes): State<Probes>, uri: Uri) -> Response {
    let Ok(slot) = slot_of(uri.query().unwrap_or_default()) else {
        let why = "expected /safe-to-stop, or /safe-to-stop?slot=N with a slot from 1 to 65535\n";
        return (StatusCode::BAD_REQUEST, why).into_response();
    };
    match safe_to_stop(&probes.replica, slot).await {
        Ok(()) => "safe to stop\n".into_response(),
        Err(why) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("not safe to stop: {why}\n")).into_response()
        }
    }
}

/// Whether the member of this slot, or this member, may be stopped now, all others running on.
///
/// # Errors
/// Why not, or why nobody can tell.
async fn safe_to_stop(replica: &Replica, slot: Option<u16>) -> Result<(), String> {
    let verdicts = replica.stop_verdicts().await?;
    let asked = verdicts.iter().filter(|verdict| match slot {
        Some(slot) => verdict.member.slot() == slot,
        None => verdict.member == replica.node_id(),
    });
    let asked: Vec<_> = asked.collect();
    if let Some(slot) = slot.filter(|_| asked.is_empty()) {
        return Err(format!("slot {slot} has no member"));
    }
    // Nobody needs a node that is no member.
    let obstacles: Vec<&str> =
        asked.iter().flat_map(|verdict| &verdict.obstacles).map(String::as_str).collect();
    if obstacles.is_empty() { Ok(()) } else { Err(obstacles.join("; ")) }
}

/// The slot that a query names.
fn slot_of(query: &str) -> Result<Option<u16>, ()> {
    if query.is_empty() {
        return Ok(None);
    }
    let slot = query.strip_prefix("slot=").and_then(|slot| slot.parse().ok());
    slot.filter(|slot| *slot > 0).map(Some).ok_or(())
}

/// Closes the connection after the answer.
async fn close_after(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// In OpenMetrics for those who accept it, such as Prometheus; else in its older text format.
async fn render(
    State(probes): State<Probes>,
    Extension(remote): Extension<Remote>,
    headers: HeaderMap,
) -> Response {
    if probes.secured && remote.certificate.is_none() {
        let why =
            "/metrics needs a certificate of this cluster: `cairn certs issue DIR --client NAME`\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let accepts = headers.get_all(header::ACCEPT).iter();
    let mut accepts = accepts.filter_map(|value| value.to_str().ok());
    let (format, content) = match accepts.any(|value| value.contains(OPENMETRICS)) {
        true => (Format::OpenMetrics, OPENMETRICS_CONTENT),
        false => (Format::Text, TEXT_CONTENT),
    };
    match probes.metrics.render(format) {
        Ok(text) => ([(header::CONTENT_TYPE, content)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::time::Instant;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    /// Longer than anything takes. It only turns a hang into a failure.
    const WAIT_LIMIT: Duration = Duration::from_secs(180);

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(WAIT_LIMIT, future).await.expect("it does not hang")
    }

    /// Says when it is dropped.
    struct Handler(UnboundedSender<&'static str>);

    impl Drop for Handler {
        fn drop(&mut self) {
            self.0.send("dropped").ok();
        }
    }

    async fn endless(State(events): State<UnboundedSender<&'static str>>) -> &'static str {
        events.send("begun").ok();
        let _handler = Handler(events);
        std::future::pending().await
    }

    /// Serves `/live` and `/endless`, and tells what becomes of the handler of the latter.
    fn routes() -> (Router, UnboundedReceiver<&'static str>) {
        let (sender, events) = unbounded_channel();
        let router = Router::new().route("/live", get(live)).route("/endless", get(endless));
        (router.with_state(sender), events)
    }

    async fn port(most: usize) -> (Incoming, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        (Incoming::new(listener, ("tests", "none"), most, 1, REQUEST_TIME), address)
    }

    async fn ask(address: SocketAddr, path: &str) -> TcpStream {
        let mut client = TcpStream::connect(address).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: tested\r\n\r\n");
        client.write_all(request.as_bytes()).await.expect("sent");
        client
    }

    #[tokio::test]
    async fn a_handler_that_does_not_end_keeps_no_other_request_waiting() {
        let (incoming, address) = port(2).await;
        let (router, mut events) = routes();
        tokio::spawn(serve(incoming, router));
        let asked = Instant::now();
        let _endless = ask(address, "/endless").await;
        assert_eq!(soon(events.recv()).await, Some("begun"));
        let mut answer = String::new();
        let mut client = ask(address, "/live").await;
        soon(client.read_to_string(&mut answer)).await.expect("answered");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // For as long as a request may take.
        assert!(events.try_recv().is_err() || asked.elapsed() >= REQUEST_TIME, "it goes on");
    }

    #[tokio::test]
    async fn a_client_that_goes_away_ends_its_handler_and_frees_its_slot() {
        let (mut incoming, address) = port(1).await;
        let (router, mut events) = routes();
        let client = ask(address, "/endless").await;
        let answering = tokio::spawn(answer(incoming.next().await, router));
        assert_eq!(soon(events.recv()).await, Some("begun"));
        drop(client);
        assert_eq!(soon(events.recv()).await, Some("dropped"));
        soon(answering).await.expect("no panic").expect_err("nobody took an answer");
        // A port without a free slot closes it.
        let _next = ask(address, "/live").await;
        soon(incoming.next()).await;
    }

    /// It sent more than its request. Nobody reads on, so the end of the client would not be seen.
    #[tokio::test]
    async fn a_connection_that_makes_way_ends_its_handler() {
        let (incoming, address) = port(1).await;
        let mut incoming = incoming.yielding();
        let (router, mut events) = routes();
        let mut client = ask(address, "/endless").await;
        client.write_all(b"more").await.expect("sent");
        tokio::spawn(answer(incoming.next().await, router));
        assert_eq!(soon(events.recv()).await, Some("begun"));
        let _next = ask(address, "/live").await;
        soon(incoming.next()).await;
        assert_eq!(soon(events.recv()).await, Some("dropped"));
    }
}
