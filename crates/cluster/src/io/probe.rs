//! Measures memory bandwidth and network links, as input of plans.

use std::hint::black_box;
use std::io;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Round trips of a probe. The fastest counts, because delays only ever add.
const PINGS: usize = 16;
/// Bulk transfers, up to the first that takes [`LONG`]. All of them take 8 ms on a gigabit link. On
/// one of 300 kbit/s the third would take 28 s, and heartbeats would wait as long.
const STEPS_BYTES: [usize; 3] = [16 << 10, 128 << 10, BULK_BYTES];
const BULK_BYTES: usize = 1 << 20;
/// Together with [`LONG_ROUND_TRIPS`], in which TCP finds a far path's speed.
const LONG: Duration = Duration::from_millis(250);
const LONG_ROUND_TRIPS: u32 = 3;
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

/// Whether both ends know [`STEPS_BYTES`]; version 13 has the last step alone.
pub(crate) fn has_steps(protocol: u32) -> bool {
    protocol >= 14
}

/// Bytes per second to a peer. Its `round_trip` must just have been measured.
pub(crate) async fn rate<S>(
    stream: &mut S,
    round_trip: Duration,
    has_steps: bool,
) -> io::Result<f64>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let long = LONG + round_trip * LONG_ROUND_TRIPS;
    let measuring = async {
        let (mut bytes, mut took) = (0, Duration::ZERO);
        for step in STEPS_BYTES.into_iter().filter(|step| has_steps || *step == BULK_BYTES) {
            let head = if has_steps { &(step as u32).to_le_bytes()[..] } else { &[] };
            let message = [head, &vec![0; step]].concat();
            (bytes, took) = (step, exchange(stream, &message).await?);
            if took > long {
                break;
            }
        }
        let wire = took.saturating_sub(round_trip).max(Duration::from_micros(1));
        Ok(bytes as f64 / wire.as_secs_f64())
    };
    timeout(PROBE_TIMEOUT, measuring).await?
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

/// The peer's end of [`round_trip`], and of a [`rate`] after it, until the peer leaves.
pub(crate) async fn answer<S>(stream: &mut S, has_steps: bool) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answering = async {
        let mut bytes = vec![0; BULK_BYTES];
        for _ in 0..PINGS {
            acknowledge(stream, &mut bytes[..1]).await?;
        }
        if !has_steps {
            return acknowledge(stream, &mut bytes).await;
        }
        for _ in STEPS_BYTES {
            let mut head = [0; 4];
            if stream.read(&mut head[..1]).await? == 0 {
                break;
            }
            stream.read_exact(&mut head[1..]).await?;
            let step = bytes.get_mut(..u32::from_le_bytes(head) as usize);
            let step = step.ok_or_else(|| io::Error::other("a step is longer than all"))?;
            acknowledge(stream, step).await?;
        }
        Ok(())
    };
    timeout(PROBE_TIMEOUT, answering).await?
}

/// Receives bytes until `out` is full, and says so.
async fn acknowledge<S>(stream: &mut S, out: &mut [u8]) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.read_exact(out).await?;
    stream.write_all(&[0]).await?;
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_ends_of_a_probe_agree_on_what_is_sent() {
        for has_steps in [false, true] {
            let (mut here, mut there) = tokio::io::duplex(4096);
            let measure = async {
                let round_trip = round_trip(&mut here).await.unwrap();
                rate(&mut here, round_trip, has_steps).await.unwrap()
            };
            let (bytes_per_sec, answered) = tokio::join!(measure, answer(&mut there, has_steps));
            answered.unwrap();
            assert!(bytes_per_sec > 0.0, "{bytes_per_sec}");
            // Nothing is left over.
            drop(here);
            assert_eq!(there.read(&mut [0]).await.unwrap(), 0);
        }
    }

    /// A path that carries at most 4 KiB each 100 ms.
    #[tokio::test]
    async fn a_slow_path_carries_no_more_than_its_first_step() {
        let (mut here, mut near) = tokio::io::duplex(4096);
        let (mut far, mut there) = tokio::io::duplex(1 << 20);
        let carried = async {
            let (mut bytes, mut sum) = ([0; 4096], 0);
            for _ in 0..PINGS {
                acknowledge(&mut near, &mut bytes[..1]).await.unwrap();
            }
            loop {
                let some = near.read(&mut bytes).await.unwrap();
                if some == 0 {
                    return sum;
                }
                sum += some;
                // Sleeps: that is what makes the path slow.
                tokio::time::sleep(Duration::from_millis(100)).await;
                far.write_all(&bytes[..some]).await.unwrap();
                if sum == STEPS_BYTES[0] + 4 {
                    far.read_exact(&mut bytes[..1]).await.unwrap();
                    near.write_all(&bytes[..1]).await.unwrap();
                }
            }
        };
        let measure = async move {
            round_trip(&mut here).await.unwrap();
            rate(&mut here, Duration::ZERO, true).await.unwrap()
        };
        let answered = async {
            there.read_exact(&mut [0; 4]).await.unwrap();
            acknowledge(&mut there, &mut vec![0; STEPS_BYTES[0]]).await.unwrap();
        };
        let (rate, sum, ()) = tokio::join!(measure, carried, answered);
        assert_eq!(sum, STEPS_BYTES[0] + 4);
        assert!(rate > 0.0 && rate < 6e4, "{rate}");
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
