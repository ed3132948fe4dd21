//! The node on another machine that commands use instead of this machine's: `--url`, or
//! `SINEW_HOST` and `SINEW_API_KEY`.

use std::sync::OnceLock;

use crate::args::{BenchCommand, Command};
use crate::data_dir::set;
use crate::error::CliError;

/// The API's port.
const PORT: u16 = 8750;

static OPTION: OnceLock<String> = OnceLock::new();

/// Another machine's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// The API's address, without a slash at its end.
    pub api: String,
    /// An API key, which may use models, or the admin token, which may do all.
    pub key: Option<String>,
}

/// Takes the node of `--url` for this command.
///
/// # Errors
/// The command is about this machine.
pub fn choose(url: Option<String>, command: &Command) -> Result<(), CliError> {
    // That command has an option of this name, for a server of any make.
    let is_own = matches!(command, Command::Bench(BenchCommand::Serve(_)));
    let Some(url) = url.filter(|_| !is_own) else { return Ok(()) };
    if !can_be_elsewhere(command) {
        let text = "--url names a node on another machine, and this command is about this one. \
                    Leave it out";
        return Err(CliError::Usage(text.to_owned()));
    }
    // A command line has one.
    let _ = OPTION.set(url);
    Ok(())
}

/// The chosen node, if there is one.
///
/// # Errors
/// Its address is malformed.
pub fn find() -> Result<Option<Remote>, CliError> {
    let (name, text) = match (OPTION.get(), set("SINEW_HOST")) {
        (Some(url), _) => ("--url", url.clone()),
        (None, Some(host)) => ("SINEW_HOST", host.to_string_lossy().into_owned()),
        (None, None) => return Ok(None),
    };
    let wrong = |why| CliError::Usage(format!("{name} {text}: {why}"));
    let key = set("SINEW_API_KEY").map(|key| key.to_string_lossy().trim().to_owned());
    Ok(Some(Remote { api: address(&text).map_err(wrong)?, key }))
}

/// A host, perhaps with a scheme, a port and a path.
fn address(text: &str) -> Result<String, String> {
    let expected = "expected a host such as studio.local, studio.local:8750 or https://ai.example";
    let with_scheme = match text.contains("://") {
        true => text.to_owned(),
        false => format!("http://{text}"),
    };
    let uri: ureq::http::Uri = with_scheme.parse().map_err(|why| format!("{why}; {expected}"))?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or(expected)?;
    // A port that is no number is no port.
    let named = uri.authority().map_or("", |authority| authority.as_str());
    if uri.port_u16().is_none() && named != host {
        return Err(expected.to_owned());
    }
    let path = uri.path().trim_end_matches('/');
    match (uri.scheme_str(), uri.port_u16()) {
        (Some("http"), None) => Ok(format!("http://{host}:{PORT}{path}")),
        (Some("https"), None) => Ok(format!("https://{host}{path}")),
        (Some(scheme @ ("http" | "https")), Some(port)) => {
            Ok(format!("{scheme}://{host}:{port}{path}"))
        }
        _ => Err(expected.to_owned()),
    }
}

/// Whether a command reaches its node by the API alone.
fn can_be_elsewhere(command: &Command) -> bool {
    match command {
        Command::Nodes(_)
        | Command::Plan(_)
        | Command::Status(_)
        | Command::Top(_)
        | Command::Events(_)
        | Command::Invite(_)
        | Command::Accept(_)
        | Command::Refuse(_)
        | Command::Remove(_)
        | Command::Drain(_)
        | Command::Undrain(_)
        | Command::Serve(_)
        | Command::Ps(_)
        | Command::Run(_)
        | Command::Preset(_)
        | Command::Launch(_)
        | Command::Trace(_)
        | Command::Show(_) => true,
        Command::Stop(args) => !args.node,
        Command::List(args) => !args.catalogue,
        Command::Pull(args) => !args.offline,
        Command::Bench(BenchCommand::Cluster(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn an_address_is_completed() {
        for (text, want) in [
            ("studio", "http://studio:8750"),
            ("studio.local:80", "http://studio.local:80"),
            ("[fe80::1]:9", "http://[fe80::1]:9"),
            ("http://10.0.0.2/", "http://10.0.0.2:8750"),
            ("https://ai.example/sinew/", "https://ai.example/sinew"),
        ] {
            assert_eq!(address(text).as_deref(), Ok(want), "{text}");
        }
        for text in ["ftp://studio", "http://", "a b", "studio:notaport"] {
            let why = address(text).unwrap_err();
            assert!(why.contains("studio.local:8750"), "{text}: {why}");
        }
    }

    #[test]
    fn commands_about_this_machine_take_no_other() {
        let may = |line: &str| {
            let words = ["sinew"].into_iter().chain(line.split(' '));
            let cli = Cli::try_parse_from(words).unwrap();
            assert_eq!(cli.url.as_deref(), Some("studio"));
            can_be_elsewhere(&cli.command)
        };
        for line in ["ps --url studio", "--url studio run m hi", "list --url studio"] {
            assert!(may(line), "{line}");
        }
        for line in ["up --url studio", "stop --node --url studio", "list --catalogue --url studio"]
        {
            assert!(!may(line), "{line}");
        }
    }
}
