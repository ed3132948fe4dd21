//! What is typed during an answer is the next question.
//!
//! The line editor forgets keys that it has read beyond the end of a line, and the terminal would
//! show keys in the middle of an answer. So a thread reads the terminal, which echoes nothing, and
//! hands the editor one line at a time, on a pseudo-terminal in place of standard input.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, getpgrp, kill_current_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::stdio::{dup2_stdin, stdin};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

use crate::interrupt::Interrupt;

const PASTE_BEGINS: &[u8] = b"\x1b[200~";
const PASTE_ENDS: &[u8] = b"\x1b[201~";
const CTRL_C: u8 = 3;
const CTRL_Z: u8 = 26;
/// The editor's own way to a line break: a quoted line feed.
const LINE_BREAK: &[u8] = b"\x16\n";

/// Keys that wait for the editor are looked at as often.
const BUSY: Duration = Duration::from_millis(20);
/// The terminal's end and the chat's are noticed as often.
const IDLE: Duration = Duration::from_millis(200);
/// An editor that has read the end of a line and still goes on has taken it for something else,
/// such as the end of a search.
const LINE_END_MAX: Duration = Duration::from_millis(300);

/// The keys of the terminal. Dropping it gives the terminal back as it was.
pub struct Keyboard {
    terminal: Arc<OwnedFd>,
    before: Termios,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Counts the lines that the editor has begun, also within one question.
    lines: AtomicU64,
    is_reading: AtomicBool,
    is_closed: AtomicBool,
}

impl Keyboard {
    /// Takes the terminal at standard input. Ctrl-C during an answer sets `interrupt`.
    ///
    /// # Errors
    /// The system has no pseudo-terminal, or standard input is no terminal.
    pub fn open(interrupt: Interrupt) -> io::Result<Self> {
        let terminal = Arc::new(rustix::io::fcntl_dupfd_cloexec(stdin(), 3)?);
        let before = tcgetattr(&*terminal)?;
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let path = ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let path = OsStr::from_bytes(path.as_bytes());
        let slave = rustix::fs::open(path, flags, Mode::empty())?;
        let mut settings = tcgetattr(&slave)?;
        settings.make_raw();
        tcsetattr(&slave, OptionalActions::Now, &settings)?;
        let raw = raw(&before);
        tcsetattr(&*terminal, OptionalActions::Now, &raw)?;
        dup2_stdin(&slave)?;
        let state = Arc::new(State::default());
        let pump = Pump {
            terminal: terminal.clone(),
            settings: [before.clone(), raw],
            master,
            slave,
            state: state.clone(),
            interrupt,
        };
        std::thread::spawn(move || pump.run());
        Ok(Self { terminal, before, state })
    }

    /// Hands keys out while `read` runs, up to the end of a line.
    pub fn reading<T>(&self, read: impl FnOnce() -> T) -> T {
        self.state.lines.fetch_add(1, Ordering::AcqRel);
        self.state.is_reading.store(true, Ordering::Release);
        let line = read();
        self.state.is_reading.store(false, Ordering::Release);
        line
    }

    /// A handle by which the editor asks for a further line.
    pub fn further(&self) -> impl Fn() + use<> {
        let state = self.state.clone();
        move || {
            state.lines.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.state.is_closed.store(true, Ordering::Release);
        // A terminal that has gone needs nothing back.
        let _ = tcsetattr(&*self.terminal, OptionalActions::Now, &self.before);
        let _ = dup2_stdin(&*self.terminal);
    }
}

/// The same terminal without echo, lines and signals by keys; its output stays as it is.
fn raw(before: &Termios) -> Termios {
    let mut raw = before.clone();
    raw.make_raw();
    raw.output_modes = before.output_modes;
    raw
}

/// The thread between the terminal and the editor.
struct Pump {
    terminal: Arc<OwnedFd>,
    /// Before the chat, and during it.
    settings: [Termios; 2],
    master: OwnedFd,
    slave: OwnedFd,
    state: Arc<State>,
    interrupt: Interrupt,
}

impl Pump {
    fn run(self) {
        let mut keys = Keys::default();
        // The line whose end the editor has read last, and when.
        let mut given: Option<(u64, Instant)> = None;
        while !self.state.is_closed.load(Ordering::Acquire) {
            self.keep_raw();
            let wait = if keys.pending.is_empty() { IDLE } else { BUSY };
            match self.read(wait) {
                // The terminal has gone; without a master the editor's input ends as well.
                Err(_) => return,
                Ok(typed) => self.take(&typed, &mut keys),
            }
            if keys.pending.is_empty() || !self.may_give(given) {
                continue;
            }
            let line = self.state.lines.load(Ordering::Acquire);
            let (piece, ends) = keys.next_piece();
            given = ends.then(|| (line, Instant::now()));
            if self.write(&piece).is_err() {
                return;
            }
        }
    }

    /// The keys typed within a while.
    fn read(&self, wait: Duration) -> io::Result<Vec<u8>> {
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        let mut fds = [PollFd::new(&*self.terminal, PollFlags::IN)];
        match poll(&mut fds, Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut keys = vec![0; 4096];
        let count = rustix::io::read(self.terminal.as_fd(), &mut keys)?;
        keys.truncate(count);
        if keys.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(keys) }
    }

    fn take(&self, typed: &[u8], keys: &mut Keys) {
        let is_reading = self.state.is_reading.load(Ordering::Acquire);
        for key in typed {
            match *key {
                CTRL_C if !is_reading => {
                    keys.pending.clear();
                    self.interrupt.set();
                }
                CTRL_Z => self.suspend(),
                key => keys.pending.push(key),
            }
        }
    }

    /// Whether the editor can take keys: it reads, and has not just got the end of its line.
    fn may_give(&self, given: Option<(u64, Instant)>) -> bool {
        if !self.state.is_reading.load(Ordering::Acquire) {
            return false;
        }
        let line = self.state.lines.load(Ordering::Acquire);
        match given.filter(|(of, _)| *of == line) {
            None => true,
            Some((_, since)) => {
                let unread = rustix::io::ioctl_fionread(&self.slave).unwrap_or(0);
                unread == 0 && since.elapsed() > LINE_END_MAX
            }
        }
    }

    fn write(&self, mut piece: &[u8]) -> io::Result<()> {
        while !piece.is_empty() {
            let count = rustix::io::write(&self.master, piece)?;
            piece = &piece[count..];
        }
        Ok(())
    }

    /// Stops this program as Ctrl-Z does, with the terminal as it was.
    fn suspend(&self) {
        let [before, _] = &self.settings;
        // A failure means that the terminal has gone, which the next read finds.
        let _ = tcsetattr(&*self.terminal, OptionalActions::Drain, before)
            .and_then(|()| kill_current_process_group(Signal::TSTP));
    }

    /// A shell sets the terminal up anew, its own way, when it lets a stopped program go on.
    fn keep_raw(&self) {
        let [_, raw] = &self.settings;
        let is_raw = |now: &Termios| !now.local_modes.contains(LocalModes::ICANON);
        let is_ours = || tcgetpgrp(&*self.terminal).is_ok_and(|group| group == getpgrp());
        if tcgetattr(&*self.terminal).is_ok_and(|now| !is_raw(&now)) && is_ours() {
            // The next read finds a terminal that has gone.
            let _ = tcsetattr(&*self.terminal, OptionalActions::Now, raw);
        }
    }
}

/// Keys that the editor has not got yet.
#[derive(Default)]
struct Keys {
    pending: Vec<u8>,
    is_paste: bool,
}

impl Keys {
    /// The keys up to the end of a line, or all; and whether they end one. Line ends in a bracketed
    /// paste end nothing, and Alt-Enter becomes a line break.
    fn next_piece(&mut self) -> (Vec<u8>, bool) {
        let mut piece = Vec::new();
        let mut at = 0;
        while let Some(key) = self.pending.get(at) {
            let rest = &self.pending[at..];
            let mark = if self.is_paste { PASTE_ENDS } else { PASTE_BEGINS };
            if rest.starts_with(mark) {
                self.is_paste = !self.is_paste;
                piece.extend(mark);
                at += mark.len();
            } else if !self.is_paste && rest.starts_with(b"\x1b\r") {
                piece.extend(LINE_BREAK);
                at += 2;
            } else {
                piece.push(*key);
                at += 1;
                if !self.is_paste && matches!(key, b'\r' | b'\n' | &CTRL_C) {
                    self.pending.drain(..at);
                    return (piece, true);
                }
            }
        }
        self.pending.clear();
        (piece, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(typed: &[u8]) -> Vec<(Vec<u8>, bool)> {
        let mut keys = Keys { pending: typed.to_vec(), is_paste: false };
        let mut pieces = Vec::new();
        while !keys.pending.is_empty() {
            pieces.push(keys.next_piece());
        }
        pieces
    }

    #[test]
    fn the_editor_gets_one_line_at_a_time() {
        let given = |text: &[u8], ends| (text.to_vec(), ends);
        let lines = [given(b"one\r", true), given(b"two\n", true), given(b"thr", false)];
        assert_eq!(pieces(b"one\rtwo\nthr"), lines);
        assert_eq!(pieces(b"a\x03b"), [given(b"a\x03", true), given(b"b", false)]);
        assert_eq!(pieces(b"a\x1b\rb\r"), [given(b"a\x16\nb\r", true)]);
        let paste = b"\x1b[200~one\rtwo\x1b[201~\r";
        assert_eq!(pieces(paste), [given(paste, true)]);
    }

    #[test]
    fn a_paste_may_come_in_parts() {
        let mut keys = Keys { pending: b"\x1b[200~one\r".to_vec(), is_paste: false };
        assert!(!keys.next_piece().1);
        keys.pending.extend(b"two\r\x1b[201~\r");
        assert_eq!(keys.next_piece(), (b"two\r\x1b[201~\r".to_vec(), true));
    }
}
