//! Descriptions of the service for systemd and launchd.

use std::path::PathBuf;
use std::time::Duration;

pub const UNIT: &str = "sinew.service";
pub const LABEL: &str = "ai.sinew.node";

/// How long a node that is told to end may take before it is killed.
const EXIT_SECS: u64 = 20;
/// Between two looks at whether the old node has ended.
pub const END_POLL: Duration = Duration::from_millis(250);

/// Waits until `is_there` is false, and a little longer than a node may take to end. `pause` takes
/// [`END_POLL`].
pub fn await_end(mut is_there: impl FnMut() -> bool, mut pause: impl FnMut()) {
    let most = (EXIT_SECS + 5) * 1000 / END_POLL.as_millis() as u64;
    for _ in 0..most {
        if !is_there() {
            return;
        }
        pause();
    }
}

/// The command of the service.
pub struct ServiceSpec {
    pub program: PathBuf,
    /// Options of `sinew up`.
    pub options: Vec<String>,
    pub system: bool,
    /// The user of a system service.
    pub user: Option<String>,
}

/// A systemd unit. The node ends its workers itself and gets time for it; RDMA devices need locked
/// memory.
pub fn systemd(wanted: &ServiceSpec) -> String {
    let program = wanted.program.to_string_lossy();
    let words = [program.as_ref(), "up"].into_iter().chain(wanted.options.iter().map(|o| &**o));
    let command = words.map(systemd_word).collect::<Vec<_>>().join(" ");
    let user = wanted.user.as_ref().map_or(String::new(), |user| format!("User={user}\n"));
    let target = if wanted.system { "multi-user.target" } else { "default.target" };
    let network = match wanted.system {
        true => "Wants=network-online.target\nAfter=network-online.target\n",
        false => "",
    };
    format!(
        "[Unit]\n\
         Description=Sinew: this machine's node\n\
         {network}\
         StartLimitIntervalSec=300\n\
         StartLimitBurst=10\n\
         \n\
         [Service]\n\
         ExecStart={command}\n\
         {user}\
         Restart=always\n\
         RestartSec=2\n\
         KillMode=mixed\n\
         TimeoutStopSec={EXIT_SECS}\n\
         OOMPolicy=continue\n\
         LimitNOFILE=65536\n\
         LimitMEMLOCK=infinity\n\
         NoNewPrivileges=yes\n\
         \n\
         [Install]\n\
         WantedBy={target}\n"
    )
}

/// A word of a command line: quoted, with `%` and `$` escaped.
fn systemd_word(word: &str) -> String {
    let text = word.replace('\\', "\\\\").replace('"', "\\\"");
    let text = text.replace('%', "%%").replace('$', "$$").replace('\n', "\\n");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,%$@+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text } else { format!("\"{text}\"") }
}

/// A property list. `KeepAlive` restarts the node whenever it ends.
pub fn launchd(wanted: &ServiceSpec) -> String {
    let program = wanted.program.to_string_lossy();
    let words = [program.as_ref(), "up"].into_iter().chain(wanted.options.iter().map(|o| &**o));
    let words = words.map(|word| format!("    <string>{}</string>\n", xml(word)));
    let user = wanted.user.as_ref().map_or(String::new(), |user| {
        format!("  <key>UserName</key>\n  <string>{}</string>\n", xml(user))
    });
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \
         \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
         <plist version=\"1.0\">\n\
         <dict>\n  \
           <key>Label</key>\n  <string>{LABEL}</string>\n  \
           <key>ProgramArguments</key>\n  <array>\n{}  </array>\n\
         {user}  \
           <key>RunAtLoad</key>\n  <true/>\n  \
           <key>KeepAlive</key>\n  <true/>\n  \
           <key>ProcessType</key>\n  <string>Interactive</string>\n  \
           <key>ExitTimeOut</key>\n  <integer>{EXIT_SECS}</integer>\n\
         </dict>\n\
         </plist>\n",
        words.collect::<String>()
    )
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(system: bool, options: &[&str]) -> ServiceSpec {
        ServiceSpec {
            program: "/opt/my tools/sinew".into(),
            options: options.iter().map(|o| (*o).to_owned()).collect(),
            system,
            user: system.then(|| "ann".to_owned()),
        }
    }

    #[test]
    fn a_unit_runs_the_program_with_its_options_as_they_are() {
        let unit = systemd(&wanted(false, &["--name", "100% \"$HOME\"", "--lan"]));
        let command =
            "ExecStart=\"/opt/my tools/sinew\" up --name \"100%% \\\"$$HOME\\\"\" --lan\n";
        assert!(unit.contains(command), "{unit}");
        assert!(unit.contains("WantedBy=default.target") && !unit.contains("User="), "{unit}");
        let unit = systemd(&wanted(true, &[]));
        assert!(unit.contains("WantedBy=multi-user.target") && unit.contains("User=ann\n"));
        assert!(unit.lines().all(|line| !line.starts_with(' ')), "{unit}");
    }

    #[test]
    fn another_node_waits_until_the_old_one_has_ended() {
        for (ends_after, expected) in [(0, 0), (3, 3), (u64::MAX, 100)] {
            let pauses = std::cell::Cell::new(0);
            await_end(|| pauses.get() < ends_after, || pauses.set(pauses.get() + 1));
            assert_eq!(pauses.get(), expected);
        }
    }

    #[test]
    fn a_property_list_is_escaped() {
        let list = launchd(&wanted(true, &["--name", "a<b>&c"]));
        assert!(list.contains("    <string>a&lt;b&gt;&amp;c</string>\n"), "{list}");
        assert!(list.contains("<string>ann</string>"), "{list}");
        let count = |text: &str| list.matches(text).count();
        assert_eq!(count("<string>"), count("</string>"));
        assert_eq!(count("<key>"), count("</key>"));
    }
}
