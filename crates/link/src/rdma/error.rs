//! Why RDMA cannot be used, in words for a user.

use thiserror::Error;

/// Why there is no RDMA link. Cloneable, because one cause concerns every peer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RdmaError {
    #[error("the RDMA library is not on this machine ({reason}); {}", library_advice())]
    NoLibrary { reason: String },

    #[error("this machine has no RDMA device; {}", device_advice())]
    NoDevice,

    #[error("no RDMA port of this machine is usable: {}", reasons.join("; "))]
    NoPort { reasons: Vec<String> },

    #[error("{call} on {device} failed: {reason}{}", call_advice(call, *errno))]
    Call { device: String, call: &'static str, errno: i32, reason: String },

    #[error("{device} failed before in this process and is not tried again: {reason}")]
    GivenUp { device: String, reason: String },

    #[error(
        "all {links_max} RDMA links of {device} are in use; stop an instance, or use transport tcp"
    )]
    Full { device: String, links_max: usize },

    #[error("the other rank has RDMA slots of {theirs} bytes, this rank of {ours}: update Sinew")]
    Slots { ours: usize, theirs: usize },

    #[error(
        "no message came through over {device} within {waited_ms} ms ({reason}); {}",
        wire_advice()
    )]
    Unproven { device: String, waited_ms: u64, reason: String },
}

impl RdmaError {
    /// The failure of a call, from its `errno`.
    pub(super) fn call(device: &str, call: &'static str, errno: i32) -> Self {
        let reason = std::io::Error::from_raw_os_error(errno).to_string();
        RdmaError::Call { device: device.to_string(), call, errno, reason }
    }
}

pub(super) fn library_advice() -> &'static str {
    if cfg!(target_os = "macos") {
        "RDMA needs macOS 26.2 or newer on a Mac with Thunderbolt 5"
    } else if cfg!(all(unix, target_feature = "crt-static")) {
        "this program is static and opens no libraries; the one of the archive that ends in \
         -linux-gnu does"
    } else if cfg!(windows) {
        "RDMA is not supported on Windows"
    } else {
        "install rdma-core (Debian, Ubuntu: `apt install rdma-core ibverbs-providers`)"
    }
}

pub(super) fn device_advice() -> &'static str {
    if cfg!(target_os = "macos") {
        "enable it once: start the Mac in Recovery, run `rdma_ctl enable` in its Terminal, restart"
    } else {
        "load the driver of your network card (for example `modprobe mlx5_ib`), or `modprobe \
         rdma_rxe` and `rdma link add rxe0 type rxe netdev IFACE` for RDMA in software"
    }
}

fn wire_advice() -> &'static str {
    if cfg!(target_os = "macos") {
        "check the Thunderbolt cable, and that its ports are not part of a Thunderbolt Bridge"
    } else {
        "check that UDP port 4791 (RoCE v2) passes between the two machines"
    }
}

/// Known remedies for this call's failure.
fn call_advice(call: &str, errno: i32) -> &'static str {
    const ENOMEM: i32 = 12;
    const EBUSY: i32 = 16;
    const EINVAL: i32 = 22;
    match (call, errno) {
        ("ibv_reg_mr", _) => "; raise the limit of locked memory (`ulimit -l unlimited`)",
        ("ibv_create_qp" | "ibv_create_cq", ENOMEM) => {
            "; raise the limit of locked memory (`ulimit -l unlimited`)"
        }
        ("ibv_create_qp", EBUSY) => {
            "; all its queue pairs are taken: stop other programs that use RDMA, or restart the \
             machine if one of them crashed"
        }
        ("ibv_modify_qp (ready to receive)", EINVAL) => {
            "; give the port an IPv4 address, and take it out of any bridge"
        }
        ("ibv_open_device" | "ibv_alloc_pd", _) => {
            "; check that the port is up and that this user may open the device"
        }
        _ => "",
    }
}
