//! What a link of several does: measured once, when the pair has met, by both ranks together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Link, LinkError};

/// Samples of each size; the fastest counts, because noise only ever adds.
const SAMPLES: usize = 3;

/// Empty messages of a sample, which is their mean: the rank that is ahead waits longer for one and
/// shorter for the next.
const LATENCY_MESSAGES: usize = 8;

/// Full messages of a sample: half a MiB, 4 ms on a gigabit.
const BANDWIDTH_MESSAGES: usize = 8;

/// A peer that gives no sign of life for so long is lost.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(3);

/// How long to measure, how long with a peer that is silent, and the flag that ends it early.
pub(crate) struct Patience<'a> {
    pub until: Instant,
    pub silence_max: Duration,
    pub abort: &'a AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Speed {
    pub latency: Duration,
    pub bytes_per_us: f64,
}

impl Speed {
    /// Measures, together with the peer, which must do the same.
    ///
    /// # Errors
    /// The link is lost, or carries too little in time.
    pub fn measure(link: &mut dyn Link, patience: &Patience<'_>) -> Result<Self, LinkError> {
        let len = link.message_bytes_max();
        let one_by_one = |link: &mut dyn Link| {
            (0..LATENCY_MESSAGES).try_for_each(|_| exchange(link, 0, 1, patience))
        };
        let latency = fastest(link, one_by_one)? / LATENCY_MESSAGES as u32;
        let took = fastest(link, |link| exchange(link, len, BANDWIDTH_MESSAGES, patience))?;
        let wire = took.saturating_sub(latency).max(Duration::from_nanos(1));
        let bytes_per_us = (BANDWIDTH_MESSAGES * len) as f64 / us(wire);
        Ok(Speed { latency, bytes_per_us })
    }

    /// How long a message of `len` bytes keeps the wire busy.
    pub fn busy(&self, len: usize) -> Duration {
        Duration::from_secs_f64(len as f64 / self.bytes_per_us / 1e6)
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn fastest(
    link: &mut dyn Link,
    act: impl Fn(&mut dyn Link) -> Result<(), LinkError>,
) -> Result<Duration, LinkError> {
    let mut fastest = Duration::MAX;
    for _ in 0..SAMPLES {
        let started = Instant::now();
        act(link)?;
        fastest = fastest.min(started.elapsed());
    }
    Ok(fastest)
}

/// Sends `count` messages of `len` bytes and takes as many.
fn exchange(
    link: &mut dyn Link,
    len: usize,
    count: usize,
    patience: &Patience<'_>,
) -> Result<(), LinkError> {
    let (mut sent, mut taken) = (0, 0);
    loop {
        let all_left = link.progress()?;
        if sent == count && taken == count && all_left {
            return Ok(());
        }
        let mut moved = false;
        if sent < count && link.poll_send(len)?.is_some() {
            link.commit(len)?;
            (sent, moved) = (sent + 1, true);
        }
        if taken < count && link.poll_recv()?.is_some() {
            link.consume();
            (taken, moved) = (taken + 1, true);
        }
        if moved {
            continue;
        }
        if patience.abort.load(Ordering::Relaxed) || Instant::now() >= patience.until {
            let text = format!("{taken} of {count} messages came while it was measured");
            return Err(LinkError::lost(link.info().peer, text));
        }
        let silence = link.vital().silence();
        if silence >= patience.silence_max {
            let silent_ms = silence.as_millis();
            let text = format!("it gave no sign of life for {silent_ms} ms while it was measured");
            return Err(LinkError::lost(link.info().peer, text));
        }
        std::thread::yield_now();
    }
}
