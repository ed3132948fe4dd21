//! The spin pool: a fixed set of threads that share one job at a time with about a microsecond of
//! overhead, because a token passes through hundreds of jobs.
//!
//! The calling thread is thread 0 and always works too. A thread takes a run of tasks from a
//! counter, each time half its fair share of those left: long runs first, because adjacent tasks
//! read adjacent memory, and single ones last, so a slow thread only delays itself. Results must
//! not depend on the thread of a task. Idle workers spin for [`SPIN_TIME`], then park. A parked
//! worker that wakes too late finds the job closed: the caller waits only for workers that joined.
//!
//! The pool knows nothing of numerics, and a job allocates nothing.

use crate::error::Error;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// The most threads of one pool; a mistake in a configuration should not start thousands.
const THREADS_MAX: usize = 256;

/// How long an idle worker spins before it parks: longer than a network hop between two layers, so
/// that a worker is awake throughout a token, and short enough that an idle machine is idle.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// Spins between two looks at the clock.
const SPINS_PER_CLOCK: u32 = 64;

/// In [`Shared::state`]: the workers inside the job, then a flag, then the job's number.
const ACTIVE_MASK: u64 = (1 << 16) - 1;
const OPEN: u64 = 1 << 16;
const EPOCH: u64 = 1 << 17;

/// A field on separate cache lines, so that its writers do not disturb readers of the next.
#[repr(align(128))]
struct Padded<T>(T);

struct Job {
    work: *const Work<'static>,
    tasks: usize,
}

/// The work of a job on a run of its tasks.
type Work<'a> = dyn Fn(Range<usize>) + Sync + 'a;

struct Shared {
    state: Padded<AtomicU64>,
    next_task: Padded<AtomicUsize>,
    sleepers: Padded<AtomicUsize>,
    stop: AtomicBool,
    /// Including the caller.
    threads: usize,
    panicked: AtomicBool,
    /// Written by the caller while no worker is inside, read by workers that joined.
    job: UnsafeCell<Job>,
}

// SAFETY: `job` is written only while `state` is closed with no active worker, and read only
// between a successful join (acquire) and the matching leave (release).
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer inside `job` is dereferenced only while the caller of `run`, which owns
// its target, is waiting.
unsafe impl Send for Shared {}

/// A fixed set of threads that run one job at a time; see the module.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    unparkers: Vec<Thread>,
    busy: AtomicBool,
}

impl Pool {
    /// A pool of `threads` threads, the caller included; 1 starts none.
    ///
    /// # Errors
    /// `threads` is 0 or above 256, or the system refuses a thread.
    pub fn new(threads: usize) -> Result<Self, Error> {
        Self::start(threads, None)
    }

    /// One thread for each of `cpus`, pinned to it; the calling thread is pinned to `cpus[0]`. On
    /// systems without pinning (all except Linux) the ids only determine the number of threads.
    ///
    /// # Errors
    /// As [`Pool::new`], or the system refuses a CPU id.
    pub fn pinned(cpus: &[usize]) -> Result<Self, Error> {
        let pool = Self::start(cpus.len(), Some(cpus))?;
        pin(cpus[0])?;
        Ok(pool)
    }

    fn start(threads: usize, cpus: Option<&[usize]>) -> Result<Self, Error> {
        if threads == 0 || threads > THREADS_MAX {
            return Err(Error::Threads { threads, most: THREADS_MAX });
        }
        let shared = Arc::new(Shared {
            state: Padded(AtomicU64::new(0)),
            next_task: Padded(AtomicUsize::new(0)),
            sleepers: Padded(AtomicUsize::new(0)),
            stop: AtomicBool::new(false),
            threads,
            panicked: AtomicBool::new(false),
            job: UnsafeCell::new(Job { work: &|_| (), tasks: 0 }),
        });
        let mut pool =
            Self { shared, workers: Vec::new(), unparkers: Vec::new(), busy: false.into() };
        let (report, pinned) = std::sync::mpsc::channel();
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let cpu = cpus.map(|cpus| cpus[index]);
            let report = report.clone();
            let body = move || {
                // The receiver outlives every send: it waits for all of them below.
                let _ = report.send(cpu.map_or(Ok(()), pin));
                drop(report);
                work_until_stopped(&shared);
            };
            let worker = std::thread::Builder::new()
                .name(format!("kernel-{index}"))
                .spawn(body)
                .map_err(|error| Error::Spawn { index, error })?;
            pool.unparkers.push(worker.thread().clone());
            pool.workers.push(worker);
        }
        drop(report);
        pinned.iter().collect::<Result<(), Error>>()?;
        Ok(pool)
    }

    /// The number of threads that work on a job, including the caller.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Calls `work(task)` once for every `task` below `tasks`, on any thread in any order, and
    /// returns when all are done. A call from inside a task, or from a second thread during a job,
    /// runs its tasks on the calling thread only.
    ///
    /// # Panics
    /// If a task panics, after all threads have left the job.
    pub fn run(&self, tasks: usize, work: impl Fn(usize) + Sync) {
        self.run_in_runs(tasks, |run| run.for_each(&work));
    }

    /// Like [`Pool::run`], but `work` gets a run of adjacent tasks that a thread takes at once;
    /// together the runs are all tasks.
    ///
    /// # Panics
    /// As [`Pool::run`].
    pub(crate) fn run_in_runs(&self, tasks: usize, work: impl Fn(Range<usize>) + Sync) {
        if tasks <= 1 || self.workers.is_empty() || self.busy.swap(true, Ordering::Acquire) {
            if tasks > 0 {
                work(0..tasks);
            }
            return;
        }
        self.run_shared(tasks, &work);
    }

    fn run_shared(&self, tasks: usize, work: &Work) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; `close` (run by the guard even when a task panics)
        // waits until no worker can still use the pointer.
        let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        // SAFETY: the state is closed and no worker is active, so no thread reads the job; `busy`
        // keeps other callers out.
        unsafe { *shared.job.get() = Job { work, tasks } };
        shared.next_task.0.store(0, Ordering::Relaxed);
        let epoch = (shared.state.0.load(Ordering::Relaxed) & !(EPOCH - 1)).wrapping_add(EPOCH);
        shared.state.0.store(epoch | OPEN, Ordering::SeqCst);
        if shared.sleepers.0.load(Ordering::SeqCst) > 0 {
            self.unparkers.iter().for_each(Thread::unpark);
        }
        let guard = Closing { pool: self };
        // SAFETY: `work` is borrowed by this call.
        take_tasks(shared, tasks, unsafe { &*work });
        drop(guard);
        if shared.panicked.swap(false, Ordering::Relaxed) {
            panic!("a task of the kernel pool panicked on a worker thread");
        }
    }
}

/// Closes the job and waits for the workers inside, however the caller leaves.
struct Closing<'a> {
    pool: &'a Pool,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let state = &self.pool.shared.state.0;
        state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0_u32;
        while state.load(Ordering::Acquire) & ACTIVE_MASK != 0 {
            spins += 1;
            // With more threads than cores the worker needs this core to finish.
            if spins.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        self.pool.busy.store(false, Ordering::Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.unparkers.iter().for_each(Thread::unpark);
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so there is nothing left to report.
            let _ = worker.join();
        }
    }
}

fn take_tasks(shared: &Shared, tasks: usize, work: &Work) {
    let next = &shared.next_task.0;
    let mut first = next.load(Ordering::Relaxed);
    while first < tasks {
        let end = first + ((tasks - first) / (2 * shared.threads)).max(1);
        match next.compare_exchange_weak(first, end, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                work(first..end);
                first = next.load(Ordering::Relaxed);
            }
            Err(now) => first = now,
        }
    }
}

fn work_until_stopped(shared: &Shared) {
    let mut last_epoch = 0;
    while let Some(state) = wait_for_job(shared, last_epoch) {
        let joined =
            shared.state.0.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
        if joined.is_err() {
            continue;
        }
        last_epoch = state & !(EPOCH - 1);
        // SAFETY: this worker is counted as active, so the job stays as it is until it leaves.
        let (work, tasks) = unsafe { ((*shared.job.get()).work, (*shared.job.get()).tasks) };
        // SAFETY: as above; the caller of `run` keeps the closure alive until all have left.
        let work = unsafe { &*work };
        if catch_unwind(AssertUnwindSafe(|| take_tasks(shared, tasks, work))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.state.0.fetch_sub(1, Ordering::Release);
    }
}

/// Spins, then parks, until a job other than `last_epoch` is open; `None` when the pool stops.
fn wait_for_job(shared: &Shared, last_epoch: u64) -> Option<u64> {
    let is_new = |state: u64| state & OPEN != 0 && state & !(EPOCH - 1) != last_epoch;
    let started = Instant::now();
    loop {
        for _ in 0..SPINS_PER_CLOCK {
            let state = shared.state.0.load(Ordering::Acquire);
            if is_new(state) {
                return Some(state);
            }
            std::hint::spin_loop();
        }
        if shared.stop.load(Ordering::Relaxed) {
            return None;
        }
        if started.elapsed() > SPIN_TIME {
            // Announce the sleep before the last look: the caller opens a job before it looks for
            // sleepers, so one of the two sees the other.
            shared.sleepers.0.fetch_add(1, Ordering::SeqCst);
            while !is_new(shared.state.0.load(Ordering::SeqCst))
                && !shared.stop.load(Ordering::SeqCst)
            {
                std::thread::park();
            }
            shared.sleepers.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(target_os = "linux")]
fn pin(cpu: usize) -> Result<(), Error> {
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(Error::Pin { cpu, error: std::io::ErrorKind::InvalidInput.into() });
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|errno| Error::Pin { cpu, error: errno.into() })
}

#[cfg(not(target_os = "linux"))]
fn pin(_cpu: usize) -> Result<(), Error> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 7, 100, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, |task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn many_short_jobs_and_naps_lose_no_task() {
        let pool = Pool::new(4).unwrap();
        let sum = AtomicUsize::new(0);
        for job in 0..2000 {
            if job % 500 == 0 {
                std::thread::sleep(SPIN_TIME * 5);
            }
            pool.run(5, |task| {
                sum.fetch_add(task, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.load(Ordering::Relaxed), 2000 * 10);
    }

    #[test]
    fn nested_and_concurrent_jobs_complete() {
        let pool = Pool::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        pool.run(4, |_| {
                            pool.run(4, |_| {
                                sum.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.load(Ordering::Relaxed), 3 * 100 * 16);
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(2).unwrap();
        let run = || pool.run(64, |task| assert!(task != 40, "task 40 fails on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        let count = AtomicUsize::new(0);
        pool.run(64, |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 64);
    }

    #[test]
    fn impossible_pools_are_refused() {
        assert!(matches!(Pool::new(0), Err(Error::Threads { threads: 0, .. })));
        assert!(matches!(Pool::new(THREADS_MAX + 1), Err(Error::Threads { .. })));
        assert!(Pool::pinned(&[]).is_err());
    }
}
