//! On Windows: a service of the machine, or of this user, who has no service manager of their own.
//! An entry of the registry then starts a program that starts the node again whenever it fails.

use std::ffi::OsString;
use std::os::windows::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use win32::job::Job;
use win32::service;

use super::{KEPT, data_dir_of, is_up};
use crate::args::{ServiceArgs, ServiceInstallArgs, ServiceRunArgs};
use crate::client::Client;
use crate::commands::query;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};

const NAME: &str = "Sinew";
const TITLE: &str = "Sinew: this machine's node";
/// What starts when this user logs in.
const LOGIN: &str = r"HKCU\Software\Microsoft\Windows\CurrentVersion\Run";
/// The account of the machine's service, whose name depends on the language.
const ACCOUNT: &str = "*S-1-5-19";
/// A console program gets no window.
const CREATE_NO_WINDOW: u32 = 0x0800_0000;

/// A node that fails is started again so much later, twice as late after each further failure.
const AGAIN: Duration = Duration::from_secs(2);
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// How often the machine's service looks at its node.
const LOOK: Duration = Duration::from_millis(200);
/// How long a node may take to end.
const GRACE: Duration = Duration::from_secs(20);

pub fn install(args: &ServiceInstallArgs) -> Result<(), CliError> {
    let program = std::env::current_exe().doing("cannot find this program's own file")?;
    if args.service.system { machines(args, &program) } else { own(args, &program) }
}

/// This user's.
fn own(args: &ServiceInstallArgs, program: &Path) -> Result<(), CliError> {
    let mut words = vec![program.to_string_lossy().into_owned()];
    words.extend(["service", "run", "--hidden", "--"].map(str::to_owned));
    words.extend(args.options.iter().cloned());
    let line = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    if args.print {
        say!("{LOGIN}\n    {NAME}    {line}");
        return Ok(());
    }
    if is_up() {
        if !is_at_login() {
            let text = "a node already runs on this machine, outside of a service. Stop it first: \
                        sinew stop --node";
            return Err(CliError::Refused(text.to_owned()));
        }
        end(&data_dir_of(&[])?)?;
    }
    registry(&["add", LOGIN, "/v", NAME, "/t", "REG_SZ", "/d", &line, "/f"])?;
    start_hidden(&args.options)?;
    say!("the node runs, and starts when you log in: {LOGIN}");
    say!("its log    sinew logs -f");
    say!(
        "upgrade    sinew service uninstall, put the new binary in place of {},",
        program.display()
    );
    say!("           then: sinew service install");
    Ok(())
}

/// The machine's. Its account may change the node's data and run the program; a user's folders
/// allow neither to others.
fn machines(args: &ServiceInstallArgs, program: &Path) -> Result<(), CliError> {
    let named = data_dir_of(&args.options)?;
    let data_dir = DataDir::find(&named)?;
    let mut words: Vec<OsString> =
        ["service", "run", "--system", "--"].into_iter().map(OsString::from).collect();
    words.extend(args.options.iter().map(OsString::from));
    if named.data_dir.is_none() {
        words.extend([OsString::from("--data-dir"), data_dir.path().into()]);
    }
    if args.print {
        let words: Vec<String> = words.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        say!("{NAME}    {} {}", quoted(&program.to_string_lossy()), words.join(" "));
        return Ok(());
    }
    let failed = |error: &dyn std::fmt::Display| {
        let text = format!(
            "Windows made no service: {error}. It needs an administrator's terminal; a service of \
             yours does not: sinew service install"
        );
        CliError::Refused(text)
    };
    std::fs::create_dir_all(data_dir.path())
        .doing(format!("cannot make {}", data_dir.path().display()))?;
    allow(data_dir.path(), "(OI)(CI)M").map_err(|error| failed(&error))?;
    allow(program, "RX").map_err(|error| failed(&error))?;
    service::install(NAME, TITLE, program, &words).map_err(|error| failed(&explained(&error)))?;
    say!("the node is a service now and runs, and starts with the machine: {NAME}");
    say!("its log    sinew logs -f");
    say!(
        "upgrade    sinew service uninstall --system, put the new binary in place of {},",
        program.display()
    );
    say!("           then: sinew service install --system");
    Ok(())
}

pub fn uninstall(args: &ServiceArgs) -> Result<(), CliError> {
    if !is_installed(args.system) {
        let place = if args.system { "services.msc" } else { LOGIN };
        let text = format!("no such service is installed ({NAME} is not in {place})");
        return Err(CliError::Refused(text));
    }
    if args.system {
        service::uninstall(NAME).map_err(|error| {
            let text = "Windows did not remove the service";
            CliError::Refused(format!(
                "{text}: {}. It needs an administrator's terminal",
                explained(&error)
            ))
        })?;
    } else {
        registry(&["delete", LOGIN, "/v", NAME, "/f"])?;
        if is_up() {
            end(&data_dir_of(&[])?)?;
        }
    }
    say!("the service is gone; {KEPT}");
    Ok(())
}

pub fn status(args: &ServiceArgs) -> Result<(), CliError> {
    if !is_installed(args.system) {
        say!("not installed. To keep the node up: sinew service install");
        return Ok(());
    }
    let runs = if args.system { service::is_running(NAME) } else { is_up() };
    say!("installed: {NAME}");
    say!("{}", if runs { "running" } else { "not running; look at: sinew logs" });
    Ok(())
}

/// What the registry, or the system, starts.
pub fn run(args: &ServiceRunArgs) -> Result<(), CliError> {
    if args.hidden {
        return start_hidden(&args.options);
    }
    if !args.system {
        return keep_up(&args.options);
    }
    let options = args.options.clone();
    service::run(NAME, move |ends| serve(&options, ends)).map_err(|error| {
        CliError::Refused(format!("only Windows starts this: {}", explained(&error)))
    })
}

/// Starts the node again whenever it fails. A node that was told to end stays down.
fn keep_up(options: &[String]) -> Result<(), CliError> {
    let mut wait = AGAIN;
    loop {
        let since = Instant::now();
        let node = Node::start(options)?;
        if node.ended_well() {
            return Ok(());
        }
        if since.elapsed() > AGAIN_MAX {
            wait = AGAIN;
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(AGAIN_MAX);
    }
}

/// The life of the machine's service; false if its node failed, so that Windows starts it again.
fn serve(options: &[String], ends: &service::Ends) -> bool {
    let Ok(mut node) = Node::start(options) else { return false };
    while !ends.within(LOOK) {
        if let Ok(Some(status)) = node.child.try_wait() {
            return status.success();
        }
    }
    // A node that does not answer is killed below.
    let _ = data_dir_of(options).and_then(|named| end(&named));
    let since = Instant::now();
    while since.elapsed() < GRACE && matches!(node.child.try_wait(), Ok(None)) {
        std::thread::sleep(LOOK);
    }
    true
}

/// A node that ends with this process.
struct Node {
    child: Child,
    _job: Job,
}

impl Node {
    fn start(options: &[String]) -> Result<Self, CliError> {
        let child = hidden(&["up"], options)?;
        let job = Job::new().doing("cannot keep the node")?;
        job.add(child.id()).doing("cannot keep the node")?;
        Ok(Self { child, _job: job })
    }

    fn ended_well(mut self) -> bool {
        self.child.wait().is_ok_and(|status| status.success())
    }
}

fn start_hidden(options: &[String]) -> Result<(), CliError> {
    hidden(&["service", "run", "--"], options).map(drop)
}

/// Starts this program without a window.
fn hidden(words: &[&str], options: &[String]) -> Result<Child, CliError> {
    let program = std::env::current_exe().doing("cannot find this program's own file")?;
    win32::console::keep_from_children();
    let mut command = Command::new(program);
    command.args(words).args(options).creation_flags(CREATE_NO_WINDOW);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().doing("cannot start this program again")
}

/// Ends the node of a data directory.
fn end(data_dir: &crate::args::DataDir) -> Result<(), CliError> {
    let data_dir = DataDir::find(data_dir)?;
    Client::here(&data_dir)?.shutdown()?;
    query::wait_for_end(&data_dir)
}

fn is_installed(system: bool) -> bool {
    if system { service::exists(NAME) } else { is_at_login() }
}

fn is_at_login() -> bool {
    registry(&["query", LOGIN, "/v", NAME]).is_ok()
}

fn registry(args: &[&str]) -> Result<(), CliError> {
    tool("reg", args)
}

/// Gives the service's account rights to a file or folder.
fn allow(path: &Path, rights: &str) -> Result<(), CliError> {
    tool("icacls", &[&path.to_string_lossy(), "/grant", &format!("{ACCOUNT}:{rights}"), "/Q"])
}

fn tool(program: &str, args: &[&str]) -> Result<(), CliError> {
    let output =
        Command::new(program).args(args).output().doing(format!("cannot run {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(CliError::Refused(format!("{program} {} failed: {said}", args.join(" "))))
}

/// The library's errors keep the system's words for themselves.
fn explained(error: &dyn std::error::Error) -> String {
    let source = error.source().map(|source| format!(": {source}"));
    format!("{error}{}", source.unwrap_or_default())
}

/// A word of a command line, as programs read it: backslashes are themselves, but in front of a
/// quote.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| !c.is_whitespace() && c != '"';
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let mut text = String::from("\"");
    let mut backslashes = 0;
    for c in word.chars() {
        match c {
            '\\' => backslashes += 1,
            '"' => {
                text.push_str(&"\\".repeat(backslashes + 1));
                backslashes = 0;
            }
            _ => backslashes = 0,
        }
        text.push(c);
    }
    text.push_str(&"\\".repeat(backslashes));
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_programs_read_them() {
        let cases = [
            ("up", "up"),
            (r"C:\bin\sinew.exe", r"C:\bin\sinew.exe"),
            (r"C:\Program Files\sinew.exe", r#""C:\Program Files\sinew.exe""#),
            (r"my data\", r#""my data\\""#),
            (r#"say "so\""#, r#""say \"so\\\"""#),
            ("", r#""""#),
        ];
        for (word, wanted) in cases {
            assert_eq!(quoted(word), wanted);
        }
    }
}
