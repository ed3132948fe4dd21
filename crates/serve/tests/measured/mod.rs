//! The memory of this process, and the time of the thread that serves all requests.

use std::fs::{read_to_string, write};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::support::server::Server;

/// What some work has cost.
#[derive(Debug)]
pub struct Cost {
    /// The most bytes of memory that this process had beside those of before.
    pub bytes: usize,
    /// The longest time that the runtime's thread has computed without coming back to its clock.
    pub longest: Duration,
}

/// Does some work beside a server with one thread.
pub fn cost<T>(server: &Server, work: impl FnOnce() -> T) -> (T, Cost) {
    let (end, mut ended) = oneshot::channel::<()>();
    let watch = server.runtime.spawn(async move {
        let mut longest = Duration::ZERO;
        let mut last = computed();
        while ended.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
            // Sleeps: between two looks at the clock that this is.
            tokio::time::sleep(Duration::from_millis(1)).await;
            let now = computed();
            longest = longest.max(now - last);
            last = now;
        }
        longest
    });
    let before = memory("VmRSS:");
    // Forgets the most so far.
    write("/proc/self/clear_refs", "5").expect("a process may reset its own peak");
    let done = work();
    let bytes = memory("VmHWM:").saturating_sub(before);
    end.send(()).expect("the watch waits");
    let longest = server.runtime.block_on(watch).expect("it ends");
    (done, Cost { bytes, longest })
}

/// Bytes of this process, by a name in its status.
fn memory(name: &str) -> usize {
    let status = read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
    kib << 10
}

/// How long this thread has computed: time in which others had the processor does not count.
fn computed() -> Duration {
    let times = read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    let nanos = times.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.expect("a number of nanoseconds"))
}
