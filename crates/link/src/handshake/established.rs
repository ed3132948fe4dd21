//! The result of a handshake: an authenticated peer, and the link over the agreed transport.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use super::agreement::{Agreement, Fast};
use super::context::Context;
use super::message::Purpose;
use crate::liveness::{self, Liveness, ShmHeartbeats, TcpHeartbeats, TcpKeys};
use crate::rdma::{Channel, RdmaLink};
use crate::seal::{Cipher, Sealer, Sealers};
use crate::shm::{Mapping, ShmLink};
use crate::tcp::TcpLink;
use crate::{Delay, Link, LinkInfo, MeshError, Transport};

/// The peer of a connection, and the connection's purpose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    pub peer: usize,
    pub purpose: Purpose,
    /// The nonces of the dialer and of the listener: they make the keys new on every connection.
    pub nonces: [[u8; 32]; 2],
}

impl Session {
    /// The keys of both directions.
    pub fn sealers(&self, context: &Context, cipher: Cipher) -> Sealers {
        let [send, recv] = self.keys(context, "sinew link 2026 frames");
        Sealers { send: Sealer::new(cipher, &send), recv: Sealer::new(cipher, &recv) }
    }

    /// The keys to send and to receive with.
    fn keys(&self, context: &Context, purpose: &str) -> [[u8; 32]; 2] {
        let directions = [(context.rank, self.peer), (self.peer, context.rank)];
        directions.map(|(from, to)| {
            let unique = self.direction(context, from, to);
            context.secret.derive(purpose, &unique)
        })
    }

    /// Everything that makes one direction of one connection unique.
    fn direction(&self, context: &Context, from: usize, to: usize) -> Vec<u8> {
        let [dialer_nonce, listener_nonce] = &self.nonces;
        let mut unique = Vec::with_capacity(104);
        unique.extend_from_slice(&context.instance);
        unique.extend_from_slice(&context.epoch.to_le_bytes());
        unique.extend_from_slice(&(from as u64).to_le_bytes());
        unique.extend_from_slice(&(to as u64).to_le_bytes());
        unique.extend_from_slice(dialer_nonce);
        unique.extend_from_slice(listener_nonce);
        unique
    }
}

/// An authenticated peer, and its connection.
pub(crate) struct Established {
    pub session: Session,
    pub agreement: Agreement,
    pub stream: TcpStream,
    pub mapping: Option<Arc<Mapping>>,
    pub rdma: Option<Channel>,
}

impl Established {
    /// Whether both ends tried RDMA and failed.
    pub fn fell_back(&self) -> bool {
        matches!(self.agreement.fast, Some(Fast::Rdma { .. })) && self.rdma.is_none()
    }

    /// The heartbeat channel of a pair with shared memory; other pairs need a second connection.
    pub fn shm_heartbeats(&self, context: &Context) -> Option<Box<dyn liveness::Channel>> {
        let mapping = self.mapping.clone()?;
        Some(Box::new(ShmHeartbeats::new(mapping, context.rank < self.session.peer)))
    }

    /// The heartbeat channel over this connection, which was made for it.
    pub fn into_heartbeats(self, context: &Context) -> Box<dyn liveness::Channel> {
        let [send, recv] = self.session.keys(context, "sinew link 2026 beats");
        Box::new(TcpHeartbeats::new(self.stream, TcpKeys { send, recv }))
    }

    /// The link over the agreed transport.
    pub fn into_link(
        self,
        context: &Context,
        liveness: Liveness,
    ) -> Result<Box<dyn Link>, MeshError> {
        let (session, epoch) = (self.session, context.epoch);
        let Agreement { same_host, cipher, latency_us, .. } = self.agreement;
        let peer = session.peer;
        let info = |transport| LinkInfo { peer, transport, same_host };
        let link: Box<dyn Link> = match (self.mapping, self.rdma) {
            (Some(mapping), _) => {
                let (info, lower) = (info(Transport::Shm), context.rank < peer);
                Box::new(ShmLink::new(info, epoch, lower, mapping, self.stream, liveness))
            }
            (None, Some(channel)) => {
                let link = RdmaLink::new(info(Transport::Rdma), channel, self.stream, liveness);
                let failed =
                    |error: std::io::Error| MeshError::NoRdma { peer, reason: error.to_string() };
                Box::new(link.map_err(failed)?)
            }
            (None, None) => {
                let sealers = cipher.map(|cipher| session.sealers(context, cipher));
                let sealed = if sealers.is_some() { Transport::Tcp } else { Transport::TcpPlain };
                Box::new(TcpLink::new(info(sealed), epoch, self.stream, sealers, liveness))
            }
        };
        Ok(match latency_us {
            0 => link,
            latency_us => Box::new(Delay::new(link, Duration::from_micros(latency_us.into()))),
        })
    }
}
