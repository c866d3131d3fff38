//! How many requests of clients a member has answered, by its metrics.
//!
//! What holds here: a member that does not tell, such as one whose HTTP needs a certificate, is no error.

use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a member may take to tell.
const LIMIT: Duration = Duration::from_secs(10);
/// More than all metrics have.
const BYTES_MAX: u64 = 4 << 20;
/// What clients ask for. Statuses and health checks are no use of the cluster.
const METHODS: [&str; 3] = ["method=\"Write\"", "method=\"Get\"", "method=\"List\""];

/// The requests since the member started; `None`: it does not tell.
pub(super) async fn answered(address: &str) -> Option<u64> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.take(BYTES_MAX).read_to_end(&mut answer).await.ok()?;
        sum(&String::from_utf8_lossy(&answer))
    };
    timeout(LIMIT, ask).await.ok().flatten()
}

/// The requests of all methods of clients in an answer.
fn sum(answer: &str) -> Option<u64> {
    let mut lines = answer.lines();
    lines.next().filter(|status| status.contains(" 200 "))?;
    let of_clients = |line: &&str| {
        line.starts_with("cairn_requests_total{")
            && METHODS.iter().any(|method| line.contains(method))
    };
    let count = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
    Some(lines.filter(of_clients).filter_map(count).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_clients_are_counted_and_others_are_not() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n# TYPE cairn_requests counter\n\
                      cairn_requests_total{method=\"Write\",code=\"Ok\"} 3\n\
                      cairn_requests_total{method=\"Get\",code=\"Ok\"} 40\n\
                      cairn_requests_total{method=\"Status\",code=\"Ok\"} 500\n\
                      cairn_peer_requests_total{method=\"Get\"} 6000\n# EOF\n";
        assert_eq!(sum(answer), Some(43));
        assert_eq!(sum("HTTP/1.1 200 OK\r\n\r\n"), Some(0));
        assert_eq!(sum("HTTP/1.1 403 Forbidden\r\n\r\n"), None);
        assert_eq!(sum(""), None);
    }

    #[tokio::test]
    async fn a_member_that_does_not_listen_does_not_tell() {
        let held = cairn_launch::HeldPort::any().expect("a port");
        assert_eq!(answered(&held.address().to_string()).await, None);
    }
}
