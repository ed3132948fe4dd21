//! Sets up the transport of a handshake, step by step, at either end.

use std::sync::Arc;

use super::agreement::{Agreement, Fast};
use super::context::Context;
use super::established::Session;
use super::message::End;
use crate::rdma::{self, Channel, Endpoint, Guards};
use crate::shm::{Mapping, OBJECT_BYTES, ObjectName};

/// The set-up so far. Errors are the reason of a failed step.
#[derive(Default)]
pub(super) struct Setup {
    mapping: Option<Arc<Mapping>>,
    /// The name of the shared-memory object until both ranks have mapped it. The end that outlives
    /// a failed handshake removes the object.
    object: Option<ObjectName>,
    rdma: Option<rdma::Setup>,
}

impl Setup {
    /// Notes the name of the listener's object, which this end must remove if the listener cannot.
    pub fn expect(&mut self, context: &Context, session: Session, fast: Option<Fast>) {
        if fast == Some(Fast::Shm) {
            self.object = Some(object_name(context, session));
        }
    }

    /// Creates the listener's end.
    pub fn create(
        &mut self,
        context: &Context,
        session: Session,
        agreement: Agreement,
        fast: Fast,
    ) -> Result<End, String> {
        match fast {
            Fast::Shm => {
                let object = object_name(context, session);
                let mapping = Mapping::create(&object, OBJECT_BYTES).map_err(|e| e.to_string())?;
                (self.mapping, self.object) = (Some(Arc::new(mapping)), Some(object));
                Ok(End::Shm)
            }
            Fast::Rdma { port } => self.prepare_rdma(context, session, agreement, port),
        }
    }

    /// Creates the dialer's end to match the listener's offer.
    pub fn join(
        &mut self,
        context: &Context,
        session: Session,
        agreement: Agreement,
        (fast, theirs): (Fast, End),
    ) -> Result<End, String> {
        match (fast, theirs) {
            (Fast::Shm, End::Shm) => {
                let object = object_name(context, session);
                let mapping = Mapping::open(&object, OBJECT_BYTES).map_err(|e| e.to_string())?;
                self.mapping = Some(Arc::new(mapping));
                Ok(End::Shm)
            }
            (Fast::Rdma { port }, End::Rdma(theirs)) => {
                let end = self.prepare_rdma(context, session, agreement, port)?;
                self.rdma().connect(&theirs).map_err(|error| error.to_string())?;
                Ok(end)
            }
            _ => Err("it offers another transport".to_string()),
        }
    }

    /// Forgets the name once both ranks have mapped the object.
    pub fn forget_name(&mut self) {
        self.object = None;
    }

    /// Connects the listener's end to the dialer's, which is already connected, and sends the first
    /// message.
    pub fn connect(&mut self, theirs: &Endpoint) -> Result<(), String> {
        let rdma = self.rdma.as_mut().ok_or("it answers with another transport")?;
        rdma.connect(theirs).map_err(|error| error.to_string())?;
        self.send_proof()
    }

    /// Sends the first message over RDMA.
    pub fn send_proof(&mut self) -> Result<(), String> {
        self.rdma().send_proof().map_err(|error| error.to_string())
    }

    /// `true` once the peer's first message has arrived.
    pub fn poll_proof(&mut self) -> Result<bool, String> {
        self.rdma().poll_proof().map_err(|error| error.to_string())
    }

    pub fn finish(self) -> (Option<Arc<Mapping>>, Option<Channel>) {
        (self.mapping, self.rdma.map(rdma::Setup::into_channel))
    }

    fn rdma(&mut self) -> &mut rdma::Setup {
        self.rdma.as_mut().expect("it was prepared")
    }

    fn prepare_rdma(
        &mut self,
        context: &Context,
        session: Session,
        agreement: Agreement,
        port: usize,
    ) -> Result<End, String> {
        let port = &context.ports.as_ref().map_err(ToString::to_string)?[port];
        let sealers = || Some(session.sealers(context, agreement.cipher?));
        let guards = Guards::new(port, sealers);
        let setup = rdma::Setup::prepare(&context.rdma, port, guards, session.peer, context.epoch);
        let setup = self.rdma.insert(setup.map_err(|error| error.to_string())?);
        Ok(End::Rdma(setup.endpoint()))
    }
}

fn object_name(context: &Context, session: Session) -> ObjectName {
    let (lower, higher) = (session.peer.min(context.rank), session.peer.max(context.rank));
    ObjectName::new(&context.instance, context.epoch, lower, higher)
}
