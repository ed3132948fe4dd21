//! Load on one link: both ends send blocks at once, and compare the received blocks with the
//! expected ones.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::frame::FRAME_BYTES_MAX;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::spec::{BurnSpec, LinkBurn};
use crate::NodeId;
use crate::io::frames;
use crate::io::net::{DialError, Net};
use crate::io::tls::Pin;
use crate::transfer::asks::{Ask, Neighbour};
use crate::wire::Purpose;

const BLOCK_BYTES: usize = 1 << 20;
/// Blocks of one round, which takes [`ROUND_SECS`] at most on a fast link.
const BLOCKS_MAX: u32 = 256;
const ROUND_SECS: f64 = 0.25;
const PINGS: usize = 8;
/// A round of one block takes 8 s on a megabit link.
const ROUND_MAX: Duration = Duration::from_secs(30);

/// The listener's result of a round.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Exchanged {
    secs: f64,
    wrong_bits: u64,
}

/// Loads the link to another node for `spec.seconds`.
pub(super) async fn burn(
    net: &Arc<Net>,
    from: &str,
    (id, other): (NodeId, Option<&Neighbour>),
    spec: &BurnSpec,
) -> LinkBurn {
    let mut found = Rounds::default();
    let failure = match other {
        None => Some("it does not reach this node".to_owned()),
        Some(other) => {
            rounds(net, other, spec, &mut found).await.err().map(|error| error.to_string())
        }
    };
    let to = other.map_or_else(|| id.short().to_string(), |other| other.name.clone());
    found.into_report(from.to_owned(), to, failure)
}

/// Sums over rounds.
#[derive(Default)]
struct Rounds {
    pings_us: Vec<f64>,
    bytes: f64,
    secs_there: f64,
    secs_back: f64,
    wrong_bits: u64,
}

impl Rounds {
    fn into_report(mut self, from: String, to: String, failure: Option<String>) -> LinkBurn {
        self.pings_us.sort_unstable_by(f64::total_cmp);
        let rate = |secs: f64| if secs > 0.0 { self.bytes / secs } else { 0.0 };
        LinkBurn {
            from,
            to,
            round_trip_us: self.pings_us.get(self.pings_us.len() / 2).copied().unwrap_or(0.0),
            bytes_per_sec_there: rate(self.secs_there),
            bytes_per_sec_back: rate(self.secs_back),
            wrong_bits: self.wrong_bits,
            failure,
        }
    }
}

async fn rounds(
    net: &Arc<Net>,
    other: &Neighbour,
    spec: &BurnSpec,
    found: &mut Rounds,
) -> Result<(), DialError> {
    let pin = Pin::Node(other.id);
    let mut connection = net.dial(vec![other.address], pin, Purpose::Share).await?;
    let end = Instant::now() + Duration::from_secs(spec.seconds);
    let (mut blocks, mut flip) = (1, spec.flip_bits);
    while found.bytes == 0.0 || Instant::now() < end {
        for _ in 0..PINGS {
            let started = Instant::now();
            round(&mut connection.stream, 0, false).await?;
            found.pings_us.push(started.elapsed().as_secs_f64() * 1e6);
        }
        let (there, back) = round(&mut connection.stream, blocks, flip).await?;
        found.bytes += f64::from(blocks) * BLOCK_BYTES as f64;
        found.secs_there += there.secs;
        found.secs_back += back.secs;
        found.wrong_bits += there.wrong_bits + back.wrong_bits;
        let slower = there.secs.max(back.secs).max(1e-6);
        blocks = ((f64::from(blocks) * ROUND_SECS / slower) as u32).clamp(1, BLOCKS_MAX);
        flip = false;
    }
    Ok(())
}

/// The dialer's side of a round: the listener's result, then this end's.
async fn round<S>(
    stream: &mut S,
    blocks: u32,
    flip: bool,
) -> Result<(Exchanged, Exchanged), DialError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let exchanged = async {
        frames::write(stream, &Ask::Exchange { blocks }).await?;
        let back = exchange(stream, blocks, flip).await?;
        let there = frames::read::<Exchanged>(stream, FRAME_BYTES_MAX).await?;
        Ok((there, back))
    };
    timeout(ROUND_MAX, exchanged).await.map_err(|_| DialError::Timeout(ROUND_MAX))?
}

/// The listener's side of a round.
///
/// # Errors
/// The connection breaks or is too slow.
pub(crate) async fn answer<S>(stream: &mut S, blocks: u32) -> Result<(), DialError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answered = async {
        let found = exchange(stream, blocks.min(BLOCKS_MAX), false).await?;
        Ok(frames::write(stream, &found).await?)
    };
    timeout(ROUND_MAX, answered).await.map_err(|_| DialError::Timeout(ROUND_MAX))?
}

/// Sends and receives `blocks` blocks at once.
async fn exchange<S>(stream: &mut S, blocks: u32, flip: bool) -> io::Result<Exchanged>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if blocks == 0 {
        return Ok(Exchanged { secs: 0.0, wrong_bits: 0 });
    }
    let block = block();
    let mut first = block.clone();
    first[BLOCK_BYTES / 3] ^= u8::from(flip) << 4;
    let started = Instant::now();
    let (mut input, mut output) = tokio::io::split(stream);
    let sending = async {
        output.write_all(&first).await?;
        for _ in 1..blocks {
            output.write_all(&block).await?;
        }
        output.flush().await
    };
    let receiving = async {
        let (mut came, mut wrong_bits) = (vec![0; BLOCK_BYTES], 0);
        for _ in 0..blocks {
            input.read_exact(&mut came).await?;
            wrong_bits += differing_bits(&came, &block);
        }
        Ok(Exchanged { secs: started.elapsed().as_secs_f64(), wrong_bits })
    };
    let ((), found) = tokio::try_join!(sending, receiving)?;
    Ok(found)
}

/// The content of every block: numbers of a small generator (Knuth's), which set all bits.
fn block() -> Vec<u8> {
    let mut state = 1_u64;
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    while block.len() < BLOCK_BYTES {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        block.extend_from_slice(&state.to_le_bytes());
    }
    block
}

fn differing_bits(one: &[u8], other: &[u8]) -> u64 {
    if one == other {
        return 0;
    }
    one.iter().zip(other).map(|(one, other)| u64::from((one ^ other).count_ones())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of both ends of a round of three blocks, sent with `flip`.
    async fn found(flip: bool) -> (Exchanged, Exchanged) {
        let (mut here, mut there) = tokio::io::duplex(1 << 16);
        let listener = async {
            let ask = frames::read::<Ask>(&mut there, 1 << 10).await.unwrap();
            let Ask::Exchange { blocks } = ask else { panic!("{ask:?}") };
            answer(&mut there, blocks).await.unwrap();
        };
        tokio::join!(async { round(&mut here, 3, flip).await.unwrap() }, listener).0
    }

    #[tokio::test]
    async fn a_round_moves_blocks_both_ways_and_finds_a_wrong_bit() {
        let (there, back) = found(false).await;
        assert_eq!((there.wrong_bits, back.wrong_bits), (0, 0));
        assert!(there.secs > 0.0 && back.secs > 0.0);
        let (there, back) = found(true).await;
        assert_eq!((there.wrong_bits, back.wrong_bits), (1, 0));
    }

    #[tokio::test]
    async fn an_end_that_leaves_fails_the_round() {
        let (mut here, there) = tokio::io::duplex(1 << 10);
        drop(there);
        assert!(round(&mut here, 1, false).await.is_err());
    }

    #[test]
    fn rates_are_of_each_direction() {
        let found = Rounds {
            pings_us: vec![9.0, 1.0, 2.0],
            bytes: 100.0,
            secs_there: 2.0,
            secs_back: 4.0,
            wrong_bits: 1,
        };
        let report = found.into_report("a".to_owned(), "b".to_owned(), None);
        assert_eq!((report.bytes_per_sec_there, report.bytes_per_sec_back), (50.0, 25.0));
        assert_eq!((report.round_trip_us, report.wrong_bits), (2.0, 1));
    }
}
