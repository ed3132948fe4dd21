//! What the link asks of a verbs library: the internal trait with two implementations, the
//! system's library ([`super::system`]) and devices in software ([`super::software`]).
//!
//! It is as low as verbs themselves, so that the software devices can refuse whatever Apple's
//! refuse. The order of making is in the types: a queue pair is made by the memory region it
//! uses, because memory registered later may never receive.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::bank::{Bank, Piece};
use super::error::RdmaError;

/// The unit of Thunderbolt RDMA: a message and its receive must be the same number of frames.
pub(super) const FRAME_BYTES: usize = 4096;

/// `IBV_WR_SEND`, the one operation that every device has.
pub(super) const OP_SEND: u32 = 2;

/// Which service a queue pair gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Acknowledged and retried by the hardware: Linux (RoCE, Soft-RoCE).
    Reliable,
    /// Not acknowledged; the only one that Thunderbolt has, where credits keep it from loss.
    Unreliable,
}

/// A port that has what a link needs: it is up and has an IPv4 address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub device: String,
    pub number: u8,
    /// Where the address stands in the port's table; the same index sends from it.
    pub gid_index: u8,
    pub gid: [u8; 16],
    pub lid: u16,
    /// The verbs' code of the path MTU: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    pub address: Ipv4Addr,
    /// The network of the address, in bits.
    pub prefix: u8,
    /// A cable between two machines (Thunderbolt) instead of a network.
    pub cable: bool,
}

impl Port {
    pub fn service(&self) -> Service {
        if self.cable { Service::Unreliable } else { Service::Reliable }
    }
}

/// One end of a connection, as the other must know it.
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

/// The size of a queue pair, in frames: Thunderbolt counts them and not work requests; elsewhere
/// it makes the queues a little longer than need be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Depth {
    pub send_frames: u32,
    pub recv_frames: u32,
}

/// How a work request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Completion {
    pub id: u64,
    /// 0 is success; see [`QueuePair::status_text`].
    pub status: i32,
    /// Bytes received; of no meaning for a send.
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

/// A registered bank. Lives as long as any queue pair that it made.
pub(super) trait Region: Send + Sync {
    /// Makes a queue pair in the state INIT with its own completion queue.
    fn queue_pair(&self, service: Service, depth: Depth) -> Result<Box<dyn QueuePair>, RdmaError>;
}

/// A queue pair and its completion queue.
pub(super) trait QueuePair: Send {
    /// This end; slot size not included (0).
    fn endpoint(&self) -> Endpoint;

    /// Connects to `peer` and makes the pair ready to receive and to send. At most once.
    fn connect(&mut self, peer: &Endpoint) -> Result<(), RdmaError>;

    /// Posts a receive into `pieces`. Only after [`connect`](QueuePair::connect).
    ///
    /// # Safety
    /// Nobody touches these bytes of the bank until the request completes or the pair is dropped.
    unsafe fn post_recv(&mut self, id: u64, pieces: &[Piece]) -> Result<(), RdmaError>;

    /// Posts `pieces` as one message.
    ///
    /// # Safety
    /// Nobody writes these bytes of the bank until the request completes or the pair is dropped.
    unsafe fn post_send(
        &mut self,
        id: u64,
        operation: u32,
        pieces: &[Piece],
    ) -> Result<(), RdmaError>;

    /// Takes one completion, if there is one.
    fn poll(&mut self) -> Result<Option<Completion>, RdmaError>;

    fn status_text(&self, status: i32) -> String;

    /// What becomes readable by a completion after [`arm`](QueuePair::arm); `None` where the
    /// library has no events.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Takes old events away and asks for one at the next completion.
    fn arm(&mut self) -> Result<(), RdmaError>;
}
