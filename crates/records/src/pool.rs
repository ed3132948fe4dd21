//! Threads that read aligned ranges of files.
//!
//! A pool of threads that wait in `pread` keeps a disk as busy as the kernel's queues do, works on
//! every system, and needs no unsafe code. The pool knows nothing of what it reads; work on the
//! bytes (a seal to be checked) is done by its threads too, in [`Pool::read_then`].

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::buffer::{ALIGN, Buffer};
use crate::direct::DirectFile;
use crate::throttle::Throttle;

/// How many reads a disk is given at once. Twice as many add nothing, half as many lose a quarter
/// on fast drives.
const DEPTH: usize = 16;
/// How long a dropped pool or folder waits for its threads; a disk that hangs holds up no exit.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// What [`Pool::measure`] reads at a time.
const MEASURED_BLOCK_BYTES: usize = 1 << 20;

/// A range of a file.
pub struct Read {
    pub file: Arc<DirectFile>,
    /// In bytes, a multiple of [`ALIGN`].
    pub offset: u64,
    /// A multiple of [`ALIGN`].
    pub bytes: usize,
    /// What is filled, at least `bytes` long. It is lost if the read fails or is cancelled.
    /// `None`: memory that is allocated when the read begins, so that waiting requests take none.
    pub into: Option<Buffer>,
}

/// What a pool has done since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PoolCounts {
    pub bytes: u64,
    pub requests: u64,
    /// Requests that ended with an error.
    pub failures: u64,
    /// Time in which at least one read was in flight.
    pub busy: Duration,
}

/// Threads that read. Dropping the pool ends requests that have not begun with an error.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Reads in flight at once.
    depth: usize,
    state: Mutex<State>,
    queued: Condvar,
    throttle: Throttle,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    is_closed: bool,
    in_flight: usize,
    busy_since: Option<Instant>,
    counts: PoolCounts,
}

type Fill = dyn FnOnce(&Throttle) -> io::Result<Buffer> + Send;
type Done = dyn FnOnce(io::Result<Buffer>) + Send;

struct Job {
    fill: Box<Fill>,
    is_cancelled: Arc<AtomicBool>,
    done: Box<Done>,
}

impl Pool {
    /// A pool that reads 16 ranges at once.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn new() -> io::Result<Self> {
        Self::with_depth(DEPTH)
    }

    /// A pool that reads `depth` ranges at once. It has twice as many threads, so that the disk is
    /// not idle while half of them work on what they have read.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn with_depth(depth: usize) -> io::Result<Self> {
        let depth = depth.max(1);
        let shared = Arc::new(Shared {
            depth,
            state: Mutex::default(),
            queued: Condvar::new(),
            throttle: Throttle::new(None),
        });
        let mut pool = Self { shared, threads: Vec::new() };
        for _ in 0..2 * depth {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new().name("disk-read".to_owned());
            pool.threads.push(thread.spawn(move || shared.run())?);
        }
        Ok(pool)
    }

    /// Sets a ceiling of bytes per second for all reads together; `None` takes it away.
    pub fn limit(&self, bytes_per_sec: Option<u64>) {
        self.shared.throttle.set(bytes_per_sec);
    }

    /// Reads a range, after those that were asked for before; any number may wait. The buffer is
    /// shorter than asked for if the file ends before.
    pub fn read(&self, read: Read) -> Pending<io::Result<Buffer>> {
        self.read_then(read, |result| result)
    }

    /// Reads a range, and has a thread of the pool make something of it.
    pub fn read_then<T: Send + 'static>(
        &self,
        read: Read,
        then: impl FnOnce(io::Result<Buffer>) -> T + Send + 'static,
    ) -> Pending<T> {
        self.submit(move |throttle| read_range(read, throttle), then)
    }

    /// Has a thread of the pool fill a buffer of `bytes` in another way than by one read: `into`,
    /// or a new one.
    pub fn fill(
        &self,
        bytes: usize,
        into: Option<Buffer>,
        fill: impl FnOnce(&mut [u8]) -> io::Result<()> + Send + 'static,
    ) -> Pending<io::Result<Buffer>> {
        let filled = move |throttle: &Throttle| {
            throttle.take(bytes);
            let mut buffer = room(bytes, into)?;
            fill(&mut buffer[..bytes])?;
            buffer.truncate(bytes);
            Ok(buffer)
        };
        self.submit(filled, |result| result)
    }

    fn submit<T: Send + 'static>(
        &self,
        fill: impl FnOnce(&Throttle) -> io::Result<Buffer> + Send + 'static,
        then: impl FnOnce(io::Result<Buffer>) -> T + Send + 'static,
    ) -> Pending<T> {
        let (sender, receiver) = sync_channel(1);
        let pending = Pending { receiver, is_cancelled: Arc::default() };
        let is_cancelled = pending.is_cancelled.clone();
        // Whoever dropped the receiver wants no result.
        let done = Box::new(move |result| drop(sender.send(then(result))));
        let fill = Box::new(fill);
        self.shared.state().jobs.push_back(Job { fill, is_cancelled, done });
        self.shared.queued.notify_one();
        pending
    }

    pub fn counts(&self) -> PoolCounts {
        let state = self.shared.state();
        let now = state.busy_since.map_or(Duration::ZERO, |since| since.elapsed());
        PoolCounts { busy: state.counts.busy + now, ..state.counts }
    }

    /// The bytes per second at which this pool reads a file, from its first `bytes_max`.
    ///
    /// # Errors
    /// The file cannot be read, or has less than 1 MiB.
    pub fn measure(&self, file: &Arc<DirectFile>, bytes_max: u64) -> io::Result<f64> {
        let blocks = file.bytes()?.min(bytes_max) / MEASURED_BLOCK_BYTES as u64;
        if blocks == 0 {
            let text = "a file of less than 1 MiB tells nothing of a disk";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let start = Instant::now();
        let block = |at: u64| Read {
            file: file.clone(),
            offset: at * MEASURED_BLOCK_BYTES as u64,
            bytes: MEASURED_BLOCK_BYTES,
            into: None,
        };
        let read = |at| self.read_then(block(at), |read| read.map(|buffer| buffer.len()));
        let pending: Vec<_> = (0..blocks).map(read).collect();
        let mut bytes = 0;
        for mut one in pending {
            bytes += one.wait_forever().unwrap_or_else(|| Err(closed()))?;
        }
        Ok(bytes as f64 / start.elapsed().as_secs_f64())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.shared.state();
            state.is_closed = true;
            std::mem::take(&mut state.jobs)
        };
        self.shared.throttle.open();
        self.shared.queued.notify_all();
        for job in waiting {
            (job.done)(Err(closed()));
        }
        let deadline = Instant::now() + CLOSE_PATIENCE;
        self.threads.drain(..).for_each(|thread| join_until(thread, deadline));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life.
    fn run(&self) {
        while let Some(job) = self.next() {
            // A panic ends its request, not the thread.
            let filled = catch_unwind(AssertUnwindSafe(|| (job.fill)(&self.throttle)));
            let result = filled.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            self.finish(result.as_ref().ok().map(|buffer| buffer.len()));
            let _ = catch_unwind(AssertUnwindSafe(|| (job.done)(result)));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            let has_slot = state.in_flight < self.depth;
            match has_slot.then(|| state.jobs.pop_front()).flatten() {
                Some(job) if job.is_cancelled.load(Relaxed) => {}
                Some(job) => {
                    state.in_flight += 1;
                    state.busy_since.get_or_insert_with(Instant::now);
                    return Some(job);
                }
                None => state = self.queued.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn finish(&self, bytes: Option<usize>) {
        let mut state = self.state();
        state.counts.requests += 1;
        state.counts.bytes += bytes.unwrap_or(0) as u64;
        state.counts.failures += u64::from(bytes.is_none());
        state.in_flight -= 1;
        self.queued.notify_one();
        if state.in_flight == 0 {
            let busy = state.busy_since.take().map_or(Duration::ZERO, |since| since.elapsed());
            state.counts.busy += busy;
        }
    }
}

fn read_range(read: Read, throttle: &Throttle) -> io::Result<Buffer> {
    let align = ALIGN as u64;
    if !read.offset.is_multiple_of(align) || !read.bytes.is_multiple_of(ALIGN) {
        let text = format!("{} bytes at {} are not whole blocks", read.bytes, read.offset);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    throttle.take(read.bytes);
    let mut buffer = room(read.bytes, read.into)?;
    let filled = read.file.read_at(&mut buffer[..read.bytes], read.offset)?;
    buffer.truncate(filled);
    Ok(buffer)
}

/// The buffer that was given, or a new one.
fn room(bytes: usize, given: Option<Buffer>) -> io::Result<Buffer> {
    let buffer = given.unwrap_or_else(|| Buffer::zeroed(bytes));
    if buffer.len() < bytes {
        let text = format!("{bytes} bytes do not fit into {}", buffer.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(buffer)
}

/// Joins a thread that is about to end; one that does not is left alone. A thread cannot be joined
/// with a deadline, so this looks again and again.
pub(crate) fn join_until(thread: JoinHandle<()>, deadline: Instant) {
    while !thread.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    if thread.is_finished() {
        let _ = thread.join();
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "the pool of reading threads is closed")
}

/// What a read will give. Dropping it cancels a read that has not begun.
pub struct Pending<T> {
    receiver: Receiver<T>,
    is_cancelled: Arc<AtomicBool>,
}

impl<T> Pending<T> {
    /// A result that is there.
    pub(crate) fn ready(value: T) -> Self {
        let (sender, receiver) = sync_channel(1);
        let _ = sender.send(value);
        Self { receiver, is_cancelled: Arc::default() }
    }

    /// Of something else than a read, which nobody cancels.
    pub(crate) fn of(receiver: Receiver<T>) -> Self {
        Self { receiver, is_cancelled: Arc::default() }
    }

    /// The result, once, if it is there.
    pub fn try_take(&mut self) -> Option<T> {
        self.receiver.try_recv().ok()
    }

    /// Waits for the result until `deadline`. `None`: it is not there, or was taken before.
    pub fn wait(&mut self, deadline: Instant) -> Option<T> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receiver.recv_timeout(left) {
                Ok(value) => return Some(value),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(_) => return None,
            }
        }
    }

    /// Waits for the result. `None`: it was taken before, or `then` has panicked.
    pub fn wait_forever(&mut self) -> Option<T> {
        self.receiver.recv().ok()
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.is_cancelled.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests;
