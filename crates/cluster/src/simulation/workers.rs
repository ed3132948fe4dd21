//! Worker processes that answer without a model: an answer follows from the request, as with real
//! workers. They link, lose links and fail like real ones.

use std::collections::BTreeMap;

use protocol::{
    FinishReason, GenerateRequest, Generation, RequestId, Secret, Token, WorkerCommand,
    WorkerEvent, ring_pairs,
};

use super::*;
use crate::context::WorkerNews;
use crate::context::{ProcessId, Start};
use crate::wire::WorkerOrder;

/// A rank that is silent for `SILENCE_MS` is lost; one that does not link within `LINK_MS` is
/// reported.
const SILENCE_MS: u64 = 3000;
const LINK_MS: u64 = 10_000;

pub(super) enum What {
    Runs,
    Loaded,
    /// Checks whether all ranks of its epoch are present: the epoch, and the time of the first
    /// check.
    Link(u64, u64),
    Step,
}

pub(super) struct Process {
    pub node: usize,
    pub key: ProcessId,
    pub order: WorkerOrder,
    /// It runs, and its daemon knows that.
    pub runs: bool,
    /// Epoch, ports of all ranks and secret of the last `Connect`.
    epoch: Option<(u64, Vec<u16>, Secret)>,
    /// Whether only the links of a ring are built.
    ring: bool,
    linked: bool,
    running: BTreeMap<RequestId, GenerateRequest>,
    steps: bool,
    /// Time of arrival of its last event.
    said_at: u64,
}

fn port(pid: u32) -> u16 {
    1000 + (pid % 60_000) as u16
}

/// The whole answer to a prompt, and its finish reason.
pub(super) fn answer(request: &GenerateRequest) -> (Vec<Token>, FinishReason) {
    let mut last = request.sampling.seed ^ u64::from(request.prompt[0]) << 32;
    let mut next = || {
        last = last.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        last >> 33
    };
    let stops_at = 1 + next() as usize % (2 * request.max_tokens);
    let reason =
        if stops_at < request.max_tokens { FinishReason::Stop } else { FinishReason::Length };
    let tokens = (0..stops_at.min(request.max_tokens)).map(|_| next() as Token % 1000).collect();
    (tokens, reason)
}

impl World {
    pub(super) fn start_process(&mut self, node: usize, start: Start) {
        let key = start.process;
        let fails = self.faults.workers_fail && self.random.u64(..60) == 0;
        if start.refusal.is_some() || fails {
            let started = Err(std::io::Error::other("no room"));
            let us = self.random.u64(..10 * MS);
            return self.tell(node, us, Event::WorkerStarted { process: key, started });
        }
        self.pids += 1;
        let pid = self.pids;
        self.trace(|| format!("n{node} starts worker {pid} as {key:?}"));
        let process = Process {
            node,
            key,
            order: start.order,
            runs: false,
            epoch: None,
            ring: false,
            linked: false,
            running: BTreeMap::new(),
            steps: false,
            said_at: 0,
        };
        self.processes.insert(pid, process);
        let us = MS + self.random.u64(..30 * MS);
        self.after(us, Todo::Worker { pid, what: What::Runs });
    }

    pub(super) fn ranks_on(&self, node: usize) -> u64 {
        self.processes.values().filter(|process| process.node == node).count() as u64
    }

    /// Reports a worker's event, in order.
    fn say(&mut self, pid: u32, event: WorkerEvent) {
        let us = 100 + self.random.u64(..MS);
        let now = self.now;
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.said_at = process.said_at.max(now) + us;
        let (node, key, us) = (process.node, process.key, process.said_at - now);
        self.tell(node, us, Event::Worker { process: key, news: WorkerNews::Event(event) });
    }

    pub(super) fn worker(&mut self, pid: u32, what: What) {
        let Some(node) = self.processes.get(&pid).map(|process| process.node) else { return };
        if self.is_frozen(node) {
            let until = self.machines[node].frozen.as_ref().map_or(0, |time| time.end);
            return self.after(until - self.now, Todo::Worker { pid, what });
        }
        let Some(process) = self.processes.get_mut(&pid) else { return };
        match what {
            What::Runs => {
                let key = process.key;
                process.runs = true;
                self.tell(node, 0, Event::WorkerStarted { process: key, started: Ok(pid) });
                self.say(pid, WorkerEvent::Listening { port: port(pid), more: Vec::new() });
                let us = 20 * MS + self.random.u64(..2000 * MS);
                self.after(us, Todo::Worker { pid, what: What::Loaded });
            }
            What::Loaded if self.faults.never_loaded => {
                let done_bytes = self.now / (1000 * MS);
                let (total_bytes, arrived_bytes) = (u64::MAX, 0);
                self.say(pid, WorkerEvent::Loading { done_bytes, total_bytes, arrived_bytes });
                self.after(1000 * MS, Todo::Worker { pid, what: What::Loaded });
            }
            What::Loaded => {
                self.checks.loads += 1;
                self.say(
                    pid,
                    WorkerEvent::Loaded {
                        weight_bytes: 1,
                        kv_bytes: 1,
                        buffer_bytes: 1,
                        load_us: 1,
                    },
                );
            }
            What::Link(epoch, since) => self.link(pid, epoch, since),
            What::Step => self.step_worker(pid),
        }
    }

    pub(super) fn command(&mut self, node: usize, key: ProcessId, command: WorkerCommand) {
        let mut all = self.processes.iter();
        let is_it = |process: &Process| process.node == node && process.key == key;
        let Some(pid) = all.find(|(_, process)| is_it(process)).map(|(pid, _)| *pid) else {
            return;
        };
        self.check_command(pid, &command);
        let Some(process) = self.processes.get_mut(&pid) else { return };
        match command {
            WorkerCommand::Connect { epoch, endpoints, secret, ring, .. } => {
                let port = |addresses: &Vec<SocketAddr>| addresses.last().map_or(0, |a| a.port());
                process.epoch = Some((epoch, endpoints.iter().map(port).collect(), secret));
                (process.ring, process.linked) = (ring, false);
                process.running.clear();
                let us = MS + self.random.u64(..5 * MS);
                let what = What::Link(epoch, self.now);
                self.after(us, Todo::Worker { pid, what });
            }
            WorkerCommand::Disconnect => {
                process.epoch = None;
                process.linked = false;
                process.running.clear();
            }
            WorkerCommand::Generate { request, generate } => {
                if process.linked {
                    process.running.insert(request, *generate);
                    if !std::mem::replace(&mut process.steps, true) {
                        self.after(30 * MS, Todo::Worker { pid, what: What::Step });
                    }
                }
            }
            WorkerCommand::Cancel { request } => {
                if let Some(generate) = process.running.remove(&request) {
                    self.finish(pid, request, &generate, FinishReason::Cancelled);
                }
            }
            WorkerCommand::Open(_) => {}
            WorkerCommand::Called | WorkerCommand::CalledBy { .. } => {}
        }
    }

    /// The processes of an epoch's ranks as seen by one of them; `None` for a missing one.
    fn ranks(&self, pid: u32) -> Vec<Option<u32>> {
        let Some(process) = self.processes.get(&pid) else { return Vec::new() };
        let Some((epoch, ports, secret)) = &process.epoch else { return Vec::new() };
        let of = (&process.order.instance, &process.order.split);
        let rank = |(rank, at): (usize, &u16)| {
            let is_it = |(pid, other): &(&u32, &Process)| {
                port(**pid) == *at
                    && other.order.rank == rank
                    && (&other.order.instance, &other.order.split) == of
                    && other.epoch.as_ref().is_some_and(|(e, _, s)| (e, s) == (epoch, secret))
            };
            self.processes.iter().find(is_it).map(|(pid, _)| *pid)
        };
        ports.iter().enumerate().map(rank).collect()
    }

    /// Whether a rank of an epoch has a link to another one.
    fn needs_link(&self, pid: u32, other: usize) -> bool {
        let Some(Process { order, ring, .. }) = self.processes.get(&pid) else { return false };
        let (ranks, pair) =
            (order.split.shares.len(), (order.rank.min(other), order.rank.max(other)));
        order.rank == other || !ring || ring_pairs(ranks, &order.split.stages).contains(&pair)
    }

    /// Since when two nodes' workers do not reach each other, if so.
    fn apart_since(&self, a: usize, b: usize) -> Option<u64> {
        let cut = |from, to| self.network.is_cut(from, to, self.now).map(|cut| cut.start);
        let frozen = self.machines[b].frozen.as_ref().filter(|time| time.contains(&self.now));
        let frozen = frozen.map(|time| time.start);
        if a == b { frozen } else { cut(a, b).into_iter().chain(cut(b, a)).chain(frozen).min() }
    }

    fn link(&mut self, pid: u32, epoch: u64, since: u64) {
        let Some(process) = self.processes.get(&pid) else { return };
        let is_current = process.epoch.as_ref().is_some_and(|(its, ..)| *its == epoch);
        if !is_current || process.linked {
            return;
        }
        let (node, ranks) = (process.node, self.ranks(pid));
        let reached = |rank: &Option<u32>| {
            let other = rank.and_then(|pid| self.processes.get(&pid));
            other.is_some_and(|other| self.apart_since(node, other.node).is_none())
        };
        let missing =
            (0..ranks.len()).filter(|at| self.needs_link(pid, *at) && !reached(&ranks[*at]));
        let missing: Vec<usize> = missing.collect();
        if missing.is_empty() {
            self.processes.get_mut(&pid).expect("it was there").linked = true;
            self.say(pid, WorkerEvent::Linked { epoch, notes: Vec::new() });
        } else if self.now >= since + LINK_MS * MS {
            let (rank, reason) = (missing.first().copied(), "it did not link".to_owned());
            self.processes.get_mut(&pid).expect("it was there").epoch = None;
            self.say(pid, WorkerEvent::Lost { epoch, rank, reason, unreached: missing });
        } else {
            self.after(20 * MS, Todo::Worker { pid, what: What::Link(epoch, since) });
        }
    }

    /// Workers whose links are broken or silent for too long report that, and keep their shards.
    pub(super) fn check_links(&mut self) {
        let linked: Vec<u32> =
            self.processes.iter().filter(|(_, p)| p.linked).map(|(pid, _)| *pid).collect();
        for pid in linked {
            let process = &self.processes[&pid];
            let node = process.node;
            if self.is_frozen(node) {
                continue;
            }
            let Some((epoch, ..)) = process.epoch else { continue };
            let is_lost = |rank: &Option<u32>| match rank.and_then(|p| self.processes.get(&p)) {
                None => true,
                Some(other) => self
                    .apart_since(node, other.node)
                    .is_some_and(|since| self.now >= since + SILENCE_MS * MS),
            };
            let ranks = self.ranks(pid);
            let lost = |at: &usize| self.needs_link(pid, *at) && is_lost(&ranks[*at]);
            if let Some(rank) = (0..ranks.len()).find(lost) {
                let process = self.processes.get_mut(&pid).expect("it was there");
                (process.epoch, process.linked) = (None, false);
                process.running.clear();
                let (rank, reason) = (Some(rank), "its link closed".to_owned());
                self.say(pid, WorkerEvent::Lost { epoch, rank, reason, unreached: Vec::new() });
            }
        }
    }

    /// Whether a rank is present and reaches all ranks that it has links to.
    fn takes_part(&self, ranks: &[Option<u32>], at: usize) -> bool {
        let process = |at: usize| ranks[at].and_then(|pid| self.processes.get(&pid));
        let (Some(pid), Some(own)) = (ranks[at], process(at)) else { return false };
        let reaches = |other: usize| {
            process(other).is_some_and(|other| self.apart_since(own.node, other.node).is_none())
        };
        (0..ranks.len()).all(|other| !self.needs_link(pid, other) || reaches(other))
    }

    /// One token for each request, if all ranks take part.
    fn step_worker(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if process.running.is_empty() {
            process.steps = false;
            return;
        }
        let ranks = self.ranks(pid);
        if (0..ranks.len()).all(|at| self.takes_part(&ranks, at)) {
            let process = self.processes.get_mut(&pid).expect("it was there");
            for (request, mut generate) in std::mem::take(&mut process.running) {
                let (tokens, reason) = answer(&generate);
                let at = generate.answered.len();
                match tokens.get(at) {
                    Some(token) => {
                        generate.answered.push(*token);
                        self.say(pid, WorkerEvent::Token { request, answer: (*token).into() });
                        let process = self.processes.get_mut(&pid).expect("it was there");
                        process.running.insert(request, generate);
                    }
                    None => self.finish(pid, request, &generate, reason),
                }
            }
        }
        let us = 20 * MS + self.random.u64(..80 * MS);
        self.after(us, Todo::Worker { pid, what: What::Step });
    }

    fn finish(
        &mut self,
        pid: u32,
        request: RequestId,
        generate: &GenerateRequest,
        reason: FinishReason,
    ) {
        let generation = Generation {
            request,
            reason,
            prompt_tokens: generate.prompt.len(),
            generated_tokens: generate.answered.len(),
            answered_tokens: 0,
            cached_tokens: 0,
            guesses: protocol::Guesses::default(),
            queue_us: 0,
            prefill_us: 1,
            decode_us: 1,
            waits_us: Vec::new(),
            embedding: None,
        };
        self.say(pid, WorkerEvent::Done(generation));
    }

    /// Ends a running process; one that does not run yet is ended at its start.
    pub(super) fn end_process(&mut self, node: usize, key: ProcessId) {
        let mut all = self.processes.iter();
        let found = all.find(|(_, p)| p.node == node && p.key == key && p.runs);
        let Some((pid, _)) = found else { return };
        self.kill_process(*pid, "exited with status 0");
    }

    /// Kills a process; its daemon receives the exit, and the other ranks detect it at their next
    /// check.
    pub(super) fn kill_process(&mut self, pid: u32, how: &str) {
        let us = 500 + self.random.u64(..100 * MS);
        let Some(process) = self.processes.remove(&pid) else { return };
        self.trace(|| format!("n{} worker {pid} ends: {how}", process.node));
        let us = us.max(process.said_at.saturating_sub(self.now) + 1);
        let (node, key, news) = (process.node, process.key, WorkerNews::Exited { how: how.into() });
        self.tell(node, us, Event::Worker { process: key, news });
    }

    /// The workers of a node end with its daemon.
    pub(super) fn lose_processes(&mut self, node: usize) {
        self.processes.retain(|_, process| process.node != node);
    }
}
