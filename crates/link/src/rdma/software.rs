//! RDMA devices in software, for tests on any machine, as strict as Apple's over Thunderbolt.
//!
//! They enforce the known rules of those devices (Apple's TN3205 and reports of others), so that a
//! link which works here breaks none of them: unreliable pairs only, SEND only, one piece a
//! message, the same number of frames in a message and its receive, credits instead of loss, 10
//! queue pairs, 100 regions, 4095 frames, fewer receives than requested, no receive before the pair
//! is ready, memory within 4 GiB, and silence when a peer is gone.
//!
//! They model neither speed nor unknown behaviour.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fd::BorrowedFd;

use super::bank::Piece;
use super::bank::{BANK_SPAN_BYTES, Bank};
use super::device::Rdma;
use super::error::RdmaError;
use super::verbs::{
    Completion, Depth, Device, Endpoint, FRAME_BYTES, OP_SEND, Port, Provider, QueuePair, Region,
    Service,
};

pub(super) const QUEUE_PAIRS_MAX: usize = 10;
pub(super) const REGIONS_MAX: usize = 100;
pub(super) const FRAMES_MAX: usize = 4095;

/// The real size of a receive queue, whatever it was made for: four slots of three frames.
const RECV_FRAMES: usize = 12;

/// The errors of the real calls, as `errno` has them on Linux.
pub(super) const ENOMEM: i32 = 12;
pub(super) const EBUSY: i32 = 16;
pub(super) const EINVAL: i32 = 22;
pub(super) const EOPNOTSUPP: i32 = 95;
pub(super) const ETIMEDOUT: i32 = 110;

/// Statuses of completions, as verbs number them.
pub(super) const SUCCESS: i32 = 0;
pub(super) const LOCAL_LENGTH_ERROR: i32 = 1;
pub(super) const REMOTE_INVALID_REQUEST: i32 = 9;

/// Machines joined by cables, one between each two.
pub struct Fabric {
    world: Arc<Mutex<World>>,
    /// The devices of each machine.
    machines: Vec<Vec<usize>>,
}

/// All devices and their traffic; one lock, because speed does not matter here.
#[derive(Default)]
struct World {
    devices: Vec<SoftDevice>,
    pairs: HashMap<u32, Pair>,
    qpn_next: u32,
    recv_frames: usize,
    cut: bool,
}

struct SoftDevice {
    address: Ipv4Addr,
    /// The device at the other end of the cable.
    other: usize,
    pairs: usize,
    regions: usize,
}

/// A queue pair's state.
struct Pair {
    bank: Arc<Bank>,
    depth: Depth,
    peer: Option<u32>,
    sends: VecDeque<Posted>,
    recvs: VecDeque<Posted>,
    completions: VecDeque<Completion>,
}

#[derive(Clone, Copy)]
struct Posted {
    id: u64,
    piece: Piece,
    /// Whether this piece is the last of its work request, which completes with it.
    last: bool,
}

impl Posted {
    fn frames(&self) -> usize {
        self.piece.len.div_ceil(FRAME_BYTES)
    }
}

impl Fabric {
    /// `machines` of them, at most 9: a rank advertises eight ports to its peers.
    pub fn new(machines: usize) -> Self {
        Self::with_recv_frames(machines, RECV_FRAMES)
    }

    /// Like [`Fabric::new`], with receive queues of `recv_frames` frames.
    pub fn with_recv_frames(machines: usize, recv_frames: usize) -> Self {
        let mut world = World { qpn_next: 17, recv_frames, ..World::default() };
        let mut devices_of = vec![Vec::new(); machines];
        for higher in 0..machines {
            for lower in 0..higher {
                let first = world.devices.len();
                let cable = (first / 2) as u8;
                for (end, machine) in [lower, higher].into_iter().enumerate() {
                    devices_of[machine].push(first + end);
                    world.devices.push(SoftDevice {
                        address: Ipv4Addr::new(10, 77, cable, 1 + end as u8),
                        other: first + 1 - end,
                        pairs: 0,
                        regions: 0,
                    });
                }
            }
        }
        Fabric { world: Arc::new(Mutex::new(world)), machines: devices_of }
    }

    /// Pulls all cables: from now on nothing arrives, and no error is reported.
    pub fn cut(&self) {
        lock(&self.world).cut = true;
    }

    /// The devices of one machine.
    pub fn machine(&self, machine: usize) -> Rdma {
        let devices = self.machines[machine].clone();
        Rdma::new(Machine { world: self.world.clone(), devices })
    }
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gid(address: Ipv4Addr) -> [u8; 16] {
    address.to_ipv6_mapped().octets()
}

struct Machine {
    world: Arc<Mutex<World>>,
    devices: Vec<usize>,
}

impl Provider for Machine {
    fn ports(&self) -> Result<Vec<Port>, RdmaError> {
        if self.devices.is_empty() {
            return Err(RdmaError::NoDevice);
        }
        let world = lock(&self.world);
        let port = |&device: &usize| Port {
            device: format!("soft{device}"),
            number: 1,
            gid_index: 1,
            gid: gid(world.devices[device].address),
            lid: 0,
            mtu: 5,
            address: world.devices[device].address,
            prefix: 24,
            cable: true,
        };
        Ok(self.devices.iter().map(port).collect())
    }

    fn open(&self, port: &Port) -> Result<Arc<dyn Device>, RdmaError> {
        let world = lock(&self.world);
        let device = self.devices.iter().find(|&&at| world.devices[at].address == port.address);
        let device = *device.ok_or(RdmaError::NoDevice)?;
        Ok(Arc::new(Opened { world: self.world.clone(), device }))
    }
}

struct Opened {
    world: Arc<Mutex<World>>,
    device: usize,
}

fn failed<T>(device: usize, call: &'static str, errno: i32) -> Result<T, RdmaError> {
    Err(RdmaError::call(&format!("soft{device}"), call, errno))
}

impl Device for Opened {
    fn register(&self, bank: &Arc<Bank>) -> Result<Arc<dyn Region>, RdmaError> {
        let mut world = lock(&self.world);
        let device = &mut world.devices[self.device];
        if device.regions == REGIONS_MAX {
            return failed(self.device, "ibv_reg_mr", ENOMEM);
        }
        device.regions += 1;
        let (world, bank) = (self.world.clone(), bank.clone());
        Ok(Arc::new(SoftRegion { world, device: self.device, bank }))
    }
}

struct SoftRegion {
    world: Arc<Mutex<World>>,
    device: usize,
    bank: Arc<Bank>,
}

impl Drop for SoftRegion {
    fn drop(&mut self) {
        lock(&self.world).devices[self.device].regions -= 1;
    }
}

impl Region for SoftRegion {
    fn queue_pair(&self, service: Service, depth: Depth) -> Result<Box<dyn QueuePair>, RdmaError> {
        let mut world = lock(&self.world);
        let refuse = |errno| failed(self.device, "ibv_create_qp", errno);
        if service == Service::Reliable {
            return refuse(EOPNOTSUPP);
        }
        if depth.send_frames.max(depth.recv_frames) as usize > FRAMES_MAX {
            return refuse(EINVAL);
        }
        if world.devices[self.device].pairs == QUEUE_PAIRS_MAX {
            return refuse(EBUSY);
        }
        world.devices[self.device].pairs += 1;
        let qpn = world.qpn_next;
        world.qpn_next += 1;
        world.pairs.insert(
            qpn,
            Pair {
                bank: self.bank.clone(),
                depth,
                peer: None,
                sends: VecDeque::with_capacity(FRAMES_MAX),
                recvs: VecDeque::with_capacity(FRAMES_MAX),
                completions: VecDeque::with_capacity(FRAMES_MAX),
            },
        );
        Ok(Box::new(SoftPair { world: self.world.clone(), device: self.device, qpn }))
    }
}

struct SoftPair {
    world: Arc<Mutex<World>>,
    device: usize,
    qpn: u32,
}

impl Drop for SoftPair {
    /// The peer gets no error: its sends wait for ever.
    fn drop(&mut self) {
        let mut world = lock(&self.world);
        world.pairs.remove(&self.qpn);
        world.devices[self.device].pairs -= 1;
    }
}

impl QueuePair for SoftPair {
    fn endpoint(&self) -> Endpoint {
        let gid = gid(lock(&self.world).devices[self.device].address);
        Endpoint { gid, qpn: self.qpn, psn: 7, lid: 0, mtu: 5, slot_frames: 0 }
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), RdmaError> {
        let mut world = lock(&self.world);
        let other = world.devices[self.device].other;
        let call = "ibv_modify_qp (ready to receive)";
        if peer.gid != gid(world.devices[other].address) {
            return failed(self.device, call, ETIMEDOUT);
        }
        let pair = world.pairs.get_mut(&self.qpn).expect("lives as long as this");
        if pair.peer.is_some() {
            return failed(self.device, call, EINVAL);
        }
        pair.peer = Some(peer.qpn);
        Ok(())
    }

    unsafe fn post_recv(&mut self, id: u64, pieces: &[Piece]) -> Result<(), RdmaError> {
        let mut world = lock(&self.world);
        let recv_frames = world.recv_frames;
        let pair = world.pairs.get_mut(&self.qpn).expect("lives as long as this");
        let refuse = |errno| failed(self.device, "ibv_post_recv", errno);
        let (Some(peer), &[piece]) = (pair.peer, pieces) else {
            return refuse(EINVAL);
        };
        let posted = Posted { id, piece, last: true };
        if !pair.bank.contains(piece) || posted.frames() > FRAMES_MAX {
            return refuse(EINVAL);
        }
        let held: usize = pair.recvs.iter().map(Posted::frames).sum();
        if held + posted.frames() > recv_frames.min(pair.depth.recv_frames as usize) {
            return refuse(ENOMEM);
        }
        pair.recvs.push_back(posted);
        world.transfer(peer, self.qpn);
        Ok(())
    }

    unsafe fn post_send(
        &mut self,
        id: u64,
        operation: u32,
        pieces: &[Piece],
    ) -> Result<(), RdmaError> {
        let mut world = lock(&self.world);
        let pair = world.pairs.get_mut(&self.qpn).expect("lives as long as this");
        let refuse = |errno| failed(self.device, "ibv_post_send", errno);
        let Some(peer) = pair.peer.filter(|_| operation == OP_SEND) else {
            return refuse(EINVAL);
        };
        // Each piece ends a message, whatever the caller meant.
        let last = pieces.len().wrapping_sub(1);
        let posted = pieces.iter().enumerate();
        let posted = posted.map(|(at, &piece)| Posted { id, piece, last: at == last });
        let too_long = |posted: &Posted| posted.frames() > FRAMES_MAX;
        let mut all = posted.clone();
        if pieces.is_empty() || all.any(|p| too_long(&p) || !pair.bank.contains(p.piece)) {
            return refuse(EINVAL);
        }
        let held: usize =
            pair.sends.iter().copied().chain(posted.clone()).map(|p| p.frames()).sum();
        if held > pair.depth.send_frames as usize {
            return refuse(ENOMEM);
        }
        pair.sends.extend(posted);
        world.transfer(self.qpn, peer);
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Completion>, RdmaError> {
        let mut world = lock(&self.world);
        Ok(world.pairs.get_mut(&self.qpn).and_then(|pair| pair.completions.pop_front()))
    }

    fn status_text(&self, status: i32) -> String {
        format!("status {status}")
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self) -> Result<(), RdmaError> {
        Ok(())
    }
}

impl World {
    /// Moves messages while there is a receive for each: the credit.
    fn transfer(&mut self, from: u32, to: u32) {
        // A pair connected to itself would be two borrows of one; no cable does that.
        let [Some(from_pair), Some(to_pair)] = self.pairs.get_disjoint_mut([&from, &to]) else {
            return;
        };
        // Both ends must name each other.
        if self.cut || to_pair.peer != Some(from) || from_pair.peer != Some(to) {
            return;
        }
        while let (Some(send), Some(recv)) = (from_pair.sends.front(), to_pair.recvs.front()) {
            let (send, recv) = (*send, *recv);
            from_pair.sends.pop_front();
            to_pair.recvs.pop_front();
            let fits = send.frames() == recv.frames();
            if fits {
                deliver(&from_pair.bank, send.piece, &to_pair.bank, recv.piece);
            }
            let status = |error| if fits { SUCCESS } else { error };
            let bytes = send.piece.len;
            if send.last {
                let status = status(REMOTE_INVALID_REQUEST);
                from_pair.completions.push_back(Completion { id: send.id, status, bytes });
            }
            let status = status(LOCAL_LENGTH_ERROR);
            to_pair.completions.push_back(Completion { id: recv.id, status, bytes });
        }
    }
}

/// Copies a message to where the receiving driver believes the address to be: it knows only the low
/// 32 bits and takes the rest from the region's start.
fn deliver(from: &Bank, sent: Piece, to: &Bank, posted: Piece) {
    let address = to.address(posted.at);
    let landing = to.address(0) / BANK_SPAN_BYTES * BANK_SPAN_BYTES + address % BANK_SPAN_BYTES;
    if landing != address {
        // 4 GiB away. There is nothing here for it to overwrite, so the message is only gone.
        return;
    }
    let (source, target) = (from.pointer(sent), to.pointer(Piece { len: sent.len, ..posted }));
    // SAFETY: both pieces lie in their banks; the posters promised not to touch them until they
    // complete, which is after this; two machines' banks do not overlap.
    unsafe { target.copy_from_nonoverlapping(source, sent.len) };
}

#[cfg(all(test, unix))]
#[path = "software_tests.rs"]
mod tests;
