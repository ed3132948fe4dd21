//! Completes the commands in hints: if a data directory was given, each command of this program in
//! any message is shown with it, so that it reaches the same node.

use std::borrow::Cow;
use std::sync::OnceLock;

use clap::CommandFactory;

use crate::args::Cli;

/// The option to add, once the data directory is known.
static OPTION: OnceLock<String> = OnceLock::new();

/// The option that names a directory, quoted for a shell.
pub fn option(path: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+@:,=".contains(c);
    if path.chars().all(plain) {
        return format!("--data-dir {path}");
    }
    format!("--data-dir '{}'", path.replace('\'', r"'\''"))
}

/// Sets the directory that commands are shown with.
pub fn use_directory(path: &str) {
    // The first call wins: it has the directory of the command line.
    let _ = OPTION.set(option(path));
}

/// The text with complete commands.
pub fn complete(text: &str) -> Cow<'_, str> {
    // Programs know their own arguments.
    let is_json = text.starts_with(['{', '[']);
    match OPTION.get().filter(|_| !is_json && text.contains("sinew ")) {
        Some(option) => Cow::Owned(with_option(text, option)),
        None => Cow::Borrowed(text),
    }
}

fn with_option(text: &str, option: &str) -> String {
    let root = Cli::command();
    let mut introduction = "";
    let lines = text.split('\n').map(|line| {
        let done = line_with_option(&root, introduction, line, option);
        // "On the other machine type:" also applies to the next line.
        if !line.trim().is_empty() {
            introduction = if line.ends_with(':') { line } else { "" };
        }
        done
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn line_with_option(root: &clap::Command, introduction: &str, line: &str, option: &str) -> String {
    let mut done = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("sinew ") {
        let (before, from) = rest.split_at(at);
        done.push_str(before);
        let is_command =
            done.chars().last().is_none_or(|c| !c.is_alphanumeric() && !"-_./".contains(c));
        let end = command_end(root, from)
            .filter(|end| is_command && is_here(&format!("{introduction} {done}"), &from[*end..]));
        let end = end.filter(|end| !from[*end..].trim_start().starts_with("--data-dir"));
        let (command, after) = from.split_at(end.unwrap_or("sinew ".len()));
        done.push_str(command);
        if end.is_some() {
            done.push(' ');
            done.push_str(option);
        }
        rest = after;
    }
    done.push_str(rest);
    done
}

/// Phrases that mark a command for another machine.
const ELSEWHERE: &[&str] = &[
    " there:",
    " on one of them",
    " on each",
    " on another",
    " on the other",
    " on the machine that",
    " on a member",
    " on both",
    " type on ",
];

/// Whether a command is for this machine: decided by the words after it up to the next comma or
/// command, else by the words before it.
fn is_here(before: &str, after: &str) -> bool {
    let clause = after.split([',', '.', ';', '(', ')', '`']).next().unwrap_or_default();
    let clause = clause.split("sinew ").next().unwrap_or_default();
    if clause.ends_with(" here") {
        return true;
    }
    if clause.ends_with(" there") || ELSEWHERE.iter().any(|words| clause.contains(words)) {
        return false;
    }
    let before = format!(" {}", before.to_lowercase());
    let last = |words: &[&str]| words.iter().filter_map(|word| before.rfind(word)).max();
    last(ELSEWHERE) <= last(&[" here"])
}

/// The length of a command's name at the start of the text, if the command takes a data directory.
fn command_end(root: &clap::Command, text: &str) -> Option<usize> {
    let mut end = "sinew".len();
    let mut command = root;
    while let Some(rest) = text[end..].strip_prefix(' ') {
        let word: String =
            rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
        let Some(found) = command.find_subcommand(&word) else { break };
        (command, end) = (found, end + 1 + word.len());
    }
    command.get_arguments().any(|arg| arg.get_id() == "data_dir").then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_this_machine_are_shown_with_its_directory() {
        for (said, wanted) in [
            (
                "type: sinew leave, then join again",
                "type: sinew leave --data-dir d, then join again",
            ),
            ("`sinew stop m` ends it", "`sinew stop --data-dir d m` ends it"),
            ("sinew keys create NAME", "sinew keys create --data-dir d NAME"),
            ("there: sinew up, then sinew join", "there: sinew up, then sinew join"),
            (
                "type there: sinew invite   and here: sinew join CODE",
                "type there: sinew invite   and here: sinew join --data-dir d CODE",
            ),
            (
                "needs a code: sinew invite on a member, then sinew join CODE here",
                "needs a code: sinew invite on a member, then sinew join --data-dir d CODE here",
            ),
            (
                "sinew invite on a member, sinew join CODE on the machine that is to join",
                "sinew invite on a member, sinew join CODE on the machine that is to join",
            ),
            (
                "a node on the other machine (sinew up), or here: sinew join, or: sinew invite there",
                "a node on the other machine (sinew up), or here: sinew join --data-dir d, or: \
                 sinew invite there",
            ),
            (
                "On the machine that is to join type: sinew join",
                "On the machine that is to join type: sinew join",
            ),
            ("it is not here. Type on b: sinew rm m", "it is not here. Type on b: sinew rm m"),
            (
                "On the other machine (sinew up), type:\n\n    sinew join C\n\nor: sinew ps",
                "On the other machine (sinew up), type:\n\n    sinew join C\n\nor: \
                 sinew ps --data-dir d",
            ),
            (
                "there is no key x. See: sinew keys list",
                "there is no key x. See: sinew keys list --data-dir d",
            ),
            (
                "put files there, or type: sinew pull m",
                "put files there, or type: sinew pull --data-dir d m",
            ),
            ("sinew is up", "sinew is up"),
            ("sinew up --data-dir d", "sinew up --data-dir d"),
            ("/usr/bin/sinew stop", "/usr/bin/sinew stop"),
            (
                "first: sinew ps\nthen: sinew ps",
                "first: sinew ps --data-dir d\nthen: sinew ps --data-dir d",
            ),
        ] {
            assert_eq!(with_option(said, "--data-dir d"), wanted);
        }
        assert_eq!(option("/var/lib/sinew"), "--data-dir /var/lib/sinew");
        assert_eq!(option("/it's here"), r"--data-dir '/it'\''s here'");
    }
}
