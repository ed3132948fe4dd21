//! The handshake of two ranks on a TCP connection: they prove to each other that they hold the
//! session's secret, agree on a transport, and set it up.
//!
//! ```text
//! dialer                        listener
//!   Hello  (terms, nonce)     ->            proves the secret, but could be a recording
//!                             <-  Reply     (terms, nonce)
//!   Confirm                   ->            proves that the dialer is live: it covers both nonces
//!                             <-  Offer     (its end of the transport: shared memory or RDMA)
//!   Answer (its end)          ->            only after an offer
//!                             <-  Ready     this and what follows only with RDMA: both ends
//!   Proof                     ->            connect, each sends a message over RDMA, and each
//!                             <-  Verdict   whether the other's has arrived
//! ```
//!
//! [`message`] defines the bytes, [`agreement`] the negotiation, [`setup`] the transport, and this
//! file the order. No call blocks: [`Handshake::step`] goes as far as the socket allows.

mod agreement;
mod context;
mod conversation;
mod established;
mod message;
mod setup;

use std::net::TcpStream;

use ring::rand::{SecureRandom, SystemRandom};

pub(crate) use context::Context;
pub(crate) use established::{Established, Session};
pub(crate) use message::Purpose;

use agreement::{Agreement, Fast, agree};
use conversation::Conversation;
use message::{Body, End, Message, Opening, Unreadable, VERSION};
use setup::Setup;

use crate::{LinkError, MeshError};

/// The state of a handshake after a step.
pub(crate) enum Progress {
    Pending,
    Done(Box<Established>),
    Refused(Refused),
}

/// Why a handshake ended without a link.
pub(crate) enum Refused {
    /// This connection failed; the right peer may still come.
    Stranger(String),
    /// The right peer came and cannot be linked; waiting is pointless.
    Fatal(MeshError),
}

pub(crate) struct Handshake {
    conversation: Conversation,
    due: Due,
    /// The peer and purpose; `None` until an accepted connection sends its hello.
    session: Option<Session>,
    agreement: Option<Agreement>,
    setup: Setup,
    /// The final failure, reported to the peer first.
    failure: Option<Refused>,
}

/// What a handshake waits for after its own bytes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The peer's next message.
    Message,
    /// The peer's first message over RDMA.
    Proof,
    /// Nothing: the last message was sent.
    Nothing,
}

impl Handshake {
    /// The end of the rank that connected to `peer`: sends a hello.
    pub fn dial(context: &Context, stream: TcpStream, peer: usize, purpose: Purpose) -> Self {
        let nonce = random();
        let mut handshake = Self::listen(context, stream);
        handshake.session = Some(Session { peer, purpose, nonces: [nonce, [0; 32]] });
        let opening = Opening { nonce, terms: context.terms };
        handshake.send(context, Body::Hello(purpose, opening));
        handshake
    }

    /// The end of the rank that accepted: waits for a hello.
    pub fn listen(context: &Context, stream: TcpStream) -> Self {
        Handshake {
            conversation: Conversation::new(stream, &context.secret),
            due: Due::Message,
            session: None,
            agreement: None,
            setup: Setup::default(),
            failure: None,
        }
    }

    /// Whether the dialer's hello has been answered.
    pub fn is_answered(&self) -> bool {
        self.conversation.count() > 1
    }

    /// Whether the dialer has confirmed. It is authenticated then, and may finish before the
    /// listener.
    pub fn is_confirmed(&self) -> bool {
        self.conversation.count() > 2
    }

    /// Goes as far as the socket allows without waiting.
    pub fn step(&mut self, context: &Context) -> Progress {
        match self.try_step(context) {
            Ok(step) => step,
            Err(refused) => Progress::Refused(refused),
        }
    }

    fn try_step(&mut self, context: &Context) -> Result<Progress, Refused> {
        while self.conversation.flush().map_err(hung_up)? {
            match self.due {
                Due::Nothing => {
                    return match self.failure.take() {
                        Some(refused) => Err(refused),
                        None => Ok(Progress::Done(Box::new(self.finish()))),
                    };
                }
                Due::Proof => {
                    if !self.poll_proof(context) {
                        return Ok(Progress::Pending);
                    }
                }
                Due::Message => match self.conversation.recv().map_err(hung_up)? {
                    Some(Ok(message)) => self.receive(context, message)?,
                    Some(Err(error)) => self.receive_unreadable(context, error)?,
                    None => return Ok(Progress::Pending),
                },
            }
        }
        Ok(Progress::Pending)
    }

    fn receive(&mut self, context: &Context, message: Message) -> Result<(), Refused> {
        if message.instance != context.instance || message.to as usize != context.rank {
            return Err(stranger("it belongs to another instance or looks for another rank"));
        }
        match message.body {
            Body::Hello(purpose, opening) => self.on_hello(context, &message, purpose, opening),
            Body::Reply(opening) => self.on_reply(context, &message, opening),
            Body::Confirm => self.on_confirm(context),
            Body::Offer(end) => self.on_offer(context, end),
            Body::Answer(end) => self.on_answer(context, end),
            Body::Ready(works) => self.on_ready(context, works),
            Body::Proof(works) => self.on_proof(works),
            Body::Verdict(works) => self.on_verdict(works),
        }
    }

    fn receive_unreadable(&mut self, context: &Context, error: Unreadable) -> Result<(), Refused> {
        if self.session.is_some() || !matches!(error, Unreadable::Version(_)) {
            return Err(unreadable(error));
        }
        // Any reply shows the dialer our version.
        self.failure = Some(unreadable(error));
        self.due = Due::Nothing;
        let opening = Opening { nonce: random(), terms: context.terms };
        self.send(context, Body::Reply(opening));
        Ok(())
    }

    /// The listener learns the dialer's rank and terms.
    fn on_hello(
        &mut self,
        context: &Context,
        message: &Message,
        purpose: Purpose,
        theirs: Opening,
    ) -> Result<(), Refused> {
        let peer = message.from as usize;
        if peer <= context.rank || peer >= context.terms.ranks as usize {
            return Err(stranger("a rank that should have waited to be dialed"));
        }
        if message.epoch > context.epoch {
            return Err(newer_epoch(context, peer, message.epoch));
        }
        let nonce = random();
        self.session = Some(Session { peer, purpose, nonces: [theirs.nonce, nonce] });
        if message.epoch < context.epoch {
            // The reply carries the current epoch, which is all a late rank needs.
            self.failure = Some(stranger("it is of an older epoch"));
            self.due = Due::Nothing;
        } else {
            self.agree(context, theirs);
        }
        self.send(context, Body::Reply(Opening { nonce, terms: context.terms }));
        Ok(())
    }

    /// The dialer learns the listener's terms.
    fn on_reply(
        &mut self,
        context: &Context,
        message: &Message,
        theirs: Opening,
    ) -> Result<(), Refused> {
        let peer = self.session().peer;
        if message.from as usize != peer {
            return Err(stranger("another rank answers there"));
        }
        if message.epoch > context.epoch {
            return Err(newer_epoch(context, peer, message.epoch));
        }
        if message.epoch < context.epoch {
            return Err(stranger("it is still in an older epoch"));
        }
        self.session.as_mut().expect("the dialer knows whom it dialed").nonces[1] = theirs.nonce;
        self.agree(context, theirs);
        // A disagreement is confirmed too. It shows the listener that the hello was no recording,
        // and both ends stop waiting for each other.
        match self.agreement {
            Some(agreement) => {
                let session = self.session();
                self.setup.expect(context, session, agreement.fast);
            }
            None => self.due = Due::Nothing,
        }
        self.send(context, Body::Confirm);
        Ok(())
    }

    /// The listener sets up its end of the fast transport.
    fn on_confirm(&mut self, context: &Context) -> Result<(), Refused> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let offer = match self.agreed().fast {
            None => {
                self.due = Due::Nothing;
                None
            }
            Some(fast) => {
                let (session, agreement) = (self.session(), self.agreed());
                let created = self.setup.create(context, session, agreement, fast);
                self.or_fall_back(created)
            }
        };
        self.send(context, Body::Offer(offer));
        Ok(())
    }

    /// The dialer joins the offered transport.
    fn on_offer(&mut self, context: &Context, offer: Option<End>) -> Result<(), Refused> {
        let Some(fast) = self.agreed().fast else {
            self.due = Due::Nothing;
            return Ok(());
        };
        let Some(theirs) = offer else {
            self.fall_back(NO_END);
            return Ok(());
        };
        let (session, agreement) = (self.session(), self.agreed());
        let joined = self.setup.join(context, session, agreement, (fast, theirs));
        let answer = self.or_fall_back(joined);
        if answer == Some(End::Shm) {
            self.due = Due::Nothing;
        }
        self.send(context, Body::Answer(answer));
        Ok(())
    }

    /// Completes shared memory. With RDMA, the listener connects its end and sends its first
    /// message.
    fn on_answer(&mut self, context: &Context, answer: Option<End>) -> Result<(), Refused> {
        match answer {
            None => self.fall_back(NO_END),
            Some(End::Shm) => {
                self.setup.forget_name();
                self.due = Due::Nothing;
            }
            Some(End::Rdma(theirs)) => {
                let connected = self.setup.connect(&theirs);
                let works = self.or_fall_back(connected).is_some();
                self.send(context, Body::Ready(works));
            }
        }
        Ok(())
    }

    /// The dialer sends its first message over RDMA and waits for the listener's.
    fn on_ready(&mut self, context: &Context, works: bool) -> Result<(), Refused> {
        if !works {
            self.fall_back(NO_END);
            return Ok(());
        }
        let sent = self.setup.send_proof();
        match self.or_fall_back(sent) {
            Some(()) => self.due = Due::Proof,
            None => self.send(context, Body::Proof(false)),
        }
        Ok(())
    }

    /// Polls for the peer's first message over RDMA and sends the result: the dialer before the
    /// listener. `false` while the message may still come.
    fn poll_proof(&mut self, context: &Context) -> bool {
        let proven = match self.setup.poll_proof() {
            Ok(false) => return false,
            Ok(true) => Ok(()),
            Err(reason) => Err(reason),
        };
        let works = self.or_fall_back(proven).is_some();
        if context.rank > self.session().peer {
            if works {
                self.due = Due::Message;
            }
            self.send(context, Body::Proof(works));
        } else {
            self.due = Due::Nothing;
            self.send(context, Body::Verdict(works));
        }
        true
    }

    /// The dialer has received the listener's first message; the listener waits for the dialer's.
    fn on_proof(&mut self, works: bool) -> Result<(), Refused> {
        match works {
            true => self.due = Due::Proof,
            false => self.fall_back(NO_MESSAGE),
        }
        Ok(())
    }

    /// The dialer confirms that it received the listener's message.
    fn on_verdict(&mut self, works: bool) -> Result<(), Refused> {
        match works {
            true => self.due = Due::Nothing,
            false => self.fall_back(NO_MESSAGE),
        }
        Ok(())
    }

    fn finish(&mut self) -> Established {
        let (mapping, rdma) = std::mem::take(&mut self.setup).finish();
        Established {
            session: self.session(),
            agreement: self.agreed(),
            stream: self.conversation.take_stream(),
            mapping,
            rdma,
        }
    }

    fn agree(&mut self, context: &Context, theirs: Opening) {
        let Session { peer, purpose, .. } = self.session();
        match agree(&context.terms, &theirs.terms, peer) {
            // Heartbeats always use TCP.
            Ok(agreement) => {
                let fast = agreement.fast.filter(|_| purpose == Purpose::Link);
                self.agreement = Some(Agreement { fast, ..agreement });
            }
            // The peer knows only that there is no port; this rank knows the reason.
            Err(MeshError::NoRdma { peer, reason }) => {
                let why = context.ports.as_ref().err().map(ToString::to_string);
                let reason = why.unwrap_or(reason);
                self.failure = Some(Refused::Fatal(MeshError::NoRdma { peer, reason }));
            }
            Err(error) => self.failure = Some(Refused::Fatal(error)),
        }
    }

    /// The value of a set-up step; an error makes the handshake fall back.
    fn or_fall_back<T>(&mut self, result: Result<T, String>) -> Option<T> {
        result.map_err(|reason| self.fall_back(&reason)).ok()
    }

    /// Falls back to TCP, or fails if the preference rules it out.
    fn fall_back(&mut self, reason: &str) {
        self.setup = Setup::default();
        self.due = Due::Nothing;
        let (peer, reason) = (self.session().peer, reason.to_string());
        let Agreement { fast: Some(fast), is_tcp_fine: false, .. } = self.agreed() else { return };
        self.failure = Some(Refused::Fatal(match fast {
            Fast::Shm => MeshError::NoSharedMemory { peer, reason },
            Fast::Rdma { .. } => MeshError::NoRdma { peer, reason },
        }));
    }

    fn session(&self) -> Session {
        self.session.expect("the dialer chose its peer, and a listener's peer said hello")
    }

    fn agreed(&self) -> Agreement {
        self.agreement.expect("both agree before anything is confirmed")
    }

    fn send(&mut self, context: &Context, body: Body) {
        self.conversation.send(&Message {
            from: context.rank as u32,
            // A peer of another version is answered before its rank is known.
            to: self.session.map_or(u32::MAX, |session| session.peer as u32),
            instance: context.instance,
            epoch: context.epoch,
            body,
        });
    }
}

const NO_END: &str = "it could not set up its end";
const NO_MESSAGE: &str = "its message did not come through";

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).expect("the system's random source works");
    bytes
}

fn stranger(reason: &str) -> Refused {
    Refused::Stranger(reason.to_string())
}

fn newer_epoch(context: &Context, peer: usize, theirs: u64) -> Refused {
    Refused::Fatal(MeshError::Epoch { peer, ours: context.epoch, theirs })
}

fn hung_up(error: LinkError) -> Refused {
    match error {
        LinkError::Lost { reason, .. } => Refused::Stranger(format!(
            "{reason} during the handshake (does it have the same secret and instance?)"
        )),
        other => Refused::Stranger(other.to_string()),
    }
}

fn unreadable(error: Unreadable) -> Refused {
    Refused::Stranger(match error {
        Unreadable::Garbage => "it speaks another protocol".to_string(),
        Unreadable::Forged => "it does not have this session's secret".to_string(),
        Unreadable::Version(theirs) => {
            format!("it speaks version {theirs} of the link protocol, this rank {VERSION}")
        }
    })
}
