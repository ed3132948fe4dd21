//! Reports the progress of loading, and that this process is alive. A separate thread reports, even
//! while the loading thread waits for a disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The shortest interval between progress reports.
const INTERVAL: Duration = Duration::from_millis(100);
/// A report is repeated at least every fifth interval: a daemon takes a silent worker for frozen.
const REPEAT: u32 = 5;

/// Loaded bytes of a shard, its total bytes, and those that came from other machines.
#[derive(Debug, Default)]
struct Bytes {
    done: AtomicU64,
    total: AtomicU64,
    arrived: Arc<AtomicU64>,
}

/// Reports until it is dropped, and never after that.
pub(crate) struct Loading {
    bytes: Arc<Bytes>,
    speaker: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Loading {
    /// `tell`: bytes done, total bytes (0 while unknown), and bytes that have arrived.
    pub(crate) fn begin(tell: impl Fn(u64, u64, u64) + Send + 'static) -> Self {
        let bytes = Arc::new(Bytes::default());
        let (stop, stopped) = channel();
        let shared = bytes.clone();
        let speaker = std::thread::spawn(move || {
            let (mut told, mut silent) = ((0, 0), 0);
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let total = shared.total.load(Ordering::Relaxed);
                let done = shared.done.load(Ordering::Relaxed).min(total);
                let arrived = shared.arrived.load(Ordering::Relaxed);
                silent += 1;
                if (done, arrived) != told || silent == REPEAT {
                    (told, silent) = ((done, arrived), 0);
                    tell(done, total, arrived);
                }
            }
        });
        Self { bytes, speaker: Some((stop, speaker)) }
    }

    pub(crate) fn expect(&self, total_bytes: u64) {
        self.bytes.total.store(total_bytes, Ordering::Relaxed);
    }

    /// Counts the bytes that arrive from other machines.
    pub(crate) fn arrivals(&self) -> Arc<AtomicU64> {
        self.bytes.arrived.clone()
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        if let Some((stop, speaker)) = self.speaker.take() {
            drop(stop);
            // The thread only sends; it has no error to report.
            let _ = speaker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_speaks_of_progress_and_also_without_any() {
        let (sender, told) = channel();
        let tell = move |done, total, arrived| sender.send((done, total, arrived)).unwrap();
        let loading = Loading::begin(tell);
        assert_eq!(told.recv().unwrap(), (0, 0, 0), "a sign of life");
        loading.expect(10);
        loading.add(4);
        let progress = told.iter().find(|told| told.0 > 0).unwrap();
        assert_eq!(progress, (4, 10, 0));
        assert_eq!(told.recv().unwrap(), (4, 10, 0), "another one");
        loading.arrivals().fetch_add(7, Ordering::Relaxed);
        assert_eq!(told.iter().find(|told| told.2 > 0), Some((4, 10, 7)));
        loading.add(90);
        assert_eq!(told.iter().find(|told| told.0 > 4), Some((10, 10, 7)), "never more than all");
        drop(loading);
        assert_eq!(told.into_iter().find(|told| told.0 < 10), None);
    }
}
