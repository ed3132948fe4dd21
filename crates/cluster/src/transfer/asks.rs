//! Requests between members about models, and their answers.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use protocol::RecordWanted;
use protocol::frame::FRAME_BYTES_MAX;
use serde::{Deserialize, Serialize};
use store::Digest;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::io::flow::Flow;
use crate::io::frames;
use crate::io::net::{Connection, DialError, Net};
use crate::io::tls::Pin;
use crate::transfer::burn::spec::{BurnOrder, Part};
use crate::wire::Purpose;
use crate::{InstanceSpec, NodeId};

/// Maximum bytes of one answer.
pub(super) const BYTES_MAX: u64 = 4 << 20;
pub(super) const ASK_BYTES_MAX: usize = 64 << 10;
/// A member that is silent this long is skipped, or counts as lost.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(15);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Lists all models on the listener's disk: `Vec<Listed>`.
    List,
    /// Looks up a model by name: `Option<Listed>`.
    Find { model: String },
    /// Describes a model: `Option<ModelAbout>`.
    Describe { model: String },
    /// Serves a model of the listener: [`Outcome`].
    Serve { spec: Box<InstanceSpec> },
    /// Plans a model without serving it: [`Outcome`].
    Plan { spec: Box<InstanceSpec> },
    /// Deletes a model from the listener's own folder: [`Outcome`].
    Remove { model: String },
    /// State of a model's file on the listener.
    About { model: String, file: String, size: u64 },
    /// Reads bytes of the file that the last [`Self::About`] or [`Self::Open`] named.
    Bytes { start: u64, len: u64 },
    /// Opens the model with this content, all its files in sequence. Answer: the lengths of its
    /// files, as `Option<Vec<u64>>`.
    Open { digest: Digest, bytes: u64 },
    /// Reads the hashes of its groups, as plain bytes.
    Tree,
    /// Reports a group with a wrong hash. The listener checks its own disk; there is no answer.
    Doubt { group: u64 },
    /// Opens the listener's records of prompts of this model: the heads that they are of, as
    /// `Option<Vec<Heads>>`.
    Records { model: Digest },
    /// Reads records that the last [`Self::Records`] opened: `Vec<bool>`, which were found, then
    /// the bytes of these.
    ReadRecords { wanted: Vec<RecordWanted> },
    /// Deletes all prompts that the listener keeps on disk: [`Outcome`].
    ForgetPrompts,
    /// Takes the listener's part in a burn-in: [`Outcome`].
    Burn { order: Box<BurnOrder> },
    /// Both ends send `blocks` blocks at once: [`crate::transfer::burn`].
    Exchange { blocks: u32 },
    /// The rest of the connection is for the listener's HTTP API: [`crate::transfer::visits`].
    Visit,
}

/// A member's progress with a model from the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Having {
    Here,
    /// The download is under way.
    Fetching,
    /// The download is wanted and has not begun.
    Wanting,
    No,
}

/// Result of [`Ask::Serve`], [`Ask::Plan`], [`Ask::Remove`], [`Ask::ForgetPrompts`] and
/// [`Ask::Burn`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The file is being hashed; another frame follows.
    Working,
    Served {
        instance: String,
    },
    Planned(Box<placement::Plan>),
    Removed {
        freed_bytes: u64,
    },
    Burned(Box<Part>),
    AlreadyServed {
        model: String,
        instance: String,
    },
    Refused {
        reason: String,
    },
}

/// A member and its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub id: NodeId,
    pub name: String,
    pub address: SocketAddr,
}

/// Sends a request that may take long, and waits as long as the member answers `Outcome::Working`.
///
/// # Errors
/// The member is unreachable or falls silent.
pub(crate) async fn ask_and_wait(
    net: &Arc<Net>,
    other: &Neighbour,
    ask: &Ask,
) -> Result<Outcome, DialError> {
    let pin = Pin::Node(other.id);
    let mut connection = net.dial(vec![other.address], pin, Purpose::Share).await?;
    frames::write(&mut connection.stream, ask).await?;
    loop {
        let read = frames::read::<Outcome>(&mut connection.stream, FRAME_BYTES_MAX);
        match unless_silent(read).await? {
            Outcome::Working => {}
            outcome => return Ok(outcome),
        }
    }
}

/// Reads bytes of the file that is open there, in pieces that the path carries soon. `came` counts
/// the bytes at the start of `out` that have come, also of earlier calls and of other members; only
/// the rest is asked for. What comes is added to `arrived`.
///
/// # Errors
/// The member is silent for [`SILENCE_MAX`], or the connection ends. What came is kept.
pub(super) async fn read_bytes(
    connection: &mut Connection,
    (flow, arrived): (&Arc<Flow>, &AtomicU64),
    start: u64,
    out: &mut [u8],
    came: &mut usize,
) -> Result<(), DialError> {
    let (mut asked, mut pieces) = (*came, VecDeque::new());
    while *came < out.len() {
        // While one piece comes, the next one is asked for already.
        while let left @ 1.. = (out.len() - asked) as u64 {
            let wanted = left.min(BYTES_MAX);
            let turn = match pieces.is_empty() {
                true => flow.turn(wanted).await,
                false => flow.try_turn(wanted),
            };
            let Some(turn) = turn else { break };
            let ask = Ask::Bytes { start: start + asked as u64, len: turn.bytes() as u64 };
            unless_silent(frames::write(&mut connection.stream, &ask)).await?;
            asked += turn.bytes();
            pieces.push_back((turn, asked, Instant::now()));
        }
        let Some((turn, end, asked_at)) = pieces.pop_front() else {
            return Err(io::Error::other("nothing more may be asked for").into());
        };
        let before = *came;
        let filled = fill(connection, &mut out[..end], came).await;
        arrived.fetch_add((*came - before) as u64, Ordering::Relaxed);
        filled?;
        turn.done(asked_at.elapsed());
    }
    Ok(())
}

/// Reads until `out` is full. A slow path may take as long as it needs: what counts is silence.
///
/// # Errors
/// As [`read_bytes`].
pub(super) async fn fill(
    connection: &mut Connection,
    out: &mut [u8],
    came: &mut usize,
) -> Result<(), DialError> {
    while *came < out.len() {
        match unless_silent(connection.stream.read(&mut out[*came..])).await? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            more => *came += more,
        }
    }
    Ok(())
}

/// # Errors
/// Those of `step`, and [`DialError::Timeout`] after [`SILENCE_MAX`].
pub(super) async fn unless_silent<T, E>(
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, DialError>
where
    DialError: From<E>,
{
    Ok(timeout(SILENCE_MAX, step).await.map_err(|_| DialError::Timeout(SILENCE_MAX))??)
}
