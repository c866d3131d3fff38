//! Command lines that cannot be understood: said in the form that was asked for, and with the name
//! of the command that was probably meant.

use super::exit::Exit;
use super::output::Output;
use clap::error::{ContextKind, ContextValue};
use std::ffi::OsString;
use std::process::ExitCode;

/// The longest error that is printed as the library forms it, in bytes.
const LONGEST_PRINTED: usize = 4 << 10;

/// What other tools call a command, and what it is called here.
const OTHER_NAMES: &[(&[&str], &str)] = &[
    (&["ls", "keys", "scan", "range"], "cairn list"),
    (&["del", "rm", "remove"], "cairn delete"),
    (&["subscribe", "follow", "tail"], "cairn watch"),
    (&["set", "write"], "cairn put"),
    (&["read", "cat"], "cairn get"),
    (&["ready", "info", "ping"], "cairn status"),
    (&["member", "nodes"], "cairn members"),
    (&["start", "server", "run"], "cairn serve"),
    (&["drain", "cordon"], "cairn leader drain"),
    (&["transfer-leader", "move-leader"], "cairn leader move"),
    (&["init"], "cairn format"),
    (&["dump"], "cairn export"),
    (&["load"], "cairn import"),
    (&["check", "validate"], "cairn config check"),
    (&["version"], "cairn --version"),
];

/// Prints the error, or the help that was asked for, and returns the exit code.
pub(super) fn refused(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed standard output does not make help a failure.
        let _ = error.print();
        return Exit::Done.into();
    }
    let hint = other_name(error).filter(|_| !is_nested(error, std::env::args_os()));
    let hint = hint.or_else(|| of_variable(error, std::env::args_os()));
    let output = asked_output(std::env::args_os());
    // An argument may be longer than anybody reads.
    let long = || error.render().to_string().len() > LONGEST_PRINTED;
    if output.is_json() || hint.is_some() || long() {
        output.error(&hint.unwrap_or_else(|| message(error)), Exit::Usage as u8);
    } else {
        let _ = error.print();
    }
    Exit::Usage.into()
}

/// The sentence for a command that has another name here.
fn other_name(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let (_, name) = OTHER_NAMES.iter().find(|(others, _)| others.contains(&given.as_str()))?;
    Some(format!("there is no command `{given}`; use `{name}`"))
}

/// The message about a value that the environment gave, with the variable.
fn of_variable(
    error: &clap::Error,
    mut arguments: impl Iterator<Item = OsString>,
) -> Option<String> {
    let ContextValue::String(option) = error.get(ContextKind::InvalidArg)? else { return None };
    let given = arguments.any(|argument| argument.to_string_lossy().starts_with("--timeout"));
    let theirs = option.starts_with("--timeout ") && !given;
    theirs.then(|| format!("CAIRN_TIMEOUT: {}", message(error)))
}

/// Whether the unknown command follows another one, as in `members ls`. Then it is no command of
/// another tool.
fn is_nested(error: &clap::Error, arguments: impl Iterator<Item = OsString>) -> bool {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else {
        return false;
    };
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        if argument == *"-o" || argument == *"--output" {
            arguments.next();
        } else if !argument.as_encoded_bytes().starts_with(b"-") {
            return argument != **given;
        }
    }
    false
}

/// clap's message as one sentence, without the usage that follows it.
fn message(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let paragraphs = text.trim().split("\n\n").filter(|part| !part.starts_with("For more"));
    let words = paragraphs.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    words.strip_prefix("error: ").unwrap_or(&words).to_string()
}

/// The form of results that the arguments ask for, as far as they can be understood.
fn asked_output(arguments: impl Iterator<Item = OsString>) -> Output {
    let arguments: Vec<OsString> = arguments.take_while(|argument| *argument != *"--").collect();
    let joined = ["-ojson", "-o=json", "--output=json"];
    let apart = |pair: &[OsString]| match pair {
        [option, value] => (*option == *"-o" || *option == *"--output") && *value == *"json",
        _ => false,
    };
    let json = arguments.iter().any(|argument| joined.iter().any(|joined| *argument == **joined))
        || arguments.windows(2).any(apart);
    if json { Output::Json } else { Output::Text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_found_however_it_is_written() {
        let asked = |line: &str| asked_output(line.split(' ').map(OsString::from)).is_json();
        for line in
            ["cairn -o json ls", "cairn ls -o=json", "cairn ls --output json", "cairn -ojson"]
        {
            assert!(asked(line), "{line}");
        }
        assert!(!asked("cairn put a -- -o json") && !asked("cairn list -o text"));
    }

    #[test]
    fn the_name_of_another_tool_is_recognized_as_a_command_and_not_after_one() {
        let hint = |line: &str| {
            let arguments = || line.split(' ').map(OsString::from);
            let error = <crate::cli::Cli as clap::Parser>::try_parse_from(arguments()).err();
            let error = error.expect("no such command");
            other_name(&error).filter(|_| !is_nested(&error, arguments()))
        };
        for line in ["cairn rm", "cairn -o json rm", "cairn -ojson rm"] {
            assert!(hint(line).is_some_and(|hint| hint.contains("cairn delete")), "{line}");
        }
        for line in ["cairn members rm", "cairn -o json members rm", "cairn certs ls"] {
            assert_eq!(hint(line), None, "{line}");
        }
    }
}
