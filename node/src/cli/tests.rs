//! The tree of commands is consistent, its help fits a terminal, and what pages, alerts and messages say
//! to type exists.

use clap::{Command, CommandFactory};
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn the_command_line_is_consistent() {
    super::Cli::command().debug_assert();
}

/// The story: on a terminal of 80 columns the table of exit codes was cut in the middle of words.
#[test]
fn every_help_page_fits_a_terminal_of_80_columns() {
    fn check(command: &mut Command, path: &str) {
        let page = command.render_long_help().to_string();
        for line in page.lines() {
            // A usage line is not wrapped by the library.
            let fits = line.chars().count() <= 80 || line.starts_with("Usage: ");
            assert!(fits, "{path}: {line}");
        }
        for sub in command.get_subcommands_mut() {
            let path = format!("{path} {}", sub.get_name());
            check(sub, &path);
        }
    }
    let mut command = super::Cli::command().term_width(80);
    command.build();
    check(&mut command, "cairn");
}

/// The files of these folders, and of the folders in them, whose names end so.
fn files(folders: &[&str], ends: &[&str]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if ends.iter().any(|end| path.to_str().unwrap().ends_with(end)) {
            found.push(path);
        }
    }
    assert!(found.len() > 3, "{folders:?} hold {found:?}");
    found
}

/// The arguments behind `cairn` in each command of a line of a shell.
fn typed(line: &str) -> Vec<Vec<String>> {
    let line = line.split(" #").next().unwrap_or_default();
    let of_cairn = |part: &str| {
        let part = part.trim();
        let rest =
            ["cairn ", "cargo run --release -- "].iter().find_map(|it| part.strip_prefix(it));
        rest.map(|rest| {
            rest.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect()
        })
    };
    line.split('|').filter_map(of_cairn).collect()
}

/// Why the parser does not accept these arguments.
fn refusal(arguments: Vec<String>) -> Option<String> {
    let given = std::iter::once("cairn".to_owned()).chain(arguments);
    super::Cli::command().try_get_matches_from(given).err().map(|error| error.to_string())
}

/// A command that a reader copies is accepted by the parser, with all that is behind it.
#[test]
fn every_command_in_a_block_of_a_page_is_accepted() {
    let (mut refused, mut accepted) = (Vec::new(), 0);
    for file in files(&["README.md", "CONTRIBUTING.md", "docs"], &[".md"]) {
        let text = fs::read_to_string(&file).unwrap();
        let mut in_block = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("```") {
                in_block = line == "```sh";
                continue;
            }
            for arguments in typed(line).into_iter().filter(|_| in_block) {
                match refusal(arguments) {
                    None => accepted += 1,
                    Some(error) => refused.push(format!("{}: {line}\n{error}", file.display())),
                }
            }
        }
    }
    assert_eq!(refused, Vec::<String>::new());
    assert!(accepted > 40, "only {accepted} commands were found");
}

/// What a template or a shell puts in becomes a number, which is a slot, a time, a name and a path as well.
fn filled(word: &str) -> String {
    let mut word = word.trim_matches(['"', ')']).to_owned();
    while let Some((before, rest)) = word.split_once("{{") {
        let after = rest.split_once("}}").map_or("", |(_, after)| after);
        word = format!("{before}4{after}");
    }
    if word.contains('$') { "4".into() } else { word }
}

/// The arguments in a line of YAML such as `args: ["members", "add", "{{ $slot }}"]`, without the program.
fn of_container(line: &str) -> Option<Vec<String>> {
    let (key, list) = line.trim().trim_start_matches("- ").split_once(": [")?;
    let words = list.strip_suffix(']')?.split(',').map(|word| filled(word.trim()));
    let mut words: Vec<String> = words.filter(|word| word != "CMD").collect();
    let is_program = words.first().is_some_and(|word| word.ends_with("cairn"));
    if is_program {
        words.remove(0);
    }
    let has_one = key == "args" || matches!(key, "command" | "test") && is_program;
    has_one.then_some(words)
}

/// The arguments in a line of a script such as `"$program" format --config "$config" || code=$?`.
fn of_script(line: &str, secure: &str) -> Option<Vec<String>> {
    let line = line.trim_start();
    let (_, behind) = line.split_once("\"$program\" ").filter(|_| !line.starts_with("need "))?;
    let behind = behind.replace("\"${secure[@]}\"", secure);
    let ends = |word: &&str| !(word.starts_with(['|', '>', '&']) || word.starts_with("2>"));
    Some(behind.split_whitespace().take_while(ends).map(filled).collect())
}

/// What containers, charts and scripts run is accepted as well.
#[test]
fn every_command_of_the_deployment_files_is_accepted() {
    let (mut refused, mut accepted) = (Vec::new(), 0);
    for file in files(&["deploy"], &[".yaml", ".tpl", "NOTES.txt", "nvme/setup"]) {
        let text = fs::read_to_string(&file).unwrap();
        let secure = text.lines().find_map(|line| line.trim().strip_prefix("secure=(--"));
        let secure = secure.map(|words| format!("--{}", words.trim_end_matches(')')));
        for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
            let on_a_pod = || line.split_once(" -- cairn ").map(|(_, words)| words);
            let on_a_pod = || Some(on_a_pod()?.split_whitespace().map(filled).collect());
            let found = of_container(line)
                .or_else(|| of_script(line, secure.as_deref().unwrap_or_default()))
                .or_else(on_a_pod);
            match found.map(refusal) {
                Some(None) => accepted += 1,
                Some(Some(error)) => refused.push(format!("{}: {line}\n{error}", file.display())),
                None => {}
            }
        }
    }
    assert_eq!(refused, Vec::<String>::new());
    assert!(accepted >= 14, "only {accepted} commands were found");
}

/// The words of each `cairn …` between backquotes. A string of Rust may go on in the next line.
fn named(text: &str) -> Vec<Vec<&str>> {
    let spans = text.match_indices("`cairn ").filter_map(|(at, _)| {
        let span = text.get(at + 1..)?;
        let span = span.get(..span.find('`')?)?;
        (span.len() < 200).then_some(span)
    });
    let is_noise = |word: &&str| matches!(*word, "\\" | "//" | "///" | "//!");
    spans.map(|span| span.split_whitespace().skip(1).filter(|it| !is_noise(it)).collect()).collect()
}

/// What of the words is no command and no option of it.
fn unknown<'w>(root: &Command, words: &[&'w str]) -> Option<&'w str> {
    let is_global = |arg: &clap::Arg| arg.is_global_set();
    let (mut command, mut is_path) = (root, true);
    for word in words {
        let name = word.split('=').next().unwrap_or_default();
        let has = |of: &Command, all: bool| {
            of.get_arguments().filter(|arg| all || is_global(arg)).any(|arg| {
                let short = arg.get_short().is_some_and(|it| *name == format!("-{it}"));
                short || arg.get_long().is_some_and(|it| name.strip_prefix("--") == Some(it))
            })
        };
        let is_help = matches!(name, "--help" | "-h" | "--version");
        if name.starts_with('-') && name.len() > 1 {
            if !(has(command, true) || has(root, false) || is_help) {
                return Some(word);
            }
        } else if let Some(below) = command.find_subcommand(name).filter(|_| is_path) {
            command = below;
        } else if command.has_subcommands() {
            // `…`, or a placeholder.
            let is_word = name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            if is_word && is_path && !name.is_empty() {
                return Some(word);
            }
            is_path = false;
        } else {
            is_path = false;
        }
    }
    None
}

/// What pages, messages, comments and alerts call a command exists, and so do its options.
#[test]
fn every_command_that_is_named_exists() {
    let root = super::Cli::command();
    let pages = files(
        &["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "deploy"],
        &[".md", ".yml", ".yaml", ".toml", ".tf", ".tftpl", ".tpl", "NOTES.txt", "nvme/setup"],
    );
    let sources = files(
        &["node/src", "raft/src", "engine/src", "client/src", "client/proto", "backup/src"],
        &[".rs", ".proto"],
    );
    let (mut wrong, mut right) = (Vec::new(), 0);
    for file in pages.into_iter().chain(sources) {
        let text = fs::read_to_string(&file).unwrap();
        for words in named(&text) {
            match unknown(&root, &words) {
                Some(word) => {
                    wrong.push(format!("{}: {word} in cairn {}", file.display(), words.join(" ")));
                }
                None => right += 1,
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(right > 200, "only {right} were found");
}

#[test]
fn a_command_or_an_option_that_does_not_exist_is_found() {
    let root = super::Cli::command();
    for (text, expected) in [
        ("cairn members lst", Some("lst")),
        ("cairn members remove 3 --forced", Some("--forced")),
        ("cairn status --output json", None),
        ("cairn backup save s3://b --encrypt-to age1", None),
        ("cairn leader …", None),
    ] {
        let quoted = format!("`{text}`");
        let words = named(&quoted).remove(0);
        assert_eq!(unknown(&root, &words), expected, "{text}");
    }
}
