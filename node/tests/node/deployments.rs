//! What `deploy/nvme` and `deploy/helm` say agrees with the unit, the example configuration and the program: ports,
//! paths, options and keys. Of the script, what needs neither root nor a drive is run. The chart's templates are rendered
//! by nobody here. That the commands in them are accepted is checked beside the parser.

use crate::support::run;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CHART: &str = "deploy/helm/cairn";
const SCRIPT: &str = "deploy/nvme/setup";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// All files of the chart's templates as one text.
fn templates() -> String {
    let folder = root().join(CHART).join("templates");
    let files = fs::read_dir(folder).expect("templates").map(|file| file.expect("a file").path());
    let texts: Vec<String> = files.map(|file| fs::read_to_string(file).expect("text")).collect();
    assert!(texts.len() > 8, "all templates are read");
    texts.join("\n")
}

/// The paths of all keys in YAML that consists of nested mappings alone, one key a line, and of values on the key's line.
///
/// # Errors
/// The line that is none of these.
fn keys_of(yaml: &str) -> Result<BTreeSet<String>, String> {
    let (mut keys, mut above) = (BTreeSet::new(), Vec::<&str>::new());
    let mut may_go_deeper = false;
    for line in yaml.lines() {
        let text = line.trim_start_matches(' ');
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let indented = line.len() - text.len();
        let (key, value) = text.split_once(':').ok_or(line)?;
        let is_key = key.chars().all(|c| c.is_ascii_alphanumeric()) && !key.is_empty();
        let depth = indented / 2;
        let deepest = above.len() - usize::from(!may_go_deeper && !above.is_empty());
        let fits = indented.is_multiple_of(2) && depth <= deepest;
        let closed = value.matches('"').count().is_multiple_of(2);
        if !(is_key && fits && closed && (value.is_empty() || value.starts_with(' '))) {
            return Err(line.to_owned());
        }
        above.truncate(depth);
        above.push(key);
        may_go_deeper = value.trim().is_empty();
        if !keys.insert(above.join(".")) {
            return Err(format!("twice: {line}"));
        }
    }
    Ok(keys)
}

/// The paths of all properties of a schema, without those of a mapping whose keys it leaves open.
fn properties(schema: &Value, above: &str, found: &mut BTreeSet<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{above}{name}");
        properties(property, &format!("{path}."), found);
        found.insert(path);
    }
}

#[test]
fn every_value_of_the_chart_is_in_its_schema_and_each_that_a_template_uses_is_there() {
    let values = keys_of(&read(&format!("{CHART}/values.yaml"))).expect("mappings");
    let schema: Value =
        serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).expect("JSON");
    let mut described = BTreeSet::new();
    properties(&schema, "", &mut described);
    // Helm's own.
    assert!(described.remove("global"));
    assert_eq!(values, described);

    let templates = templates();
    let used: BTreeSet<&str> = templates
        .split(".Values.")
        .skip(1)
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.');
            rest[..end.unwrap_or(rest.len())].trim_end_matches('.')
        })
        .collect();
    let unknown: Vec<&&str> = used.iter().filter(|path| !values.contains(**path)).collect();
    assert!(unknown.is_empty() && used.len() > 15, "{unknown:?} of {used:?}");
    let above = |path: &str| values.iter().any(|other| other.starts_with(&format!("{path}.")));
    let unused: Vec<&String> =
        values.iter().filter(|path| !above(path) && !used.contains(path.as_str())).collect();
    assert!(unused.is_empty(), "no template uses {unused:?}");

    let chart = keys_of(&read(&format!("{CHART}/Chart.yaml"))).expect("mappings");
    for key in ["apiVersion", "name", "version", "appVersion", "kubeVersion"] {
        assert!(chart.contains(key), "{key}");
    }
    let released = format!("appVersion: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(read(&format!("{CHART}/Chart.yaml")).contains(&released), "{released}");
}

/// One file of the chart's templates.
fn template(name: &str) -> String {
    read(&format!("{CHART}/templates/{name}"))
}

/// The stories: a rollout took the last pod while another one was not ready, a rollback stopped members that still
/// voted, and a pod that joined waited for itself before it ended.
#[test]
fn nothing_of_the_chart_stops_or_removes_a_member_before_the_cluster_was_asked() {
    let weight = |text: &str| -> i32 {
        let found = text.lines().find_map(|line| line.trim().strip_prefix("helm.sh/hook-weight: "));
        found.map_or(0, |weight| weight.trim_matches('"').parse().expect("a number"))
    };
    let (check, shrink) = (template("check.yaml"), template("shrink.yaml"));
    assert!(check.contains("\n    helm.sh/hook: pre-upgrade\n"), "{check}");
    assert!(check.contains("[\"health\", \"--safe-to-stop\", \"--wait\", "), "{check}");
    assert!(check.contains("\n  backoffLimit: 0\n") && check.contains("restartPolicy: Never"));
    assert!(weight(&check) > weight(&shrink), "a member that is gone is removed before the check");
    for hook in ["\"pre-upgrade\" $before", "\"pre-rollback\" $most"] {
        assert!(shrink.contains(hook), "{hook}");
    }
    let schema: Value =
        serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).expect("JSON");
    let sizes = schema["properties"]["replicas"]["enum"].as_array().expect("numbers");
    let most = sizes.iter().filter_map(Value::as_u64).max().expect("a number");
    assert!(shrink.contains(&format!("$most := {most} ")), "it knows every slot that may be there");
    let members = template("members.yaml");
    assert!(members.contains(&format!("untilStep 1 {} 1", most + 1)), "and so do certificates");
    let stop = members.lines().find(|line| line.contains("command: [")).expect("before a stop");
    assert!(stop.contains("\"--safe-to-stop\", \"--slot\", \"own\", \"--wait\""), "{stop}");

    // What is repeated meets what it did before.
    let change = template("_change.tpl");
    let removes = change.lines().filter(|line| line.contains("\"remove\", "));
    let removes: Vec<&str> = removes.collect();
    assert!(!removes.is_empty() && removes.iter().all(|line| line.contains("\"--if-member\"")));
    // The story: under Argo CD the revision stays 1, and a job that exists takes no other content.
    let grow = template("grow.yaml");
    assert!(grow.contains("{{ sha256sum $change | trunc 8 }}\n"), "{grow}");
}

#[test]
fn a_line_that_is_no_key_is_found_and_so_is_one_that_is_indented_by_chance() {
    let keys = keys_of("# a\na: 1\nb:\n  c: \"x: y\"\n\n  d: {}\ne: []\n").expect("mappings");
    assert_eq!(keys.into_iter().collect::<Vec<_>>(), ["a", "b", "b.c", "b.d", "e"]);
    for wrong in
        ["a\n", "a: 1\n  b: 2\n", "a:\n   b: 1\n", "a: \"x\na2: 1\n", "a: 1\na: 2\n", "a:1\n"]
    {
        keys_of(wrong).expect_err(wrong);
    }
}

/// Every key that the script or the chart writes into a configuration is one of this program.
#[test]
fn the_configurations_that_are_written_have_keys_that_exist() {
    let folder = tempfile::tempdir().expect("a folder");
    let printed = run(folder.path(), &["config", "print", "-o", "json"]);
    assert_eq!(printed.code, 0, "{printed:?}");
    let known: Value = serde_json::from_str(&printed.stdout).expect("one document");
    let script = read(SCRIPT);
    let of_script = script.lines().filter_map(|line| {
        let (_, behind) = line.split_once("key \"").or_else(|| line.split_once("key insecure"))?;
        behind.split_once('=').map(|(key, _)| if key.is_empty() { "insecure" } else { key })
    });
    let chart = templates();
    let of_chart = chart.lines().filter_map(|line| line.trim().split_once(" = "));
    let of_chart = of_chart
        .map(|(key, _)| key)
        .filter(|key| key.starts_with(|c: char| c.is_ascii_lowercase()) && !key.contains(' '));
    let written: BTreeSet<&str> = of_script.chain(of_chart).collect();
    assert!(written.len() >= 14, "{written:?}");
    for key in written {
        let is_known = match key.strip_prefix("members.") {
            Some(rest) => rest.ends_with(".client") || rest.ends_with(".peer"),
            None => known.get(key).is_some(),
        };
        assert!(is_known, "{key}");
    }
}

#[test]
fn ports_and_paths_are_those_of_the_unit_and_of_the_example() {
    let example: toml::Table = toml::from_str(&read("deploy/cairn.example.toml")).expect("TOML");
    let port = |key: &str| {
        let address = example["listen"][key].as_str().expect("an address");
        address.rsplit_once(':').expect("a port").1.to_owned()
    };
    let [client, peer, http] = ["client", "peer", "http"].map(port);
    let chart = templates();
    for (name, port) in [("client", &client), ("peer", &peer), ("http", &http)] {
        assert!(chart.contains(&format!("{{ name: {name}, containerPort: {port} }}")), "{name}");
        assert!(chart.contains(&format!("{{ name: {name}, port: {port}, ")), "{name}");
        assert!(chart.contains(&format!("listen.{name} = \"0.0.0.0:{port}\"")), "{name}");
    }
    for path in ["/ready", "/live"] {
        assert!(chart.contains(&format!("path: {path}\n")), "{path}");
    }
    for cloud in ["aws", "gcp"] {
        let main = read(&format!("deploy/nvme/terraform/{cloud}/main.tf"));
        let member = format!("${{member.private_ip}}:{client}/${{member.private_ip}}:{peer}\"");
        assert!(main.contains(&member), "{cloud}");
        assert!(!main.contains(&http), "{cloud}: the port of HTTP stays closed");
        let boot = "templatefile(\"${path.module}/../boot.tftpl\", {
      machine        = file(\"${path.module}/machine.sh\")\n";
        assert!(main.contains(boot), "{cloud}: it boots by the script of both clouds");
    }

    let script = read(SCRIPT);
    assert!(script.contains(&format!("key \"listen.http=127.0.0.1:{http}\"")));
    let unit = read("deploy/cairn.service");
    let data = example["data_dir"].as_str().expect("a path");
    assert!(unit.contains(&format!("\nRequiresMountsFor={data}\n")));
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a start");
    let config = start.rsplit_once(' ').expect("arguments").1;
    let user = unit.lines().find_map(|line| line.strip_prefix("User=")).expect("a user");
    let defaults = format!("mount_at={data} fstab=/etc/fstab config={config} user={user} ");
    assert!(script.contains(&defaults), "{defaults}");
    // A package puts the example where the script writes the configuration: it must know it.
    let first = read("deploy/cairn.example.toml");
    let first = first.lines().next().expect("a line");
    assert!(script.contains(&format!("\nexample_line='{first}'\n")), "{first}");
    let dockerfile = read("deploy/Dockerfile");
    assert!(dockerfile.contains(&format!("EXPOSE {client} {peer} {http}\n")));
    let number = dockerfile.lines().find_map(|line| line.strip_prefix("USER ")).expect("a user");
    let number = number.split(':').next().expect("a number");
    assert!(chart.contains(&format!("runAsUser: {number}\n")), "{number}");
}

/// What the script prints on the error stream for these options, beside those of a member without others. It refuses them
/// with 2, before it looks at anything.
fn refused(options: &[&str]) -> String {
    let member = ["--cluster", "example", "--slot", "1", "--members", "1=a:7400/a:7401"];
    let ran = Command::new("bash").arg(root().join(SCRIPT)).args(member).args(options).output();
    let ran = ran.expect("bash runs");
    let said = String::from_utf8(ran.stderr).expect("text");
    assert_eq!(ran.status.code(), Some(2), "{options:?}: {said}");
    said
}

/// The stories: with `--insecure` and tokens nothing could see that the cluster was formed, so blank drives of all
/// members would form an empty one. And the unit read another configuration, as another user, than what was written.
#[test]
fn options_that_cannot_work_together_are_refused_with_a_way_out() {
    for access in ["access.ada=operator token:00", "access=ada"] {
        let said = refused(&["--insecure", "--set", access]);
        assert!(said.contains("only to a token") && said.contains("give --certs DIR"), "{said}");
        assert!(!said.contains("token:00"), "what is set may be a secret: {said}");
    }
    for (option, value) in [("--config", "/etc/other.toml"), ("--user", "nobody")] {
        // That everybody may do everything needs no token.
        let said = refused(&["--insecure", "--set", "access=none", option, value]);
        let named = format!("{option} {value}: cairn.service ");
        assert!(said.contains(&named) && said.contains("--no-unit"), "{said}");
    }
}

/// What a function of the script prints on both streams, with this in place of `systemctl`. Errors end it
/// as they end the script.
fn with_systemctl(function: &str, systemctl: &str, calls: &str) -> String {
    let script = read(SCRIPT);
    let begin = format!("\n{function}() {{\n");
    let (_, body) = script.split_once(&begin).expect("the function");
    let (body, _) = body.split_once("\n}\n").expect("its end");
    let program = format!(
        "set -Eeuo pipefail; shopt -s inherit_errexit; exec 2>&1
        mount_at=/var/lib/cairn ask_drive=''
        say() {{ echo \"$*\"; }}
        systemctl() {{ {systemctl}; }}
        {function}() {{\n{body}\n}}
        {calls}"
    );
    let ran = Command::new("bash").args(["-c", &program]).output().expect("bash runs");
    assert!(ran.status.success(), "{ran:?}");
    String::from_utf8(ran.stdout).expect("text")
}

/// The story: one call of systemctl that failed, or a look while the unit was stopped for another start, ended the
/// process that notes a formed cluster.
#[test]
fn a_unit_counts_as_running_until_systemd_says_that_it_is_not() {
    for (state, job, expected) in [
        ("active", 0, "runs"),
        ("activating", 0, "runs"),
        ("reloading", 0, "runs"),
        ("deactivating", 0, "runs"),
        ("inactive", 12, "runs"),
        ("inactive", 0, "ended"),
        ("failed", 0, "ended"),
    ] {
        let systemctl = format!("printf 'Job={job}\\nActiveState={state}\\n'");
        let said = with_systemctl(
            "unit_runs",
            &systemctl,
            "if unit_runs; then echo runs; else echo ended; fi",
        );
        assert_eq!(said.trim(), expected, "{state} {job}");
    }
    let said = with_systemctl("unit_runs", "return 1", "if unit_runs; then echo runs; fi");
    assert_eq!(said.trim(), "runs", "no answer");
}

/// The story: a run was killed after it wrote a drop-in. The next one found that in its place, and systemd never read it.
#[test]
fn systemd_reads_its_files_again_before_each_start_of_the_unit() {
    let said = with_systemctl("start_unit", "echo \"$*\"; [[ $1 != is-active ]]", "start_unit");
    let at = |words: &str| said.lines().position(|line| line == words);
    let reload = at("daemon-reload").expect("it reads them");
    let start = at("start --no-block cairn.service").expect("it starts");
    assert!(reload < start, "{said}");
}

/// The options of the script in a text, such as `--drive`, in lines that call it and in those that go on from there.
fn options(text: &str) -> BTreeSet<&str> {
    let mut goes_on = false;
    let mut found = BTreeSet::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let calls = line.contains("cairn-nvme-setup --");
        let is_directive = line.starts_with("%{");
        if calls || goes_on {
            let words = line.split_whitespace().map(|word| word.trim_matches(['`', '.', ',']));
            found.extend(words.filter(|word| word.len() > 2 && word.starts_with("--")));
        }
        goes_on = (calls || goes_on) && (is_directive || line.ends_with('\\'));
    }
    found
}

#[test]
fn the_script_says_what_it_takes_and_takes_what_others_give_it() {
    let script = root().join(SCRIPT);
    let bash = |arguments: &[&str]| {
        let ran = Command::new("bash").arg(arguments[0]).args(&arguments[1..]).output();
        ran.expect("bash runs")
    };
    let path = script.to_str().expect("text");
    assert!(bash(&["-n", path]).status.success(), "its syntax");
    let help = bash(&[path, "--help"]);
    assert!(help.status.success());
    let help = String::from_utf8(help.stdout).expect("text");
    let described: BTreeSet<&str> = help
        .lines()
        .filter_map(|line| line.strip_prefix("  --"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let text = read(SCRIPT);
    let (_, cases) = text.split_once("\noptions() {").expect("its options");
    let (cases, _) = cases.split_once("\n}\n").expect("their end");
    let taken: BTreeSet<&str> = cases
        .lines()
        .filter_map(|line| line.trim().strip_prefix("--"))
        .filter_map(|line| line.split([')', ' ']).next())
        .collect();
    assert_eq!(described, taken);
    assert!(taken.len() > 20, "{taken:?}");

    for file in ["docs/nvme.md", "deploy/nvme/terraform/boot.tftpl"] {
        let text = read(file);
        let given = options(&text);
        assert!(given.len() >= 4, "{file}: {given:?}");
        let unknown: Vec<&&str> =
            given.iter().filter(|option| !taken.contains(&option[2..])).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    // One that does not exist is refused before anything is looked at.
    let refused = bash(&[path, "--drives", "/dev/null"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).expect("text");
    assert!(said.contains("--drives: unknown"), "{said}");
    let refused = bash(&[path, "--cluster", "a b", "--slot", "1"]);
    assert_eq!(refused.status.code(), Some(2));
}
