//! The schedule of backups: what is given, what is refused, and what a reload takes.

use super::*;

#[test]
fn backups_are_saved_where_a_target_is_given() {
    let base = "cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\n";
    let backup = |more: &str| {
        NodeConfig::from_layers(&layers(&format!("{base}[backup]\n{more}"))).expect("good").backup
    };
    assert_eq!(backup(""), None);
    assert_eq!(backup("every = \"1h\"\nkeep = 3\n"), None, "nowhere");
    let day = Duration::from_secs(24 * 3600);
    let nightly = BackupConfig {
        target: "/mnt/backups".into(),
        every: day,
        keep: 7,
        keep_within: None,
        full_every: None,
        encrypt_to: None,
        verify: BackupVerify::None,
    };
    assert_eq!(backup("target = \"/mnt/backups\"\n"), Some(nightly.clone()));
    let given =
        "every = \"1m\"\nkeep = 0\nkeep_within = \"30d\"\nfull_every = \"7d\"\nverify = \"all\"\n";
    for target in ["s3://shop", "s3://shop/of/a", "gs://shop/a", "az://shop/a"] {
        let expected = BackupConfig {
            target: target.into(),
            every: Duration::from_secs(60),
            keep: 0,
            keep_within: Some(30 * day),
            full_every: Some(7 * day),
            encrypt_to: None,
            verify: BackupVerify::All,
        };
        assert_eq!(backup(&format!("target = \"{target}\"\n{given}")), Some(expected.clone()));
        // Where they are stays until a restart, and with it what stays there.
        assert_eq!(nightly.reloaded(&expected), nightly);
        let here = BackupConfig { target: "/mnt/backups".into(), ..expected.clone() };
        assert_eq!(nightly.reloaded(&here), here);
    }
    for to in ["age1abc", "/etc/cairn/recipients.txt"] {
        let verify = BackupVerify::Stored;
        let expected = BackupConfig { encrypt_to: Some(to.into()), verify, ..nightly.clone() };
        let given =
            format!("target = \"/mnt/backups\"\nencrypt_to = \"{to}\"\nverify = \"stored\"\n");
        assert_eq!(backup(&given), Some(expected.clone()));
        assert_eq!(nightly.reloaded(&expected), expected);
    }
}

#[test]
fn a_schedule_of_backups_that_cannot_be_kept_is_refused_with_the_way_out() {
    for (given, expected) in [
        (
            "every = \"59s\"",
            "`59s` is not a value for `backup.every`: expected between 1m and 3650days",
        ),
        ("every = \"11years\"", "expected between 1m and 3650days"),
        ("every = \"soon\"", "`backup.every`: expected a length of time such as 90s, 1h or 7d"),
        ("every = \"none\"", "`backup.every`: expected a length of time"),
        ("keep = -1", "`backup.keep`: expected a whole number from 0 to 10000"),
        ("keep_within = \"1s\"", "expected between 1m and 3650days, or none"),
        ("full_every = \"1s\"", "expected between 1m and 3650days, or none"),
        (
            "target = \"backups\"",
            "`…` is not a value for `backup.target`: expected a folder as /absolute",
        ),
        ("target = \"./backups\"", "expected a folder as /absolute"),
        ("target = \"\"", "expected a folder as /absolute"),
        ("target = \"s4://bucket\"", "a bucket as s3://BUCKET/PREFIX"),
        ("target = \"s3://\"", "a bucket as s3://BUCKET/PREFIX"),
        ("target = \"s3:///prefix\"", "a bucket as s3://BUCKET/PREFIX"),
        (
            "target = \"s3://AKIA:secret@bucket\"",
            "credentials of a bucket stand in the environment",
        ),
        (
            "target = \"az://container/prefix?sig=secret\"",
            "`…` is not a value for `backup.target`: expected a folder as /absolute",
        ),
        ("target = \"/a\\u001b[2J\"", "without control characters"),
        (
            "encrypt_to = \"ssh-ed25519 AAAA\"",
            "`…` is not a value for `backup.encrypt_to`: expected a recipient of age",
        ),
        ("encrypt_to = \"key.txt\"", "the /absolute/path of a file"),
        ("encrypt_to = \"\"", "the /absolute/path of a file"),
        ("encrypt_to = \"age1\\u001b[2J\"", "without control characters"),
        ("encrypt_to = [\"age1abc\"]", "the /absolute/path of a file with one on each line"),
        ("evry = \"1h\"", "did you mean `backup.every`?"),
        ("verify = \"some\"", "`backup.verify`: expected one of none, stored, all"),
    ] {
        let error = file_error(&format!("[backup]\n{given}\n"));
        assert!(error.starts_with("cairn.toml:2: ") && error.contains(expected), "{error}");
    }
    let base = "cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\nbackup.target = \"/a\"\n";
    let of = |more: &str| NodeConfig::from_layers(&layers(&format!("{base}{more}")));
    for none in ["", "backup.keep_within = \"1h\"\n", "backup.keep_within = \"1d\"\n"] {
        let error = of(&format!("backup.keep = 0\n{none}")).expect_err("none stays").to_string();
        assert!(error.contains("backup.keep = 0") && error.contains("keep_within"), "{error}");
    }
    of("backup.keep = 0\nbackup.keep_within = \"25h\"\n").expect("the last one stays");
    for given in ["AGE-SECRET-KEY-1QQQQ", "age-secret-key-1qqqq"] {
        let error = file_error(&format!("[backup]\nencrypt_to = \"{given}\"\n"));
        assert!(error.contains("expected a recipient of age"), "{error}");
        assert!(!error.to_uppercase().contains("1QQQQ"), "{error}");
    }
    let both = "backup.encrypt_to = \"age1abc\"\nbackup.full_every = \"7d\"\n";
    let error = of(both).expect_err("each one has everything").to_string();
    assert!(error.contains("leave one of the two out"), "{error}");
    let both = "backup.encrypt_to = \"age1abc\"\nbackup.verify = \"all\"\n";
    let error = of(both).expect_err("nobody has the key").to_string();
    assert!(
        error.contains("backup.verify = \"stored\"") && error.contains("--identity"),
        "{error}"
    );
    let named = "access.ada = \"read\"\n";
    let error = of(&format!("{named}insecure = true\n")).expect_err("nobody is known").to_string();
    assert!(error.contains("backup.target") && error.contains("give certificates"), "{error}");
    of("insecure = true\n").expect("everybody may");
    let tls = "tls.ca = \"a\"\ntls.certificate = \"b\"\ntls.key = \"c\"\n";
    of(&format!("{named}{tls}")).expect("members are known by their certificates");
}
