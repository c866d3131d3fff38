//! `cairn man`: the manual, one page for each command, made from the same definitions as `--help`.

use super::exit::Exit;
use super::output::Output;
use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use serde_json::json;
use std::io;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Folder for the pages, made if it is not there. For example: cairn man /usr/local/share/man/man1
    directory: PathBuf,
}

/// One page, as a file in the form of `man`.
struct Page {
    file_name: String,
    text: Vec<u8>,
}

pub(crate) fn run(args: &ManArgs, output: &Output) -> anyhow::Result<Exit> {
    let folder = args.directory.display();
    std::fs::create_dir_all(&args.directory)
        .with_context(|| format!("cannot make the folder {folder}; name another one"))?;
    let pages = pages(super::Cli::command())?;
    for page in &pages {
        let file = args.directory.join(&page.file_name);
        std::fs::write(&file, &page.text)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let count = pages.len();
    output.either(
        || json!({ "directory": folder.to_string(), "pages": count }),
        || format!("{count} pages in {folder}"),
    )?;
    Ok(Exit::Done)
}

/// A page for the command and for each one below it.
fn pages(root: Command) -> io::Result<Vec<Page>> {
    fn collect(command: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
        pages.push(page(command)?);
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            collect(below, pages)?;
        }
        Ok(())
    }
    let mut root = root.disable_help_subcommand(true);
    // Options that hold for all commands are on each page only after this.
    root.build();
    let mut pages = Vec::new();
    collect(&root, &mut pages)?;
    Ok(pages)
}

fn page(command: &Command) -> io::Result<Page> {
    let notes = command.get_after_long_help().or_else(|| command.get_after_help());
    let notes = notes.map(ToString::to_string);
    let plain = command.clone().after_help(None::<&str>).after_long_help(None::<&str>);
    let man = Man::new(plain).source(concat!("cairn ", env!("CARGO_PKG_VERSION"))).manual("Cairn");
    let mut text = Vec::new();
    man.render(&mut text)?;
    if let Some(notes) = notes {
        // The library fills these lines, which makes one paragraph of the table of exit codes.
        let mut section = Roff::new();
        section.control("SH", ["NOTES"]).control("nf", []);
        for line in notes.lines() {
            section.text([roman(line)]);
        }
        section.control("fi", []);
        section.to_writer(&mut text)?;
    }
    Ok(Page { file_name: man.get_filename(), text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn texts() -> BTreeMap<String, String> {
        let pages = pages(super::super::Cli::command()).expect("pages");
        let text = |page: Page| (page.file_name, String::from_utf8(page.text).expect("text"));
        pages.into_iter().map(text).collect()
    }

    /// Checks the pages of a command and of those below it; returns how many these are.
    fn check(command: &Command, name: &str, pages: &BTreeMap<String, String>) -> usize {
        let page = pages.get(&format!("{name}.1")).unwrap_or_else(|| panic!("no page {name}"));
        assert!(page.contains("\n.SH NAME\n") && page.contains("\n.SH SYNOPSIS\n"), "{name}");
        for argument in command.get_arguments() {
            let long = argument.get_long().map(|long| format!("--{long}"));
            let short = argument.get_short().map(|short| format!("-{short}"));
            for option in long.into_iter().chain(short) {
                let bold = format!("\\fB{}\\fR", option.replace('-', "\\-"));
                assert_eq!(page.contains(&bold), !argument.is_hide_set(), "{name}: {option}");
            }
        }
        let below = command.get_subcommands().filter(|below| !below.is_hide_set());
        1 + below.map(|one| check(one, &format!("{name}-{}", one.get_name()), pages)).sum::<usize>()
    }

    #[test]
    fn every_command_has_a_page_that_names_each_of_its_options() {
        let pages = texts();
        let mut root = super::super::Cli::command().disable_help_subcommand(true);
        root.build();
        assert_eq!(check(&root, "cairn", &pages), pages.len(), "no page is of no command");
        assert!(pages.contains_key("cairn-serve.1") && pages.contains_key("cairn-members-add.1"));
        // An option of all commands, and one that only the tests of a server use.
        assert!(pages.values().all(|page| page.contains("\\fB\\-\\-output\\fR")));
        assert!(!pages["cairn-serve.1"].contains("stop\\-with\\-stdin"));
    }

    #[test]
    fn the_table_of_exit_codes_keeps_its_lines() {
        let pages = texts();
        let (_, notes) = pages["cairn.1"].split_once("\n.SH NOTES\n.nf\n").expect("notes");
        for line in super::super::exit::TABLE.lines() {
            let escaped = line.replace('-', "\\-").replace('\'', "\\*(Aq");
            assert!(notes.lines().any(|found| found == escaped), "{escaped}");
        }
    }
}
