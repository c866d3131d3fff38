//! Loopback ports that stay reserved from their choice to the end of their use.
//!
//! Every member's configuration has the addresses of the cluster before the first member listens,
//! and a killed member listens on its old port again. A port that was free when it was chosen can
//! be in use by then: by a process that asks the system for a free port, or as the local end of any
//! connection.
//!
//! ```text
//! HeldPort  bound, does not listen  the system gives its port to no other process
//! server    bound, listens          may use it too: both have SO_REUSEADDR, set by std, tokio and Go
//! ```
//!
//! What holds here: while a [`HeldPort`] lives, only servers that know its port listen on it. While
//! none does, a connection to it is refused. This is how Linux treats `SO_REUSEADDR`.

use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

/// A port that is held until this is dropped. Child processes do not inherit it.
#[derive(Debug)]
pub struct HeldPort {
    address: SocketAddr,
    _socket: Socket,
}

impl HeldPort {
    /// A port of 127.0.0.1 that is not in use.
    ///
    /// # Errors
    /// If the system has none left.
    pub fn any() -> io::Result<HeldPort> {
        HeldPort::alone_at((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// This address, if it is neither in use nor held. A closed connection counts as a use for a
    /// minute.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`], and other errors of binding.
    pub fn alone_at(address: SocketAddr) -> io::Result<HeldPort> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&address.into())?;
        socket.set_reuse_address(true)?;
        HeldPort::of(socket)
    }

    /// This address, if no socket listens there and no connection has it as its local end. Others
    /// may hold it too.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`], and other errors of binding.
    pub fn at(address: SocketAddr) -> io::Result<HeldPort> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        HeldPort::of(socket)
    }

    fn of(socket: Socket) -> io::Result<HeldPort> {
        let address = socket.local_addr()?.as_socket();
        let address =
            address.ok_or_else(|| io::Error::other("a bound socket without an address"))?;
        Ok(HeldPort { address, _socket: socket })
    }

    /// The address on which a server may listen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// This many ports of 127.0.0.1 that are not in use.
///
/// # Errors
/// As [`HeldPort::any`].
pub fn hold(count: usize) -> io::Result<Vec<HeldPort>> {
    (0..count).map(|_| HeldPort::any()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind::{AddrInUse, ConnectionRefused};
    use std::net::{TcpListener, TcpStream};

    /// The story: a member was killed and started again, but by then its port was the local end of
    /// another process's connection.
    #[test]
    fn a_server_listens_on_a_held_port_and_again_after_it_ended_with_open_connections() {
        let held = HeldPort::any().unwrap();
        for _ in 0..3 {
            let listener = TcpListener::bind(held.address()).unwrap();
            let client = TcpStream::connect(held.address()).unwrap();
            let (server, _) = listener.accept().unwrap();
            drop(listener);
            drop((server, client));
        }
    }

    #[test]
    fn a_connection_to_a_held_port_is_refused_while_no_server_listens() {
        let held = HeldPort::any().unwrap();
        assert_eq!(TcpStream::connect(held.address()).unwrap_err().kind(), ConnectionRefused);
        drop(TcpListener::bind(held.address()).unwrap());
        assert_eq!(TcpStream::connect(held.address()).unwrap_err().kind(), ConnectionRefused);
    }

    #[test]
    fn a_port_that_is_held_or_used_cannot_be_held_alone() {
        let held = HeldPort::any().unwrap();
        assert_eq!(HeldPort::alone_at(held.address()).unwrap_err().kind(), AddrInUse);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(HeldPort::alone_at(server.local_addr().unwrap()).unwrap_err().kind(), AddrInUse);
    }

    #[test]
    fn a_held_port_can_be_held_again_but_not_one_that_listens_or_has_a_connection() {
        let held = HeldPort::any().unwrap();
        assert_eq!(HeldPort::at(held.address()).unwrap().address(), held.address());
        let server = TcpListener::bind(held.address()).unwrap();
        assert_eq!(HeldPort::at(held.address()).unwrap_err().kind(), AddrInUse);
        let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        assert_eq!(HeldPort::at(client.local_addr().unwrap()).unwrap_err().kind(), AddrInUse);
    }
}
