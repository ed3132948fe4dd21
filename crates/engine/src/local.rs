//! All ranks of an instance as threads of this process, over real links: what the tools for
//! developers and the benchmarks run on.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use gguf::Source;
use link::Listener;
use protocol::{Sampling, Token, Transport};

use crate::comm::{Comm, Meeting};
use crate::cpus::own_cpus;
use crate::step::StepSegment;
use crate::{EngineError, Rank, RankOptions, Sampler, Step};

#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// The share of each rank; its length is the number of ranks.
    pub shares: Vec<u32>,
    pub transport: Transport,
    /// Added to every message between ranks.
    pub link_latency: Duration,
    /// Threads of each rank, pinned one to a CPU where there are enough.
    pub threads: usize,
    pub context_tokens: usize,
}

/// One sequence on a model that is split over threads of this process.
pub struct Local {
    rank: Rank,
    comm: Comm,
    position: usize,
    abort: Arc<AtomicBool>,
    followers: Vec<JoinHandle<()>>,
}

impl Local {
    /// Loads all ranks and links them.
    ///
    /// # Errors
    /// A rank cannot be loaded or linked.
    pub fn start(source: Arc<dyn Source>, options: &LocalOptions) -> Result<Self, EngineError> {
        let ranks = options.shares.len();
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listeners = (0..ranks).map(|_| Listener::bind(any_port));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let endpoints: Vec<SocketAddr> = listeners.iter().map(Listener::addr).collect();
        let abort = Arc::new(AtomicBool::new(false));
        let mut starts = listeners.into_iter().enumerate().map(|(rank, listener)| Start {
            rank,
            listener,
            endpoints: endpoints.clone(),
            options: options.clone(),
            source: source.clone(),
            abort: abort.clone(),
        });
        let Some(first) = starts.next() else {
            return Err(EngineError::Model(model::SplitError::Ranks { found: 0 }.into()));
        };
        let followers: Vec<_> = starts.map(spawn_follower).collect();
        match first.start() {
            Ok((rank, comm)) => Ok(Self { rank, comm, position: 0, abort, followers }),
            Err(error) => {
                abort.store(true, Ordering::Release);
                followers.into_iter().for_each(join);
                Err(error)
            }
        }
    }

    pub fn rank(&self) -> &Rank {
        &self.rank
    }

    /// Forgets all but the first `len` tokens of the sequence.
    pub fn truncate(&mut self, len: usize) {
        self.position = self.position.min(len);
    }

    /// Adds tokens to the sequence and returns the logits after the last, `[vocab]`.
    ///
    /// # Errors
    /// The context is full, or a rank failed.
    pub fn feed(&mut self, tokens: &[Token]) -> Result<&[f32], EngineError> {
        let limits = self.rank.limits();
        if tokens.is_empty() {
            return Err(crate::Refused::Empty.into());
        }
        if self.position + tokens.len() > limits.context_tokens {
            let (prompt, context) = (self.position + tokens.len(), limits.context_tokens);
            return Err(crate::Refused::TooLong { prompt, context }.into());
        }
        let chunks = tokens.chunks(limits.rows_max);
        let last = chunks.len() - 1;
        for (at, chunk) in chunks.enumerate() {
            let segment = StepSegment {
                slot: 0,
                first_position: self.position,
                rows: chunk.len(),
                output: at == last,
            };
            self.rank.lead(&mut self.comm, &Step { segments: vec![segment] }, chunk)?;
            self.position += chunk.len();
        }
        Ok(self.rank.logits())
    }

    /// Adds `prompt` and returns the `count` likeliest tokens that follow, one by one.
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub fn generate(&mut self, prompt: &[Token], count: usize) -> Result<Vec<Token>, EngineError> {
        let mut sampler = Sampler::default();
        let mut generated = Vec::with_capacity(count);
        let mut next = prompt.to_vec();
        for _ in 0..count {
            let position = self.position + next.len();
            let logits = self.feed(&next)?;
            let token = sampler.sample(logits, &Sampling::default(), position)?;
            generated.push(token);
            next = vec![token];
        }
        Ok(generated)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.abort.store(true, Ordering::Release);
        self.followers.drain(..).for_each(join);
    }
}

/// A follower's own errors reach rank 0 as a lost rank; there is nothing else to learn from it.
fn join(follower: JoinHandle<()>) {
    let _ = follower.join();
}

/// What one rank needs to start.
struct Start {
    rank: usize,
    listener: Listener,
    endpoints: Vec<SocketAddr>,
    options: LocalOptions,
    source: Arc<dyn Source>,
    abort: Arc<AtomicBool>,
}

impl Start {
    fn start(self) -> Result<(Rank, Comm), EngineError> {
        let LocalOptions { shares, transport, link_latency, threads, context_tokens } =
            self.options;
        let rank_options = RankOptions {
            rank: self.rank,
            cpus: own_cpus(self.rank, shares.len(), threads),
            shares,
            context_tokens,
            sequences_max: 1,
            threads,
        };
        let rank = Rank::load(self.source, &rank_options, &mut |_| {})?;
        let meeting = Meeting {
            instance: "local",
            epoch: 1,
            rank: self.rank,
            endpoints: self.endpoints,
            // Nobody but these threads learns of the ports, and the links still seal their frames.
            secret: [0x5e; 32],
            transport,
            latency: link_latency,
            message_bytes_max: rank.limits().message_bytes_max(),
        };
        let leaves = |product| rank.leaves(product);
        let comm = Comm::connect(&meeting, &self.listener, leaves, self.abort)?;
        Ok((rank, comm))
    }
}

fn spawn_follower(start: Start) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let abort = start.abort.clone();
        let ended = start.start().and_then(|(mut rank, mut comm)| {
            loop {
                rank.follow(&mut comm)?;
            }
        });
        let Err::<(), _>(error) = ended else { return };
        if !abort.load(Ordering::Acquire) {
            eprintln!("a local rank failed: {error}");
            abort.store(true, Ordering::Release);
        }
    })
}
