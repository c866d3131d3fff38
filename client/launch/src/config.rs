//! The text of a member's configuration.
//!
//! What holds here: every value is quoted, so that it is read as it was given.

use crate::HeldPort;
use std::path::Path;

/// A member and where it listens, in the words of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its slot, from 1.
    pub slot: u16,
    /// The address for clients.
    pub client: String,
    /// The address for other members.
    pub peer: String,
    /// The address for HTTP, or `none`.
    pub http: String,
}

/// The members of a cluster.
#[derive(Clone, Debug)]
pub struct Members {
    /// The name of the cluster.
    pub cluster: String,
    /// In order of their slots.
    pub all: Vec<Member>,
    /// So many of the first members form the cluster. The others ask these to join it.
    pub initial: usize,
}

impl Members {
    /// Members that listen on these ports: three for each of them, beginning with slot 1. All of
    /// them form the cluster. The ports must stay held as long as a member may start.
    pub fn at(cluster: &str, ports: &[HeldPort]) -> Members {
        let addresses: Vec<String> = ports.iter().map(|port| port.address().to_string()).collect();
        let (members, _) = addresses.as_chunks::<3>();
        let all: Vec<Member> = (1..)
            .zip(members.iter().cloned())
            .map(|(slot, [client, peer, http])| Member { slot, client, peer, http })
            .collect();
        Members { cluster: cluster.to_owned(), initial: all.len(), all }
    }

    /// The text of a member's configuration. `data_dir` is UTF-8. `lines` are more keys with their
    /// values; they contain no table.
    pub fn config(&self, member: &Member, data_dir: &Path, lines: &str) -> String {
        let initial = self.all.get(..self.initial).unwrap_or(&self.all);
        let mut text = format!(
            "cluster = {}\nslot = {}\ndata_dir = {}\nlisten.client = {}\nlisten.peer = {}\n\
             listen.http = {}\n{}\n",
            quoted(&self.cluster),
            member.slot,
            quoted(&data_dir.display().to_string()),
            quoted(&member.client),
            quoted(&member.peer),
            quoted(&member.http),
            lines.trim_end(),
        );
        if initial.iter().any(|one| one.slot == member.slot) {
            for Member { slot, client, peer, .. } in initial {
                let (client, peer) = (quoted(client), quoted(peer));
                text += &format!("\n[members.{slot}]\nclient = {client}\npeer = {peer}\n");
            }
        } else {
            let seeds: Vec<String> = initial.iter().map(|seed| quoted(&seed.peer)).collect();
            text += &format!("join = [{}]\n", seeds.join(", "));
        }
        text
    }
}

/// A text as a value in a configuration: a basic string of TOML.
pub fn quoted(text: &str) -> String {
    let escaped = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escaped).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_text_is_read_as_it_was_given() {
        let all: String = (0..=char::MAX as u32).filter_map(char::from_u32).collect();
        let text = format!("value = {}", quoted(&all));
        assert_eq!(text.lines().count(), 1);
        assert_eq!(text.parse::<toml::Table>().unwrap()["value"].as_str(), Some(all.as_str()));
    }

    #[test]
    fn initial_members_know_each_other_and_the_others_ask_them_to_join() {
        let member = |slot: u16| {
            let [client, peer, http] = ["c", "p", "h"].map(|of| format!("{of}{slot}"));
            Member { slot, client, peer, http }
        };
        let all = (1..=3).map(member).collect();
        let members = Members { cluster: "test".to_owned(), all, initial: 2 };
        let config = |slot| members.config(&member(slot), Path::new("/d"), "mode = \"sync\"\n");
        let own = "cluster = \"test\"\nslot = 2\ndata_dir = \"/d\"\nlisten.client = \"c2\"\n\
                   listen.peer = \"p2\"\nlisten.http = \"h2\"\nmode = \"sync\"\n";
        let known = "\n[members.1]\nclient = \"c1\"\npeer = \"p1\"\n\
                     \n[members.2]\nclient = \"c2\"\npeer = \"p2\"\n";
        assert_eq!(config(2), format!("{own}{known}"));
        let own = own.replace('2', "3");
        assert_eq!(config(3), format!("{own}join = [\"p1\", \"p2\"]\n"));
    }
}
