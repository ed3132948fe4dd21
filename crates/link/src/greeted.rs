//! What a greeting ends with: a peer that proved itself, and the link over what was agreed.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use crate::agreement::Agreement;
use crate::beats::{BeatKeys, TcpBeats};
use crate::context::Context;
use crate::hello::Purpose;
use crate::pulse;
use crate::rdma::{Channel, RdmaLink};
use crate::seal::{Cipher, Sealer, Sealers};
use crate::shm::ShmLink;
use crate::shm_object::Mapping;
use crate::shm_ring::ShmBeats;
use crate::tcp::TcpLink;
use crate::{Delay, Link, LinkInfo, MeshError, Transport, Vital};

/// A peer that proved itself, and how to talk to it.
pub(crate) struct Greeted {
    pub peer: usize,
    pub purpose: Purpose,
    pub agreement: Agreement,
    pub stream: TcpStream,
    pub mapping: Option<Arc<Mapping>>,
    pub rdma: Option<Channel>,
    /// Of the dialer and of the listener: they make the keys new on every connection.
    pub nonces: [[u8; 32]; 2],
}

impl Greeted {
    /// Where the beats of a pair go that shares memory; the others need a connection for them.
    pub fn shm_beats(&self, context: &Context) -> Option<Box<dyn pulse::Channel>> {
        let mapping = self.mapping.clone()?;
        Some(Box::new(ShmBeats::new(mapping, context.rank < self.peer)))
    }

    /// Where the beats go, on a connection that was made for them.
    pub fn into_beats(self, context: &Context) -> Box<dyn pulse::Channel> {
        let key = |from, to| {
            let unique = direction(context, from, to, self.nonces);
            context.secret.derive("sinew link 2026 beats", &unique)
        };
        let keys =
            BeatKeys { send: key(context.rank, self.peer), recv: key(self.peer, context.rank) };
        Box::new(TcpBeats::new(self.stream, keys))
    }

    /// The link over the transport that was agreed.
    pub fn into_link(self, context: &Context, vital: Vital) -> Result<Box<dyn Link>, MeshError> {
        let peer = self.peer;
        let transport = match (&self.mapping, &self.rdma, self.agreement.cipher) {
            (Some(_), _, _) => Transport::Shm,
            (None, Some(_), _) => Transport::Rdma,
            (None, None, Some(_)) => Transport::Tcp,
            (None, None, None) => Transport::TcpPlain,
        };
        let info = LinkInfo { peer, transport, same_host: self.agreement.same_host };
        let link: Box<dyn Link> = match (self.mapping, self.rdma) {
            (Some(mapping), _) => {
                let lower = context.rank < peer;
                Box::new(ShmLink::new(info, context.epoch, lower, mapping, self.stream, vital))
            }
            (None, Some(channel)) => {
                let link = RdmaLink::new(info, channel, self.stream, vital);
                let failed =
                    |error: std::io::Error| MeshError::NoRdma { peer, reason: error.to_string() };
                Box::new(link.map_err(failed)?)
            }
            (None, None) => {
                let cipher = self.agreement.cipher;
                let sealers = cipher.map(|cipher| sealers(context, cipher, peer, self.nonces));
                Box::new(TcpLink::new(info, context.epoch, self.stream, sealers, vital))
            }
        };
        Ok(match self.agreement.latency_us {
            0 => link,
            latency_us => Box::new(Delay::new(link, Duration::from_micros(latency_us.into()))),
        })
    }
}

/// The keys of both directions.
pub(crate) fn sealers(
    context: &Context,
    cipher: Cipher,
    peer: usize,
    nonces: [[u8; 32]; 2],
) -> Sealers {
    let key = |from: usize, to: usize| {
        let unique = direction(context, from, to, nonces);
        Sealer::new(cipher, &context.secret.derive("sinew link 2026 frames", &unique))
    };
    Sealers { send: key(context.rank, peer), recv: key(peer, context.rank) }
}

/// All that makes one direction of one connection unique, for its key.
fn direction(
    context: &Context,
    from: usize,
    to: usize,
    [dialer_nonce, listener_nonce]: [[u8; 32]; 2],
) -> Vec<u8> {
    let mut unique = Vec::with_capacity(112);
    unique.extend_from_slice(&context.instance);
    unique.extend_from_slice(&context.epoch.to_le_bytes());
    unique.extend_from_slice(&(from as u64).to_le_bytes());
    unique.extend_from_slice(&(to as u64).to_le_bytes());
    unique.extend_from_slice(&dialer_nonce);
    unique.extend_from_slice(&listener_nonce);
    unique
}
