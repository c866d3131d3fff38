//! Checks the floors drawn in `docs/design.md`. No path in the sources leads to a higher floor.
//! Neither modules nor top-level modules form a cycle, except between a parent and its child. Paths
//! inside functions count like `use` lines, and a re-export counts as what it names.
//!
//! Also checks how the code that the simulation runs yields to other tasks.
//!
//! The test of floors does not see a method that a higher file adds to a lower type, what a macro names, and
//! what is behind a trait.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The text of each module of a crate, such as `storage::repair` (lib.rs is ""), without comments
/// and tests, and with `a::{b, c}` expanded.
type Modules = BTreeMap<String, String>;

fn is_path(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == ':'
}

fn expanded(source: &str) -> String {
    let mut text: String =
        source.lines().flat_map(|line| [line.split("//").next().unwrap_or(""), "\n"]).collect();
    // The last group contains no other group.
    while let Some(open) = text.rfind("::{") {
        let close = text[open..].find('}').map_or(text.len() - 1, |at| open + at);
        let start = text[..open].rfind(|c: char| !is_path(c)).map_or(0, |at| at + 1);
        let items = text[open + 3..close].split(',').map(str::trim).filter(|item| !item.is_empty());
        let items: Vec<String> =
            items.map(|item| format!("{}::{item}", &text[start..open])).collect();
        text.replace_range(start..=close, &items.join(" , "));
    }
    text
}

fn read(src: &Path, folder: &Path, modules: &mut Modules) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name =
            path.strip_prefix(src).unwrap().with_extension("").to_string_lossy().replace('/', "::");
        if path.is_dir() {
            read(src, &path, modules);
        } else if path.extension().is_some_and(|kind| kind == "rs")
            && !name.ends_with("tests")
            && !name.contains("tests::")
        {
            let source = fs::read_to_string(&path).unwrap();
            let code = source.split("\n#[cfg(test)]\nmod tests").next().unwrap_or("");
            let module =
                if name == "lib" { "" } else { name.strip_suffix("::mod").unwrap_or(&name) };
            modules.insert(module.to_owned(), expanded(code));
        }
    }
}

/// The module that contains what `path` names in module `at`.
fn resolve(modules: &Modules, at: &str, path: &str) -> String {
    let parent = at.rsplit_once("::").map_or("", |(parent, _)| parent);
    let (from, rest) = match path.split_once("::") {
        Some(("crate", rest)) => ("", rest),
        Some(("self", rest)) => (at, rest),
        Some(("super", rest)) if rest.starts_with("super::") => {
            return resolve(modules, parent, rest);
        }
        Some(("super", rest)) => (parent, rest),
        _ => (at, path),
    };
    let mut found = from.to_owned();
    for part in rest.split("::") {
        let child = if found.is_empty() { part.to_owned() } else { format!("{found}::{part}") };
        if !modules.contains_key(&child) {
            let is_it = |export: &&str| export.rsplit("::").next() == Some(part);
            let named = exports(modules, &found).into_iter().find(is_it);
            return named.map_or(found.clone(), |export| resolve(modules, &found, export));
        }
        found = child;
    }
    found
}

fn exports<'m>(modules: &'m Modules, module: &str) -> Vec<&'m str> {
    let is_public =
        |head: &str| head.split_whitespace().last().is_some_and(|word| word.starts_with("pub"));
    let statements = modules.get(module).into_iter().flat_map(|text| text.split(';'));
    let exports =
        statements.filter_map(|text| text.split_once(" use ").filter(|(head, _)| is_public(head)));
    exports.flat_map(|(_, paths)| paths.split(',').map(str::trim)).collect()
}

/// Which module names which other, except for parents and children.
fn edges(modules: &Modules) -> Vec<(&str, String)> {
    let kin = |a: &str, b: &str| a == b || a.starts_with(&format!("{b}::"));
    let inside =
        |word: &&str| ["crate::", "super::", "self::"].iter().any(|root| word.starts_with(root));
    let named =
        modules.iter().filter(|(module, _)| !module.is_empty()).flat_map(|(module, text)| {
            let paths = text.split(|c: char| !is_path(c)).filter(inside);
            paths.map(move |path| (module.as_str(), resolve(modules, module, path)))
        });
    named.filter(|(from, to)| !kin(from, to) && !kin(to, from)).collect()
}

fn top_level(module: &str) -> &str {
    module.split("::").next().unwrap_or("")
}

/// `floors`: the top-level modules of each floor, the highest floor first.
fn faults(modules: &Modules, floors: &[Vec<&str>]) -> Vec<String> {
    let floor = |module: &str| floors.iter().position(|names| names.contains(&top_level(module)));
    let mut edges = edges(modules);
    let upward = edges.iter().filter(|(from, to)| floor(to).is_none() || floor(to) < floor(from));
    let mut faults: BTreeSet<String> = upward
        .map(|(from, to)| format!("{from} -> {to} leads upward, or out of the picture"))
        .collect();
    let tops = edges.iter().map(|(from, to)| (top_level(from), top_level(to).to_owned()));
    let tops: Vec<_> = tops.filter(|(from, to)| from != to).collect();
    edges.extend(tops);
    // A module that names no remaining module, or that no remaining module names, is in no cycle.
    let mut before = usize::MAX;
    while edges.len() < before {
        before = edges.len();
        let all = edges.clone();
        edges.retain(|(from, to)| {
            all.iter().any(|(a, _)| a == to) && all.iter().any(|(_, b)| b == from)
        });
    }
    faults.extend(
        edges.iter().map(|(from, to)| format!("{from} -> {to} is in a cycle, or between two")),
    );
    faults.into_iter().collect()
}

#[test]
fn no_path_leads_upward_and_no_modules_form_a_cycle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let design = fs::read_to_string(root.join("docs/design.md")).unwrap();
    for name in [
        "engine",
        "raft",
        "backup",
        "client",
        "client/tls",
        "client/launch",
        "benches/experiments",
        "node",
    ] {
        let picture =
            design.split(&format!("\n{name}/src/\n")).nth(1).expect("a picture of the floors");
        let rows = picture.lines().take_while(|row| row.starts_with("  ")).map(str::trim);
        let floors: Vec<Vec<&str>> =
            rows.map(|row| row.split("  ").next().unwrap_or("").split(", ").collect()).collect();
        let (src, mut modules) = (root.join(name).join("src"), Modules::new());
        read(&src, &src, &mut modules);
        let drawn: BTreeSet<&str> = floors.iter().flatten().copied().collect();
        let built: BTreeSet<&str> =
            modules.keys().map(|module| top_level(module)).filter(|r| !r.is_empty()).collect();
        assert_eq!(drawn, built, "{name}: the modules of the picture and those of the sources");
        let faults = faults(&modules, &floors);
        assert!(faults.is_empty(), "{name}:\n{}", faults.join("\n"));
    }
}

/// The story: in the simulation another runtime polls the tasks, and tokio's own yield never returns there. A
/// task that told watches how far they are stood still in each run, and so did scans.
#[test]
fn what_the_simulation_runs_yields_by_the_function_that_returns_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut named = Vec::new();
    for name in ["engine", "raft", "backup", "client", "node"] {
        let (src, mut modules) = (root.join(name).join("src"), Modules::new());
        read(&src, &src, &mut modules);
        let yields = modules.iter().filter(|(_, code)| code.contains("task::yield_now"));
        named.extend(yields.map(|(module, _)| format!("{name}::{module}")));
    }
    assert_eq!(named, ["engine::io"], "elsewhere `cairn_engine::io::yield_once` is to be called");
}

#[test]
fn an_upward_path_is_found_anywhere_and_so_is_a_cycle() {
    let found = |sources: &[(&str, &str)]| {
        let modules =
            sources.iter().map(|(name, text)| ((*name).to_owned(), expanded(text))).collect();
        faults(&modules, &[vec!["high"], vec!["low"]]).join("\n")
    };
    let high = ("high", "use crate::low::{self, Y};");
    assert_eq!(found(&[high, ("low", ""), ("low::a", "use super::b::X;"), ("low::b", "")]), "");
    let exports = ("low", "pub(crate) use crate::high::{X};");
    for (low, a) in [
        (("low", ""), "use crate::high::X;"),
        (("low", ""), "fn f() { crate::high::x() }"),
        (exports, "use super::X;"),
    ] {
        let faults = found(&[high, low, ("low::a", a)]);
        assert!(faults.contains("low::a -> high leads upward"), "{a}: {faults}");
    }
    let faults = found(&[("low::a", "use super::b::X;"), ("low::b", "fn f() { super::a::x() }")]);
    assert!(faults.contains("low::b -> low::a is in a cycle"), "{faults}");
}
