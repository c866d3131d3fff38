//! The initial members in one line of text: `1=client/peer,2=client/peer`, for the environment and
//! `--set`. Also reads lists of addresses, and checks the form of one.

use cairn_raft::MemberAddress;
use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};

/// Reads members; an empty text means none.
pub(crate) fn parse(text: &str) -> Result<BTreeMap<u16, MemberAddress>, String> {
    let mut members = BTreeMap::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let expected = || {
            format!("`{item}`: expected SLOT=CLIENT/PEER, such as 1=10.0.0.1:7400/10.0.0.1:7401")
        };
        let (slot, addresses) = item.split_once('=').ok_or_else(expected)?;
        let (client, peer) = addresses.split_once('/').ok_or_else(expected)?;
        let slot = parse_slot(slot).map_err(|_| expected())?;
        check_address(client).map_err(|reason| format!("`{client}`: {reason}"))?;
        check_address(peer).map_err(|reason| format!("`{peer}`: {reason}"))?;
        let address = MemberAddress { peer: peer.to_string(), client: client.to_string() };
        if members.insert(slot, address).is_some() {
            return Err(format!("member {slot} is given twice"));
        }
    }
    Ok(members)
}

/// Reads addresses with commas between them; an empty text means none.
pub(crate) fn parse_addresses(text: &str) -> Result<Vec<String>, String> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let check = |item: &str| check_address(item).map_err(|reason| format!("`{item}`: {reason}"));
    items.map(|item| check(item).map(|()| item.to_owned())).collect()
}

/// Whether this is an address of all interfaces, at which nobody else reaches this machine.
pub(crate) fn is_wildcard(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or("", |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse::<IpAddr>().is_ok_and(|host| host.is_unspecified())
}

/// Reads a slot, from 1.
pub(crate) fn parse_slot(text: &str) -> Result<u16, String> {
    text.parse::<u16>()
        .ok()
        .filter(|slot| *slot > 0)
        .ok_or_else(|| "expected a slot from 1 to 65535".into())
}

/// Checks the form of `host:port` without DNS.
pub(crate) fn check_address(text: &str) -> Result<(), String> {
    let expected = || "expected host:port, such as 127.0.0.1:7400".to_string();
    let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
    port.parse::<u16>().map_err(|_| expected())?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || (host.contains(':') && !bracketed) || host.contains(['/', ' ']) {
        return Err(expected());
    }
    if bracketed && text.to_socket_addrs().is_err() {
        return Err(expected());
    }
    Ok(())
}

/// Writes members in the form that [`parse`] reads.
pub(crate) fn format(members: &BTreeMap<u16, MemberAddress>) -> String {
    let items: Vec<String> = members
        .iter()
        .map(|(slot, address)| format!("{slot}={}/{}", address.client, address.peer))
        .collect();
    items.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_as_they_are_written() {
        let text = "1=a:1/a:2,2=b:1/b:2";
        assert_eq!(parse(text).map(|members| format(&members)), Ok(text.to_string()));
        assert_eq!(parse("").map(|members| members.len()), Ok(0));
    }

    #[test]
    fn addresses_are_read_from_a_list() {
        assert_eq!(parse_addresses("").unwrap(), Vec::<String>::new());
        assert_eq!(parse_addresses(" a:1, b:2,").unwrap(), ["a:1", "b:2"]);
        assert!(parse_addresses("a:1,b").unwrap_err().contains("`b`"));
    }

    #[test]
    fn addresses_of_all_interfaces_are_told_from_others() {
        for all in ["0.0.0.0:7400", "[::]:7400"] {
            assert!(is_wildcard(all), "{all}");
        }
        for one in ["127.0.0.1:7400", "node-1:7400", "[::1]:7400"] {
            assert!(!is_wildcard(one), "{one}");
        }
    }

    #[test]
    fn a_member_without_both_addresses_or_given_twice_is_refused() {
        for bad in ["1", "1=a:1", "0=a:1/a:2", "x=a:1/a:2", "1=a/a:2", "1=a:1/a:2,1=b:1/b:2"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_need_a_host_and_a_port() {
        for good in ["127.0.0.1:0", "node-1:7400", "[::1]:7400", "a.b.example:1"] {
            assert_eq!(check_address(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "node",
            "node:",
            ":7400",
            "node:port",
            "node:70000",
            "::1:7400",
            "http://a:1",
            "[x]:1",
        ] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }
}
