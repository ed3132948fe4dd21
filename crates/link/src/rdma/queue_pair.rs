//! A queue pair of the system's verbs library, with its completion queue.
//!
//! It is destroyed without moving to the state ERR first, and no call is retried: Apple's driver
//! recovers from neither.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ring::rand::{SecureRandom, SystemRandom};
use rustix::fd::BorrowedFd;
use rustix::io::ioctl_fionbio;

use super::bank::Piece;
use super::error::RdmaError;
use super::ffi::{self, Verbs};
use super::objects::{Registered, failed};
use super::verbs::{Completion, Depth, Endpoint, Port, QueuePair, Service};

/// RoCE acknowledges within microseconds. An attempt ends after 4.096 us * 2^15 = 134 ms, and the
/// peer is given up after six retries. Seven is the maximum, but Soft-RoCE then retries for ever.
const ACK_TIMEOUT: u8 = 15;
const RETRIES: u8 = 6;

/// A peer without a posted receive is retried for ever, every 10 us (code 1): a slow peer is no
/// failure, and a dead one shows on the TCP connection.
const RNR_RETRIES_FOREVER: u8 = 7;
const RNR_TIMER: u8 = 1;

/// Old events taken at once; more than a completion queue can have raised.
const EVENTS_MAX: usize = 64;

/// The objects of one queue pair, created step by step; dropped in the order that Apple requires.
struct Queues {
    qp: *mut ffi::Qp,
    cq: *mut ffi::Cq,
    channel: *mut ffi::CompChannel,
    region: Arc<Registered>,
}

// SAFETY: as for `OpenContext`; only this object has the pointers.
unsafe impl Send for Queues {}

impl Queues {
    fn new(region: Arc<Registered>, depth: Depth) -> Result<Self, RdmaError> {
        let context = region.domain.context.clone();
        let (qp, cq, channel) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut queues = Queues { qp, cq, channel, region };
        // Events may not work over Thunderbolt; a timer replaces them there.
        if !cfg!(target_os = "macos") {
            // SAFETY: the context is open.
            queues.channel =
                unsafe { (context.verbs.create_comp_channel)(context.context.as_ptr()) };
        }
        if let Some(fd) = queues.event_fd() {
            ioctl_fionbio(fd, true)
                .map_err(|errno| RdmaError::call(&context.name, "ioctl", errno.raw_os_error()))?;
        }
        let entries = (depth.send_frames + depth.recv_frames + 1) as c_int;
        // SAFETY: the context is open; the channel is null or of this context.
        queues.cq = unsafe {
            let context = context.context.as_ptr();
            (queues.verbs().create_cq)(context, entries, ptr::null_mut(), queues.channel, 0)
        };
        if queues.cq.is_null() {
            return Err(failed(&context.name, "ibv_create_cq", 0));
        }
        Ok(queues)
    }

    fn create_qp(&mut self, service: Service, depth: Depth) -> Result<(), RdmaError> {
        let mut attr = ffi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: ptr::null_mut(),
            cap: ffi::QpCap {
                max_send_wr: depth.send_frames,
                max_recv_wr: depth.recv_frames,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: match service {
                Service::Reliable => ffi::QPT_RC,
                Service::Unreliable => ffi::QPT_UC,
            },
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the completion queue are live; `attr` outlives the call.
        self.qp = unsafe { (self.verbs().create_qp)(self.region.domain.pd.as_ptr(), &mut attr) };
        // No retry: a device without free pairs (EBUSY) stays so.
        if self.qp.is_null() { Err(failed(self.device(), "ibv_create_qp", 0)) } else { Ok(()) }
    }

    fn verbs(&self) -> &'static Verbs {
        self.region.domain.context.verbs
    }

    fn device(&self) -> &str {
        &self.region.domain.context.name
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        let channel = NonNull::new(self.channel)?;
        // SAFETY: the channel is live, and keeps its descriptor open until it is destroyed.
        Some(unsafe { BorrowedFd::borrow_raw(channel.as_ref().fd as _) })
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        let verbs = self.verbs();
        // SAFETY: each was made once and is null otherwise; the pair goes before its queue, the
        // queue before its channel, and all events have been acknowledged. The region follows.
        unsafe {
            if !self.qp.is_null() {
                (verbs.destroy_qp)(self.qp);
            }
            if !self.cq.is_null() {
                (verbs.destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (verbs.destroy_comp_channel)(self.channel);
            }
        }
    }
}

/// A queue pair of this machine's library.
pub(super) struct OpenPair {
    queues: Queues,
    service: Service,
    psn: u32,
}

impl OpenPair {
    /// A pair in the state INIT.
    pub fn new(region: Arc<Registered>, service: Service, depth: Depth) -> Result<Self, RdmaError> {
        let mut queues = Queues::new(region, depth)?;
        queues.create_qp(service, depth)?;
        let mut psn = [0; 4];
        SystemRandom::new().fill(&mut psn).expect("the system's random source works");
        // 24 bits.
        let psn = u32::from_le_bytes(psn) & 0xff_ffff;
        let pair = OpenPair { queues, service, psn };
        pair.init()?;
        Ok(pair)
    }

    fn port(&self) -> &Port {
        &self.queues.region.domain.port
    }

    fn ops(&self) -> &ffi::ContextOps {
        // SAFETY: the context is open as long as the queues.
        unsafe { &self.queues.region.domain.context.context.as_ref().ops }
    }

    fn modify(
        &self,
        call: &'static str,
        attr: &mut ffi::QpAttr,
        mask: c_int,
    ) -> Result<(), RdmaError> {
        // SAFETY: the pair is live; `attr` outlives the call.
        let end = unsafe { (self.queues.verbs().modify_qp)(self.queues.qp, attr, mask) };
        if end == 0 { Ok(()) } else { Err(failed(self.queues.device(), call, end)) }
    }

    fn init(&self) -> Result<(), RdmaError> {
        let mut attr = ffi::QpAttr {
            qp_state: ffi::QPS_INIT,
            port_num: self.port().number,
            ..ffi::QpAttr::default()
        };
        let mask = ffi::QP_STATE | ffi::QP_PKEY_INDEX | ffi::QP_PORT | ffi::QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp (initialise)", &mut attr, mask)
    }

    /// The one piece of a message, as the device takes it. Not every device takes several.
    fn sge(&self, pieces: &[Piece]) -> Result<ffi::Sge, RdmaError> {
        const EINVAL: i32 = 22;
        let refused = || RdmaError::call(self.queues.device(), "a work request", EINVAL);
        let region = &self.queues.region;
        let &[piece] = pieces else {
            return Err(refused());
        };
        let length = u32::try_from(piece.len).ok().filter(|_| region.bank.contains(piece));
        let length = length.ok_or_else(refused)?;
        // SAFETY: the region is registered as long as the queues.
        let lkey = unsafe { region.mr.as_ref().lkey };
        Ok(ffi::Sge { addr: region.bank.address(piece.at), length, lkey })
    }
}

impl QueuePair for OpenPair {
    fn endpoint(&self) -> Endpoint {
        let port = self.port();
        // SAFETY: the pair is live.
        let qpn = unsafe { (*self.queues.qp).qp_num };
        let (gid, lid, mtu) = (port.gid, port.lid, port.mtu);
        Endpoint { gid, qpn, psn: self.psn, lid, mtu, slot_frames: 0 }
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), RdmaError> {
        let port = self.port().clone();
        let mut attr = ffi::QpAttr {
            qp_state: ffi::QPS_RTR,
            path_mtu: c_int::from(port.mtu.min(peer.mtu).max(1)),
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: RNR_TIMER,
            ..ffi::QpAttr::default()
        };
        attr.ah_attr.dlid = peer.lid;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = port.number;
        attr.ah_attr.grh.dgid = ffi::Gid(peer.gid);
        attr.ah_attr.grh.sgid_index = port.gid_index;
        // Both ends are on one network.
        attr.ah_attr.grh.hop_limit = 1;
        let mut to_receive =
            ffi::QP_STATE | ffi::QP_AV | ffi::QP_PATH_MTU | ffi::QP_DEST_QPN | ffi::QP_RQ_PSN;
        let mut to_send = ffi::QP_STATE | ffi::QP_SQ_PSN;
        if self.service == Service::Reliable {
            to_receive |= ffi::QP_MAX_DEST_RD_ATOMIC | ffi::QP_MIN_RNR_TIMER;
            to_send |=
                ffi::QP_TIMEOUT | ffi::QP_RETRY_CNT | ffi::QP_RNR_RETRY | ffi::QP_MAX_QP_RD_ATOMIC;
        }
        self.modify("ibv_modify_qp (ready to receive)", &mut attr, to_receive)?;
        let mut attr = ffi::QpAttr {
            qp_state: ffi::QPS_RTS,
            sq_psn: self.psn,
            timeout: ACK_TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RNR_RETRIES_FOREVER,
            max_rd_atomic: 1,
            ..ffi::QpAttr::default()
        };
        self.modify("ibv_modify_qp (ready to send)", &mut attr, to_send)
    }

    unsafe fn post_recv(&mut self, id: u64, pieces: &[Piece]) -> Result<(), RdmaError> {
        let mut sge = self.sge(pieces)?;
        let mut request =
            ffi::RecvWr { wr_id: id, next: ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = ptr::null_mut();
        let post = self.ops().post_recv.expect("every driver fills its table");
        // SAFETY: the pair is live, the request outlives the call, its bytes are registered, and
        // the caller leaves them alone.
        let end = unsafe { post(self.queues.qp, &mut request, &mut bad) };
        if end == 0 { Ok(()) } else { Err(failed(self.queues.device(), "ibv_post_recv", end)) }
    }

    unsafe fn post_send(
        &mut self,
        id: u64,
        operation: u32,
        pieces: &[Piece],
    ) -> Result<(), RdmaError> {
        let mut sge = self.sge(pieces)?;
        let mut request = ffi::SendWr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
            opcode: operation,
            send_flags: ffi::SEND_SIGNALED,
            imm_data: 0,
            unions: [0; 11],
        };
        let mut bad = ptr::null_mut();
        let post = self.ops().post_send.expect("every driver fills its table");
        // SAFETY: as in `post_recv`.
        let end = unsafe { post(self.queues.qp, &mut request, &mut bad) };
        if end == 0 { Ok(()) } else { Err(failed(self.queues.device(), "ibv_post_send", end)) }
    }

    fn poll(&mut self) -> Result<Option<Completion>, RdmaError> {
        let mut completion = ffi::Wc::default();
        let poll = self.ops().poll_cq.expect("every driver fills its table");
        // SAFETY: the queue is live, and there is room for one completion.
        match unsafe { poll(self.queues.cq, 1, &mut completion) } {
            0 => Ok(None),
            1 => Ok(Some(Completion {
                id: completion.wr_id,
                status: completion.status,
                bytes: completion.byte_len as usize,
            })),
            end => Err(failed(self.queues.device(), "ibv_poll_cq", end)),
        }
    }

    fn status_text(&self, status: i32) -> String {
        self.queues.verbs().status_text(status)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queues.event_fd()
    }

    fn arm(&mut self) -> Result<(), RdmaError> {
        let Queues { channel, cq, .. } = self.queues;
        if channel.is_null() {
            return Ok(());
        }
        let verbs = self.queues.verbs();
        for _ in 0..EVENTS_MAX {
            let (mut of, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is live and does not block; both results outlive the call.
            if unsafe { (verbs.get_cq_event)(channel, &mut of, &mut context) } != 0 {
                break;
            }
            // SAFETY: one event was taken, of the only queue of this channel.
            unsafe { (verbs.ack_cq_events)(of, 1) };
        }
        let request = self.ops().req_notify_cq.expect("every driver fills its table");
        // SAFETY: the queue is live.
        let end = unsafe { request(cq, 0) };
        if end == 0 { Ok(()) } else { Err(failed(self.queues.device(), "ibv_req_notify_cq", end)) }
    }
}
