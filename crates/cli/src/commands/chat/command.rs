//! What begins with a slash in a chat.

use crate::near;

/// The commands, what they take, and what they do.
const COMMANDS: [(&str, &str, &str); 11] = [
    ("/help", "", "list these"),
    ("/system", "[TEXT]", "set the system prompt, or show it"),
    ("/set", "[NAME VALUE]", "change how it answers, or show what can be set"),
    ("/show", "", "the model, its context, where it runs, and what is set"),
    ("/image", "PATH", "put a picture in front of the next question"),
    ("/forget", "", "forget the oldest half of the conversation"),
    ("/clear", "", "forget the conversation"),
    ("/save", "NAME", "keep the conversation on this machine"),
    ("/load", "[NAME]", "go on with one that was kept, or list them"),
    ("/bye", "", "leave (or Ctrl-D)"),
    ("/exit", "", "the same"),
];

/// Keys, and what else a chat understands.
const KEYS: [(&str, &str); 6] = [
    ("\"\"\"", "begins and ends several lines"),
    ("Alt-Enter", "begins a new line"),
    ("Ctrl-C", "stops the answer"),
    ("Ctrl-R", "searches the questions of this and earlier chats"),
    ("typing", "during an answer is kept for the next question"),
    ("a path", "of a PNG, JPEG, WebP or GIF file, typed or dropped, becomes a picture"),
];

#[derive(Debug, PartialEq, Eq)]
pub enum Command<'a> {
    Help,
    System(&'a str),
    /// A name and its value; either may be empty.
    Set(&'a str, &'a str),
    Show,
    Image(&'a str),
    Forget,
    Clear,
    Save(&'a str),
    Load(&'a str),
    Bye,
}

/// The command of a line that begins with a slash.
///
/// # Errors
/// There is no such command, or it lacks what it takes.
pub fn parse(line: &str) -> Result<Command<'_>, String> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let needed = |what: &str| match rest {
        "" => Err(format!("{name} needs {what}")),
        rest => Ok(rest),
    };
    Ok(match name {
        "/help" | "/?" => Command::Help,
        "/system" => Command::System(rest),
        "/set" => {
            let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            Command::Set(name, value.trim())
        }
        "/show" => Command::Show,
        "/image" => Command::Image(needed("the path of a picture")?),
        "/forget" => Command::Forget,
        "/clear" => Command::Clear,
        "/save" => Command::Save(needed("a name to keep the conversation under")?),
        "/load" => Command::Load(rest),
        "/bye" | "/exit" | "/quit" => Command::Bye,
        _ => {
            let near = near::did_you_mean(name, names());
            return Err(format!("{name} is no command{near} /help lists them"));
        }
    })
}

pub fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.into_iter().map(|(name, ..)| name)
}

pub fn help() -> String {
    let line = |name: String, does: &str| format!("  {name:<22}{does}");
    let commands = COMMANDS.into_iter().map(|(name, takes, does)| {
        let gap = if takes.is_empty() { "" } else { " " };
        line(format!("{name}{gap}{takes}"), does)
    });
    let keys = KEYS.into_iter().map(|(name, does)| line(name.to_owned(), does));
    commands.chain(keys).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_listed_is_understood() {
        for name in names() {
            let line = format!("{name} something else");
            assert!(parse(&line).is_ok(), "{line}");
            assert!(help().contains(name));
        }
        assert_eq!(parse("/set seed  7"), Ok(Command::Set("seed", "7")));
        assert_eq!(parse("/set"), Ok(Command::Set("", "")));
        assert_eq!(parse("/system Be brief.\nAlways."), Ok(Command::System("Be brief.\nAlways.")));
        assert_eq!(parse("/?"), Ok(Command::Help));
    }

    #[test]
    fn an_unknown_command_names_those_near_it() {
        let error = parse("/sytem Be brief.").unwrap_err();
        assert_eq!(error, "/sytem is no command; did you mean /system? /help lists them");
        assert_eq!(parse("/xyzzy").unwrap_err(), "/xyzzy is no command. /help lists them");
        assert!(parse("/save").unwrap_err().contains("needs a name"));
    }
}
