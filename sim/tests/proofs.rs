//! Every proof that `docs/safety.md` names exists: a scenario, a planted bug, a rule of the model,
//! or a test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    let path = repository().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The texts between each `before` and the next `after`.
fn between(text: &str, before: &str, after: char) -> BTreeSet<String> {
    text.split(before)
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(after)?.0.to_owned()))
        .collect()
}

fn scenarios() -> BTreeSet<String> {
    let folder = repository().join("sim/src/harness/script");
    let files =
        fs::read_dir(folder).expect("the scripts").map(|entry| entry.expect("an entry").path());
    let name = |list: String| list.trim().trim_matches('"').to_owned();
    files
        .flat_map(|path| between(&fs::read_to_string(path).expect("a script"), "scenario!(", ','))
        .map(name)
        .collect()
}

fn planted_bugs() -> BTreeSet<String> {
    let bugs = read("sim/mutants/bugs");
    bugs.lines().filter_map(|line| Some(line.split_once(" | ")?.0.to_owned())).collect()
}

fn model_rules() -> BTreeSet<String> {
    let rules = read("sim/model/src/rules.rs");
    rules.lines().filter_map(|line| Some(line.trim().split_once(": \"")?.0.to_owned())).collect()
}

/// The names in backticks that follow `kind` up to the next kind.
fn named(proof: &str, kind: &str) -> BTreeSet<String> {
    let lists = proof.split([';', '.']).filter(|list| {
        let words = list.trim().to_lowercase();
        words.starts_with(kind)
    });
    lists
        .flat_map(|list| list.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[test]
fn every_rule_names_a_proof_that_exists() {
    let page = read("docs/safety.md").replace('\n', " ");
    let proofs: Vec<String> = page
        .split("*Proof.*")
        .skip(1)
        .map(|rest| {
            rest.split(" **")
                .next()
                .unwrap_or_default()
                .split(" ###")
                .next()
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    assert_eq!(proofs.len(), page.matches("*Rule.*").count(), "a rule without a proof");
    let kinds =
        [("scenario", scenarios()), ("planted bug", planted_bugs()), ("model rule", model_rules())];
    for proof in &proofs {
        let mut found = proof.contains("est `");
        for (kind, known) in &kinds {
            let names = named(proof, kind);
            let missing: Vec<&String> = names.difference(known).collect();
            assert!(missing.is_empty(), "no {kind} is called {missing:?}: {proof}");
            found |= !names.is_empty();
        }
        let tests = named(proof, "test");
        let missing: Vec<&String> = tests.iter().filter(|test| !is_a_test(test)).collect();
        assert!(missing.is_empty(), "no test is called {missing:?}: {proof}");
        assert!(found, "nothing is named: {proof}");
    }
}

/// Whether a filter of `cargo test` matches something: `lib CRATE PATH`, `bins CRATE PATH`, the name of an
/// integration test and a path in it, or the name of a function.
fn is_a_test(name: &str) -> bool {
    let words: Vec<&str> = name.split_whitespace().collect();
    let (folder, path) = match words[..] {
        ["lib" | "bins", library, path] => {
            (format!("{}/src", library.trim_start_matches("cairn-")), path)
        }
        [test, path] => (format!("{test}/tests/{test}"), path),
        [function] => ("engine/tests".to_owned(), function),
        _ => return false,
    };
    let modules = path.trim_end_matches("::tests").replace("::", "/");
    let (file, inside) = (format!("/{modules}.rs"), format!("/{modules}/"));
    let function = format!("fn {path}(");
    files(&repository().join(folder)).iter().any(|source| {
        let at = source.to_string_lossy();
        at.ends_with(&file)
            || at.contains(&inside)
            || fs::read_to_string(source).is_ok_and(|text| text.contains(&function))
    })
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
