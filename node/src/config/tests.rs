//! Precedence, unknown keys, and combinations that are refused.

use super::*;

mod backups;

const THREE: &str = "1=a:1/a:2,2=b:1/b:2,3=c:1/c:2";

fn layers(file: &str) -> Layers {
    let mut layers = Layers::new();
    layers.add_toml("cairn.toml", file).expect("a good file");
    layers
}

fn file_error(file: &str) -> String {
    Layers::new().add_toml("cairn.toml", file).expect_err("a bad file").to_string()
}

fn variables(pairs: &[(&str, &str)]) -> std::vec::IntoIter<(String, String)> {
    let pairs: Vec<_> =
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    pairs.into_iter()
}

fn source_of(layers: &Layers, key: &str) -> (Option<String>, String) {
    let setting =
        layers.settings().into_iter().find(|setting| setting.key == key).expect("a known key");
    (setting.value, setting.source.to_string())
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let mut layers = Layers::new();
    let key = "listen.client";
    assert_eq!(source_of(&layers, key), (Some("127.0.0.1:7400".into()), "default".into()));
    layers.add_toml("cairn.toml", "cluster = \"c\"\n[listen]\nclient = \"f:1\"\n").expect("file");
    assert_eq!(source_of(&layers, key), (Some("f:1".into()), "cairn.toml:3".into()));
    layers.add_environment(variables(&[("CAIRN_LISTEN_CLIENT", "e:1")])).expect("environment");
    assert_eq!(source_of(&layers, key), (Some("e:1".into()), "CAIRN_LISTEN_CLIENT".into()));
    layers.add_assignment("--set", "listen.client=g:1").expect("flag");
    assert_eq!(source_of(&layers, key), (Some("g:1".into()), "--set".into()));
}

#[test]
fn an_unknown_key_is_refused_with_its_location_and_the_nearest_name() {
    assert_eq!(
        file_error("cluster = \"c\"\n\n[listen]\ncleint = \"a:1\"\n"),
        "cairn.toml:4: unknown key `listen.cleint`; did you mean `listen.client`?"
    );
    assert_eq!(
        file_error("colour = 3\n"),
        "cairn.toml:1: unknown key `colour`; `cairn config print` shows every key"
    );
    let error =
        Layers::new().add_environment(variables(&[("CAIRN_SLOTT", "1")])).expect_err("unknown");
    assert_eq!(
        error.to_string(),
        "environment: unknown key `CAIRN_SLOTT`; did you mean `CAIRN_SLOT`?"
    );
    let error = Layers::new().add_assignment("--set", "sloot=1").expect_err("unknown");
    assert_eq!(error.to_string(), "--set: unknown key `sloot`; did you mean `slot`?");
    assert!(
        file_error("[members.1]\nclent = \"a:1\"\n").contains("did you mean `members.1.client`?")
    );
}

#[test]
fn variables_of_kubernetes_and_of_the_command_line_are_not_keys() {
    let pairs = variables(&[
        ("CAIRN_SERVICE_HOST", "10.0.0.1"),
        ("CAIRN_PORT_7400_TCP", "tcp://10.0.0.1:7400"),
        ("CAIRN_ENDPOINTS", "a:1"),
        ("HOME", "/"),
    ]);
    assert_eq!(Layers::new().add_environment(pairs), Ok(()));
}

/// The story: a Service called `cairn-client` set `CAIRN_CLIENT_PORT` in every pod, and no node started.
#[test]
fn variables_of_any_service_are_ignored_and_told_and_slips_are_refused() {
    let of_services = [
        ("CAIRN_PORT", "tcp://10.0.0.1:7400"),
        ("CAIRN_CLIENT_PORT", "tcp://10.0.0.1:7400"),
        ("CAIRN_CLIENT_SERVICE_HOST", "10.0.0.1"),
        ("CAIRN_CLIENT_SERVICE_PORT", "7400"),
        ("CAIRN_CLIENT_SERVICE_PORT_GRPC", "7400"),
        ("CAIRN_CLIENT_PORT_7400_TCP", "tcp://10.0.0.1:7400"),
        ("CAIRN_CLIENT_PORT_7400_TCP_PROTO", "tcp"),
        ("CAIRN_CLIENT_PORT_7400_TCP_PORT", "7400"),
        ("CAIRN_CLIENT_PORT_7400_TCP_ADDR", "10.0.0.1"),
        ("CAIRN_0_PEERS_PORT_53_UDP_ADDR", "10.0.0.1"),
    ];
    let mut layers = Layers::new();
    assert_eq!(layers.add_environment(variables(&of_services)), Ok(()));
    let warning = layers.ignored().expect("a warning");
    assert!(of_services.iter().all(|(name, _)| warning.contains(name)), "{warning}");
    assert_eq!(Layers::new().ignored(), None);
    for slip in ["CAIRN_CLIENT_PORT", "CAIRN_LISTEN_PORT", "CAIRN_PORT_X_TCP", "CAIRN_SERVICES"] {
        let refused = Layers::new().add_environment(variables(&[(slip, "7400")]));
        assert!(matches!(refused, Err(ConfigError::UnknownKey { .. })), "{slip}");
    }
}

/// The story: `access = {}`, `[]` or `""` meant that nobody was named, and let everybody in.
#[test]
fn access_that_names_nobody_is_refused_however_it_is_written() {
    let base = "cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\n";
    for empty in [
        "access = {}",
        "access = []",
        "access = \"\"",
        "access = \" , \"",
        "[access]",
        "access.ada = {}",
    ] {
        let error = file_error(&format!("{base}{empty}\n"));
        assert!(error.starts_with("cairn.toml:4: ") && error.contains("expected "), "{error}");
    }
    for empty in ["", " ", ","] {
        let set = Layers::new().add_environment(variables(&[("CAIRN_ACCESS", empty)]));
        assert!(matches!(set, Err(ConfigError::BadValue { .. })), "{empty:?}: {set:?}");
        assert!(Layers::new().add_assignment("--set", &format!("access={empty}")).is_err());
    }
    for everybody in ["", "access = \"none\"\n"] {
        let config = NodeConfig::from_layers(&layers(&format!("{base}{everybody}")));
        assert!(config.expect("good").access.is_empty());
    }
}

/// The story: `slot = {}` was no value and no error, and the key kept its default.
#[test]
fn a_value_whose_form_is_not_that_of_its_key_is_refused_for_every_key() {
    for key in keys::KEYS {
        let name = key.name;
        let error = file_error(&format!("{name} = {{}}\n"));
        assert!(error.starts_with("cairn.toml:1: `{}` is not a value"), "{name}: {error}");
        assert!(file_error(&format!("{name} = [[]]\n")).contains(" is not a value"), "{name}");
        if !matches!(key.kind, keys::Kind::Addresses) {
            let error = file_error(&format!("{name} = [\"a\"]\n"));
            assert!(error.contains("`[…]` is not a value"), "{name}: {error}");
        }
        let below = file_error(&format!("{name}.deeper = 1\n"));
        assert!(below.starts_with("cairn.toml:1: "), "{name}: {below}");
    }
    assert!(file_error("colour = {}\n").contains("unknown key `colour`"));
    assert!(file_error("listen.client.x = {}\n").contains("unknown key"));
    assert!(file_error("[members.1]\n").contains("needs both `client` and `peer`"));
    // A section whose keys are all left out is usual.
    layers("[listen]\n[limits]\n[tls]\n");
}

#[test]
fn an_error_quotes_no_more_than_a_person_reads_and_nothing_that_a_terminal_obeys() {
    let long = "x\u{1b}[2J".repeat(20_000);
    for error in [
        Layers::new().add_assignment("--set", &format!("slot={long}")),
        Layers::new().add_assignment("--set", &format!("{long}=1")),
        Layers::new().add_assignment("--set", &format!("members={long}")),
        Layers::new().add_assignment("--set", &format!("access={long}")),
        Layers::new().add_assignment("--set", &long),
        Layers::new().add_assignment("--set", &format!("cluster={long}")),
    ] {
        let error = error.expect_err("refused").to_string();
        assert!(error.len() < 5000 && !error.contains('\u{1b}'), "{} bytes: {error}", error.len());
    }
}

#[test]
fn two_members_are_never_at_one_address() {
    let base = "cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\n";
    for (members, words) in [
        ("1=a:1/a:2,2=a:1/b:2,3=c:1/c:2", "a:1 is both members.1.client and members.2.client"),
        ("1=a:1/a:2,2=b:1/A:2,3=c:1/c:2", "A:2 is both members.1.peer and members.2.peer"),
        ("1=a:1/a:2,2=b:1/a:1,3=c:1/c:2", "a:1 is both members.1.client and members.2.peer"),
        ("1=a:1/a:1,2=b:1/b:2,3=c:1/c:2", "a:1 is both members.1.client and members.1.peer"),
    ] {
        let mut layers = layers(base);
        layers.add_assignment("--set", &format!("members={members}")).expect("members");
        let error = NodeConfig::from_layers(&layers).expect_err(members).to_string();
        assert!(error.contains(words), "{error}");
    }
    let mut layers = layers(base);
    for advertised in ["advertise.client=a:1", "advertise.peer=a:1"] {
        layers.add_assignment("--set", advertised).expect("an address");
    }
    let error = NodeConfig::from_layers(&layers).expect_err("one address").to_string();
    assert!(error.contains("advertise.client and advertise.peer"), "{error}");
}

#[test]
fn a_bad_value_is_refused_with_what_was_expected() {
    assert_eq!(
        file_error("slot = 0\n"),
        "cairn.toml:1: `0` is not a value for `slot`: expected from 1 to 65535"
    );
    assert!(
        file_error("mode = \"fast\"").contains("expected one of auto, device, replicated, sync")
    );
    assert!(file_error("slot = [1]").contains("expected a whole number"));
    assert!(file_error("slot = ").contains("is not valid TOML"));
}

/// The story: somebody gave the secret key of a bucket without quotes, and the log showed the line.
#[test]
fn an_error_of_the_syntax_names_line_and_key_and_shows_no_value() {
    let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    for (text, place) in [
        (format!("secret_access_key = {secret}"), "line 3, `secret_access_key`: "),
        (format!("target = s3://AKIA:{secret}@backups"), "line 3, `target`: "),
        (format!("target = \"{secret}\"\ntarget = \"{secret}\""), "line 4, `target`: "),
        (format!("every = \"1h\" {secret}"), "line 3, `every`: "),
        (secret.to_string(), "line 3: "),
        (format!("{secret} = 1"), "line 3: "),
        (format!("target = \"{secret}"), ""),
        (format!("target = \"\"\"{secret}"), ""),
    ] {
        let error = file_error(&format!("slot = 1\n[backup]\n{text}\n"));
        assert!(error.starts_with(&format!("cairn.toml is not valid TOML: {place}")), "{error}");
        assert!(!error.contains("wJalr") && !error.contains("EXAMPLE"), "{error}");
    }
}

/// The same where the syntax is right.
#[test]
fn an_error_shows_no_value_in_whose_place_a_secret_may_stand() {
    let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    let hidden = |error: String| {
        assert!(!error.contains("wJalr") && !error.contains("EXAMPLE"), "{error}");
        error
    };
    for (key, value) in [
        ("backup.target", secret.to_string()),
        ("backup.target", format!("s3://AKIA:{secret}@backups")),
        ("backup.encrypt_to", secret.to_string()),
        ("tls.key", format!("-----BEGIN PRIVATE KEY-----\\n{secret}")),
        ("access.ada", secret.to_string()),
        ("access.ada", format!("read {secret}:")),
        ("access.ada", format!("read:{secret}%")),
        ("access.ada", format!("read token:{secret}")),
        ("access", secret.to_string()),
        ("access", format!("ada={secret}")),
    ] {
        let error = hidden(file_error(&format!("{key} = \"{value}\"\n")));
        let begin = format!("cairn.toml:1: `…` is not a value for `{key}`: expected ");
        let places = ["role 1: ", "role 2: ", "entry 1: ", "ada: "];
        let error = places
            .iter()
            .fold(error, |error, place| error.replace(&format!(": {place}expected"), ": expected"));
        assert!(error.starts_with(&begin), "{error}");
    }
    // A slip in a number is found by it.
    assert!(file_error("slot = 70000\n").contains("`70000` is not a value for `slot`"));
}

#[test]
fn a_missing_key_names_every_way_to_give_it() {
    let error = NodeConfig::from_layers(&layers("slot = 1")).expect_err("no cluster").to_string();
    assert_eq!(
        error,
        "`cluster` is not set; give it in the configuration file, as CAIRN_CLUSTER, or with --set cluster=…"
    );
}

#[test]
fn members_come_from_tables_or_from_one_line() {
    let tables = "cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\n\
                  [members.1]\nclient = \"a:1\"\npeer = \"a:2\"\n\
                  [members.2]\nclient = \"b:1\"\npeer = \"b:2\"\n\
                  [members.3]\nclient = \"c:1\"\npeer = \"c:2\"\n";
    let config = NodeConfig::from_layers(&layers(tables)).expect("good");
    assert_eq!(members::format(&config.members), THREE);
    assert_eq!(config.mode, None);
    assert!(
        file_error("[members.1]\nclient = \"a:1\"\n").contains("needs both `client` and `peer`")
    );
}

#[test]
fn access_comes_from_a_table_or_from_one_line() {
    let base = "cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\n";
    let access =
        |layers: &Layers| NodeConfig::from_layers(layers).expect("good").access.to_string();
    assert_eq!(access(&layers(base)), "");
    let mut tables = layers(&format!(
        "{base}[access]\n\"ada@b.c\" = \"read  write:app/%2c\"\nops = \"operator\"\n"
    ));
    let dotted = format!("{base}access.ops = \"operator\"\n");
    assert_eq!(access(&layers(&dotted)), "ops=operator");
    assert_eq!(access(&tables), "ada@b.c=read write:app/%2c,ops=operator");
    let line = variables(&[("CAIRN_ACCESS", "ci = write , d=read:d")]);
    tables.add_environment(line).expect("environment");
    assert_eq!(access(&tables), "ci=write,d=read:d");
    for (bad, word) in [
        ("access.ada = \"rites\"", "expected read, read:PREFIX"),
        ("access.ada = \"\"", "at least one role"),
        ("access.ada = \"read,write\"", "%2c for a comma"),
        ("access.\"a b\" = \"read\"", "a name of 1 to 64"),
        ("access.ada.token = \"x\"", "expected read, read:PREFIX"),
    ] {
        let error = file_error(bad);
        assert!(error.starts_with("cairn.toml:1: ") && error.contains(word), "{error}");
    }
}

#[test]
fn a_member_that_joins_names_only_itself_and_seeds() {
    let text =
        "cluster = \"c\"\nslot = 4\ndata_dir = \"d\"\njoin = [\"seed:7401\", \"other:7401\"]\n";
    let config = NodeConfig::from_layers(&layers(text)).expect("good");
    assert_eq!(config.join, ["seed:7401", "other:7401"]);
    assert!(config.members.is_empty() && config.has_peers());
    assert_eq!(config.seeds(), config.join);
    assert!(file_error("join = [\"seed\"]\n").contains("expected host:port"));
    assert!(file_error("join = [7401]\n").contains("expected host:port"));
    let alone = NodeConfig::from_layers(&layers("cluster = \"c\"\nslot = 4\ndata_dir = \"d\"\n"));
    assert!(!alone.expect("good").has_peers());
}

#[test]
fn a_member_that_listens_on_all_interfaces_says_where_others_reach_it() {
    // Also one that is alone: others join later, and its clients are told where it is.
    for others in [format!("members = \"{THREE}\"\n"), String::new()] {
        let mut layers = layers(&format!(
            "cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\n{others}listen.client = \"0.0.0.0:7400\"\n"
        ));
        let error = NodeConfig::from_layers(&layers).expect_err("nobody reaches it").to_string();
        assert!(error.contains("0.0.0.0:7400") && error.contains("advertise.client"), "{error}");
        layers.add_assignment("--set", "advertise.client=a:7400").expect("an address");
        let config = NodeConfig::from_layers(&layers).expect("good");
        assert_eq!(config.advertise_client.as_deref(), Some("a:7400"));
        assert_eq!(config.advertise_peer, None);
    }
}

#[test]
fn one_or_two_members_never_run_replicated() {
    for (members, word) in
        [("", "1 initial member "), ("1=a:1/a:2,2=b:1/b:2", "2 initial members ")]
    {
        let mut layers = layers("cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\n");
        layers.add_assignment("--set", &format!("members={members}")).expect("members");
        assert_eq!(NodeConfig::from_layers(&layers).expect("good").mode, None);
        layers.add_assignment("--set", "mode=replicated").expect("mode");
        let error = NodeConfig::from_layers(&layers).expect_err("refused").to_string();
        assert!(error.contains(word) && error.contains("mode = \"sync\""), "{error}");
    }
}

#[test]
fn values_that_do_not_go_together_are_refused() {
    let base = format!("cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\nmembers = \"{THREE}\"\n");
    for (more, word) in [
        ("slot=4", "not among the members"),
        ("listen.peer=127.0.0.1:7400", "given to two"),
        ("timing.election_min=150ms", "twice timing.heartbeat"),
        ("limits.max_request_bytes=1MiB", "one key and one value"),
        ("limits.max_in_flight_bytes=15MiB", "max_in_flight_bytes"),
    ] {
        let mut layers = layers(&base);
        layers.add_assignment("--set", more).expect("each value alone is good");
        let error = NodeConfig::from_layers(&layers).expect_err(more).to_string();
        assert!(error.contains(word), "{error}");
    }
}

/// The story: of a changed limit the log said that it needs a restart, and the node applied it at once.
#[test]
fn a_reload_takes_each_limit_or_leaves_it_to_a_restart_as_its_key_says() {
    let base = "cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\n";
    let limits = |more: &str| {
        NodeConfig::from_layers(&layers(&format!("{base}{more}"))).expect("they fit").limits
    };
    let running = limits("");
    for key in keys::KEYS.iter().filter(|key| key.name.starts_with("limits.")) {
        let default = parse_size(key.default.expect("a default")).expect("a number");
        let new = limits(&format!("{} = {}\n", key.name, default / 2));
        assert_ne!(new, running, "{}", key.name);
        let applied = if key.live { new } else { running };
        assert_eq!(running.reloaded(&new), Ok(applied), "{}", key.name);
    }
    // They fit one another, and not what stays.
    for new in [
        "limits.max_request_bytes = \"16MiB\"\nlimits.max_value_bytes = \"8MiB\"\n",
        "limits.max_request_bytes = \"2MiB\"\nlimits.max_in_flight_bytes = \"8MiB\"\n",
    ] {
        let refused = running.reloaded(&limits(new)).expect_err(new).to_string();
        let stays = "limits.max_request_bytes stays 4194304 bytes until a restart";
        assert!(refused.contains(stays), "{refused}");
    }
}
