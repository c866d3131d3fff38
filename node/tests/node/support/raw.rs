//! An HTTP/2 client that sends requests and reads answers only when it is asked to.
use prost::Message;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const INITIAL_WINDOW_SIZE: u16 = 4;
const FRAME_BYTES: usize = 16 << 10;
const WINDOW: u32 = (1 << 31) - 1;

/// A connection. The server may send any amount; the client does not read it.
pub struct Raw {
    socket: TcpStream,
    next: u32,
    /// What the server has not taken yet.
    unsent: Vec<u8>,
}

impl Raw {
    pub fn connect(address: &str) -> Raw {
        Raw::connect_with(address, WINDOW)
    }

    /// The same, but the server may send so many bytes of each answer.
    pub fn connect_with(address: &str, window: u32) -> Raw {
        let mut socket = TcpStream::connect(address).expect("it listens");
        socket.set_nodelay(true).expect("a socket");
        let mut settings = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
        settings.extend(window.to_be_bytes());
        let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        begin.extend(frame(SETTINGS, 0, 0, &settings));
        begin.extend(frame(WINDOW_UPDATE, 0, 0, &(WINDOW - 65_535).to_be_bytes()));
        socket.write_all(&begin).expect("sent");
        Raw { socket, next: 1, unsent: Vec::new() }
    }

    /// Begins a call of this path with its headers alone, and returns its stream. [`Raw::push`]
    /// sends them.
    pub fn open(&mut self, path: &str) -> u32 {
        let stream = self.next;
        self.next += 2;
        self.unsent.extend(frame(HEADERS, END_HEADERS, stream, &headers_of(path)));
        stream
    }

    /// Adds bytes to a call, which goes on.
    pub fn add(&mut self, stream: u32, bytes: &[u8]) {
        for piece in bytes.chunks(FRAME_BYTES) {
            self.unsent.extend(frame(DATA, 0, stream, piece));
        }
    }

    /// Sends what the server takes now. Returns whether it has taken everything, or closed the
    /// connection.
    pub fn push(&mut self) -> bool {
        self.socket.set_nonblocking(true).expect("a socket");
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Sends so many answers to pings that nobody sent, in one write.
    pub fn answer_pings(&mut self, number: usize) {
        let answers = frame(PING, ACK, 0, &[7; 8]).repeat(number);
        self.socket.write_all(&answers).expect("sent");
    }

    /// Sends a request whose message fits the initial window of a connection. `last`: no other
    /// message follows on its stream.
    pub fn call(&mut self, method: &str, message: &impl Message, last: bool) {
        let stream = self.next;
        self.next += 2;
        let body = framed(message);
        let mut sent = frame(HEADERS, END_HEADERS, stream, &headers(method));
        let pieces = body.len().div_ceil(FRAME_BYTES);
        for (number, piece) in body.chunks(FRAME_BYTES).enumerate() {
            let end = if last && number + 1 == pieces { END_STREAM } else { 0 };
            sent.extend(frame(DATA, end, stream, piece));
        }
        self.socket.write_all(&sent).expect("sent");
    }

    /// Whether the server has closed the connection. Reads a little of what it sent.
    pub fn is_closed(&mut self) -> bool {
        self.socket.set_nonblocking(true).expect("a socket");
        let mut taken = [0; 16];
        match self.socket.read(&mut taken) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// A message as it goes into the body of a call.
pub fn framed(message: &impl Message) -> Vec<u8> {
    let encoded = message.encode_to_vec();
    let mut body = vec![0];
    body.extend(u32::try_from(encoded.len()).expect("short").to_be_bytes());
    body.extend(encoded);
    body
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).expect("short").to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn headers(method: &str) -> Vec<u8> {
    headers_of(&format!("/cairn.kv.v1.Kv/{method}"))
}

/// Encodes each header as a literal without indexing.
fn headers_of(path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "tested"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let text = |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}
