//! Which files are used, and when they replace the ones before.

use crate::handshake::meet;
use crate::support::{Ca, Process, client, in_memory, member, tls};
use cairn_tls::issue::{Authority, Issued, Validity};
use cairn_tls::{Expected, Port, Tls};
use std::time::{Duration, SystemTime};

fn why(process: &Process) -> String {
    process.load().map(drop).unwrap_err().to_string()
}

#[test]
fn files_that_cannot_be_used_are_named_with_the_reason() {
    let (ca, other) = (Ca::of("blue"), Ca::of("blue"));
    let own = ca.issue(&member(1));
    let with = |ca: &str, certificate: &str, key: &str| {
        let own = Issued { certificate: certificate.into(), key: key.into() };
        why(&Process::new(ca, &own))
    };
    let day = Duration::from_secs(24 * 3600);
    let past = Validity { from: SystemTime::now() - 2 * day, until: SystemTime::now() - day };
    let future = Validity { from: SystemTime::now() + day, until: SystemTime::now() + 2 * day };
    let expired = ca.authority.issue(&member(1), &[], past).unwrap();
    let early = ca.authority.issue(&member(1), &[], future).unwrap();
    for (said, words) in [
        (with("", &own.certificate, &own.key), ["ca.pem", "no certificate in PEM"]),
        (with(&ca.pem, "", &own.key), ["own.pem", "no certificate in PEM"]),
        (with(&ca.pem, &own.certificate, ""), ["own-key.pem", "not a private key in PEM"]),
        (
            with(&ca.pem, &own.certificate, &ca.issue(&member(1)).key),
            ["own-key.pem", "not the key of the certificate"],
        ),
        (with(&other.pem, &own.certificate, &own.key), ["own.pem", "signed by no CA in"]),
        (with(&ca.pem, &expired.certificate, &expired.key), ["own.pem", "has expired"]),
        (with(&ca.pem, &early.certificate, &early.key), ["own.pem", "not valid yet"]),
    ] {
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    let process = Process::new(&ca.pem, &own);
    std::fs::remove_file(process.path("own.pem")).unwrap();
    assert!(why(&process).contains("own.pem: No such file"), "{}", why(&process));
}

#[tokio::test]
async fn certificates_in_memory_are_used_as_those_of_files_are() {
    let ca = Ca::of("blue");
    let one = tls(&ca, &member(1));
    let reader = Tls::load(in_memory(&ca.pem, &ca.issue(&client("reader")))).unwrap();
    assert_eq!(reader.name(), &client("reader"));
    let (accepted, connected) = meet(&one, Port::Clients, &reader, Expected::AnyMember).await;
    assert_eq!(accepted, Ok(Some(client("reader"))));
    assert_eq!(connected, Ok(b"hello".to_vec()));
    reader.reload();
    assert!(reader.ends().is_some(), "its end is known, too");
    let (accepted, _) = meet(&one, Port::Clients, &reader, Expected::AnyMember).await;
    assert_eq!(accepted, Ok(Some(client("reader"))), "a look at them changes nothing");
}

#[test]
fn certificates_in_memory_that_cannot_be_used_are_named_with_the_reason() {
    let (ca, other) = (Ca::of("blue"), Ca::of("blue"));
    let own = ca.issue(&client("reader"));
    let why =
        |ca: &str, own: &Issued| Tls::load(in_memory(ca, own)).map(drop).unwrap_err().to_string();
    let keyless = Issued { key: String::new(), ..ca.issue(&client("reader")) };
    let another = Issued { key: ca.issue(&client("reader")).key, ..ca.issue(&client("reader")) };
    assert_eq!(why("", &own), "the CA in memory: no certificate in PEM is in it");
    let said = why(&ca.pem, &keyless);
    assert!(said.starts_with("the key in memory: not a private key in PEM"), "{said}");
    assert_eq!(
        why(&ca.pem, &another),
        "the key in memory: it is not the key of the certificate in memory"
    );
    assert_eq!(
        why(&other.pem, &own),
        "the certificate in memory: the certificate is signed by no CA that was given"
    );
}

/// The story: a key came from a variable, where the ends of its lines are two characters or blanks. The error showed
/// the line that began with no section: all of the key, as a list of numbers, in the log.
#[test]
fn a_key_without_its_line_ends_is_refused_and_is_in_no_error() {
    let ca = Ca::of("blue");
    let own = ca.issue(&client("reader"));
    let base64: Vec<&str> = own.key.lines().filter(|line| !line.starts_with('-')).collect();
    let numbers: Vec<String> = own.key.bytes().take(30).map(|byte| byte.to_string()).collect();
    for ends in ["\\n", " ", ""] {
        let folded = own.key.replace('\n', ends);
        let in_place_of_the_key = Issued { key: folded.clone(), ..own.clone() };
        let in_place_of_the_certificate = Issued { certificate: folded.clone(), ..own.clone() };
        let errors = [
            Tls::load(in_memory(&ca.pem, &in_place_of_the_key)).map(drop).unwrap_err().to_string(),
            Tls::load(in_memory(&ca.pem, &in_place_of_the_certificate))
                .map(drop)
                .unwrap_err()
                .to_string(),
            Tls::load(in_memory(&folded, &own)).map(drop).unwrap_err().to_string(),
            Authority::read(&Issued { certificate: ca.pem.clone(), key: folded.clone() })
                .map(drop)
                .unwrap_err()
                .to_string(),
            Authority::read(&Issued { certificate: folded.clone(), key: own.key.clone() })
                .map(drop)
                .unwrap_err()
                .to_string(),
        ];
        for error in errors {
            assert!(error.len() < 200, "{error}");
            assert!(!error.contains(&numbers[..5].join(", ")), "{error}");
            for line in &base64 {
                assert!(!error.contains(line.get(..20).unwrap_or(line)), "{error}");
            }
        }
    }
}

#[test]
fn a_ca_signs_only_for_its_cluster_and_only_its_key_signs() {
    let (authority, ca) = Authority::create("blue", Validity::days(30)).unwrap();
    let red = cairn_tls::CertificateName::member("red", 1).unwrap();
    assert!(authority.issue(&red, &[], Validity::days(1)).is_err());
    let read = Authority::read(&ca).unwrap();
    assert_eq!(read.cluster(), "blue");
    let process =
        Process::new(&ca.certificate, &read.issue(&member(1), &[], Validity::days(1)).unwrap());
    assert_eq!(process.load().unwrap().name(), &member(1));
    let (_, other) = Authority::create("blue", Validity::days(30)).unwrap();
    let mixed = Issued { certificate: ca.certificate, key: other.key };
    assert!(Authority::read(&mixed).is_err());
    let own = authority.issue(&member(1), &[], Validity::days(1)).unwrap();
    assert!(Authority::read(&own).is_err(), "a member is no CA");
}

#[test]
fn the_end_of_the_own_certificate_is_known_once_the_files_were_looked_at() {
    let ca = Ca::of("blue");
    let whole = Duration::from_secs(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs());
    let until = whole + Duration::from_secs(10 * 24 * 3600);
    let from = SystemTime::UNIX_EPOCH + whole - Duration::from_secs(3600);
    let validity = Validity { from, until: SystemTime::UNIX_EPOCH + until };
    let own = ca.authority.issue(&member(1), &[], validity).unwrap();
    let process = Process::new(&ca.pem, &own);
    let tls = process.load().unwrap();
    assert_eq!(tls.ends(), None, "nobody has looked again");
    tls.reload();
    // It is valid in its last second.
    assert_eq!(tls.ends(), Some(until + Duration::from_secs(1)));
}

fn ending(until: Duration) -> Validity {
    let until = SystemTime::UNIX_EPOCH + until;
    Validity { from: until - Duration::from_secs(20 * 24 * 3600), until }
}

#[test]
fn the_end_of_the_ca_is_that_of_the_one_that_signed_even_if_it_is_past() {
    let (now, day) = (SystemTime::UNIX_EPOCH.elapsed().unwrap(), Duration::from_secs(24 * 3600));
    let now = Duration::from_secs(now.as_secs());
    let create = |until| Authority::create("blue", ending(until)).unwrap();
    let (_, ending_first) = create(now + day);
    for until in [now + 5 * day, now - day] {
        let (authority, ca) = create(until);
        let own = authority.issue(&member(1), &[], Validity::days(10)).unwrap();
        let process =
            Process::new(&format!("{}{}", ending_first.certificate, ca.certificate), &own);
        let tls = process.load().unwrap();
        assert_eq!((tls.ca_ends(), tls.left().ca), (None, None), "nobody has looked again");
        tls.reload();
        assert_eq!(tls.ca_ends(), Some(until + Duration::from_secs(1)));
        assert!(tls.ends() > Some(now + 9 * day), "it is another end");
        let left = tls.left();
        assert!(left.certificate > Some(9 * day), "{left:?}");
        let most = (until + Duration::from_secs(1)).saturating_sub(now);
        assert!(left.ca.is_some_and(|left| left <= most), "{left:?}");
        assert_eq!(left.ca == Some(Duration::ZERO), until < now, "{left:?}");
    }
}

#[tokio::test]
async fn changed_files_are_used_and_files_that_do_not_fit_change_nothing() {
    let (ca, next) = (Ca::of("blue"), Ca::of("blue"));
    let process = Process::new(&ca.pem, &ca.issue(&member(1)));
    let one = process.load().unwrap();
    let (old, new) = (tls(&ca, &member(2)), tls(&next, &member(2)));
    // Whether the CA that this one knows has signed what is in use.
    let signed_for = async |other: &Tls| {
        let (_, answer) = meet(&one, Port::Peers, other, Expected::Slot(1)).await;
        !answer.is_err_and(|said| said.contains("signed by"))
    };
    // Another name, and a certificate without its CA.
    for bad in [ca.issue(&client("one")), next.issue(&member(1))] {
        process.write(&ca.pem, &bad);
        one.reload();
        assert!(signed_for(&old).await && !signed_for(&new).await, "what was in use stays");
    }
    // The new CA is known first; then certificates of it are used.
    let both = format!("{}{}", ca.pem, next.pem);
    process.write(&both, &ca.issue(&member(1)));
    one.reload();
    for connecting in [&old, &Process::new(&both, &next.issue(&member(2))).load().unwrap()] {
        let (accepted, _) = meet(&one, Port::Peers, connecting, Expected::Slot(1)).await;
        assert_eq!(accepted.ok().flatten().as_ref(), Some(&member(2)));
    }
    process.write(&both, &next.issue(&member(1)));
    one.reload();
    assert!(!signed_for(&old).await && signed_for(&new).await, "the new one is used");
}
