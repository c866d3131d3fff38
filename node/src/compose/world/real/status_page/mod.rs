//! The status page of a node: for a person who asks whether the cluster is well, and what it does.
//!
//! What holds here:
//! - It is served to whoever is served `/metrics` and may ask for the status at the client port: with
//!   TLS to a certificate of the cluster that has a role, without TLS to anyone while there are no
//!   roles, and to a token otherwise.
//! - Addresses and operators' calls, which `/metrics` does not have, are shown with TLS, and without it
//!   only where the port listens on loopback and the reader asked for it by a name of loopback. Such a
//!   name is what a foreign page cannot have that makes its own name lead there.
//! - No key, no value and no secret is shown. Nothing can be changed.
//! - Every answer is bounded, and no browser keeps it.

mod known;
mod page;
mod snapshot;

use crate::access::credentials::Credentials;
use crate::access::{AccessTable, Need};
use crate::metrics::{Method, Metrics};
use crate::service::{KvService, Parts};
use axum::Router;
use axum::extract::{FromRequestParts, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, request};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cairn_raft::Replica;
use cairn_tls::Remote;
use known::Moment;
use snapshot::{ANSWER_BYTES, Known, Requests, Snapshot};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const HTML_CONTENT: &str = "text/html; charset=utf-8";
const JSON_CONTENT: &str = "application/json";

/// What the port is that serves the page.
#[derive(Clone, Copy)]
pub(super) struct Port {
    /// Its connections have TLS.
    pub(super) secured: bool,
    /// Only this machine reaches it.
    pub(super) loopback: bool,
}

/// What the page is made of.
#[derive(Clone)]
pub(super) struct StatusPage {
    service: KvService,
    replica: Replica,
    metrics: Arc<Metrics>,
    access: AccessTable,
    port: Port,
    /// A member that did not answer a leader for so long does not answer.
    silence: Duration,
}

impl StatusPage {
    pub(super) fn new(parts: &Parts, service: KvService, port: Port) -> StatusPage {
        StatusPage {
            service,
            replica: parts.replica.clone(),
            metrics: Arc::clone(&parts.metrics),
            access: parts.access.clone(),
            port,
            // As `/ready` waits for a majority.
            silence: parts.config.timing.election_max * 2,
        }
    }

    /// The routes.
    pub(super) fn routes(self) -> Router {
        Router::new()
            .route("/", get(shown))
            .route("/status", get(shown))
            .route("/status.json", get(told))
            .layer(map_response(guarded))
            .with_state(self)
    }

    /// Who sends this request.
    ///
    /// # Errors
    /// Why this reader sees nothing.
    fn reader(&self, request: &request::Parts) -> Result<Reader, String> {
        let Port { secured, loopback } = self.port;
        let remote = request.extensions.get::<Remote>();
        if secured && remote.is_none_or(|remote| remote.certificate.is_none()) {
            return Err(
                "the status needs a certificate of this cluster: `cairn certs issue DIR --client NAME`"
                    .into(),
            );
        }
        let headers = &request.headers;
        let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let credentials = Credentials::presented(&request.extensions, authorization);
        let identity = self.access.identify(&credentials).map_err(|denied| denied.to_string())?;
        identity.may(Need::AnyRole).map_err(|denied| denied.to_string())?;
        Ok(Reader { private: secured || (loopback && names_loopback(headers)) })
    }

    async fn snapshot(&self, Reader { private }: Reader) -> Snapshot {
        let (Moment { own, followers, .. }, report) =
            known::looked(|| self.look(), self.silence).await;
        Snapshot::of(Known {
            own,
            report,
            followers,
            applied_lag: self.replica.applied_lag(),
            requests: Requests {
                write: self.metrics.answered(Method::Write),
                get: self.metrics.answered(Method::Get),
                list: self.metrics.answered(Method::List),
            },
            latencies: self.replica.engine().latencies(),
            private,
        })
    }

    fn look(&self) -> Moment {
        Moment {
            own: self.service.told(),
            followers: self.replica.followers(),
            led: self.replica.leads_for(),
            heard: self.replica.heard_leader_within(self.silence),
        }
    }
}

/// Somebody who may see the status. A handler that takes one is not called for others.
struct Reader {
    /// Whether addresses and operators' calls are shown, too.
    private: bool,
}

impl FromRequestParts<StatusPage> for Reader {
    type Rejection = (StatusCode, String);

    async fn from_request_parts(
        request: &mut request::Parts,
        status: &StatusPage,
    ) -> Result<Reader, Self::Rejection> {
        status.reader(request).map_err(|why| (StatusCode::FORBIDDEN, format!("{why}\n")))
    }
}

async fn shown(State(status): State<StatusPage>, reader: Reader) -> Response {
    let mut response = bounded(HTML_CONTENT, page::html(&status.snapshot(reader).await));
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, page::POLICY.clone());
    response
}

async fn told(State(status): State<StatusPage>, reader: Reader) -> Response {
    match serde_json::to_string(&status.snapshot(reader).await) {
        Ok(text) => bounded(JSON_CONTENT, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

fn bounded(content: &'static str, text: String) -> Response {
    if text.len() > ANSWER_BYTES {
        let why = format!(
            "the answer would have {} bytes, and may have {ANSWER_BYTES}: ask `cairn status`\n",
            text.len()
        );
        return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    }
    ([(header::CONTENT_TYPE, content)], text).into_response()
}

/// Whether the reader asked for this port by a name that no other machine has.
fn names_loopback(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(host) = host.and_then(|host| host.parse::<Authority>().ok()) else { return false };
    let name = host.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Says to browsers what they may do with an answer: show it once, with what it brings along.
async fn guarded(mut response: Response) -> Response {
    let resource_policy = HeaderName::from_static("cross-origin-resource-policy");
    let headers = response.headers_mut();
    let nothing = HeaderValue::from_static("default-src 'none'");
    // The page has a policy of its own.
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(nothing);
    headers.extend([
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // No page of another origin may take an answer in.
        (resource_policy, HeaderValue::from_static("same-origin")),
    ]);
    response
}

#[cfg(test)]
mod tests;
