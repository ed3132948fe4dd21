//! The RDMA part of a handshake: both ranks make a queue pair, connect it to the other's, and send
//! one empty message each way. The link uses RDMA only after both have arrived. A firewall, a wrong
//! route or a half-working driver shows here, and TCP is still available.

use std::time::{Duration, Instant};

use super::channel::{Channel, Guards};
use super::device::Rdma;
use super::error::RdmaError;
use super::verbs::{Endpoint, Port};

/// The time for the first message. A network delivers it in microseconds; an emulated one that has
/// to resolve the neighbour's address first, or lost it once, in a few hundred ms.
const PROOF_MAX: Duration = Duration::from_secs(2);

/// A connection being set up.
pub(crate) struct Setup {
    rdma: Rdma,
    port: Port,
    channel: Channel,
    proof_since: Option<Instant>,
}

impl Setup {
    /// Makes this rank's end on `port`.
    pub fn prepare(
        rdma: &Rdma,
        port: &Port,
        guards: Guards,
        peer: usize,
        epoch: u64,
    ) -> Result<Self, RdmaError> {
        let made = rdma.lease(port).and_then(|lease| Channel::new(lease, guards, peer, epoch));
        let channel = made.inspect_err(|error| give_up(rdma, port, error))?;
        Ok(Setup { rdma: rdma.clone(), port: port.clone(), channel, proof_since: None })
    }

    pub fn endpoint(&self) -> Endpoint {
        self.channel.endpoint()
    }

    pub fn connect(&mut self, peer: &Endpoint) -> Result<(), RdmaError> {
        self.channel.connect(peer).inspect_err(|error| give_up(&self.rdma, &self.port, error))
    }

    /// Sends this rank's empty message.
    pub fn send_proof(&mut self) -> Result<(), RdmaError> {
        self.proof_since = Some(Instant::now());
        let lent = self.channel.lend().map(|slot| slot.is_some());
        let sent = lent.and_then(|_| self.channel.commit(0));
        sent.map_err(|error| self.unproven(Duration::ZERO, &error.to_string()))
    }

    /// `true` once the peer's empty message has arrived.
    pub fn poll_proof(&mut self) -> Result<bool, RdmaError> {
        let waited = self.proof_since.get_or_insert_with(Instant::now).elapsed();
        match self.channel.take_next() {
            Ok(true) => {
                self.channel.consume();
                Ok(true)
            }
            Ok(false) if waited < PROOF_MAX => Ok(false),
            Ok(false) => Err(self.unproven(waited, "nothing came")),
            Err(error) => Err(self.unproven(waited, &error.to_string())),
        }
    }

    fn unproven(&self, waited: Duration, reason: &str) -> RdmaError {
        RdmaError::Unproven {
            device: self.port.device.clone(),
            waited_ms: waited.as_millis() as u64,
            reason: reason.to_string(),
        }
    }

    pub fn into_channel(self) -> Channel {
        self.channel
    }
}

/// A full device may have room later; any other failure of a call is permanent.
fn give_up(rdma: &Rdma, port: &Port, error: &RdmaError) {
    if matches!(error, RdmaError::Call { .. }) {
        rdma.give_up(port, error);
    }
}
