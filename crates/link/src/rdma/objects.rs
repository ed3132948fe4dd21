//! Objects of the verbs library; each frees itself.
//!
//! They are torn down in the order queue pair, completion queue, region, protection domain, context
//! (each holds a share of the next): Apple's driver accepts no other.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use super::bank::Bank;
use super::error::RdmaError;
use super::ffi::{self, Verbs};
use super::verbs::Port;

/// The error of a call that has just failed.
pub(super) fn failed(device: &str, call: &'static str, result: c_int) -> RdmaError {
    // Some calls return the error, others -1 or null and set `errno`.
    let errno = if result > 0 {
        result
    } else {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    };
    RdmaError::call(device, call, errno)
}

/// An open device.
pub(super) struct OpenContext {
    pub verbs: &'static Verbs,
    pub name: String,
    pub transport: c_int,
    pub context: NonNull<ffi::Context>,
}

// SAFETY: the library's objects may be used from any thread, and from several at once.
unsafe impl Send for OpenContext {}
// SAFETY: as above.
unsafe impl Sync for OpenContext {}

impl Drop for OpenContext {
    fn drop(&mut self) {
        // SAFETY: opened once, and everything made from it holds a share of it.
        unsafe { (self.verbs.close_device)(self.context.as_ptr()) };
    }
}

/// A protection domain.
pub(super) struct Domain {
    pub pd: NonNull<ffi::Pd>,
    pub context: Arc<OpenContext>,
    pub port: Port,
}

// SAFETY: as for `OpenContext`.
unsafe impl Send for Domain {}
// SAFETY: as for `OpenContext`.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated once; everything in it holds a share of it.
        unsafe { (self.context.verbs.dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// A registered bank.
pub(super) struct Registered {
    pub mr: NonNull<ffi::Mr>,
    pub domain: Arc<Domain>,
    pub bank: Arc<Bank>,
}

// SAFETY: as for `OpenContext`.
unsafe impl Send for Registered {}
// SAFETY: as for `OpenContext`.
unsafe impl Sync for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered once; queue pairs hold a share, and the bank goes after this.
        unsafe { (self.domain.context.verbs.dereg_mr)(self.mr.as_ptr()) };
    }
}
