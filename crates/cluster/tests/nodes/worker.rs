//! A worker with real pipes and real links but no model: it counts instead of computing.
//!
//! The answer to a prompt that starts with token `n` is `n, n + 1, n + 2, ...`, one token every few
//! milliseconds. Some prompts and modes make it fail like real workers.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use gguf::Source;
use protocol::{
    FailureKind, FinishReason, GenerateRequest, Generation, ModelSource, RequestId, WorkerCommand,
    WorkerEvent, WorkerSpec, frame, ring_peers,
};

/// A prompt that starts with this ends the worker, as a lack of memory does.
pub const PROMPT_EXIT: u32 = 9001;
/// A prompt that starts with this is rejected.
pub const PROMPT_REJECT: u32 = 9002;
/// A worker started in this mode never loads.
pub const MODE_BROKEN: &str = "broken";
pub const MODE_WELL: &str = "well";
/// Two workers started in this mode do not link with each other.
pub const MODE_SHY: &str = "shy";

/// Added to the rank in a shy worker's call.
const SHY: u64 = 1 << 32;

// Short: the pace of a worker that computes nothing.
const STEP: Duration = Duration::from_millis(5);

enum Input {
    WorkerCommand(Box<WorkerCommand>),
    /// The daemon has closed this worker's input.
    End,
    /// Another rank has called: its epoch, its rank.
    Called(u64, usize, TcpStream),
    /// The epoch, the rank, and whether that rank refuses a link with this one.
    LinkLost(u64, usize, bool),
}

struct Worker {
    spec: WorkerSpec,
    is_shy: bool,
    inputs: Sender<Input>,
    epoch: u64,
    linked: bool,
    links: HashMap<usize, TcpStream>,
    /// The ranks to link with.
    peers: Vec<usize>,
    /// Calls of an epoch whose `Connect` has not arrived yet.
    early: Vec<(u64, usize, TcpStream)>,
    running: Vec<Running>,
}

struct Running {
    request: RequestId,
    generate: GenerateRequest,
    sent: usize,
    started: Instant,
}

/// It always listens itself: its messages to other ranks are not those of real ranks.
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The main function of a worker process.
pub fn main(mode: &str) {
    // In one line, because a worker's last line counts as its reason.
    std::panic::set_hook(Box::new(|panic| eprintln!("{}", panic.to_string().replace('\n', " "))));
    let mut stdin = std::io::stdin();
    let Ok(WorkerCommand::Open(spec)) = frame::read(&mut stdin) else { return };
    if mode == MODE_BROKEN {
        eprintln!("tensor blk.0.attn_q.weight is missing");
        std::process::exit(3);
    }
    let (inputs, inbox) = mpsc::channel();
    let listener = TcpListener::bind((spec.bind.unwrap_or(ANY), 0)).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    say(&WorkerEvent::Listening { port, more: Vec::new() });
    load(&spec);
    let calls = inputs.clone();
    std::thread::spawn(move || accept(&listener, &calls));
    let commands = inputs.clone();
    std::thread::spawn(move || {
        while let Ok(command) = frame::read(&mut stdin) {
            let _ = commands.send(Input::WorkerCommand(Box::new(command)));
        }
        let _ = commands.send(Input::End);
    });
    let (links, peers, early, running) = (HashMap::new(), Vec::new(), Vec::new(), Vec::new());
    let (epoch, linked, is_shy) = (0, false, mode == MODE_SHY);
    Worker { spec: *spec, is_shy, inputs, epoch, linked, links, peers, early, running }.run(&inbox);
}

/// Reads the model's header, from this machine or from a peer, and claims to have read the rest.
fn load(spec: &WorkerSpec) {
    let directory = match &spec.model {
        ModelSource::File { path, .. } => {
            gguf::File::open(path).expect("a model").directory().clone()
        }
        ModelSource::Peer { relay, token } => {
            let (address, token, arrived) = (*relay, token.0, Default::default());
            let relay = store::RelayAddress { address, token, arrived };
            let peer = store::PeerFile::connect(&relay).expect("the relay works");
            peer.directory().clone()
        }
    };
    let tensors = directory.tensors();
    let total: u64 = tensors.iter().map(|tensor| tensor.range.end - tensor.range.start).sum();
    let shares: u32 = spec.split.shares.iter().sum();
    let mine = total * u64::from(spec.split.shares[spec.rank]) / u64::from(shares);
    say(&WorkerEvent::Loading { done_bytes: mine / 2, total_bytes: mine, arrived_bytes: 0 });
    let (kv_bytes, buffer_bytes) = (1 << 20, 1 << 10);
    say(&WorkerEvent::Loaded { weight_bytes: mine, kv_bytes, buffer_bytes, load_us: 1000 });
}

fn say(event: &WorkerEvent) {
    // A closed pipe means that the daemon is gone; the end of the input shows that too.
    let _ = frame::write(&mut std::io::stdout().lock(), event);
}

fn accept(listener: &TcpListener, calls: &Sender<Input>) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        let mut hello = [0; 16];
        if stream.read_exact(&mut hello).is_ok() {
            let (epoch, rank) = hello.split_at(8);
            let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            let _ = calls.send(Input::Called(number(epoch), number(rank) as usize, stream));
        }
    }
}

impl Worker {
    fn run(mut self, inbox: &Receiver<Input>) {
        loop {
            match inbox.recv_timeout(STEP) {
                Ok(Input::WorkerCommand(command)) => self.command(*command),
                Ok(Input::End) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Input::Called(epoch, rank, stream)) => {
                    self.early.push((epoch, rank, stream));
                    self.take_early();
                }
                Ok(Input::LinkLost(epoch, rank, refused)) => {
                    if epoch == self.epoch && self.links.contains_key(&rank) {
                        let unreached = if refused { vec![rank] } else { vec![] };
                        self.end_epoch();
                        let reason = "its link closed".to_owned();
                        say(&WorkerEvent::Lost { epoch, rank: Some(rank), reason, unreached });
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.step(),
            }
        }
    }

    fn command(&mut self, command: WorkerCommand) {
        match command {
            WorkerCommand::Open(_) => {}
            WorkerCommand::Called | WorkerCommand::CalledBy { .. } => {}
            WorkerCommand::Connect { epoch, endpoints, ring, .. } => {
                self.connect(epoch, &endpoints, ring);
            }
            WorkerCommand::Disconnect => self.end_epoch(),
            WorkerCommand::Generate { request, generate } => self.generate(request, *generate),
            WorkerCommand::Cancel { request } => {
                let at = self.running.iter().position(|running| running.request == request);
                if let Some(at) = at {
                    let running = self.running.remove(at);
                    finish(&running, FinishReason::Cancelled);
                }
            }
        }
    }

    /// Every rank calls the ranks below it and is called by those above.
    fn connect(&mut self, epoch: u64, endpoints: &[Vec<SocketAddr>], ring: bool) {
        self.end_epoch();
        self.epoch = epoch;
        let (ranks, own) = (endpoints.len(), self.spec.rank);
        self.peers = match ring {
            true => ring_peers(ranks, &self.spec.split.stages, own),
            false => (0..ranks).filter(|rank| *rank != own).collect(),
        };
        let name = own as u64 + if self.is_shy { SHY } else { 0 };
        for rank in self.peers.clone().into_iter().filter(|rank| *rank < own) {
            let endpoint = &endpoints[rank];
            let hello = [epoch.to_le_bytes(), name.to_le_bytes()].concat();
            let call = TcpStream::connect(endpoint[0]).and_then(|mut stream| {
                stream.write_all(&hello)?;
                Ok(stream)
            });
            match call {
                Ok(stream) => self.add_link(rank, stream),
                Err(error) => {
                    let reason = format!("calling {endpoint:?} failed: {error}");
                    return say(&WorkerEvent::Lost {
                        epoch,
                        rank: Some(rank),
                        reason,
                        unreached: vec![],
                    });
                }
            }
        }
        self.take_early();
    }

    fn take_early(&mut self) {
        let epoch = self.epoch;
        self.early.retain(|(called, _, _)| *called >= epoch);
        let (now, later) = std::mem::take(&mut self.early)
            .into_iter()
            .partition(|(called, _, _)| *called == epoch);
        self.early = later;
        for (_, name, mut stream) in now as Vec<(u64, usize, TcpStream)> {
            let (rank, is_shy) = (name % SHY as usize, name >= SHY as usize);
            if is_shy && self.is_shy {
                let _ = stream.write_all(&[0]);
                let reason = "no way".to_owned();
                say(&WorkerEvent::Lost { epoch, rank: Some(rank), reason, unreached: vec![rank] });
                continue;
            }
            self.add_link(rank, stream);
        }
        if !self.linked && self.epoch > 0 && self.links.len() == self.peers.len() {
            self.linked = true;
            say(&WorkerEvent::Linked { epoch: self.epoch, notes: Vec::new() });
        }
    }

    fn add_link(&mut self, rank: usize, stream: TcpStream) {
        let mut reading = stream.try_clone().expect("another handle");
        self.links.insert(rank, stream);
        let (inputs, epoch) = (self.inputs.clone(), self.epoch);
        std::thread::spawn(move || {
            let refused = matches!(reading.read(&mut [0]), Ok(1));
            let _ = inputs.send(Input::LinkLost(epoch, rank, refused));
        });
    }

    fn end_epoch(&mut self) {
        self.linked = false;
        self.running.clear();
        for (_, link) in self.links.drain() {
            let _ = link.shutdown(Shutdown::Both);
        }
    }

    fn generate(&mut self, request: RequestId, generate: GenerateRequest) {
        match generate.prompt[0] {
            PROMPT_EXIT => {
                let reason = "no memory: 12 GiB are needed, 8 GiB are free".to_owned();
                say(&WorkerEvent::Failed { reason });
                std::process::exit(1);
            }
            PROMPT_REJECT => {
                say(&WorkerEvent::Rejected {
                    request,
                    kind: FailureKind::Invalid,
                    reason: "not today".to_owned(),
                });
            }
            _ => {
                let (sent, started) = (generate.answered.len(), Instant::now());
                self.running.push(Running { request, generate, sent, started });
            }
        }
    }

    fn step(&mut self) {
        for running in &mut self.running {
            let token = running.generate.prompt[0] + running.sent as u32;
            running.sent += 1;
            say(&WorkerEvent::Token { request: running.request, answer: token.into() });
        }
        let (done, left) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(|running| running.sent >= running.generate.max_tokens);
        self.running = left;
        for running in done as Vec<Running> {
            finish(&running, FinishReason::Length);
        }
    }
}

fn finish(running: &Running, reason: FinishReason) {
    say(&WorkerEvent::Done(Generation {
        request: running.request,
        reason,
        prompt_tokens: running.generate.prompt.len(),
        generated_tokens: running.sent,
        answered_tokens: 0,
        cached_tokens: 0,
        guesses: Default::default(),
        queue_us: 0,
        prefill_us: 1,
        decode_us: running.started.elapsed().as_micros() as u64,
        waits_us: Vec::new(),
        embedding: None,
    }));
}
