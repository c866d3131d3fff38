//! What monitoring is served: `/live`, `/ready`, `/safe-to-stop` and `/metrics` over HTTP; gRPC health and
//! reflection beside the public service. An HTTP connection carries one request, so that none keeps
//! its slot for longer.
//!
//! What holds here: with TLS, `/metrics` is served to a certificate of the cluster only; the others to
//! anyone.

use super::incoming::{Connection, Incoming};
use crate::metrics::Metrics;
use crate::outage::ElectionBlockedState;
use crate::readiness::readiness;
use crate::service::KvService;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
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

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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

/// The routes.
pub(super) fn router(
    replica: Replica,
    election_blocked_state: ElectionBlockedState,
    metrics: Arc<Metrics>,
    secured: bool,
) -> Router {
    Router::new()
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/safe-to-stop", get(stoppable))
        .route("/metrics", get(render))
        .layer(map_response(close_after))
        .with_state(Probes { replica, election_blocked_state, metrics, secured })
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

async fn render(State(probes): State<Probes>, Extension(remote): Extension<Remote>) -> Response {
    if probes.secured && remote.certificate.is_none() {
        let why =
            "/metrics needs a certificate of this cluster: `cairn certs issue DIR --client NAME`\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    match probes.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
