//! One greeting on one connection, from either end: a state machine over a non-blocking socket.
//!
//! The words are in [`crate::hello`], what the two ranks conclude in [`crate::agreement`]. This
//! file moves the bytes, checks who the other one is, and sets up the transport.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};

use crate::agreement::{Agreement, agree};
use crate::context::Context;
use crate::greeted::{Greeted, sealers};
use crate::hello::{Kind, Purpose, Transcript, Unreadable, VERSION, WORD_BYTES, Word, may_be_word};
use crate::rdma::{self, Endpoint, Guards, RdmaError};
use crate::shm_object::{Mapping, ObjectName};
use crate::shm_ring::OBJECT_BYTES;
use crate::socket::{read_some, write_some};
use crate::{LinkError, MeshError};

/// How a greeting stands after a step.
pub(crate) enum Step {
    Pending,
    Done(Box<Greeted>),
    Refused(Refused),
}

/// Why a greeting ended without a link.
pub(crate) enum Refused {
    /// Whoever it was, the right peer may still come.
    Stranger(String),
    /// The right peer came, and there is no point in waiting.
    Fatal(MeshError),
}

pub(crate) struct Handshake {
    stream: Option<TcpStream>,
    transcript: Transcript,
    state: State,
    /// The dialer's; a listener learns it from the hello.
    purpose: Purpose,
    /// The dialed rank; `None` until an accepted connection names itself.
    peer: Option<usize>,
    agreement: Option<Agreement>,
    /// What this greeting will end with, once the peer has been told.
    failure: Option<MeshError>,
    nonces: [[u8; 32]; 2],
    mapping: Option<Arc<Mapping>>,
    /// The object's name, until both have mapped it: whichever end outlives a greeting that fails
    /// removes it.
    object: Option<ObjectName>,
    rdma: Option<rdma::Setup>,
    incoming: [u8; WORD_BYTES],
    received: usize,
    outgoing: [u8; WORD_BYTES],
    /// Bytes of `outgoing` that are sent; all of them if nothing is under way.
    sent: usize,
}

/// The word that is due from the other side, or what remains once all are said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Await(Kind),
    /// The peer's first message over RDMA is due.
    Prove,
    /// The last word is on its way.
    Finish,
    /// The last word is on its way, and there will be no link: the word tells the peer why.
    Fail,
}

impl Handshake {
    /// For the rank that connected to `peer`: says hello.
    pub fn dial(context: &Context, stream: TcpStream, peer: usize, purpose: Purpose) -> Self {
        let mut handshake = Self::new(context, stream, Some(peer), Kind::Reply);
        handshake.purpose = purpose;
        handshake.nonces[0] = random();
        handshake.say(context, Kind::Hello, None);
        handshake
    }

    /// For the rank that was connected to: waits for a hello.
    pub fn listen(context: &Context, stream: TcpStream) -> Self {
        Self::new(context, stream, None, Kind::Hello)
    }

    fn new(context: &Context, stream: TcpStream, peer: Option<usize>, due: Kind) -> Self {
        Handshake {
            stream: Some(stream),
            transcript: Transcript::new(&context.secret),
            state: State::Await(due),
            purpose: Purpose::Link,
            peer,
            agreement: None,
            failure: None,
            nonces: [[0; 32]; 2],
            mapping: None,
            object: None,
            rdma: None,
            incoming: [0; WORD_BYTES],
            received: 0,
            outgoing: [0; WORD_BYTES],
            sent: WORD_BYTES,
        }
    }

    /// Goes as far as the socket allows without waiting.
    pub fn step(&mut self, context: &Context) -> Step {
        match self.try_step(context) {
            Ok(step) => step,
            Err(refused) => Step::Refused(refused),
        }
    }

    fn try_step(&mut self, context: &Context) -> Result<Step, Refused> {
        loop {
            if !self.flush()? {
                return Ok(Step::Pending);
            }
            match self.state {
                State::Finish => return Ok(Step::Done(Box::new(self.finish()))),
                State::Fail => {
                    let late = || stranger("it is of an older epoch or another version");
                    return Err(self.failure.take().map_or_else(late, Refused::Fatal));
                }
                State::Prove => {
                    if !self.prove(context) {
                        return Ok(Step::Pending);
                    }
                }
                State::Await(kind) => {
                    if !self.fill()? {
                        return Ok(Step::Pending);
                    }
                    self.received = 0;
                    self.hear(context, kind)?;
                }
            }
        }
    }

    fn flush(&mut self) -> Result<bool, Refused> {
        let stream = self.stream.as_ref().expect("the stream is taken at the end only");
        while self.sent < WORD_BYTES {
            let written = write_some(stream, &self.outgoing[self.sent..], 0).map_err(hung_up)?;
            if written == 0 {
                return Ok(false);
            }
            self.sent += written;
        }
        Ok(true)
    }

    fn fill(&mut self) -> Result<bool, Refused> {
        let stream = self.stream.as_ref().expect("the stream is taken at the end only");
        while self.received < WORD_BYTES {
            let free = &mut self.incoming[self.received..];
            let read = read_some(stream, free, 0).map_err(hung_up)?;
            self.received += read;
            if !may_be_word(&self.incoming[..self.received]) {
                return Err(stranger("it speaks another protocol"));
            }
            if read == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the word that was due and says the next.
    fn hear(&mut self, context: &Context, kind: Kind) -> Result<(), Refused> {
        let word = match self.transcript.hear(kind, &self.incoming) {
            Ok(word) => word,
            Err(Unreadable::Version(_)) if kind == Kind::Hello => {
                // Any word of ours tells the dialer which version it met.
                self.state = State::Fail;
                self.say(context, Kind::Reply, None);
                return Ok(());
            }
            Err(error) => return Err(unreadable(error)),
        };
        if word.instance != context.instance || word.to as usize != context.rank {
            return Err(stranger("it belongs to another instance or looks for another rank"));
        }
        match kind {
            Kind::Hello => self.hear_hello(context, &word)?,
            Kind::Reply => self.hear_reply(context, &word)?,
            Kind::Confirm => self.hear_confirm(context)?,
            Kind::Offer => self.hear_offer(context, &word),
            Kind::Answer => self.hear_answer(context, &word),
            Kind::Ready => self.hear_ready(context, word.yes),
            Kind::Proof if word.yes => self.state = State::Prove,
            Kind::Verdict if word.yes => self.state = State::Finish,
            Kind::Proof | Kind::Verdict => self.do_without("its message did not come through"),
        }
        Ok(())
    }

    fn hear_hello(&mut self, context: &Context, word: &Word) -> Result<(), Refused> {
        let peer = word.from as usize;
        if peer <= context.rank || peer >= context.terms.ranks as usize {
            return Err(stranger("a rank that should have waited to be dialed"));
        }
        if word.epoch > context.epoch {
            return Err(epoch_error(context, peer, word.epoch));
        }
        self.peer = Some(peer);
        self.purpose = word.purpose;
        self.nonces = [word.nonce, random()];
        if word.epoch < context.epoch {
            // The reply tells a late rank the current epoch; it needs no more.
            self.state = State::Fail;
        } else {
            self.state = State::Await(Kind::Confirm);
            self.agree(context, word, peer);
        }
        self.say(context, Kind::Reply, None);
        Ok(())
    }

    fn hear_reply(&mut self, context: &Context, word: &Word) -> Result<(), Refused> {
        let peer = self.dialed();
        if word.from as usize != peer {
            return Err(stranger("another rank answers there"));
        }
        if word.epoch > context.epoch {
            return Err(epoch_error(context, peer, word.epoch));
        }
        if word.epoch < context.epoch {
            return Err(stranger("it is still in an older epoch"));
        }
        self.nonces[1] = word.nonce;
        self.agree(context, word, peer);
        // A disagreement is confirmed too: so the listener knows that it was no recording, and
        // both ends stop waiting for each other.
        let failed = self.failure.is_some();
        self.state = if failed { State::Fail } else { State::Await(Kind::Offer) };
        if !failed && self.agreed().try_shm {
            self.object = Some(self.object_name(context));
        }
        self.say(context, Kind::Confirm, None);
        Ok(())
    }

    fn hear_confirm(&mut self, context: &Context) -> Result<(), Refused> {
        if let Some(failure) = self.failure.take() {
            return Err(Refused::Fatal(failure));
        }
        self.state = State::Finish;
        if self.agreed().try_shm {
            let object = self.object_name(context);
            match Mapping::create(&object, OBJECT_BYTES) {
                Ok(mapping) => {
                    self.mapping = Some(Arc::new(mapping));
                    self.object = Some(object);
                    self.state = State::Await(Kind::Answer);
                }
                Err(error) => self.do_without(&error.to_string()),
            }
        } else if let Some(port) = self.agreed().try_rdma {
            match self.prepare_rdma(context, port) {
                Ok(()) => self.state = State::Await(Kind::Answer),
                Err(error) => self.do_without(&error.to_string()),
            }
        }
        self.say_offer(context, Kind::Offer);
        Ok(())
    }

    fn hear_offer(&mut self, context: &Context, word: &Word) {
        self.state = State::Finish;
        let agreed = self.agreed();
        if !word.yes {
            if agreed.try_shm || agreed.try_rdma.is_some() {
                self.do_without("it could not set up its end");
            }
            return;
        }
        if let (Some(port), Some(theirs)) = (agreed.try_rdma, &word.endpoint) {
            let prepared = self.prepare_rdma(context, port);
            match prepared.and_then(|()| self.connect_rdma(theirs)) {
                Ok(()) => self.state = State::Await(Kind::Ready),
                Err(error) => self.do_without(&error.to_string()),
            }
        } else {
            match Mapping::open(&self.object_name(context), OBJECT_BYTES) {
                Ok(mapping) => self.mapping = Some(Arc::new(mapping)),
                Err(error) => self.do_without(&error.to_string()),
            }
        }
        self.say_offer(context, Kind::Answer);
    }

    fn hear_answer(&mut self, context: &Context, word: &Word) {
        self.object = None;
        self.state = State::Finish;
        if !word.yes {
            self.do_without("it could not set up its end");
        } else if let (Some(_), Some(theirs)) = (&self.rdma, &word.endpoint) {
            let connected = self.connect_rdma(theirs).and_then(|()| self.send_proof());
            let yes = connected.is_ok();
            match connected {
                Ok(()) => self.state = State::Await(Kind::Proof),
                Err(error) => self.do_without(&error.to_string()),
            }
            self.say(context, Kind::Ready, Some((yes, None)));
        }
    }

    fn hear_ready(&mut self, context: &Context, yes: bool) {
        if !yes {
            return self.do_without("it could not set up its end");
        }
        match self.send_proof() {
            Ok(()) => self.state = State::Prove,
            Err(error) => {
                self.do_without(&error.to_string());
                self.say(context, Kind::Proof, Some((false, None)));
            }
        }
    }

    /// Looks for the peer's first message over RDMA, and tells it how that went; `false` while it
    /// may still come.
    fn prove(&mut self, context: &Context) -> bool {
        let proven = match self.rdma.as_mut().expect("only RDMA is proven").poll_proof() {
            Ok(false) => return false,
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        let yes = proven.is_ok();
        // The rank that dialed is the first to look.
        let (kind, next) = match context.rank > self.dialed() {
            true => (Kind::Proof, State::Await(Kind::Verdict)),
            false => (Kind::Verdict, State::Finish),
        };
        match proven {
            Ok(()) => self.state = next,
            Err(error) => self.do_without(&error.to_string()),
        }
        self.say(context, kind, Some((yes, None)));
        true
    }

    fn prepare_rdma(&mut self, context: &Context, port: usize) -> Result<(), RdmaError> {
        let port = &context.ports.as_ref().map_err(Clone::clone)?[port];
        let peer = self.dialed();
        let sealers = || {
            let cipher = self.agreed().cipher?;
            Some(sealers(context, cipher, peer, self.nonces))
        };
        let guards = Guards::new(port, sealers);
        let setup = rdma::Setup::prepare(&context.rdma, port, guards, peer, context.epoch)?;
        self.rdma = Some(setup);
        Ok(())
    }

    fn connect_rdma(&mut self, theirs: &Endpoint) -> Result<(), RdmaError> {
        self.rdma.as_mut().expect("it was prepared").connect(theirs)
    }

    fn send_proof(&mut self) -> Result<(), RdmaError> {
        self.rdma.as_mut().expect("it was prepared").send_proof()
    }

    /// Falls back to TCP, or fails if that was ruled out.
    fn do_without(&mut self, reason: &str) {
        (self.mapping, self.rdma) = (None, None);
        self.state = State::Finish;
        if self.agreed().no_tcp {
            let (peer, reason) = (self.dialed(), reason.to_string());
            self.failure = Some(match self.agreed().try_shm {
                true => MeshError::NoSharedMemory { peer, reason },
                false => MeshError::NoRdma { peer, reason },
            });
            self.state = State::Fail;
        }
    }

    fn agree(&mut self, context: &Context, word: &Word, peer: usize) {
        match agree(&context.terms, &word.terms, peer) {
            // Only messages take anything but TCP.
            Ok(agreement) if self.purpose != Purpose::Link => {
                self.agreement = Some(Agreement { try_shm: false, try_rdma: None, ..agreement });
            }
            Ok(agreement) => self.agreement = Some(agreement),
            // The peer knows only that there is no port; this rank knows why.
            Err(MeshError::NoRdma { peer, reason }) => {
                let why = context.ports.as_ref().err().map(ToString::to_string);
                let reason = why.unwrap_or(reason);
                self.failure = Some(MeshError::NoRdma { peer, reason });
            }
            Err(error) => self.failure = Some(error),
        }
    }

    fn agreed(&self) -> Agreement {
        self.agreement.expect("both agree before anything is confirmed")
    }

    fn dialed(&self) -> usize {
        self.peer.expect("the dialer chose its peer, and a listener's peer said hello")
    }

    fn object_name(&self, context: &Context) -> ObjectName {
        let peer = self.dialed();
        let (lower, higher) = (peer.min(context.rank), peer.max(context.rank));
        ObjectName::new(&context.instance, context.epoch, lower, higher)
    }

    /// Says whether shared memory, or this rank's end of RDMA, is there.
    fn say_offer(&mut self, context: &Context, kind: Kind) {
        let endpoint = self.rdma.as_ref().map(rdma::Setup::endpoint);
        let yes = self.mapping.is_some() || endpoint.is_some();
        self.say(context, kind, Some((yes, endpoint)));
    }

    /// `offer`: from the word [`Kind::Offer`] on, whether all is well here, and this rank's end.
    fn say(&mut self, context: &Context, kind: Kind, offer: Option<(bool, Option<Endpoint>)>) {
        let (yes, endpoint) = offer.unwrap_or_default();
        let word = Word {
            kind,
            purpose: self.purpose,
            from: context.rank as u32,
            // Only a peer of another version is answered without a name.
            to: self.peer.map_or(u32::MAX, |peer| peer as u32),
            instance: context.instance,
            epoch: context.epoch,
            nonce: if kind == Kind::Reply { self.nonces[1] } else { self.nonces[0] },
            terms: context.terms,
            yes,
            endpoint,
        };
        self.outgoing = self.transcript.say(&word);
        self.sent = 0;
    }

    /// Whether anything has come from the other side.
    pub fn is_answered(&self) -> bool {
        self.received > 0 || self.state != State::Await(Kind::Reply)
    }

    /// Time beyond a stranger's that this greeting may take: RDMA has to be proven.
    pub fn allowance(&self) -> Duration {
        if self.rdma.is_some() { 2 * rdma::PROOF_MAX } else { Duration::ZERO }
    }

    fn finish(&mut self) -> Greeted {
        Greeted {
            peer: self.dialed(),
            purpose: self.purpose,
            agreement: self.agreed(),
            stream: self.stream.take().expect("the stream is taken once"),
            mapping: self.mapping.take(),
            rdma: self.rdma.take().map(rdma::Setup::into_channel),
            nonces: self.nonces,
        }
    }
}

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).expect("the system's random source works");
    bytes
}

fn stranger(reason: &str) -> Refused {
    Refused::Stranger(reason.to_string())
}

fn epoch_error(context: &Context, peer: usize, theirs: u64) -> Refused {
    Refused::Fatal(MeshError::Epoch { peer, ours: context.epoch, theirs })
}

fn hung_up(error: LinkError) -> Refused {
    match error {
        LinkError::Lost { reason, .. } => Refused::Stranger(format!(
            "{reason} during the greeting (does it have the same secret and instance?)"
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
