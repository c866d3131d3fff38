//! `cairn certs`: certificates for a cluster without a PKI of its own.
//!
//! ```text
//! DIR/ca.pem                the CA's certificate: for every member and client
//! DIR/ca-key.pem            its key: whoever has it can issue certificates; keep it offline
//! DIR/member-SLOT.pem       a member's certificate, and member-SLOT-key.pem its key
//! DIR/client-NAME.pem       a client's certificate, and client-NAME-key.pem its key
//! ```
//!
//! What holds here: no file is overwritten. Keys are readable by their owner alone.

use super::exit::{Exit, UsageError};
use super::output::Output;
use anyhow::Context;
use cairn_node::access::check_name;
use cairn_node::config::exposed_secret;
use cairn_tls::CertificateName;
use cairn_tls::issue::{Authority, Issued, Validity};
use clap::builder::RangedI64ValueParser;
use clap::{Args, Subcommand};
use serde_json::json;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const CA: &str = "ca.pem";
const CA_KEY: &str = "ca-key.pem";
const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;

#[derive(Args)]
pub(crate) struct CertsArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a CA for a cluster, in a new folder or an existing one
    Init {
        /// Folder for the CA and the certificates
        dir: PathBuf,

        /// Name of the cluster
        #[arg(long)]
        cluster: String,

        /// How long the CA is valid
        #[arg(long, default_value_t = 3650, value_parser = days())]
        days: u32,
    },
    /// Make a certificate for one member or one client
    #[command(group = clap::ArgGroup::new("holder").required(true).args(["member", "client"]))]
    Issue {
        /// Folder of the CA
        dir: PathBuf,

        /// Slot number of the member
        #[arg(long, value_name = "SLOT", value_parser = clap::value_parser!(u16).range(1..))]
        member: Option<u16>,

        /// Name of the client
        #[arg(long, value_name = "NAME")]
        client: Option<String>,

        /// Host name or IP address of the member, for programs that check it, such as browsers and
        /// other gRPC clients; Cairn itself does not. May be repeated
        #[arg(long = "address", value_name = "HOST", conflicts_with = "client")]
        addresses: Vec<String>,

        /// How long the certificate is valid
        #[arg(long, default_value_t = 365, value_parser = days())]
        days: u32,
    },
}

/// At most a century.
fn days() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=36_500)
}

pub(crate) fn run(args: &CertsArgs, output: &Output) -> anyhow::Result<Exit> {
    match &args.action {
        Action::Init { dir, cluster, days } => init(dir, cluster, *days, output),
        Action::Issue { dir, member, client, addresses, days } => {
            // A name that [access] could not have would get no role.
            client
                .as_deref()
                .map_or(Ok(()), check_name)
                .map_err(|error| UsageError(format!("--client {error}")))?;
            let authority = read(dir, output)?;
            let cluster = authority.cluster();
            let name = match (member, client) {
                (Some(slot), _) => CertificateName::member(cluster, *slot),
                (None, client) => {
                    CertificateName::client(cluster, client.as_deref().unwrap_or_default())
                }
            };
            let name = name.map_err(|error| UsageError(error.to_string()))?;
            issue(dir, &authority, &name, addresses, *days, output)
        }
    }
}

fn usage(error: impl std::fmt::Display) -> anyhow::Error {
    UsageError(error.to_string()).into()
}

fn init(dir: &Path, cluster: &str, days: u32, output: &Output) -> anyhow::Result<Exit> {
    let (_, ca) = Authority::create(cluster, Validity::days(days)).map_err(usage)?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("cannot make the folder {}", dir.display()))?;
    let (certificate, key) = (dir.join(CA), dir.join(CA_KEY));
    write(&ca, &certificate, &key)?;
    output.either(
        || json!({ "cluster": cluster, "certificate": certificate, "key": key, "days": days }),
        || {
            let shown = dir.display();
            format!(
                "made a CA for cluster {cluster}, valid for {days} days: {}\n\
                 Copy {CA} to every member and client. {CA_KEY} stays here: whoever has it can become any member.\n\n  \
                 cairn certs issue {shown} --member 1 --address HOST     for each member\n  \
                 cairn certs issue {shown} --client NAME                 for each client",
                certificate.display()
            )
        },
    )?;
    Ok(Exit::Done)
}

fn issue(
    dir: &Path,
    authority: &Authority,
    name: &CertificateName,
    addresses: &[String],
    days: u32,
    output: &Output,
) -> anyhow::Result<Exit> {
    let issued = authority.issue(name, addresses, Validity::days(days)).map_err(usage)?;
    // As in the certificate, where nothing in it is part of a path.
    let shown = name.to_string();
    let (_, last) = shown.rsplit_once('/').unwrap_or_default();
    let file = match name.slot() {
        Some(_) => format!("member-{last}"),
        None => format!("client-{last}"),
    };
    let (certificate, key) = (dir.join(format!("{file}.pem")), dir.join(format!("{file}-key.pem")));
    write(&issued, &certificate, &key)?;
    output.either(
        || json!({ "name": shown, "certificate": certificate, "key": key, "days": days, "addresses": addresses }),
        || {
            let [ca, certificate, key] =
                [&dir.join(CA), &certificate, &key].map(|path| path.display().to_string());
            let use_it = match name.slot() {
                Some(_) => format!(
                    "Copy these three files to the member, readable by its user alone, and name them in its configuration:\n\n  \
                     tls.ca = \"{ca}\"\n  tls.certificate = \"{certificate}\"\n  tls.key = \"{key}\""
                ),
                None => format!(
                    "Copy these three files to the client, readable by its user alone:\n\n  \
                     export CAIRN_CLIENT_TLS_CA={ca} CAIRN_CLIENT_TLS_CERTIFICATE={certificate} CAIRN_CLIENT_TLS_KEY={key}"
                ),
            };
            format!("made a certificate for {shown}, valid for {days} days\n{use_it}")
        },
    )?;
    Ok(Exit::Done)
}

fn read(dir: &Path, output: &Output) -> anyhow::Result<Authority> {
    let text = |name: &str| {
        let path = dir.join(name);
        std::fs::read_to_string(&path).map_err(|error| {
            usage(format!(
                "{}: {error}; `cairn certs init {} --cluster NAME` makes a CA",
                path.display(),
                dir.display()
            ))
        })
    };
    let ca = Issued { certificate: text(CA)?, key: text(CA_KEY)? };
    let (certificate, key) = (dir.join(CA), dir.join(CA_KEY));
    if let Some(warning) = exposed_secret(&key) {
        output.warning(&warning);
    }
    Authority::read(&ca).map_err(|error| {
        usage(format!("{} with {}: {error}", certificate.display(), key.display()))
    })
}

/// Writes both files, or neither.
fn write(issued: &Issued, certificate: &Path, key: &Path) -> anyhow::Result<()> {
    create(key, SECRET, &issued.key)?;
    create(certificate, PUBLIC, &issued.certificate).inspect_err(|_| {
        let _ = std::fs::remove_file(key);
    })
}

fn create(path: &Path, mode: u32, text: &str) -> anyhow::Result<()> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = opened.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            usage(format!("{} exists, and is not overwritten: move it away first", path.display()))
        }
        _ => anyhow::Error::new(error).context(format!("cannot write {}", path.display())),
    })?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}
