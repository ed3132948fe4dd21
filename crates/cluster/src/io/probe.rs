//! Measures memory bandwidth and network links, as input of plans.

use std::hint::black_box;
use std::io;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Round trips of a probe. The fastest counts, because delays only ever add.
const PINGS: usize = 16;
/// One bulk transfer: 8 ms on a gigabit link.
const BULK_BYTES: usize = 1 << 20;
/// A link of 300 kbit/s needs 28 s.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);

/// Read by all threads together: more than caches hold.
const READ_BYTES: usize = 128 << 20;
/// More threads do not read faster.
const READERS_MAX: usize = 16;
const READ_ROUNDS: usize = 3;

/// Memory bandwidth of this machine with `threads` threads, in bytes per second. Takes a tenth of a
/// second.
pub fn read_speed(threads: usize) -> f64 {
    measure_reading(threads.clamp(1, READERS_MAX))
}

fn measure_reading(threads: usize) -> f64 {
    let start = Barrier::new(threads);
    let read = || {
        let data = vec![1_u64; READ_BYTES / size_of::<u64>() / threads];
        std::array::from_fn::<f64, READ_ROUNDS, _>(|_| {
            start.wait();
            let started = Instant::now();
            black_box(sum(black_box(&data)));
            started.elapsed().as_secs_f64()
        })
    };
    let mut slowest = [0.0_f64; READ_ROUNDS];
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        for times in readers.into_iter().filter_map(|reader| reader.join().ok()) {
            slowest.iter_mut().zip(times).for_each(|(slowest, time)| *slowest = slowest.max(time));
        }
    });
    READ_BYTES as f64 / slowest.into_iter().fold(f64::MAX, f64::min).max(1e-9)
}

/// In 32 independent chains, so that additions do not wait for each other.
fn sum(data: &[u64]) -> u64 {
    let mut sums = [0_u64; 32];
    for chunk in data.as_chunks::<32>().0 {
        for (sum, number) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*number);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

/// The fastest of `PINGS` round trips to a peer, which must run [`answer`].
pub(crate) async fn round_trip<S>(stream: &mut S) -> io::Result<Duration>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let measuring = async {
        let mut fastest = Duration::MAX;
        for _ in 0..PINGS {
            fastest = fastest.min(exchange(stream, &[0]).await?);
        }
        Ok(fastest)
    };
    timeout(PROBE_TIMEOUT, measuring).await?
}

/// Bytes per second to a peer. Its `round_trip` must just have been measured.
pub(crate) async fn rate<S>(stream: &mut S, round_trip: Duration) -> io::Result<f64>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let took = timeout(PROBE_TIMEOUT, exchange(stream, &vec![0; BULK_BYTES])).await??;
    let wire = took.saturating_sub(round_trip).max(Duration::from_micros(1));
    Ok(BULK_BYTES as f64 / wire.as_secs_f64())
}

/// Sends bytes, and waits for the single byte that acknowledges them.
async fn exchange<S>(stream: &mut S, bytes: &[u8]) -> io::Result<Duration>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let started = Instant::now();
    stream.write_all(bytes).await?;
    stream.flush().await?;
    stream.read_exact(&mut [0]).await?;
    Ok(started.elapsed())
}

/// The peer's end of [`round_trip`], and of a [`rate`] after it.
pub(crate) async fn answer<S>(stream: &mut S) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answering = async {
        let mut bytes = vec![0; BULK_BYTES];
        for len in std::iter::repeat_n(1, PINGS).chain([BULK_BYTES]) {
            stream.read_exact(&mut bytes[..len]).await?;
            stream.write_all(&[0]).await?;
            stream.flush().await?;
        }
        Ok(())
    };
    timeout(PROBE_TIMEOUT, answering).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_ends_of_a_probe_agree_on_what_is_sent() {
        let (mut here, mut there) = tokio::io::duplex(4096);
        let measure = async {
            let round_trip = round_trip(&mut here).await.unwrap();
            rate(&mut here, round_trip).await.unwrap()
        };
        let (bytes_per_sec, answered) = tokio::join!(measure, answer(&mut there));
        answered.unwrap();
        assert!(bytes_per_sec > 0.0, "{bytes_per_sec}");
        // Nothing is left over.
        drop(here);
        assert_eq!(there.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_peer_that_leaves_ends_the_probe() {
        let (mut here, there) = tokio::io::duplex(4096);
        drop(there);
        assert!(round_trip(&mut here).await.is_err());
    }

    #[test]
    fn reading_has_a_speed() {
        assert!(measure_reading(1).is_normal() && measure_reading(2).is_normal());
    }
}
