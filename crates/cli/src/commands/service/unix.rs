//! Services of systemd and launchd.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::units::{self, LABEL, ServiceSpec, UNIT};
use super::{KEPT, is_up};
use crate::args::{ServiceArgs, ServiceInstallArgs};
use crate::error::{CliError, Doing};

/// Looks at a node that has just started: for 3 s, longer than the pause before a restart.
const SETTLES_MAX: usize = 12;

/// The service manager of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    Systemd,
    Launchd,
}

/// A service on this machine.
struct Service {
    manager: Manager,
    system: bool,
    /// Its unit file or property list.
    path: PathBuf,
}

impl Service {
    fn new(system: bool) -> Result<Self, CliError> {
        let home = || {
            std::env::var_os("HOME").map(PathBuf::from).ok_or_else(|| {
                let text = "HOME is not set, so this user's services cannot be found. Set it, or \
                            use --system";
                CliError::Usage(text.to_owned())
            })
        };
        let (manager, path) = match (cfg!(target_os = "macos"), system) {
            (true, true) => {
                (Manager::Launchd, format!("/Library/LaunchDaemons/{LABEL}.plist").into())
            }
            (true, false) => {
                let folder = home()?.join("Library/LaunchAgents");
                (Manager::Launchd, folder.join(format!("{LABEL}.plist")))
            }
            (false, true) => (Manager::Systemd, Path::new("/etc/systemd/system").join(UNIT)),
            (false, false) => {
                let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
                let config =
                    config.map_or_else(|| Ok(home()?.join(".config")), Ok::<_, CliError>)?;
                (Manager::Systemd, config.join("systemd/user").join(UNIT))
            }
        };
        Ok(Self { manager, system, path })
    }

    fn description(&self, wanted: &ServiceSpec) -> String {
        match self.manager {
            Manager::Systemd => units::systemd(wanted),
            Manager::Launchd => units::launchd(wanted),
        }
    }

    /// Runs the service manager, and shows its output if it refuses.
    fn manage(&self, args: &[&str]) -> Result<(), CliError> {
        let (program, scope) = match (self.manager, self.system) {
            (Manager::Systemd, true) => ("systemctl", None),
            (Manager::Systemd, false) => ("systemctl", Some("--user")),
            (Manager::Launchd, _) => ("launchctl", None),
        };
        let output = Command::new(program).args(scope).args(args).output().doing(format!(
            "cannot run {program}. Without it this machine has no such services: keep sinew up \
             running in a terminal multiplexer, or let your own supervisor start it"
        ))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let line: Vec<&str> = scope.into_iter().chain(args.iter().copied()).collect();
        // Without a login (su, a container) there is no user manager.
        let hint = match said.contains("Failed to connect to bus") {
            true if self.system => {
                ". systemd does not run here (a container?): let what started \
                                    this machine start sinew up"
            }
            true => {
                ". No systemd of yours runs here (su, or a container): log in as this user, or \
                     install it for the machine with: sudo sinew service install --system"
            }
            false => "",
        };
        let (line, said) = (line.join(" "), said.trim());
        Err(CliError::Refused(format!("{program} {line} failed: {said}{hint}")))
    }

    /// The domain of launchd.
    fn domain(&self) -> String {
        if self.system {
            return "system".to_owned();
        }
        format!("gui/{}", rustix::process::getuid().as_raw())
    }

    fn start(&self) -> Result<(), CliError> {
        match self.manager {
            Manager::Systemd => {
                self.manage(&["daemon-reload"])?;
                self.manage(&["enable", UNIT])?;
                // Also replaces a running older one.
                self.manage(&["restart", UNIT])
            }
            Manager::Launchd => {
                let path = self.path.to_string_lossy();
                // A loaded service must be removed first; an error means that there is none.
                let _ = self.manage(&["bootout", &format!("{}/{LABEL}", self.domain())]);
                // Until the old node has ended, launchd refuses another under its name (error 5).
                let is_there = || self.is_running();
                units::await_end(is_there, || std::thread::sleep(units::END_POLL));
                self.manage(&["bootstrap", &self.domain(), &path])
            }
        }
    }

    fn stop(&self) -> Result<(), CliError> {
        match self.manager {
            Manager::Systemd => self.manage(&["disable", "--now", UNIT]),
            Manager::Launchd => self.manage(&["bootout", &format!("{}/{LABEL}", self.domain())]),
        }
    }

    /// # Errors
    /// The node ends again soon after its start; with the last lines of its journal.
    fn stays_up(&self) -> Result<(), CliError> {
        for _ in 0..SETTLES_MAX {
            std::thread::sleep(units::END_POLL);
            if !self.is_running() {
                let scope = if self.system { "--unit" } else { "--user-unit" };
                let mut journal = Command::new("journalctl");
                let lines = journal.args([scope, UNIT, "-n", "3", "-o", "cat", "--no-pager"]);
                let lines = lines.output().map_or(String::new(), |output| {
                    format!(": {}", String::from_utf8_lossy(&output.stdout).trim())
                });
                return Err(CliError::Refused(format!(
                    "the node ended again as soon as it had started{lines}"
                )));
            }
        }
        Ok(())
    }

    /// After a failed start: the description that was there before, or none. What the manager says
    /// to that would only repeat why the start failed.
    fn take_back(&self, before: Option<Vec<u8>>) {
        let _ = match before {
            Some(text) => fs::write(&self.path, text),
            None => {
                let _ = self.stop();
                fs::remove_file(&self.path)
            }
        };
    }

    fn is_running(&self) -> bool {
        match self.manager {
            Manager::Systemd => self.manage(&["is-active", "--quiet", UNIT]).is_ok(),
            Manager::Launchd => {
                self.manage(&["print", &format!("{}/{LABEL}", self.domain())]).is_ok()
            }
        }
    }
}

pub fn install(args: &ServiceInstallArgs) -> Result<(), CliError> {
    let service = Service::new(args.service.system)?;
    let program = std::env::current_exe().doing("cannot find this program's own file")?;
    // Without a user's name systemd sets no HOME, and the node has no place for its data.
    let asked_by = || std::env::var("SUDO_USER").unwrap_or_else(|_| "root".to_owned());
    let user = service.system.then(asked_by);
    let wanted =
        ServiceSpec { program, options: args.options.clone(), system: service.system, user };
    let text = service.description(&wanted);
    if args.print {
        say!("# {}\n{}", service.path.display(), text.trim_end());
        return Ok(());
    }
    if !service.system && is_up() && !service.is_running() {
        let text = "a node already runs on this machine, outside of a service. Stop it first: \
                    sinew stop --node";
        return Err(CliError::Refused(text.to_owned()));
    }
    let folder = service.path.parent().unwrap_or(Path::new("/"));
    let needs = match service.system {
        true => "The machine's services need root: use sudo",
        false => {
            "A service of yours lies in your home, which must be writable; one of the machine's \
             does not: sudo sinew service install --system"
        }
    };
    let cannot = |what: &str, path: &Path, error: io::Error| {
        CliError::Refused(format!("cannot {what} {}: {error}. {needs}", path.display()))
    };
    fs::create_dir_all(folder).map_err(|error| cannot("make", folder, error))?;
    let before = fs::read(&service.path).ok();
    fs::write(&service.path, text).map_err(|error| cannot("write", &service.path, error))?;
    if let Err(error) = service.start().and_then(|()| service.stays_up()) {
        service.take_back(before);
        return Err(CliError::Refused(format!("{error}. Nothing was installed")));
    }
    say!("the node is a service now and runs: {}", service.path.display());
    if service.manager == Manager::Systemd && !service.system {
        say!("it starts when you log in. To start it with the machine:  loginctl enable-linger");
    }
    say!("its log    sinew logs -f");
    say!("upgrade    put the new binary in place of {}, then:", wanted.program.display());
    say!("           sinew service install{}", if service.system { " --system" } else { "" });
    Ok(())
}

pub fn uninstall(args: &ServiceArgs) -> Result<(), CliError> {
    let service = Service::new(args.system)?;
    if !service.path.exists() {
        let text =
            format!("no such service is installed ({} is not there)", service.path.display());
        return Err(CliError::Refused(text));
    }
    // Without its manager a description is useless, so it is removed in any case.
    let stopped = service.stop();
    fs::remove_file(&service.path).doing(format!("cannot remove {}", service.path.display()))?;
    stopped?;
    if service.manager == Manager::Systemd {
        service.manage(&["daemon-reload"])?;
    }
    say!("the service is gone; {KEPT}");
    Ok(())
}

pub fn status(args: &ServiceArgs) -> Result<(), CliError> {
    let service = Service::new(args.system)?;
    if !service.path.exists() {
        let other = Service::new(!args.system).ok().filter(|other| other.path.exists());
        match other {
            Some(other) if other.system => {
                say!("installed for the machine. Look at it with: sinew service status --system");
            }
            Some(_) => say!("installed for this user. Look at it with: sinew service status"),
            None => say!("not installed. To keep the node up: sinew service install"),
        }
        return Ok(());
    }
    let state = if service.is_running() { "running" } else { "not running; look at: sinew logs" };
    say!("installed: {}", service.path.display());
    say!("{state}");
    Ok(())
}
