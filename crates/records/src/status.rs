//! What has happened: counts, and events that the caller takes and logs.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Events that nobody takes; older ones are forgotten.
const EVENTS_MAX: usize = 64;
/// Days for which written bytes are kept.
const DAYS_MAX: usize = 30;

/// What a folder of records has and did since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that can be found.
    pub records: u64,
    /// What the folder takes of the disk.
    pub disk_bytes: u64,
    pub hits: u64,
    /// Keys or headers that were not there.
    pub misses: u64,
    /// Records that did not open, or that the disk did not read.
    pub damaged: u64,
    /// Records written, and their bytes on disk.
    pub written: u64,
    pub written_bytes: u64,
    /// Records dropped because others waited to be written.
    pub dropped_queue: u64,
    /// Records dropped because the disk fails or has no room.
    pub dropped_disk: u64,
    /// Records dropped because the budget holds nothing that can go.
    pub dropped_budget: u64,
    pub evicted_segments: u64,
    /// Files of another version or sealing key, when the folder was opened.
    pub foreign_segments: u64,
    /// Bytes written by day since 1970 (UTC), of the last 30 days with any. They outlive restarts.
    pub written_by_day: Vec<(u64, u64)>,
}

/// Something to be logged once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A record did not open; the first of its file.
    Damaged {
        path: PathBuf,
        why: String,
    },
    /// A file is of another version, or sealed with another key.
    Foreign {
        path: PathBuf,
        why: &'static str,
    },
    /// Nothing is written for now.
    Stopped {
        why: String,
    },
    Resumed,
    /// A file that should go stays.
    Stuck {
        path: PathBuf,
        why: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { path, why } => {
                write!(f, "{} is damaged ({why}): its records are made anew", path.display())
            }
            Self::Foreign { path, why } => write!(f, "{} is not read: {why}", path.display()),
            Self::Stopped { why } => write!(f, "no records are written: {why}"),
            Self::Resumed => write!(f, "records are written again"),
            Self::Stuck { path, why } => write!(f, "cannot remove {}: {why}", path.display()),
        }
    }
}

#[derive(Default)]
pub(crate) struct Status {
    counts: Mutex<Counts>,
    events: Mutex<VecDeque<Event>>,
}

impl Status {
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tell(&self, event: Event) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(event);
    }

    pub fn take_events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

impl Counts {
    pub(crate) fn add_written(&mut self, day: u64, bytes: u64) {
        self.written_bytes += bytes;
        match self.written_by_day.last_mut() {
            Some((last, sum)) if *last >= day => *sum += bytes,
            _ => self.written_by_day.push((day, bytes)),
        }
        let old = self.written_by_day.len().saturating_sub(DAYS_MAX);
        self.written_by_day.drain(..old);
    }
}

/// Bytes by day as lines of a file.
pub(crate) fn days_to_text(days: &[(u64, u64)]) -> String {
    days.iter().map(|(day, bytes)| format!("{day} {bytes}\n")).collect()
}

/// The lines that make sense.
pub(crate) fn days_of_text(text: &str) -> Vec<(u64, u64)> {
    let line = |line: &str| {
        let (day, bytes) = line.split_once(' ')?;
        Some((day.parse().ok()?, bytes.parse().ok()?))
    };
    let mut days: Vec<(u64, u64)> = text.lines().filter_map(line).take(DAYS_MAX).collect();
    days.sort_unstable();
    days
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_by_day_and_old_days_go() {
        let mut counts = Counts::default();
        for day in 100..150 {
            counts.add_written(day, 1);
            counts.add_written(day, 2);
        }
        // A clock that was set back counts on.
        counts.add_written(7, 10);
        assert_eq!(counts.written_by_day.len(), DAYS_MAX);
        assert_eq!(counts.written_by_day.last(), Some(&(149, 13)));
        let text = days_to_text(&counts.written_by_day);
        assert_eq!(days_of_text(&text), counts.written_by_day);
        assert_eq!(days_of_text("5 6\n\0\nx y\n7"), [(5, 6)]);
    }

    #[test]
    fn events_that_nobody_takes_are_bounded() {
        let status = Status::default();
        (0..1000).for_each(|_| status.tell(Event::Resumed));
        assert_eq!(status.take_events().len(), EVENTS_MAX);
        assert_eq!(status.take_events(), []);
    }
}
