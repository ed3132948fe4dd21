//! A command at a terminal of its own, by util-linux's `script`.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use super::wait_for;

pub struct Terminal {
    child: Child,
    keys: ChildStdin,
    said: Arc<Mutex<Vec<u8>>>,
    /// What was awaited so far ends here.
    seen: usize,
}

impl Terminal {
    /// The command is one line for a shell.
    pub fn start(command: &str) -> Self {
        // In the foreground: a background reader of a terminal is stopped.
        let command = format!("timeout --foreground -k 5 120 {command}");
        let mut script = Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm-256color");
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let said = Arc::new(Mutex::new(Vec::new()));
        let all = said.clone();
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut some) {
                all.lock().unwrap().extend(&some[..count]);
            }
        });
        Self { child, keys, said, seen: 0 }
    }

    pub fn type_in(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Everything on the screen so far.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap()).into_owned()
    }

    /// Waits for a text that comes after the last one awaited.
    pub fn sees(&mut self, text: &str) {
        let all = self.said.clone();
        let seen = self.seen;
        self.seen = wait_for(&format!("{text:?} after {:?}", &self.screen()[seen..]), || {
            let all = all.lock().unwrap();
            let at = all[seen..].windows(text.len()).position(|part| part == text.as_bytes());
            at.map(|at| seen + at + text.len())
        });
    }

    /// Waits for the command's end.
    pub fn ends(&mut self) {
        let mut ended = || self.child.try_wait().unwrap();
        assert!(wait_for("the command to end", &mut ended).success());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
