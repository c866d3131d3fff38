//! Precedence, unknown keys, and combinations that are refused.

use super::*;

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
    let mut layers = layers(&format!(
        "cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\nmembers = \"{THREE}\"\nlisten.client = \"0.0.0.0:7400\"\n"
    ));
    let error = NodeConfig::from_layers(&layers).expect_err("nobody reaches it").to_string();
    assert!(error.contains("0.0.0.0:7400") && error.contains("advertise.client"), "{error}");
    layers.add_assignment("--set", "advertise.client=a:7400").expect("an address");
    let config = NodeConfig::from_layers(&layers).expect("good");
    assert_eq!(config.advertise_client.as_deref(), Some("a:7400"));
    assert_eq!(config.advertise_peer, None);
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
