//! Processor use of other programs on this machine, read from `/proc`; absent on other systems.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Samples the processor time of all programs and of this node's processes.
#[derive(Debug)]
pub(crate) struct Others {
    proc: PathBuf,
    last: Option<Counted>,
}

/// Ticks of processor time since the boot of the system or the start of the process.
#[derive(Debug)]
struct Counted {
    /// Of one processor.
    elapsed: f64,
    busy: u64,
    /// By process id.
    own: HashMap<u32, u64>,
}

impl Others {
    /// `proc` is `/proc`, or another directory in tests.
    pub(crate) fn new(proc: &Path) -> Self {
        Self { proc: proc.to_path_buf(), last: None }
    }

    /// Processors used by anything except this process and `workers`, averaged since the last call:
    /// other programs, the system, and other virtual machines on the same processors.
    pub(crate) fn processors(&mut self, workers: &[u32]) -> Option<f64> {
        let own = workers.iter().copied().chain([std::process::id()]);
        let own = own.filter_map(|pid| Some((pid, ticks_of(&self.proc, pid)?)));
        let (elapsed, busy) = all_ticks(&self.proc)?;
        let now = Counted { elapsed, busy, own: own.collect() };
        let last = self.last.replace(now)?;
        let now = self.last.as_ref()?;
        // The last seconds of a worker that has ended count as another program's, once.
        let of_own = now.own.iter().map(|(pid, ticks)| {
            ticks.saturating_sub(last.own.get(pid).copied().unwrap_or_default())
        });
        let others = now.busy.checked_sub(last.busy)?.saturating_sub(of_own.sum());
        let passed = now.elapsed - last.elapsed;
        // Rounded to a tenth, so that tiny changes do not change the status.
        (passed > 0.0).then(|| (others as f64 / passed * 10.0).round() / 10.0)
    }
}

/// Ticks that passed on each processor, and busy ticks of all processors.
fn all_ticks(proc: &Path) -> Option<(f64, u64)> {
    let text = fs::read_to_string(proc.join("stat")).ok()?;
    let processors = text.lines().filter(|line| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    // user, nice, system, idle, iowait, irq, softirq, steal.
    let counts = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let counts: Vec<u64> = counts.map(str::parse).collect::<Result<_, _>>().ok()?;
    let all: u64 = counts.iter().sum();
    let idle = counts.get(3)? + counts.get(4)?;
    Some((all as f64 / processors.count().max(1) as f64, all - idle))
}

/// Ticks of a process and all of its threads, in user and system mode.
fn ticks_of(proc: &Path, pid: u32) -> Option<u64> {
    let text = fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    // The name, in parentheses, may contain any characters.
    let (_, fields) = text.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    Some(times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, busy: u64, idle: u64, own: u64, worker: u64) {
        let stat = format!("cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 9\n");
        fs::write(root.join("stat"), stat).unwrap();
        for (pid, ticks) in [(std::process::id(), own), (7, worker)] {
            let dir = root.join(pid.to_string());
            fs::create_dir_all(&dir).unwrap();
            let line = format!("{pid} (a) name (x) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 5 0 0 20 0\n");
            fs::write(dir.join("stat"), line).unwrap();
        }
    }

    #[test]
    fn what_others_use_is_what_is_busy_without_this_node() {
        let root = tempfile::tempdir().unwrap();
        let mut others = Others::new(root.path());
        assert_eq!(others.processors(&[7]), None, "no such system");
        write(root.path(), 1000, 1000, 100, 0);
        assert_eq!(others.processors(&[7]), None, "nothing to compare with yet");
        // 200 ticks pass on both processors; 300 are busy, 10 and 140 of them ours.
        write(root.path(), 1300, 1100, 110, 140);
        assert_eq!(others.processors(&[7, 99]), Some(0.8));
        assert_eq!(others.processors(&[7]), None, "no time passed");
        fs::write(root.path().join("stat"), "cpu x\n").unwrap();
        assert_eq!(others.processors(&[7]), None, "not readable");
    }
}
