//! This node's view of a member: its connection, and its last reports.

use std::collections::VecDeque;
use std::time::Duration;

use crate::NodeId;
use crate::instance::Path;
use crate::wire::{Heartbeat, Report};

/// The status shows the median of this many round trips: those of eight seconds.
const ROUND_TRIPS: usize = 16;

/// A whole document may have megabytes. One that was lost is sent again after this time.
const SAME_DOCUMENT_EVERY: Duration = Duration::from_secs(2);

/// A control connection.
pub(crate) struct PeerConn {
    pub peer: NodeId,
    pub path: Path,
    /// The protocol version of both ends.
    pub protocol: u32,
}

#[derive(Default)]
pub(crate) struct View {
    pub boot: u64,
    pub heartbeat: Option<Heartbeat>,
    /// The last report: the member's machine and its paths to others.
    pub report: Option<Report>,
    /// Number and time of a heartbeat, while its answer is awaited.
    pub(crate) asked: Option<(u64, Duration)>,
    round_trips: VecDeque<Duration>,
    /// When its connection ended.
    pub gone_at: Option<Duration>,
    /// When its other addresses were last tried because its connection fell silent.
    pub looked_elsewhere: Option<Duration>,
    /// Its clock minus this node's clock, at the time of the report.
    pub clock_ahead_ms: Option<i64>,
    /// A claim of this member that only another node can make.
    pub spoke_of: Option<&'static str>,
    /// When it was last sent the document, and the fingerprints of its own and of that one.
    document_sent: Option<(Duration, [u64; 2])>,
}

impl View {
    pub(crate) fn new(boot: u64) -> Self {
        Self { boot, ..Self::default() }
    }

    /// Whether the peer has received a heartbeat over the present connection.
    pub(crate) fn has_heard_us(&self) -> bool {
        !self.round_trips.is_empty()
    }

    /// Whether to send the document to a member with another one, and notes that. One that does not
    /// change it gets it rarely: it may not believe it, or not be believed.
    pub(crate) fn should_get_document(&mut self, [its, ours]: [u64; 2], now: Duration) -> bool {
        let is_again = |(at, both): (Duration, [u64; 2])| {
            both == [its, ours] && now.saturating_sub(at) < SAME_DOCUMENT_EVERY
        };
        let is_due = its != ours && !self.document_sent.is_some_and(is_again);
        if is_due {
            self.document_sent = Some((now, [its, ours]));
        }
        is_due
    }

    pub(crate) fn note_round_trip(&mut self, took: Duration) {
        if self.round_trips.len() == ROUND_TRIPS {
            self.round_trips.pop_front();
        }
        self.round_trips.push_back(took);
    }

    pub(crate) fn round_trip_us(&self) -> Option<u64> {
        let mut sorted: Vec<_> = self.round_trips.iter().collect();
        sorted.sort();
        sorted.get(sorted.len() / 2).map(|median| median.as_micros() as u64)
    }
}
