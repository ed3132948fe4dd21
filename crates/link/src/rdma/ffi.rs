//! The verbs library as C sees it: the structures we touch, and the functions loaded at run time.
//!
//! `libibverbs.so.1` on Linux and `librdma.dylib` on macOS share this interface (rdma-core's
//! `infiniband/verbs.h`). Four calls are not symbols but inlines of that header, through a table
//! in the context: [`poll_cq`](ContextOps), `req_notify_cq`, `post_send` and `post_recv`. The
//! test in `layout.rs` compares every size and offset here with the installed header's.
//!
//! Only what the link uses is spelled out: structures which the library makes and we only read
//! end after the last field we read.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::error::RdmaError;

#[cfg(target_os = "macos")]
pub(super) const LIBRARY_NAMES: &[&str] = &["librdma.dylib", "/usr/lib/librdma.dylib"];
#[cfg(target_os = "linux")]
pub(super) const LIBRARY_NAMES: &[&str] = &["libibverbs.so.1"];
#[cfg(not(any(target_os = "macos", target_os = "linux")))]
pub(super) const LIBRARY_NAMES: &[&str] = &[];

pub(super) const TRANSPORT_IB: c_int = 0;
pub(super) const TRANSPORT_THUNDERBOLT: c_int = 100;
pub(super) const PORT_ACTIVE: c_int = 4;
pub(super) const QPT_RC: c_int = 2;
pub(super) const QPT_UC: c_int = 3;
pub(super) const QPS_INIT: c_int = 1;
pub(super) const QPS_RTR: c_int = 2;
pub(super) const QPS_RTS: c_int = 3;
pub(super) const SEND_SIGNALED: c_uint = 2;

pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 2;
pub(super) const ACCESS_REMOTE_READ: c_int = 4;

pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;

/// `ibv_device`, as far as the transport.
#[repr(C)]
pub(super) struct Device {
    ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
}

/// `ibv_context_ops`: the calls that the header inlines, at their places in the table.
#[repr(C)]
pub(super) struct ContextOps {
    compat_0: [*mut c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    compat_13: [*mut c_void; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    compat_27: [*mut c_void; 5],
}

/// `ibv_context`, as far as the table.
#[repr(C)]
pub(super) struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
}

/// `ibv_pd`: only passed around.
#[repr(C)]
pub(super) struct Pd {
    opaque: [u8; 0],
}

/// `ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `ibv_comp_channel`.
#[repr(C)]
pub(super) struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `ibv_cq`, as far as its context.
#[repr(C)]
pub(super) struct Cq {
    pub context: *mut Context,
}

/// `ibv_qp`, as far as its type.
#[repr(C)]
pub(super) struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
}

/// `ibv_port_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// Newer libraries know more fields; they get room.
    pub newer: [u64; 4],
}

/// `ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `ibv_send_wr`; the unions of operations that we do not use are zero.
#[repr(C)]
pub(super) struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub unions: [u64; 11],
}

/// `ibv_recv_wr`.
#[repr(C)]
pub(super) struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `ibv_wc`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// `union ibv_gid`: 16 bytes in network order, aligned as its 64-bit halves.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct Gid(pub [u8; 16]);

/// `ibv_ah_attr` with its `ibv_global_route` in front.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `ibv_qp_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// Declares the table of loaded functions and how to fill it.
macro_rules! functions {
    ($($name:ident: $symbol:literal, fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The loaded library. The functions live as long as it does.
        pub(super) struct Verbs {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the code of the functions mapped.
            _library: Library,
        }

        impl Verbs {
            fn resolve(library: Library) -> Result<Self, libloading::Error> {
                Ok(Verbs {
                    // SAFETY: the signatures are those of `infiniband/verbs.h`, whose structures
                    // `layout.rs` compares with ours.
                    $($name: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }?,)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    get_device_list: "ibv_get_device_list", fn(*mut c_int) -> *mut *mut Device;
    free_device_list: "ibv_free_device_list", fn(*mut *mut Device);
    get_device_name: "ibv_get_device_name", fn(*mut Device) -> *const c_char;
    open_device: "ibv_open_device", fn(*mut Device) -> *mut Context;
    close_device: "ibv_close_device", fn(*mut Context) -> c_int;
    query_port: "ibv_query_port", fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid: "ibv_query_gid", fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    alloc_pd: "ibv_alloc_pd", fn(*mut Context) -> *mut Pd;
    dealloc_pd: "ibv_dealloc_pd", fn(*mut Pd) -> c_int;
    reg_mr: "ibv_reg_mr", fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr: "ibv_dereg_mr", fn(*mut Mr) -> c_int;
    create_comp_channel: "ibv_create_comp_channel", fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel: "ibv_destroy_comp_channel", fn(*mut CompChannel) -> c_int;
    create_cq: "ibv_create_cq",
        fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq: "ibv_destroy_cq", fn(*mut Cq) -> c_int;
    get_cq_event: "ibv_get_cq_event",
        fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events: "ibv_ack_cq_events", fn(*mut Cq, c_uint);
    create_qp: "ibv_create_qp", fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp: "ibv_modify_qp", fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp: "ibv_destroy_qp", fn(*mut Qp) -> c_int;
    wc_status_str: "ibv_wc_status_str", fn(c_int) -> *const c_char;
}

impl Verbs {
    /// Opens the library under the first of its names that works.
    pub fn load() -> Result<Self, RdmaError> {
        let mut reasons = Vec::new();
        for name in LIBRARY_NAMES {
            // SAFETY: a system library whose initialisers do nothing that concerns us.
            let loaded = unsafe { Library::new(name) }.and_then(Self::resolve);
            match loaded {
                Ok(verbs) => return Ok(verbs),
                Err(error) => reasons.push(format!("{name}: {error}")),
            }
        }
        Err(RdmaError::NoLibrary { reason: reasons.join("; ") })
    }

    /// What a completion's status means, in the library's words.
    pub fn status_text(&self, status: c_int) -> String {
        // SAFETY: takes any number and returns a string that is never freed.
        let text = unsafe { (self.wc_status_str)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: not null, and a C string as above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
