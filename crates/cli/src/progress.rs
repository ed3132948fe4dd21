//! A line on standard error that shows the progress of loading a model. Writes nothing if standard
//! error is no terminal.

use std::any::Any;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gguf::{Directory, File, ReadError, Source, Strided};

use crate::{output, table, width};

/// Frequent enough to look smooth, at no measurable cost.
const INTERVAL: Duration = Duration::from_millis(100);

/// One line that is overwritten.
pub struct ProgressLine {
    terminal: bool,
    started: Instant,
}

impl ProgressLine {
    pub fn new() -> Self {
        Self { terminal: output::obeys(&std::io::stderr()), started: Instant::now() }
    }

    /// Shows `done` of `total` bytes and the rate.
    pub fn show(&self, what: &str, done: u64, total: u64) {
        if self.terminal && total > 0 {
            let secs = self.started.elapsed().as_secs_f64().max(1e-3);
            self.show_at(what, done, total, done as f64 / secs);
        }
    }

    /// The same with a given rate.
    pub fn show_at(&self, what: &str, done: u64, total: u64, bytes_per_sec: f64) {
        if self.terminal && total > 0 {
            let columns = width::columns();
            write_over(&fitting(what, done.min(total), total, bytes_per_sec, columns));
        } else {
            self.say(what);
        }
    }

    /// Shows only text.
    pub fn say(&self, what: &str) {
        if self.terminal {
            write_over(what);
        }
    }

    pub fn clear(&self) {
        if self.terminal {
            write_over("");
        }
    }
}

/// Lines of a terminal that are overwritten, one for each part of the work.
pub struct ProgressLines {
    terminal: bool,
    columns: usize,
    /// Number of lines on the screen.
    shown: usize,
    /// Name, time and done bytes of each part when it was first shown.
    begun: Vec<(String, Instant, u64)>,
}

impl ProgressLines {
    pub fn new() -> Self {
        let terminal = output::obeys(&std::io::stderr());
        // Without a terminal the width does not matter.
        let columns = if terminal { width::columns() } else { usize::MAX };
        Self { terminal, columns, shown: 0, begun: Vec::new() }
    }

    /// Shows done and total bytes of each part, and its rate since it was first shown.
    pub fn show(&mut self, each: &[(String, u64, u64)]) {
        if self.terminal {
            let lines = self.lines(each, Instant::now());
            self.write(&lines);
        }
    }

    pub fn clear(&mut self) {
        if self.terminal {
            self.write(&[]);
        }
    }

    fn lines(&mut self, each: &[(String, u64, u64)], now: Instant) -> Vec<String> {
        self.begun.retain(|(what, ..)| each.iter().any(|one| one.0 == *what));
        let mut lines = Vec::new();
        for (what, done, total) in each.iter().filter(|(.., total)| *total > 0) {
            let done = (*done).min(*total);
            let begun = self.begun.iter().find(|begun| begun.0 == *what);
            let (since, first) = begun.map_or((now, done), |(_, since, first)| (*since, *first));
            if begun.is_none() {
                self.begun.push((what.clone(), now, done));
            }
            let secs = (now - since).as_secs_f64().max(1e-3);
            let rate = done.saturating_sub(first) as f64 / secs;
            lines.push(fitting(what, done, *total, rate, self.columns));
        }
        lines
    }

    fn write(&mut self, lines: &[String]) {
        const ERASE_TO_END: &str = "\x1b[J";
        let up = if self.shown > 0 { format!("\x1b[{}F", self.shown) } else { String::new() };
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let mut stderr = std::io::stderr();
        // A failed write to the terminal cannot be reported.
        let _ = write!(stderr, "{up}{ERASE_TO_END}{text}");
        let _ = stderr.flush();
        self.shown = lines.len();
    }
}

/// A line with the longest bar that fits: a line that wraps cannot be overwritten.
fn fitting(what: &str, done: u64, total: u64, bytes_per_sec: f64, columns: usize) -> String {
    let bars = [20, 10, 5, 0].map(|cells| line_at(what, done, total, bytes_per_sec, cells));
    let line = bars.iter().find(|line| line.chars().count() < columns).unwrap_or(&bars[3]);
    table::one_line(line).chars().take(columns - 1).collect()
}

fn line_at(what: &str, done: u64, total: u64, bytes_per_sec: f64, cells: u64) -> String {
    let full = (done * cells / total) as usize;
    let bar = "#".repeat(full) + &"-".repeat(cells as usize - full);
    let bar = if cells == 0 { String::new() } else { format!(" [{bar}]") };
    let percent = done * 100 / total;
    let rate = table::bytes(bytes_per_sec as u64);
    let left = match bytes_per_sec {
        rate if rate >= 1.0 && done < total => time_left((total - done) as f64 / rate),
        _ => String::new(),
    };
    format!(
        "{what}{bar} {percent:3} %  {} of {}  {rate}/s{left}",
        table::bytes(done),
        table::bytes(total)
    )
}

/// `  1 h 02 min left`, `  3 min 20 s left`, `  7 s left`.
fn time_left(secs: f64) -> String {
    let secs = secs.ceil().min(1e9) as u64;
    let (hours, minutes) = (secs / 3600, secs / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("  {secs} s left"),
        (0, _) => format!("  {minutes} min {:02} s left", secs % 60),
        _ => format!("  {hours} h {minutes:02} min left"),
    }
}

fn write_over(text: &str) {
    const ERASE_TO_END: &str = "\x1b[K";
    // A line that wraps cannot be overwritten.
    let text: String = table::one_line(text).chars().take(width::columns() - 1).collect();
    let mut stderr = std::io::stderr();
    // A failed write to the terminal cannot be reported.
    let _ = write!(stderr, "\r{text}{ERASE_TO_END}");
    let _ = stderr.flush();
}

/// Progress of measurements in this process, on standard error.
pub struct Terminal;

pub static TERMINAL: Terminal = Terminal;

impl bench::Progress for Terminal {
    fn watch(&self, file: File) -> (Arc<dyn Source>, Box<dyn Any>) {
        let (source, watch) = watch(file);
        (source, Box::new(watch))
    }

    fn say(&self, words: &str) {
        ProgressLine::new().say(words);
    }

    fn clear(&self) {
        ProgressLine::new().clear();
    }
}

/// Shows a line while this process loads a file, until it is dropped.
struct Watch {
    ticker: Option<(Sender<()>, JoinHandle<()>)>,
}

/// The file, and the line that shows the read part of it.
fn watch(file: File) -> (Arc<dyn Source>, Watch) {
    let bar = ProgressLine::new();
    if !bar.terminal {
        return (Arc::new(file), Watch { ticker: None });
    }
    let tensors = file.directory().tensors().iter();
    let total = tensors.map(|tensor| tensor.range.end - tensor.range.start).sum();
    let watched = Arc::new(Watched { file, read_bytes: AtomicU64::new(0) });
    let (stop, stopped) = channel();
    let source = watched.clone();
    let ticker = std::thread::spawn(move || {
        while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            bar.show("loading", watched.read_bytes.load(Ordering::Relaxed), total);
        }
        bar.clear();
    });
    (source, Watch { ticker: Some((stop, ticker)) })
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some((stop, ticker)) = self.ticker.take() {
            drop(stop);
            // The thread only writes to a terminal, and has no result.
            let _ = ticker.join();
        }
    }
}

/// A file that counts the bytes read from it.
struct Watched {
    file: File,
    read_bytes: AtomicU64,
}

impl Source for Watched {
    fn directory(&self) -> &Arc<Directory> {
        self.file.directory()
    }

    fn read(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        self.file.read(pieces, out)?;
        self.read_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_own_rate_and_none_is_wider_than_the_terminal() {
        let begun = Vec::new();
        let mut bars = ProgressLines { terminal: false, columns: 100, shown: 0, begun };
        let now = Instant::now();
        let gib = 1 << 30;
        let at = |a: u64, b: u64| [("on a".to_owned(), a, gib), ("on b".to_owned(), b, gib)];
        bars.lines(&at(0, gib / 2), now);
        let lines = bars.lines(&at(gib / 4, gib), now + Duration::from_secs(1));
        assert!(lines[0].ends_with("256.0 MiB of 1.0 GiB  256.0 MiB/s  3 s left"), "{lines:?}");
        assert!(lines[1].ends_with("100 %  1.0 GiB of 1.0 GiB  512.0 MiB/s"), "{lines:?}");
        bars.columns = 40;
        assert!(bars.lines(&at(1, 2), now).iter().all(|line| line.chars().count() < 40));
        assert_eq!(bars.lines(&[("nothing yet".to_owned(), 0, 0)], now), [""; 0]);
    }

    #[test]
    fn the_line_says_how_far_and_how_fast() {
        let gib = 1 << 30;
        let half = line_at("loading", gib / 2, gib, (gib / 2) as f64, 20);
        let bar = "#".repeat(10) + &"-".repeat(10);
        let rate = "512.0 MiB/s  1 s left";
        assert_eq!(half, format!("loading [{bar}]  50 %  512.0 MiB of 1.0 GiB  {rate}"));
        assert_eq!(time_left(200.0), "  3 min 20 s left");
        assert_eq!(time_left(3720.0), "  1 h 02 min left");
        assert!(line_at("loading", 0, 7, 0.0, 20).contains("  0 %"));
        assert!(line_at("loading", 7, 7, 7.0, 20).contains("100 %"));
        // A usual terminal has room for the remaining time, if not for the whole bar.
        let narrow = fitting("loading on desk", gib / 2, gib, 1e8, 80);
        assert!(
            narrow.len() < 80 && narrow.contains("[##") && narrow.ends_with("left"),
            "{narrow}"
        );
    }
}
