//! Rank processes as their parent sees them: starts them, sends them lines, reads theirs, strikes.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::rank;

pub struct Process {
    child: Child,
    lines: Receiver<String>,
    pub addr: SocketAddr,
    /// Its holdings before its first epoch.
    pub holdings: String,
}

impl Process {
    pub fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(rank::ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let first = lines.recv().expect("a rank says its address first");
        let words: Vec<&str> = first.split(' ').collect();
        let (addr, holdings) = (words[1].parse().unwrap(), words[2].to_string());
        Process { child, lines, addr, holdings }
    }

    pub fn tell(&mut self, line: &str) {
        // A killed rank does not listen any more.
        let _ = writeln!(self.child.stdin.as_mut().unwrap(), "{line}");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The next line; `None` if there is none before `until`.
    pub fn next_line(&self, until: Instant) -> Option<String> {
        self.lines.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
