//! `sinew --help`: the commands in groups, by what a person wants to do.

use std::fmt::Write;

use clap::Command;

use crate::width;

/// Each visible command stands in one group, in the order in which people need them.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Cluster",
        &[
            "demo",
            "up",
            "join",
            "accept",
            "refuse",
            "invite",
            "nodes",
            "remove",
            "leave",
            "drain",
            "undrain",
            "fleet-key",
        ],
    ),
    ("Models", &["serve", "ps", "stop", "plan", "search", "pull", "list", "show", "rm"]),
    ("Use", &["run", "preset", "page", "launch", "keys"]),
    (
        "Operate",
        &[
            "status",
            "top",
            "events",
            "logs",
            "log-level",
            "doctor",
            "report",
            "service",
            "bench",
            "trace",
            "completions",
            "man",
            "dev",
            "help",
        ],
    ),
];
/// Of a terminal, as clap folds the rest of the help.
const COLUMNS: usize = 100;

/// The command with its help in groups.
pub fn grouped(command: Command) -> Command {
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{}\n{{options}}",
        commands(&command),
        heading(&command, "Options"),
    );
    command.help_template(template)
}

fn heading(command: &Command, text: &str) -> String {
    let style = command.get_styles().get_header();
    format!("{style}{text}:{style:#}")
}

fn commands(command: &Command) -> String {
    let names = GROUPS.iter().flat_map(|(_, names)| names.iter());
    let column = names.map(|name| name.len()).max().unwrap_or(0) + 2;
    let literal = command.get_styles().get_literal();
    let mut text = String::new();
    for (title, names) in GROUPS {
        text.push_str(&heading(command, title));
        text.push('\n');
        for name in names {
            let about = match command.find_subcommand(name).and_then(Command::get_about) {
                Some(about) => about.to_string(),
                None => "Print this, or the help of a command".to_owned(),
            };
            // Styles have no columns, so the line is folded without them.
            let line = width::fold(&format!("  {name:<column$}{about}"), COLUMNS);
            let styled = line.replacen(name, &format!("{literal}{name}{literal:#}"), 1);
            // A string keeps whatever is written to it.
            let _ = writeln!(text, "{styled}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_stands_in_one_group() {
        let root = crate::args::Cli::command();
        let visible = root.get_subcommands().filter(|command| !command.is_hide_set());
        let mut visible: Vec<&str> = visible.map(Command::get_name).chain(["help"]).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        visible.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, visible);
    }

    #[test]
    fn the_help_has_the_groups_and_the_options() {
        let help = grouped(crate::args::Cli::command()).render_help().to_string();
        let at = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text} is not in {help}"));
        assert!(at("Cluster:") < at("  up ") && at("  up ") < at("Models:"), "{help}");
        assert!(at("Models:") < at("  serve ") && at("Use:") < at("Operate:"), "{help}");
        assert!(at("Options:") < at("--version"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= COLUMNS), "{help}");
    }
}
