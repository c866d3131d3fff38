//! `cairn certs`.

use crate::support::run;
use std::os::unix::fs::PermissionsExt;

#[test]
fn certificates_are_made_once_and_keys_are_for_their_owner_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let cairn = |arguments: &[&str]| run(folder.path(), arguments);
    let early = cairn(&["certs", "issue", "pki", "--member", "1"]);
    assert!(early.code == 2 && early.stderr.contains("cairn certs init pki"), "{}", early.stderr);
    let init = ["certs", "init", "pki", "--cluster", "blue"];
    let made = cairn(&init);
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(made.stdout.contains("Copy ca.pem to every member and client"), "{}", made.stdout);
    for (issue, name) in [
        (["--member", "2"], "cairn://blue/member/2"),
        (["--client", "ci@build.1"], "cairn://blue/client/ci%40build.1"),
    ] {
        let issue = [&["certs", "issue", "pki"][..], &issue, &["-o", "json"]].concat();
        let made = cairn(&issue);
        let said: serde_json::Value = serde_json::from_str(&made.stdout).expect("JSON");
        assert_eq!(said["name"], name);
        for (file, mode) in [("key", 0o600), ("certificate", 0o644)] {
            let path = folder.path().join(said[file].as_str().expect("a path"));
            let found = std::fs::metadata(&path).expect("a file").permissions().mode();
            assert_eq!(found & 0o777 & !mode, 0, "{path:?} has {found:o}");
        }
        let again = cairn(&issue);
        assert!(again.code == 2 && again.stderr.contains("is not overwritten"), "{}", again.stderr);
    }
    let again = cairn(&init);
    assert!(again.code == 2 && again.stderr.contains("ca-key.pem exists"), "{}", again.stderr);
    let key = std::fs::metadata(folder.path().join("pki/ca-key.pem")).expect("a file");
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    for bad in [
        &["certs", "issue", "pki"][..],
        &["certs", "issue", "pki", "--member", "0"],
        &["certs", "issue", "pki", "--member", "1", "--client", "a"],
        &["certs", "issue", "pki", "--client", "a", "--address", "h"],
        &["certs", "issue", "pki", "--member", "1", "--address", "not a host"],
        &["certs", "issue", "pki", "--client", ""],
        &["certs", "init", "other", "--cluster", ""],
    ] {
        assert_eq!(cairn(bad).code, 2, "{bad:?}");
    }
    let bad = cairn(&["certs", "issue", "pki", "--client", "a/b"]);
    let words = "--client `a/b`: expected a name of 1 to 64 letters";
    assert!(bad.code == 2 && bad.stderr.contains(words), "{}", bad.stderr);
    std::fs::write(folder.path().join("pki/ca-key.pem"), "no key").expect("a file");
    let bad = cairn(&["certs", "issue", "pki", "--client", "a"]);
    assert!(bad.code == 2 && bad.stderr.contains("pki/ca-key.pem"), "{}", bad.stderr);
}
