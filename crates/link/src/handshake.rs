//! One greeting on one connection, from either end: a state machine over a non-blocking socket.
//!
//! The words are in [`crate::hello`], what the two ranks conclude in [`crate::agreement`]. This
//! file moves the bytes, checks who the other one is, and sets up the transport.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};

use crate::agreement::{Agreement, Terms, agree};
use crate::beats::{BeatKeys, TcpBeats};
use crate::hello::{Kind, Purpose, Transcript, Unreadable, VERSION, WORD_BYTES, Word, may_be_word};
use crate::pulse::Channel;
use crate::seal::{Cipher, Sealer};
use crate::shm::ShmLink;
use crate::shm_object::{Mapping, ObjectName};
use crate::shm_ring::{OBJECT_BYTES, ShmBeats};
use crate::socket::{read_some, write_some};
use crate::tcp::{Sealers, TcpLink};
use crate::{Delay, Link, LinkError, LinkInfo, MeshConfig, MeshError, Secret, Transport, Vital};

/// What all greetings of one mesh share.
pub(crate) struct Context {
    rank: usize,
    instance: [u8; 16],
    epoch: u64,
    secret: Secret,
    terms: Terms,
}

impl Context {
    pub fn new(config: &MeshConfig) -> Self {
        let terms = Terms {
            ranks: config.addrs.len() as u32,
            preference: config.preference,
            encryption: config.encryption,
            latency_us: config.latency.as_micros() as u32,
            host: config.host,
            aes_is_fast: Cipher::aes_is_fast(),
        };
        let secret = config.secret.clone();
        Context { rank: config.rank, instance: config.instance, epoch: config.epoch, secret, terms }
    }
}

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

/// A peer that proved itself, and how to talk to it.
pub(crate) struct Greeted {
    pub peer: usize,
    pub purpose: Purpose,
    agreement: Agreement,
    stream: TcpStream,
    mapping: Option<Arc<Mapping>>,
    /// Of the dialer and of the listener: they make the keys new on every connection.
    nonces: [[u8; 32]; 2],
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
        handshake.say(context, Kind::Hello, false);
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
                self.say(context, Kind::Reply, false);
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
            Kind::Offer => self.hear_offer(context, word.shm),
            Kind::Answer => self.hear_answer(word.shm),
        }
        Ok(())
    }

    fn hear_hello(&mut self, context: &Context, word: &Word) -> Result<(), Refused> {
        let peer = word.from as usize;
        if peer <= context.rank {
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
        self.say(context, Kind::Reply, false);
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
        if !failed && self.tries_shm() {
            self.object = Some(self.object_name(context));
        }
        self.say(context, Kind::Confirm, false);
        Ok(())
    }

    fn hear_confirm(&mut self, context: &Context) -> Result<(), Refused> {
        if let Some(failure) = self.failure.take() {
            return Err(Refused::Fatal(failure));
        }
        self.state = State::Finish;
        if self.tries_shm() {
            let object = self.object_name(context);
            match Mapping::create(&object, OBJECT_BYTES) {
                Ok(mapping) => {
                    self.mapping = Some(Arc::new(mapping));
                    self.object = Some(object);
                    self.state = State::Await(Kind::Answer);
                }
                Err(error) => self.do_without_shm(error.to_string()),
            }
        }
        self.say(context, Kind::Offer, self.mapping.is_some());
        Ok(())
    }

    fn hear_offer(&mut self, context: &Context, offered: bool) {
        self.state = State::Finish;
        if !offered {
            if self.tries_shm() {
                self.do_without_shm("it could not make the shared object".to_string());
            }
            return;
        }
        match Mapping::open(&self.object_name(context), OBJECT_BYTES) {
            Ok(mapping) => self.mapping = Some(Arc::new(mapping)),
            Err(error) => self.do_without_shm(error.to_string()),
        }
        self.say(context, Kind::Answer, self.mapping.is_some());
    }

    fn hear_answer(&mut self, mapped: bool) {
        self.object = None;
        self.state = State::Finish;
        if !mapped {
            self.mapping = None;
            self.do_without_shm("it could not map the shared object".to_string());
        }
    }

    /// Falls back to TCP, or fails if that was ruled out.
    fn do_without_shm(&mut self, reason: String) {
        if self.agreed().only_shm {
            let peer = self.dialed();
            self.failure = Some(MeshError::NoSharedMemory { peer, reason });
            self.state = State::Fail;
        }
    }

    fn agree(&mut self, context: &Context, word: &Word, peer: usize) {
        match agree(&context.terms, &word.terms, peer) {
            Ok(agreement) => self.agreement = Some(agreement),
            Err(error) => self.failure = Some(error),
        }
    }

    fn tries_shm(&self) -> bool {
        self.purpose == Purpose::Link && self.agreed().try_shm
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

    fn say(&mut self, context: &Context, kind: Kind, shm: bool) {
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
            shm,
        };
        self.outgoing = self.transcript.say(&word);
        self.sent = 0;
    }

    fn finish(&mut self) -> Greeted {
        Greeted {
            peer: self.dialed(),
            purpose: self.purpose,
            agreement: self.agreed(),
            stream: self.stream.take().expect("the stream is taken once"),
            mapping: self.mapping.take(),
            nonces: self.nonces,
        }
    }
}

impl Greeted {
    /// Where the beats of a pair go that shares memory; the others need a connection for them.
    pub fn shm_beats(&self, config: &MeshConfig) -> Option<Box<dyn Channel>> {
        let mapping = self.mapping.clone()?;
        Some(Box::new(ShmBeats::new(mapping, config.rank < self.peer)))
    }

    /// Where the beats go, on a connection that was made for them.
    pub fn into_beats(self, config: &MeshConfig) -> Box<dyn Channel> {
        let key = |from, to| {
            config.secret.derive("sinew link 2026 beats", &direction(config, from, to, self.nonces))
        };
        let keys =
            BeatKeys { send: key(config.rank, self.peer), recv: key(self.peer, config.rank) };
        Box::new(TcpBeats::new(self.stream, keys))
    }

    /// The link over the transport that was agreed.
    pub fn into_link(self, config: &MeshConfig, vital: Vital) -> Box<dyn Link> {
        let transport = match (&self.mapping, self.agreement.cipher) {
            (Some(_), _) => Transport::Shm,
            (None, Some(_)) => Transport::Tcp,
            (None, None) => Transport::TcpPlain,
        };
        let info = LinkInfo { peer: self.peer, transport, same_host: self.agreement.same_host };
        let lower = config.rank < self.peer;
        let link: Box<dyn Link> = match self.mapping {
            Some(mapping) => {
                Box::new(ShmLink::new(info, config.epoch, lower, mapping, self.stream, vital))
            }
            None => {
                let cipher = self.agreement.cipher;
                let sealers = cipher.map(|cipher| sealers(config, cipher, self.peer, self.nonces));
                Box::new(TcpLink::new(info, config.epoch, self.stream, sealers, vital))
            }
        };
        match self.agreement.latency_us {
            0 => link,
            latency_us => Box::new(Delay::new(link, Duration::from_micros(latency_us.into()))),
        }
    }
}

/// The keys of both directions.
fn sealers(config: &MeshConfig, cipher: Cipher, peer: usize, nonces: [[u8; 32]; 2]) -> Sealers {
    let key = |from: usize, to: usize| {
        let context = direction(config, from, to, nonces);
        Sealer::new(cipher, &config.secret.derive("sinew link 2026 frames", &context))
    };
    Sealers { send: key(config.rank, peer), recv: key(peer, config.rank) }
}

/// All that makes one direction of one connection unique, for its key.
fn direction(
    config: &MeshConfig,
    from: usize,
    to: usize,
    [dialer_nonce, listener_nonce]: [[u8; 32]; 2],
) -> Vec<u8> {
    let mut context = Vec::with_capacity(104);
    context.extend_from_slice(&config.instance);
    context.extend_from_slice(&config.epoch.to_le_bytes());
    context.extend_from_slice(&(from as u64).to_le_bytes());
    context.extend_from_slice(&(to as u64).to_le_bytes());
    context.extend_from_slice(&dialer_nonce);
    context.extend_from_slice(&listener_nonce);
    context
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
