//! The system's verbs library: `libibverbs` on Linux, `librdma` on macOS.
//!
//! Its objects are in [`super::objects`], its queue pairs in [`super::queue_pair`].

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::bank::Bank;
use super::error::RdmaError;
use super::ffi::{self, Verbs};
use super::objects::{Domain, OpenContext, Registered, failed};
use super::queue_pair::OpenPair;
use super::survey::{GidFacts, PortFacts, judge, networks};
use super::verbs::{Depth, Device, Port, Provider, QueuePair, Region, Service};

/// Limits of a survey: far beyond any machine.
const DEVICES_MAX: usize = 64;
const PORTS_MAX: u8 = 8;
const GIDS_MAX: c_int = 255;

/// The library, loaded once in a process and never unloaded.
fn library() -> Result<&'static Verbs, RdmaError> {
    static LIBRARY: OnceLock<Result<Verbs, RdmaError>> = OnceLock::new();
    LIBRARY.get_or_init(Verbs::load).as_ref().map_err(Clone::clone)
}

/// The provider of this machine's devices; opens each at most once.
#[derive(Default)]
pub(super) struct System {
    contexts: Mutex<HashMap<String, Arc<OpenContext>>>,
}

impl System {
    /// All ports of all devices, usable or not, and devices that do not open.
    pub fn survey(&self) -> Result<Vec<Result<PortFacts, RdmaError>>, RdmaError> {
        let verbs = library()?;
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let list = unsafe { (verbs.get_device_list)(&mut count) };
        if list.is_null() {
            return Err(RdmaError::NoDevice);
        }
        let mut found = Vec::new();
        for at in 0..(count.max(0) as usize).min(DEVICES_MAX) {
            // SAFETY: the list has `count` devices, and lives until it is freed below.
            let device = unsafe { *list.add(at) };
            match self.context(verbs, device) {
                Ok(context) => found.extend(context.ports().into_iter().map(Ok)),
                Err(error) => found.push(Err(error)),
            }
        }
        // SAFETY: from `get_device_list`, freed once. Open devices stay valid.
        unsafe { (verbs.free_device_list)(list) };
        if found.is_empty() { Err(RdmaError::NoDevice) } else { Ok(found) }
    }

    fn context(
        &self,
        verbs: &'static Verbs,
        device: *mut ffi::Device,
    ) -> Result<Arc<OpenContext>, RdmaError> {
        // SAFETY: `device` is of a list not yet freed; its name is a C string that lives with it.
        let name = unsafe { CStr::from_ptr((verbs.get_device_name)(device)) };
        let name = name.to_string_lossy().into_owned();
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&name) {
            return Ok(context.clone());
        }
        // SAFETY: as above.
        let (transport, context) =
            unsafe { ((*device).transport_type, (verbs.open_device)(device)) };
        let Some(context) = NonNull::new(context) else {
            return Err(failed(&name, "ibv_open_device", 0));
        };
        let context = Arc::new(OpenContext { verbs, name: name.clone(), transport, context });
        contexts.insert(name, context.clone());
        Ok(context)
    }
}

impl Provider for System {
    fn ports(&self) -> Result<Vec<Port>, RdmaError> {
        let networks = networks();
        let (mut ports, mut reasons) = (Vec::new(), Vec::new());
        for found in self.survey()? {
            let judged = found.map_err(|error| error.to_string());
            match judged.and_then(|facts| judge(&facts, &networks)) {
                Ok(port) => ports.push(port),
                Err(reason) => reasons.push(reason),
            }
        }
        if ports.is_empty() { Err(RdmaError::NoPort { reasons }) } else { Ok(ports) }
    }

    fn open(&self, port: &Port) -> Result<Arc<dyn Device>, RdmaError> {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        let context = contexts.get(&port.device).cloned().ok_or(RdmaError::NoDevice)?;
        // SAFETY: the context is open.
        let pd = unsafe { (context.verbs.alloc_pd)(context.context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| failed(&port.device, "ibv_alloc_pd", 0))?;
        Ok(Arc::new(OpenDevice(Arc::new(Domain { pd, context, port: port.clone() }))))
    }
}

impl OpenContext {
    fn ports(&self) -> Vec<PortFacts> {
        let mut ports = Vec::new();
        for number in 1..=PORTS_MAX {
            let mut attr = ffi::PortAttr::default();
            // SAFETY: the context is open, and `attr` has room for what any version writes.
            if unsafe { (self.verbs.query_port)(self.context.as_ptr(), number, &mut attr) } != 0 {
                break;
            }
            ports.push(PortFacts {
                device: self.name.clone(),
                number,
                transport: self.transport,
                active: attr.state == ffi::PORT_ACTIVE,
                lid: attr.lid,
                mtu: attr.active_mtu.clamp(1, 5) as u8,
                gids: self.gids(number, attr.gid_tbl_len),
            });
        }
        ports
    }

    fn gids(&self, port: u8, table_len: c_int) -> Vec<GidFacts> {
        let mut gids = Vec::new();
        for index in 0..table_len.clamp(0, GIDS_MAX) {
            let mut gid = ffi::Gid::default();
            // SAFETY: the context is open, `gid` outlives the call.
            let end =
                unsafe { (self.verbs.query_gid)(self.context.as_ptr(), port, index, &mut gid) };
            if end == 0 && gid.0 != [0; 16] {
                let index = index as u8;
                let kind = gid_kind(&self.name, port, index);
                gids.push(GidFacts { index, gid: gid.0, kind });
            }
        }
        gids
    }
}

/// The RoCE version of an entry, which Linux keeps in a file; `None` elsewhere.
fn gid_kind(device: &str, port: u8, index: u8) -> Option<String> {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
    Some(std::fs::read_to_string(path).ok()?.trim().to_string())
}

struct OpenDevice(Arc<Domain>);

impl Device for OpenDevice {
    fn register(&self, bank: &Arc<Bank>) -> Result<Arc<dyn Region>, RdmaError> {
        let domain = &self.0;
        let reg_mr = domain.context.verbs.reg_mr;
        // Some drivers require all three, others only the first. Memory is not remotely accessible
        // either way: the queue pairs do not allow it.
        let all = ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_REMOTE_READ | ffi::ACCESS_REMOTE_WRITE;
        for access in [all, ffi::ACCESS_LOCAL_WRITE] {
            let start = bank.address(0) as *mut _;
            // SAFETY: the bank is mapped for its whole length, and the region keeps it so.
            let mr = unsafe { reg_mr(domain.pd.as_ptr(), start, bank.len(), access) };
            if let Some(mr) = NonNull::new(mr) {
                let region = Registered { mr, domain: domain.clone(), bank: bank.clone() };
                return Ok(Arc::new(OpenRegion(Arc::new(region))));
            }
        }
        Err(failed(&domain.context.name, "ibv_reg_mr", 0))
    }
}

struct OpenRegion(Arc<Registered>);

impl Region for OpenRegion {
    fn queue_pair(&self, service: Service, depth: Depth) -> Result<Box<dyn QueuePair>, RdmaError> {
        Ok(Box::new(OpenPair::new(self.0.clone(), service, depth)?))
    }
}
