//! Reads the HTTP port of a node (`listen.http`): `/metrics`, `/ready`, `/status.json`.
//!
//! What holds here: with the certificates of the client port's options the connection is TLS, and only a
//! member of the cluster is believed. A token is sent as to the client port. An answer has a bound in time
//! and bytes, and what an error shows of it can do nothing to a terminal.

use super::exit::UsageError;
use anyhow::{Context, bail};
use axum::body::{Body, to_bytes};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Request, StatusCode, header};
use cairn_client::shown;
use cairn_tls::{Tls, connect_http};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::time::Duration;

/// The most bytes of an answer's head.
const HEAD_BYTES: usize = 32 << 10;
/// How much of an answer an error shows.
const EXCERPT_BYTES: usize = 300;

/// `host:port` of an HTTP port, for the parser of the command line.
///
/// # Errors
/// A sentence that says what was expected.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let parsed = text.parse::<Authority>().ok();
    let is_one = |found: &Authority| found.port_u16().is_some() && !text.contains('@');
    match parsed.filter(is_one) {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected host:port, as `listen.http` has it, without http://".into()),
    }
}

/// Asks HTTP ports.
pub(crate) struct HttpReader {
    tls: Option<Tls>,
    authorization: Option<HeaderValue>,
    limit: Duration,
}

/// What a node answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// As it came. Whoever shows it makes it safe to print.
    pub(crate) text: String,
}

impl Answer {
    /// The text of a good answer.
    ///
    /// # Errors
    /// What a node says that refuses.
    pub(crate) fn good(self) -> anyhow::Result<String> {
        match self.status.is_success() {
            true => Ok(self.text),
            false => bail!("it answers {}: {}", self.status, excerpt(&self.text)),
        }
    }
}

impl HttpReader {
    /// With these certificates and this token, if any. Each answer may take so long.
    ///
    /// # Errors
    /// The token cannot be one.
    pub(crate) fn new(
        tls: Option<Tls>,
        token: Option<&str>,
        limit: Duration,
    ) -> Result<HttpReader, UsageError> {
        let header = |token: &str| -> Result<HeaderValue, UsageError> {
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))
                .map_err(|_| UsageError("the token has characters that no token has".into()))?;
            value.set_sensitive(true);
            Ok(value)
        };
        Ok(HttpReader { tls, authorization: token.map(header).transpose()?, limit })
    }

    /// Asks for a path, and takes at most so many bytes of the answer's text. May be cancelled.
    ///
    /// # Errors
    /// Why there is no answer, with the address.
    pub(crate) async fn get(
        &self,
        address: &str,
        path: &str,
        most_bytes: usize,
    ) -> anyhow::Result<Answer> {
        let asked = tokio::time::timeout(self.limit, self.ask(address, path, most_bytes)).await;
        let answer = asked.unwrap_or_else(|_| bail!("no answer within {:?}", self.limit));
        answer.with_context(|| format!("http port {address}, {path}"))
    }

    async fn ask(&self, address: &str, path: &str, most_bytes: usize) -> anyhow::Result<Answer> {
        let stream = connect_http(self.tls.as_ref(), address).await?;
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .handshake::<_, Body>(TokioIo::new(stream))
            .await?;
        // It ends with the sender, or with the node's end.
        let connection = tokio::spawn(connection);
        let mut request = Request::get(path).header(header::HOST, address);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let asked = sender.send_request(request.body(Body::empty())?).await;
        let response = asked.with_context(|| self.hint())?;
        let status = response.status();
        let text = to_bytes(Body::new(response.into_body()), most_bytes).await;
        let text = text.with_context(|| format!("no answer of at most {most_bytes} bytes"))?;
        connection.abort();
        Ok(Answer { status, text: String::from_utf8_lossy(&text).into_owned() })
    }

    /// What a port that speaks something else is often lacking.
    fn hint(&self) -> &'static str {
        match self.tls {
            Some(_) => "it does not answer over TLS",
            None => {
                "it does not answer in plain HTTP; if it has TLS, give --tls-ca, --tls-certificate and --tls-key"
            }
        }
    }
}

fn excerpt(text: &str) -> String {
    shown::excerpt(&shown::one_line(text.trim()), EXCERPT_BYTES).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Longer than anything takes. It only turns a hang into a failure.
    const LIMIT: Duration = Duration::from_secs(180);

    /// A port that gives one connection this answer, and then tells what was asked.
    async fn answers(answer: &'static str) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let serving = tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.expect("a client");
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(client.read_u8().await.expect("a request"));
            }
            client.write_all(answer.as_bytes()).await.expect("sent");
            String::from_utf8(asked).expect("text")
        });
        (address, serving)
    }

    #[tokio::test]
    async fn a_path_is_asked_for_with_the_token_and_its_text_is_returned() {
        let said = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nready\n";
        let (address, asked) = answers(said).await;
        let reader = HttpReader::new(None, Some("secret\n"), LIMIT).expect("a token");
        let answer = reader.get(&address, "/ready", 100).await.expect("an answer");
        assert_eq!(answer.good().expect("good"), "ready\n");
        let asked = asked.await.expect("asked").to_lowercase();
        assert!(asked.starts_with("get /ready http/1.1\r\n"), "{asked}");
        assert!(asked.contains("authorization: bearer secret\r\n"), "{asked}");
        assert!(asked.contains(&format!("host: {address}\r\n")), "{asked}");
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_or_a_refusal_is_an_error_that_a_terminal_can_take() {
        let said = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nready\n";
        let reader = HttpReader::new(None, None, LIMIT).expect("no token");
        let (address, _asked) = answers(said).await;
        let error = format!("{:#}", reader.get(&address, "/ready", 5).await.expect_err("too long"));
        assert!(error.contains("at most 5 bytes") && error.contains(&address), "{error}");
        let said = "HTTP/1.1 403 Forbidden\r\ncontent-length: 8\r\n\r\nno\u{1b}[2J\nx";
        let (address, _asked) = answers(said).await;
        let answer = reader.get(&address, "/metrics", 100).await.expect("an answer");
        let error = answer.good().expect_err("refused").to_string();
        assert!(error.contains("403") && error.contains(r"no\u{1b}[2J\nx"), "{error}");
        let (address, _asked) = answers("\u{15}\u{3}\u{3}").await;
        let error = format!("{:#}", reader.get(&address, "/", 100).await.expect_err("no HTTP"));
        assert!(error.contains("--tls-ca"), "{error}");
    }

    #[test]
    fn an_address_has_a_host_and_a_port_and_nothing_else() {
        for good in ["127.0.0.1:7402", "n1.example:80", "[::1]:7402"] {
            assert_eq!(address(good).as_deref(), Ok(good));
        }
        for bad in
            ["", "n1", "http://n1:7402", "n1:7402/metrics", "a@n1:7402", "n1:port", "n1:99999"]
        {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
