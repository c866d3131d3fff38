//! Who is admitted, and what both sides are told.

use crate::support::{Ca, Process, client, member, tls};
use cairn_tls::{Cause, CertificateName, Expected, Port, Refusal, Stream, Tls, connect_http};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the accepting side got, and what the connecting side read.
pub type Outcome = (Result<Option<CertificateName>, Refusal>, Result<Vec<u8>, String>);

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (listener.accept().await.unwrap().0, connecting)
}

/// Connects, and exchanges some bytes.
pub async fn meet(accepting: &Tls, port: Port, connecting: &Tls, expected: Expected) -> Outcome {
    let (accepted, socket) = sockets().await;
    let accept = async {
        let (stream, name) = accepting.accept(accepted, port).await?;
        // As between the thread of handshakes and that of the connections.
        let mut stream = stream.detach().unwrap().attach().unwrap();
        let mut asked = [0; 5];
        stream.read_exact(&mut asked).await.unwrap();
        stream.write_all(&asked).await.unwrap();
        stream.shutdown().await.unwrap();
        Ok(name)
    };
    let connect = async {
        let stream = connecting.connect(socket, "localhost", expected).await;
        let mut stream = stream.map_err(|refusal| refusal.reason)?;
        let mut answer = Vec::new();
        stream.write_all(b"hello").await.map_err(|error| error.to_string())?;
        stream.flush().await.map_err(|error| error.to_string())?;
        stream.read_to_end(&mut answer).await.map_err(|error| error.to_string())?;
        Ok(answer)
    };
    tokio::join!(accept, connect)
}

/// The cause on the accepting side, and both sides' words.
fn refused((accepted, connected): Outcome) -> (Cause, String, String) {
    let refusal = accepted.unwrap_err();
    (refusal.cause, refusal.reason, connected.unwrap_err())
}

#[tokio::test]
async fn both_sides_learn_a_name_and_exchange_bytes() {
    let ca = Ca::of("blue");
    let (one, two, reader) =
        (tls(&ca, &member(1)), tls(&ca, &member(2)), tls(&ca, &client("reader")));
    for (port, connecting) in [(Port::Peers, &two), (Port::Clients, &two), (Port::Clients, &reader)]
    {
        for expected in [Expected::Slot(1), Expected::AnyMember] {
            let (accepted, connected) = meet(&one, port, connecting, expected).await;
            assert_eq!(accepted, Ok(Some(connecting.name().clone())), "{port:?}");
            assert_eq!(connected, Ok(b"hello".to_vec()), "{port:?}");
        }
    }
}

/// The story: the connections of clients said that they speak HTTP/2. The HTTP port speaks HTTP/1.1 alone, and
/// refused them.
#[tokio::test]
async fn a_connection_for_the_http_port_is_accepted_there_and_another_one_is_not() {
    let ca = Ca::of("blue");
    let (one, reader) = (tls(&ca, &member(1)), tls(&ca, &client("reader")));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accept = async {
        let (socket, _) = listener.accept().await.unwrap();
        let (mut stream, name) = one.accept(socket, Port::Http).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        name
    };
    let connect = async {
        let mut stream = connect_http(Some(&reader), &address).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let (name, answer) = tokio::join!(accept, connect);
    assert_eq!((name, answer), (Some(reader.name().clone()), b"hello".to_vec()));
    let (accepted, connected) = meet(&one, Port::Http, &reader, Expected::AnyMember).await;
    assert!(accepted.is_err() && connected.is_err(), "{accepted:?} {connected:?}");
}

#[tokio::test]
async fn a_clients_certificate_is_refused_where_only_members_connect() {
    let ca = Ca::of("blue");
    let outcome =
        meet(&tls(&ca, &member(1)), Port::Peers, &tls(&ca, &client("reader")), Expected::Slot(1))
            .await;
    let (cause, here, there) = refused(outcome);
    assert_eq!(cause, Cause::Name);
    assert!(here.contains("cairn://blue/client/reader") && here.contains("only members"), "{here}");
    assert!(there.contains("refuses the certificate cairn://blue/client/reader"), "{there}");
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused() {
    let (ca, other) = (Ca::of("blue"), Ca::of("blue"));
    // It trusts the CA of the accepting side, so that it is refused, and does not refuse itself.
    let stranger =
        Process::new(&format!("{}{}", ca.pem, other.pem), &other.issue(&member(2))).load().unwrap();
    let (cause, here, there) =
        refused(meet(&tls(&ca, &member(1)), Port::Peers, &stranger, Expected::Slot(1)).await);
    assert_eq!(cause, Cause::UnknownCa, "{here}");
    assert!(there.contains("the other side does not know its CA"), "{there}");
}

#[tokio::test]
async fn a_member_of_another_cluster_is_refused_even_if_its_ca_is_known() {
    let (ca, red) = (Ca::of("blue"), Ca::of("red"));
    let both = format!("{}{}", ca.pem, red.pem);
    let one = Process::new(&both, &ca.issue(&member(1))).load().unwrap();
    let name = CertificateName::member("red", 2).unwrap();
    let two = Process::new(&both, &red.issue(&name)).load().unwrap();
    // Either side refuses the other. Whoever looks for any member looks in its own cluster.
    let meant = [
        (Expected::Slot(1), "member 1 of cluster red was expected there"),
        (Expected::AnyMember, "a member of cluster red was expected there"),
    ];
    for (expected, why) in meant {
        let (accepted, connected) = meet(&one, Port::Peers, &two, expected).await;
        assert_eq!(accepted.unwrap_err().cause, Cause::RefusedByOther, "{expected:?}");
        let said = connected.unwrap_err();
        assert!(said.contains(&format!("{why}, and cairn://blue/member/1 answers")), "{said}");
    }
}

#[tokio::test]
async fn another_member_than_the_one_that_was_meant_is_refused() {
    let ca = Ca::of("blue");
    let (one, two) = (tls(&ca, &member(1)), tls(&ca, &member(2)));
    let (accepted, connected) = meet(&one, Port::Peers, &two, Expected::Slot(3)).await;
    let said = connected.unwrap_err();
    assert!(
        said.contains(
            "member 3 of cluster blue was expected there, and cairn://blue/member/1 answers"
        ),
        "{said}"
    );
    let here = accepted.unwrap_err();
    assert!(here.reason.contains("refuses the certificate cairn://blue/member/1"), "{here}");
}

#[tokio::test]
async fn a_client_does_not_pass_for_a_member() {
    let ca = Ca::of("blue");
    let (accepted, connected) = meet(
        &tls(&ca, &client("reader")),
        Port::Clients,
        &tls(&ca, &member(2)),
        Expected::AnyMember,
    )
    .await;
    assert!(accepted.is_err() && connected.is_err());
}

#[tokio::test]
async fn plain_text_is_told_that_the_port_speaks_tls() {
    let tls = tls(&Ca::of("blue"), &member(1));
    for (asked, said) in [
        ("GET /ready HTTP/1.1\r\n\r\n", "this port speaks TLS: use https://"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "this port speaks TLS"),
    ] {
        let (accepted, mut connecting) = sockets().await;
        let ask = async {
            connecting.write_all(asked.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            connecting.read_to_end(&mut answer).await.unwrap();
            drop(connecting);
            String::from_utf8_lossy(&answer).into_owned()
        };
        let (refusal, answer) = tokio::join!(tls.accept(accepted, Port::Clients), ask);
        assert_eq!(refusal.map(|_| ()).unwrap_err().cause, Cause::PlainText);
        assert!(answer.contains(said), "{answer:?}");
    }
}

#[tokio::test]
async fn a_side_that_speaks_plain_text_is_recognized_by_the_one_that_connects() {
    let ca = Ca::of("blue");
    let (mut accepted, socket) = sockets().await;
    let answer = async {
        // The first frame of an HTTP/2 server.
        accepted.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        let _ = accepted.read_to_end(&mut Vec::new()).await;
    };
    let two = tls(&ca, &member(2));
    let connect = async { two.connect(socket, "localhost", Expected::Slot(1)).await.map(drop) };
    let (refusal, ()) = tokio::join!(connect, answer);
    assert_eq!(refusal.unwrap_err().cause, Cause::PlainText);
}

#[tokio::test(start_paused = true)]
async fn half_a_handshake_and_then_silence_ends() {
    let tls = tls(&Ca::of("blue"), &member(1));
    for sent in [&[][..], &[22, 3, 1, 0, 100, 1]] {
        let (accepted, mut connecting) = sockets().await;
        connecting.write_all(sent).await.unwrap();
        let refusal = tls.accept(accepted, Port::Peers).await.map(|_: (Stream, _)| ()).unwrap_err();
        assert_eq!(refusal.cause, Cause::Silence);
    }
}
