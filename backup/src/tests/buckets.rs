//! What only buckets have: lines that break, credentials, and servers that do not answer.

use super::server::{IMPATIENT, Line, PATIENT, Reset, Server, answering, silent, variables};
use super::*;
use crate::bucket::Limits;
use crate::latest;
use crate::paths::{head_path, manifest_path};
use real_tokio::net::TcpStream;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const TEXT: &str = "s3://backups/of/shop";
/// Longer than a server takes to end, even on a busy machine.
const GONE_WITHIN: Duration = Duration::from_secs(60);

fn at(address: SocketAddr) -> Vec<(String, String)> {
    variables(&format!("http://{address}"))
}

/// Runs a test with a bucket.
fn run_in_bucket(test: impl AsyncFn(Place, Target)) {
    let (place, target) = Place::bucket();
    run_once(test(place, target));
}

fn server(place: &Place) -> &Server {
    place.server.as_ref().unwrap()
}

/// Connections are reset in the middle of requests and of answers, also of the answer that an object is
/// stored.
#[test]
fn a_line_that_breaks_again_and_again_costs_no_backup() {
    let (asking, answering) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for seed in 0..6 {
        run_in_bucket(async |place, direct| {
            let line = Line::that_breaks(server(&place).address, seed);
            let target = line.target(TEXT);
            let mut cluster = Cluster::new(seed);
            cluster.save(&target, "b0", None).await;
            let mut states = vec![("b0".to_owned(), cluster.keys.clone())];
            // A chain, with deletes.
            for number in 1..=5 {
                cluster.work(50);
                let (base, name) = (format!("b{}", number - 1), format!("b{number}"));
                cluster.save(&target, &name, Some(&base)).await;
                states.push((name, cluster.keys.clone()));
            }
            for (name, keys) in &states {
                check(keys, &direct, name).await;
                check(keys, &target, name).await;
            }
            let keep = Keep { last: 1, within: Duration::ZERO };
            let mut pruned = prune(&target, &keep, &[], SystemTime::now(), false).await.unwrap();
            pruned.backups.sort();
            assert_eq!(pruned.backups, ["b0", "b1", "b2", "b3", "b4"]);
            cluster.check(&direct, "b5").await;
            for (all, of_line) in
                [(&asking, &line.resets.asking), (&answering, &line.resets.answering)]
            {
                all.fetch_add(of_line.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        });
    }
    let (asking, answering) = (asking.into_inner(), answering.into_inner());
    println!("{asking} resets in requests, {answering} in answers");
    assert!(asking > 0 && answering > 0, "{asking} and {answering}");
}

/// The server has the object, and the client never hears of it.
#[test]
fn what_was_stored_without_an_answer_is_stored_once() {
    run_in_bucket(async |place, direct| {
        let mut resets = vec![Reset::AtAnswer, Reset::AtAnswer];
        let line = Line::to(server(&place).address, move || resets.pop().unwrap_or(Reset::Never));
        let target = line.target(TEXT);
        target.create("b0/head", "mine".into()).await.unwrap();
        assert_eq!(line.resets.answering.load(Ordering::Relaxed), 2);
        assert_eq!(direct.get("b0/head", 100).await.unwrap().unwrap(), "mine");
        // Without a break an object that is there is another one's, whatever is in it.
        let refused = direct.create("b0/head", "mine".into()).await.unwrap_err().to_string();
        assert!(refused.contains("is there already"), "{refused}");
        // Behind one it is another one's if other bytes are in it.
        let mut resets = vec![Reset::AtAnswer];
        let line = Line::to(server(&place).address, move || resets.pop().unwrap_or(Reset::Never));
        let refused = line.target(TEXT).create("b0/head", "more".into()).await;
        assert!(refused.unwrap_err().to_string().contains("is there already"));
        assert_eq!(line.resets.answering.load(Ordering::Relaxed), 1);
    });
}

/// The server is gone for longer than a save waits.
#[test]
fn a_save_goes_on_where_one_ended_whose_bucket_went_away() {
    run_in_bucket(async |place, direct| {
        let line = Line::to(server(&place).address, || Reset::Never);
        let target = Target::bucket(TEXT, at(line.address), Some(IMPATIENT)).unwrap();
        let cluster = Cluster::new(31);
        let sources = Sources::find(&target, SHOP, None, true, None).await.unwrap();
        let items = cluster.items(&sources);
        let begun = Saver::begin_with(&target, "broken", cluster.head(), sources, SMALL).await;
        let (mut saver, address, mut line) = (begun.unwrap(), line.address, Some(line));
        let mut broken = None;
        for (number, item) in items.iter().enumerate() {
            if number == items.len() / 2 {
                line.take();
                // Unless another one has the port by then.
                let until = Instant::now() + GONE_WITHIN;
                while TcpStream::connect(address).await.is_ok() && Instant::now() < until {
                    yield_now().await;
                }
            }
            if let Err(error) = saver.add(item.clone()).await {
                broken = Some(error.to_string());
                break;
            }
        }
        let said = broken.unwrap();
        assert!(said.contains("s3://backups/of/shop: the bucket cannot be reached"), "{said}");
        // As the command does it.
        drop(saver);
        let sources = Sources::find(&direct, SHOP, None, true, None).await.unwrap();
        assert_eq!(sources.resumes(), ["broken"]);
        let valued = |items: &[Item]| {
            items.iter().filter(|item| item.length > 0 && item.value.is_some()).count()
        };
        let (all, sent) = (valued(&items), valued(&cluster.items(&sources)));
        assert!(sent < all * 2 / 3, "{sent} of {all} values are sent again");
        cluster.save(&direct, "whole", None).await;
        cluster.check(&direct, "whole").await;
    });
}

#[test]
fn the_latest_is_found_and_shown_in_a_bucket() {
    run_in_bucket(async |place, target| {
        assert!(Manifest::list(&target).await.unwrap().is_empty());
        let nothing = latest(&target, None, SystemTime::now()).await.unwrap_err().to_string();
        assert!(nothing.contains("s3://backups/of/shop: there is no backup"), "{nothing}");
        let mut cluster = Cluster::new(32);
        cluster.save(&target, "b0", None).await;
        cluster.work(10);
        let saved = cluster.save(&target, "b1", Some("b0")).await;
        let name = latest(&target, None, SystemTime::now()).await.unwrap();
        let backup = Backup::open(&target, &name).await.unwrap();
        assert_eq!((name.as_str(), backup.manifest()), ("b1", &saved));
        assert_eq!(backup.verify(|_| ()).await.unwrap(), saved.keys);
        // Another prefix of the same bucket, its root, and a slash at the end.
        for (text, backups) in [("s3://backups", 0), ("s3://backups/of/", 0), (TEXT, 2)] {
            let target = server(&place).target(text);
            assert_eq!(Manifest::list(&target).await.unwrap().len(), backups, "{text}");
        }
        let slash = server(&place).target("s3://backups/of/shop/");
        assert_eq!(Manifest::list(&slash).await.unwrap().len(), 2);
    });
}

/// What a list, a read, a write and a removal say, each behind the target's name.
async fn said(target: &Target) -> [String; 4] {
    let said = [
        target.find().await.err(),
        Manifest::load(target, "b0").await.err(),
        target.create(&head_path("b0"), "head".into()).await.err(),
        target.remove(&manifest_path("b0")).await.err(),
    ];
    said.map(|error| {
        let said = error.unwrap().to_string();
        assert!(!said.contains('\n') && said.len() < 600, "{said}");
        said.strip_prefix(&format!("{}: ", target.text())).unwrap().to_owned()
    })
}

#[test]
fn a_bucket_that_cannot_be_used_is_named_with_the_way_out() {
    run_in_bucket(async |place, _| {
        let address = server(&place).address;
        let (nobody, tls) = ("http://127.0.0.1:1", format!("https://{address}"));
        let no_credentials = [
            ("AWS_ACCESS_KEY_ID", ""),
            ("AWS_SECRET_ACCESS_KEY", ""),
            ("AWS_METADATA_ENDPOINT", nobody),
        ];
        let cases: [(&[(&str, &str)], &str); 6] = [
            (
                &[("AWS_SECRET_ACCESS_KEY", "another")],
                "access is denied: see that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are right, and may list, \
                 read, write and delete there (SignatureDoesNotMatch: ",
            ),
            (&[("AWS_ACCESS_KEY_ID", "another")], "access is denied: "),
            (&no_credentials, "no credentials: set AWS_ACCESS_KEY_ID and "),
            (&[("AWS_ENDPOINT_URL", nobody)], "the bucket cannot be reached: see the network"),
            (&[("AWS_ENDPOINT_URL", &tls)], "the bucket cannot be reached: see the network"),
            (
                &[("AWS_ALLOW_HTTP", "")],
                "http:// is not encrypted: use https://, or set AWS_ALLOW_HTTP=true",
            ),
        ];
        let with = |changes: &[(&str, &str)]| {
            let mut variables = at(address);
            variables.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
            let changes = changes.iter().filter(|(_, value)| !value.is_empty());
            variables.extend(changes.map(|(name, value)| ((*name).into(), (*value).into())));
            variables
        };
        for (changes, what) in cases {
            let target = Target::bucket(TEXT, with(changes), Some(IMPATIENT)).unwrap();
            for said in said(&target).await {
                assert!(said.starts_with(what), "{what}: {said}");
            }
        }
        let refused = Target::bucket(TEXT, with(&[("AWS_SECRET_ACCESS_KEY", "")]), None);
        let refused = refused.err().unwrap().to_string();
        assert!(refused.contains("Missing SecretAccessKey"), "{refused}");
        let nothing = server(&place).target("s3://nothing/of/shop").find().await.unwrap_err();
        assert!(nothing.to_string().contains(": there is no bucket `nothing`"), "{nothing}");
    });
}

/// The story: an endpoint with a password in it stood in the log as often as the bucket did not answer.
#[test]
fn no_password_of_the_environment_is_in_an_error() {
    run_in_bucket(async |place, _| {
        let address = server(&place).address;
        let no_url = "AWS_ENDPOINT_URL is no URL: ";
        let endpoints = [
            ("http://op:hush-hush@127.0.0.1:1".to_owned(), ""),
            ("http://hush-hush@127.0.0.1:1/".to_owned(), ""),
            ("http://op:hush-hush@127.0.0.1:1/path?token=hush-hush".to_owned(), ""),
            (format!("http://op:hush-hush@{address}"), ""),
            (format!("https://op:hush-hush@{address}"), ""),
            // The store panicked at these.
            ("http://op:hush hush-hush@127.0.0.1:1".to_owned(), no_url),
            ("http://op:hush/hush-hush@127.0.0.1:1".to_owned(), no_url),
            ("op:hush-hush@127.0.0.1:1".to_owned(), no_url),
            ("https://127.0.0.1:port/?sig=hush-hush".to_owned(), no_url),
        ];
        for (endpoint, what) in endpoints {
            let mut variables = at(address);
            variables.retain(|(name, _)| name != "AWS_ENDPOINT_URL");
            variables.push(("AWS_ENDPOINT_URL".into(), endpoint.clone()));
            // Of another tool, which may be asked all the same.
            variables.push(("SOME_PROXY".into(), "http://op:hush-hush@proxy".into()));
            let said = match Target::bucket(TEXT, variables, Some(IMPATIENT)) {
                Err(refused) => refused.to_string(),
                Ok(target) => match target.find().await {
                    Err(failed) => failed.to_string(),
                    // The server does not look at the user that stands there.
                    Ok(_) => continue,
                },
            };
            assert!(said.contains(what) && !said.contains("hush"), "{endpoint}: {said}");
        }
    });
}

/// The story: a region had a blank in it, and a token a line break at its end, as files of secrets have. The store panicked
/// once it was asked for something, and the thread of the schedule was gone until the node was started anew.
#[test]
fn a_variable_that_the_store_would_panic_at_is_refused_by_its_name() {
    let with = |name: &str, value: &str| {
        let mut variables = variables("http://127.0.0.1:1");
        variables.retain(|(given, _)| given != name);
        variables.push((name.to_owned(), value.to_owned()));
        variables
    };
    let (control, host) = ("a control character", "cannot be in a server's name");
    for (target, name, value, what) in [
        (TEXT, "AWS_SESSION_TOKEN", "hush\n", control),
        (TEXT, "AWS_ACCESS_KEY_ID", "hush\r\n", control),
        (TEXT, "AWS_SECRET_ACCESS_KEY", "hu\0sh", control),
        (TEXT, "AWS_REGION", "hush-1\n", control),
        (TEXT, "AWS_REGION", "hush 1", host),
        (TEXT, "AWS_DEFAULT_REGION", "hush/1", host),
        (TEXT, "AWS_REGION", "hush\"1", host),
        ("az://of/shop", "AZURE_STORAGE_ACCOUNT_NAME", "hush\"hush", host),
        ("az://of/shop", "AZURE_STORAGE_SAS_TOKEN", "sig=hush\n", control),
        ("gs://of/shop", "GOOGLE_APPLICATION_CREDENTIALS", "/hush\n", control),
        // Those by which a role is asked for.
        (TEXT, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://hush hush/", " is no URL: "),
        (TEXT, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "hush", " is no URL: "),
        (TEXT, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/hu sh", " is no path of a URL: "),
        (TEXT, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "hush", "expected a path from / on"),
        ("az://of/shop", "AZURE_AUTHORITY_HOST", "login.hush", " is no URL: "),
        ("az://of/shop", "AZURE_STORAGE_AUTHORITY_HOST", "https://hu sh", " is no URL: "),
        ("az://of/shop", "AZURE_TENANT_ID", "hu sh", "cannot be in a URL"),
        ("az://of/shop", "AZURE_STORAGE_TENANT_ID", "hu sh", "cannot be in a URL"),
        ("az://of/shop", "AZURE_AUTHORITY_ID", "hu sh", "cannot be in a URL"),
        ("az://of/shop", "AZURE_STORAGE_AUTHORITY_ID", "hu sh", "cannot be in a URL"),
    ] {
        let refused = Target::bucket(target, with(name, value), None).err().unwrap().to_string();
        assert!(refused.contains(&format!("{name} ")) && refused.contains(what), "{refused}");
        assert!(!refused.contains("hush"), "{refused}");
    }
    for (name, value) in [
        ("AWS_REGION", "eu-central-1"),
        ("AWS_DEFAULT_REGION", "RegionOne"),
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/4-2?of=shop"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1/credentials"),
        // Of other tools.
        ("AWS_NOTES", "two\nlines"),
        ("AZURE_STORAGE_SAS_TOKEN", "two\nlines"),
    ] {
        assert!(Target::bucket(TEXT, with(name, value), None).is_ok(), "{name}");
    }
}

/// The server of the other tests makes a bucket of a write. These are the answers that Amazon's documents.
#[test]
fn what_other_servers_answer_is_named_with_the_way_out() {
    for (status, body, what) in [
        (
            404,
            "<Error><Code>NoSuchBucket</Code><Message>none</Message></Error>",
            "there is no bucket `backups`: make it, or correct its name, or AWS_REGION and AWS_ENDPOINT_URL \
             (NoSuchBucket: none)",
        ),
        (
            400,
            "<?xml version='1.0'?>\n<Error><Code>ExpiredToken</Code>\n<Message>old</Message></Error>",
            "access is denied: see that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are right",
        ),
        (301, "", "the bucket is elsewhere: correct AWS_REGION and AWS_ENDPOINT_URL"),
        (503, "busy", "the bucket does not do what is asked ("),
    ] {
        run_once(async {
            let (_thread, address, asked) = answering(status, body);
            // An answer that is final is asked for once, however much time there is.
            let limits = if status < 500 { PATIENT } else { IMPATIENT };
            let target = Target::bucket(TEXT, at(address), Some(limits)).unwrap();
            let said = said(&target).await;
            assert_eq!(asked.load(Ordering::Relaxed), said.len());
            for said in said {
                assert!(said.starts_with(what), "{what}: {said}");
            }
        });
    }
}

#[test]
fn a_call_to_a_server_that_answers_nothing_ends() {
    run_once(async {
        let (_thread, address) = silent();
        let limits = Limits { request: Duration::from_millis(50), retry: Duration::ZERO };
        let target = Target::bucket(TEXT, at(address), Some(limits)).unwrap();
        for said in said(&target).await {
            assert!(said.starts_with("the bucket cannot be reached"), "{said}");
        }
    });
}

/// Nobody runs these against a server here: only their texts and variables are read.
#[test]
fn buckets_of_google_and_azure_are_opened() {
    let open = |text: &str, variables: &[(&str, &str)]| {
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        Target::bucket(text, variables, Some(PATIENT)).map_err(|error| error.to_string())
    };
    let account =
        [("AZURE_STORAGE_ACCOUNT_NAME", "shop"), ("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")];
    assert!(open("az://backups/of/shop", &account).is_ok());
    let refused = open("az://backups/of/shop", &[]).err().unwrap();
    assert!(refused.contains("Account must be specified"), "{refused}");
    let credentials = [("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file")];
    let refused = open("gs://backups", &credentials).err().unwrap();
    assert!(refused.contains("/no/such/file"), "{refused}");
    let anonymous = [("GOOGLE_SKIP_SIGNATURE", "true"), ("GOOGLE_SERVICE_ACCOUNT_KEY", ANONYMOUS)];
    assert!(open("gs://backups/of/shop", &anonymous).is_ok());
}

const ANONYMOUS: &str =
    r#"{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;

/// The variables of a process are read, and the system's CAs are those that `SSL_CERT_FILE` names.
#[test]
fn a_process_reaches_a_bucket_behind_tls_by_its_environment() {
    run_in_bucket(async |place, direct| {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let ca = place.path().join("../../../ca.pem");
        std::fs::write(&ca, certified.cert.pem()).unwrap();
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let key =
            rustls::pki_types::PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
        let config = rustls::ServerConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key.into())
            .unwrap();
        let (_thread, address) = server(&place).with_tls(config);
        let endpoint = format!("https://localhost:{}", address.port());
        let mut save = Command::new(std::env::current_exe().unwrap());
        save.args(["tests::buckets::saves_by_its_environment", "--exact", "--ignored"]);
        save.envs(variables(&endpoint)).env_remove("AWS_ALLOW_HTTP");
        let saved = save.env("TARGET", TEXT).env("SSL_CERT_FILE", &ca).output().unwrap();
        assert!(saved.status.success(), "{saved:?}");
        Cluster::new(33).check(&direct, "by-environment").await;
        // This process does not trust it.
        let target = Target::bucket(TEXT, variables(&endpoint), Some(IMPATIENT)).unwrap();
        for said in said(&target).await {
            assert!(said.contains("cannot be reached") && said.contains("UnknownIssuer"), "{said}");
        }
    });
}

#[test]
#[ignore = "another test runs it in a process of its own"]
fn saves_by_its_environment() {
    run_once(async {
        let target = Target::open(&std::env::var("TARGET").unwrap()).unwrap();
        Cluster::new(33).save(&target, "by-environment", None).await;
    });
}
