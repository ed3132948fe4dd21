//! What members ask each other about models, and the answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::frame::FRAME_BYTES_MAX;
use serde::{Deserialize, Serialize};
use store::Digest;
use tokio::time::timeout;

use crate::io::frames;
use crate::io::net::{DialError, Net};
use crate::io::tls::Pin;
use crate::node::burn::spec::{BurnOrder, Part};
use crate::wire::Purpose;
use crate::{InstanceSpec, NodeId};

/// Bytes of one answer.
pub(super) const BYTES_MAX: u64 = 4 << 20;
pub(super) const ASK_BYTES_MAX: usize = 64 << 10;
/// A member that is silent for so long is passed over, or taken for lost.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(15);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Every model on the listener's disk: `Vec<Listed>`.
    List,
    /// The model of that name, if the listener has it: `Option<Listed>`.
    Find { model: String },
    /// What it is: `Option<ModelAbout>`.
    Describe { model: String },
    /// The listener is to serve a model that it has: [`Outcome`].
    Serve { spec: Box<InstanceSpec> },
    /// How it would serve it: [`Outcome`].
    Plan { spec: Box<InstanceSpec> },
    /// What the listener knows of a model's file.
    About { model: String, file: String, size: u64 },
    /// Bytes of what was asked about last, [`Self::About`] or [`Self::Open`].
    Bytes { start: u64, len: u64 },
    /// The model of that content, all its files one after the other: the lengths of its files, as
    /// `Option<Vec<u64>>`.
    Open { digest: Digest, bytes: u64 },
    /// The hashes of its groups: plain bytes.
    Tree,
    /// One of its groups is not what its hash says. The listener looks for itself; no answer.
    Doubt { group: u64 },
    /// The listener is to take its part in a burn-in: [`Outcome`].
    Burn { order: Box<BurnOrder> },
    /// Both ends send so many blocks at once: [`crate::node::burn`].
    Exchange { blocks: u32 },
}

/// How far a member is with a model that comes from the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Having {
    Here,
    /// It comes from the hub.
    Fetching,
    /// It is wanted, and nothing was fetched yet.
    Wanting,
    No,
}

/// What came of [`Ask::Serve`] and [`Ask::Plan`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The file is being hashed; another frame follows.
    Working,
    Served {
        instance: String,
    },
    Planned(Box<placement::Plan>),
    Burned(Box<Part>),
    AlreadyServed {
        model: String,
        instance: String,
    },
    Refused {
        reason: String,
    },
}

/// A member and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub id: NodeId,
    pub name: String,
    pub address: SocketAddr,
}

/// Asks a member for what takes it a while, and waits as long as it says that it is at it.
///
/// # Errors
/// It cannot be reached, or falls silent.
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
        match timeout(SILENCE_MAX, read).await {
            Err(_) => return Err(DialError::Timeout(SILENCE_MAX)),
            Ok(Ok(Outcome::Working)) => {}
            Ok(outcome) => return Ok(outcome?),
        }
    }
}
