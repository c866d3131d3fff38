//! What monitoring is served: `/live`, `/ready` and `/metrics` over HTTP; gRPC health and
//! reflection beside the public service. An HTTP connection carries one request, so that none keeps
//! its slot for longer.
//!
//! What holds here: with TLS, `/metrics` is served to a certificate of the cluster only; `/live` and
//! `/ready` to anyone.

use super::incoming::Incoming;
use crate::metrics::Metrics;
use crate::outage::ElectionBlockedState;
use crate::readiness::readiness;
use crate::service::KvService;
use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::IncomingStream;
use cairn_client::proto;
use cairn_client::proto::kv_server::KvServer;
use cairn_raft::Replica;
use cairn_tls::Remote;
use std::sync::Arc;
use std::time::Duration;
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

/// The other end of a connection.
#[derive(Clone)]
pub(super) struct Watcher(Remote);

impl Connected<IncomingStream<'_, Incoming>> for Watcher {
    fn connect_info(stream: IncomingStream<'_, Incoming>) -> Watcher {
        Watcher(stream.io().remote().clone())
    }
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
        .route("/metrics", get(render))
        .layer(map_response(close_after))
        .with_state(Probes { replica, election_blocked_state, metrics, secured })
}

/// Sets the health service to whether the node can serve. Never ends.
pub(super) async fn report_health(
    health: HealthReporter,
    replica: Replica,
    state: ElectionBlockedState,
) {
    loop {
        if readiness(&replica, &state).is_ok() {
            health.set_serving::<KvServer<KvService>>().await;
            health.set_service_status("", ServingStatus::Serving).await;
        } else {
            health.set_not_serving::<KvServer<KvService>>().await;
            health.set_service_status("", ServingStatus::NotServing).await;
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
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response()
        }
    }
}

/// Closes the connection after the answer.
async fn close_after(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn render(
    State(probes): State<Probes>,
    ConnectInfo(Watcher(remote)): ConnectInfo<Watcher>,
) -> Response {
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
