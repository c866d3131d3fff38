//! Which connections of a port stay, and which ones are closed.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn incoming(most: usize, handshake_timeout: Duration) -> (Incoming, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    (Incoming::new(listener, ("tests", "none"), most, 2, handshake_timeout), address)
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.expect("it listens")
}

/// The story: connections were accepted until the process had no descriptor left, and then
/// neither port could serve.
#[tokio::test]
async fn a_connection_beyond_the_slots_is_closed_and_a_closed_one_frees_its_slot() {
    let (mut incoming, address) = incoming(1, HANDSHAKE_TIMEOUT).await;
    let _first = connect(address).await;
    let taken = incoming.next().await;
    let (mut second, mut received) = (connect(address).await, [0]);
    tokio::select! {
        _ = incoming.next() => panic!("it has no slot"),
        read = second.read(&mut received) => assert_eq!(read.ok(), Some(0), "closed"),
    }
    drop(taken);
    let _third = connect(address).await;
    incoming.next().await;
}

#[tokio::test]
async fn a_connection_that_does_not_send_in_time_is_closed() {
    let (mut incoming, address) = incoming(9, Duration::from_millis(1)).await;
    for sent in ["", "a"] {
        let mut client = connect(address).await;
        client.write_all(sent.as_bytes()).await.expect("written");
        let mut connection = incoming.next().await;
        if !sent.is_empty() {
            // Wait until the byte has arrived, so that the time is up after it.
            connection.socket.socket().expect("open").readable().await.expect("a byte");
        }
        let mut received = Vec::new();
        let error =
            connection.read_to_end(&mut received).await.expect_err("it has not sent enough");
        assert_eq!((error.kind(), received.len()), (io::ErrorKind::TimedOut, sent.len()));
    }
}

#[tokio::test]
async fn a_connection_may_be_silent_after_its_first_bytes() {
    let (mut incoming, address) = incoming(9, HANDSHAKE_TIMEOUT).await;
    let mut client = connect(address).await;
    client.write_all(b"ab").await.expect("written");
    let mut connection = incoming.next().await;
    connection.read_exact(&mut [0; 2]).await.expect("read");
    assert!(connection.handshake.is_none());
}

#[tokio::test]
async fn on_a_yielding_port_a_new_connection_replaces_the_oldest() {
    let (incoming, address) = incoming(2, HANDSHAKE_TIMEOUT).await;
    let mut incoming = incoming.yielding();
    let clients = [connect(address).await, connect(address).await, connect(address).await];
    let mut first = incoming.next().await;
    let mut second = incoming.next().await;
    let ended = tokio::spawn(async move {
        let error = first.read_to_end(&mut Vec::new()).await.expect_err("it yields");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    });
    incoming.next().await;
    ended.await.expect("the oldest");
    drop(clients);
    assert_eq!(second.read_to_end(&mut Vec::new()).await.ok(), Some(0), "it stayed open");
}

async fn connect_from(from: [u8; 4], address: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from((from, 0))).expect("loopback");
    socket.connect(address).await.expect("it listens")
}

/// The story: whoever connected often enough had the connections of all others closed.
#[tokio::test]
async fn on_a_yielding_port_an_address_that_has_most_replaces_its_own_connections() {
    let (incoming, address) = incoming(3, HANDSHAKE_TIMEOUT).await;
    let mut incoming = incoming.yielding();
    let until_its_end = |mut connection: Connection| {
        tokio::spawn(async move {
            let read = connection.read_to_end(&mut Vec::new()).await;
            read.map_err(|error| error.kind())
        })
    };
    let honest = connect(address).await;
    let kept = until_its_end(incoming.next().await);
    let mut greedy = Vec::new();
    for _ in 0..5 {
        let client = connect_from([127, 0, 0, 2], address).await;
        greedy.push((client, until_its_end(incoming.next().await)));
    }
    drop(honest);
    assert_eq!(kept.await.expect("read"), Ok(0), "it stayed open");
    let (_client, oldest) = greedy.remove(0);
    assert_eq!(oldest.await.expect("read"), Err(io::ErrorKind::ConnectionAborted));
}

#[test]
fn all_ports_together_leave_descriptors_for_files() {
    let slots = |percent, most| ConnectionSlots { percent, most }.of(1024);
    assert_eq!((slots(75, 10_000), slots(75, 100)), (750, 100));
    assert_eq!(ConnectionSlots { percent: 75, most: 10_000 }.of(0), 1);
}
