//! The devices of this process: opened at most once, registered once, shared by all links.
//!
//! Devices outlive epochs. Repeated opening and closing has hung kernels, so a device stays open
//! for the lifetime of its [`Rdma`], and a failed device is not tried again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::bank::Bank;
use super::error::RdmaError;
use super::slot::CHANNEL_BYTES;
use super::system::System;
use super::verbs::{Depth, Port, Provider, QueuePair, Region};

/// Links of a device at once. Their slots take 6 MiB, which fits the 8 MiB that Linux commonly lets
/// a user lock. (Thunderbolt has 10 queue pairs and reports that limit itself.)
pub(super) const LINKS_MAX: usize = 24;

/// The RDMA devices that a rank may use. Clones share them.
#[derive(Clone)]
pub struct Rdma(Arc<Shared>);

struct Shared {
    provider: Box<dyn Provider>,
    /// By device and port; a failure is kept.
    opened: Mutex<HashMap<(String, u8), Opening>>,
}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rdma(..)")
    }
}

impl Rdma {
    /// The devices of this machine. Looks for them only when a mesh needs them.
    pub fn system() -> Self {
        Self::new(System::default())
    }

    pub(super) fn new(provider: impl Provider + 'static) -> Self {
        let opened = Mutex::new(HashMap::new());
        Rdma(Arc::new(Shared { provider: Box::new(provider), opened }))
    }

    /// The ports to offer to peers.
    ///
    /// # Errors
    /// The reason for having none.
    pub(crate) fn ports(&self) -> Result<Vec<Port>, RdmaError> {
        let ports = self.0.provider.ports()?;
        let opened = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = |port: &Port| {
            let before = opened.get(&(port.device.clone(), port.number));
            before.and_then(|opened| opened.as_ref().err().cloned())
        };
        let usable: Vec<Port> =
            ports.iter().filter(|port| failure(port).is_none()).cloned().collect();
        match ports.iter().find_map(failure) {
            Some(error) if usable.is_empty() => Err(error),
            _ => Ok(usable),
        }
    }

    /// A part of the port's device for one link.
    pub(crate) fn lease(&self, port: &Port) -> Result<Lease, RdmaError> {
        let key = (port.device.clone(), port.number);
        let mut all = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = all.entry(key).or_insert_with(|| self.open(port)).clone()?;
        let mut free = opened.free.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = free.pop() else {
            let device = port.device.clone();
            return Err(RdmaError::Full { device, links_max: LINKS_MAX });
        };
        drop(free);
        Ok(Lease { opened, at })
    }

    fn open(&self, port: &Port) -> Result<Arc<Opened>, RdmaError> {
        let device = self.0.provider.open(port)?;
        let bank = Bank::new(LINKS_MAX * CHANNEL_BYTES).map_err(|error| {
            RdmaError::call(&port.device, "mmap", error.raw_os_error().unwrap_or(0))
        })?;
        let bank = Arc::new(bank);
        let region = device.register(&bank)?;
        let free = Mutex::new((0..LINKS_MAX).rev().map(|link| link * CHANNEL_BYTES).collect());
        Ok(Arc::new(Opened { region, bank, port: port.clone(), free }))
    }

    /// Gives up a port for the rest of this process: its failure is permanent.
    pub(crate) fn give_up(&self, port: &Port, error: &RdmaError) {
        let given_up =
            RdmaError::GivenUp { device: port.device.clone(), reason: error.to_string() };
        let mut all = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert((port.device.clone(), port.number), Err(given_up));
    }
}

/// The result of opening a device.
type Opening = Result<Arc<Opened>, RdmaError>;

/// An open device with its registered memory.
struct Opened {
    region: Arc<dyn Region>,
    bank: Arc<Bank>,
    port: Port,
    /// Offsets of the free parts.
    free: Mutex<Vec<usize>>,
}

/// The part of a device that belongs to one link.
pub(crate) struct Lease {
    opened: Arc<Opened>,
    at: usize,
}

impl Lease {
    pub(super) fn queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, RdmaError> {
        self.opened.region.queue_pair(self.opened.port.service(), depth)
    }

    /// The offset of the part in the bank; its length is [`CHANNEL_BYTES`].
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn bank(&self) -> &Bank {
        &self.opened.bank
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.opened.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.at);
    }
}
