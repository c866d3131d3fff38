//! Certificates and CAs are replaced while clients write.

use super::strangers::greet_as_client;
use crate::support::certificates::Ca;
use crate::support::stranger::Stranger;
use crate::support::{Cluster, SLOW_ELECTIONS, WAIT_LIMIT};
use futures::future::join_all;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::RwLock;

fn pems(cas: &[&Ca]) -> String {
    cas.iter().map(|ca| ca.pem.as_str()).collect()
}

/// Gives every member a certificate of this CA, and the CAs that it is to know, and waits until it
/// uses both.
async fn install(cluster: &Cluster, issuer: &Ca, known: &[&Ca]) {
    let certificates = cluster.certificates.as_ref().expect("secured");
    let cas = pems(known);
    let probes: Vec<_> =
        known.iter().map(|ca| Stranger::new(Some(&ca.issue("client/probe")))).collect();
    for (slot, address) in (1..).zip(cluster.endpoints()) {
        let own = issuer.issue(&format!("member/{slot}"));
        certificates.install(&format!("member-{slot}"), &cas, &own);
        let own = CertificateDer::from_pem_slice(own.certificate.as_bytes()).expect("one");
        let used = async || {
            for probe in &probes {
                if probe.shown(&address).await.ok()? != own {
                    return None;
                }
                greet_as_client(probe.channel(&address)).await.ok()?;
            }
            Some(())
        };
        cluster.until("the new certificates in use", used).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_and_a_ca_are_replaced_under_load_and_no_request_fails() {
    let mut cluster = Cluster::secured(3, "256MiB", SLOW_ELECTIONS);
    cluster.start_all().await;
    let (old, new) = (cluster.certificates.as_ref().expect("secured").ca(), Ca::of("tested"));
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    // No client begins while its files are written.
    let files = Arc::new(RwLock::new(()));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let options = cluster.options().deadline(WAIT_LIMIT).connect_timeout(WAIT_LIMIT);
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            let files = Arc::clone(&files);
            tokio::spawn(async move {
                let lasting = {
                    let _complete = files.read().await;
                    options.clone().connect().await.expect("a client")
                };
                for number in 0_u64.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = format!("{writer}-{number}");
                    // A connection from before, and a new one with the files of now.
                    lasting.put(key.clone(), "a").await.expect("a put");
                    if number % 8 == 0 {
                        let _complete = files.read().await;
                        let fresh = options.clone().connect().await.expect("a new client");
                        assert!(fresh.get(key).await.expect("a get").is_some());
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for (issuer, known) in [
        (&old, &[&old][..]),       // other certificates of the same CA
        (&old, &[&old, &new][..]), // the new CA is known everywhere
        (&new, &[&old, &new][..]), // before certificates of it are used
        (&new, &[&new][..]),       // and the old one is forgotten
    ] {
        {
            let _nobody_reads = files.write().await;
            let certificates = cluster.certificates.as_ref().expect("secured");
            certificates.install("client", &pems(known), &issuer.issue("client/tester"));
        }
        install(&cluster, issuer, known).await;
        let from = done.load(Ordering::SeqCst);
        let more = async || (done.load(Ordering::SeqCst) > from + 40).then_some(());
        cluster.until("puts go on", more).await;
    }
    stop.store(true, Ordering::SeqCst);
    for writer in join_all(writers).await {
        writer.expect("every request succeeded");
    }
    // A member that restarts meets the others under the new CA.
    cluster.kill_node(0);
    cluster.start_node(0);
    cluster.wait_ready().await;
    // Files that do not fit change nothing, and are reported.
    let certificates = cluster.certificates.as_ref().expect("secured");
    certificates.install("member-2", &new.pem, &old.issue("member/2"));
    let said = "the changed certificates cannot be used; those before remain in use";
    cluster.until(said, async || cluster.logs().contains(said).then_some(())).await;
    assert_eq!(cluster.cairn(&["put", "key", "value"]).code, 0);
}
