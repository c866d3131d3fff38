//! HTTP for machines that watch: `/live`, `/ready`, `/metrics`. Real builds only. A connection carries one request, so that none
//! keeps its place for longer.

use crate::metrics::Metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cairn_engine::Standing;
use cairn_raft::Replica;
use std::sync::Arc;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone)]
struct Watched {
    replica: Replica,
    metrics: Arc<Metrics>,
}

/// The routes.
pub(super) fn router(replica: Replica, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/metrics", get(render))
        .layer(map_response(last))
        .with_state(Watched { replica, metrics })
}

/// Whether the node can serve: `Err` says why not.
pub(super) fn readiness(replica: &Replica) -> Result<(), String> {
    let status = replica.status();
    match status.stopped_reason.or_else(|| replica.engine().status().failed).or_else(|| replica.outcast()) {
        Some(why) => Err(format!("stopped: {why}")),
        None if status.standing == Standing::Recovering => {
            Err("recovering: brought up to date by a leader".into())
        }
        None if !replica.votes() => Err("joining: not a voter of the cluster yet".into()),
        None if status.leader.is_none() => Err("no leader is known".into()),
        None => Ok(()),
    }
}

/// The process answers; restart it if it does not. A node that stopped for its disk's sake is not restarted into the
/// same trouble, so this stays 200.
async fn live() -> &'static str {
    "live\n"
}

async fn ready(State(watched): State<Watched>) -> Response {
    match readiness(&watched.replica) {
        Ok(()) => "ready\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response(),
    }
}

/// Ends the connection behind the answer.
async fn last(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn render(State(watched): State<Watched>) -> Response {
    match watched.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
