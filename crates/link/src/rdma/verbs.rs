//! The part of a verbs library that the link uses, as an internal trait with two implementations:
//! the system's library ([`super::system`]) and devices in software ([`super::software`]).
//!
//! The trait is as low-level as verbs themselves, so that the software devices can refuse whatever
//! Apple's refuse. The types enforce the order of creation: a memory region makes the queue pairs
//! that use it, because memory registered later may never receive.

use std::net::Ipv4Addr;
use std::sync::Arc;

use rustix::fd::BorrowedFd;

use super::bank::{Bank, Piece};
use super::error::RdmaError;

/// The unit of Thunderbolt RDMA: a message and its receive must be the same number of frames.
pub(super) const FRAME_BYTES: usize = 4096;

/// `IBV_WR_SEND`, the one operation that every device has.
pub(super) const OP_SEND: u32 = 2;

/// The service of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Acknowledged and retried by the hardware: Linux (RoCE, Soft-RoCE).
    Reliable,
    /// Not acknowledged. Thunderbolt has only this one; credits keep it from loss.
    Unreliable,
}

/// A port that fits a link: it is up and has an IPv4 address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub device: String,
    pub number: u8,
    /// The index of the address in the port's table; sends use it too.
    pub gid_index: u8,
    pub gid: [u8; 16],
    pub lid: u16,
    /// The verbs' code of the path MTU: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    pub address: Ipv4Addr,
    /// The prefix length of the address's network.
    pub prefix: u8,
    /// A cable between two machines (Thunderbolt) instead of a network.
    pub cable: bool,
}

impl Port {
    pub fn service(&self) -> Service {
        if self.cable { Service::Unreliable } else { Service::Reliable }
    }
}

/// One end of a connection, as sent to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub gid: [u8; 16],
    pub qpn: u32,
    pub psn: u32,
    pub lid: u16,
    pub mtu: u8,
    /// Frames of every message.
    pub slot_frames: u8,
}

/// The size of a queue pair in frames. Thunderbolt counts frames and not work requests; elsewhere
/// the queues are a little longer than necessary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Depth {
    pub send_frames: u32,
    pub recv_frames: u32,
}

/// The result of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Completion {
    pub id: u64,
    /// 0 is success; see [`QueuePair::status_text`].
    pub status: i32,
    /// Bytes received; meaningless for a send.
    pub bytes: usize,
}

/// A verbs library with its devices.
pub(super) trait Provider: Send + Sync {
    /// The usable ports, or why there is none.
    fn ports(&self) -> Result<Vec<Port>, RdmaError>;

    fn open(&self, port: &Port) -> Result<Arc<dyn Device>, RdmaError>;
}

/// An open device.
pub(super) trait Device: Send + Sync {
    /// Registers all of `bank`.
    fn register(&self, bank: &Arc<Bank>) -> Result<Arc<dyn Region>, RdmaError>;
}

/// A registered bank. It outlives all its queue pairs.
pub(super) trait Region: Send + Sync {
    /// Makes a queue pair in the state INIT with its own completion queue.
    fn queue_pair(&self, service: Service, depth: Depth) -> Result<Box<dyn QueuePair>, RdmaError>;
}

/// A queue pair and its completion queue.
pub(super) trait QueuePair: Send {
    /// This end; the slot size is 0 and is filled in later.
    fn endpoint(&self) -> Endpoint;

    /// Connects to `peer` and makes the pair ready to receive and to send. At most once.
    fn connect(&mut self, peer: &Endpoint) -> Result<(), RdmaError>;

    /// Posts a receive into `pieces`. Only after [`connect`](QueuePair::connect).
    ///
    /// # Safety
    /// The caller leaves these bytes of the bank alone until the request completes or the pair is
    /// dropped.
    unsafe fn post_recv(&mut self, id: u64, pieces: &[Piece]) -> Result<(), RdmaError>;

    /// Posts `pieces` as one message.
    ///
    /// # Safety
    /// The caller does not write these bytes of the bank until the request completes or the pair is
    /// dropped.
    unsafe fn post_send(
        &mut self,
        id: u64,
        operation: u32,
        pieces: &[Piece],
    ) -> Result<(), RdmaError>;

    /// Takes one completion, if there is one.
    fn poll(&mut self) -> Result<Option<Completion>, RdmaError>;

    fn status_text(&self, status: i32) -> String;

    /// The descriptor that becomes readable by a completion after [`arm`](QueuePair::arm); `None`
    /// where the library has no events.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Clears old events and requests one at the next completion.
    fn arm(&mut self) -> Result<(), RdmaError>;
}
