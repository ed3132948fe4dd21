//! The invariants of a run, and the conditions once the faults are over.
//!
//! - A stream never contradicts what was sent, and never ends as complete when it is not: the
//!   clients check that.
//! - Only the maker of a claim orders workers under it; no worker runs on under a claim that its
//!   node knows to be superseded; a worker's epochs only grow.
//! - A confirmed change lasts: a later change may replace it, an earlier one never.

use std::collections::BTreeMap;

use protocol::WorkerCommand;

use super::clients::Promise;
use super::*;
use crate::InstanceState;
use crate::desired::Version;
use crate::requests::Stream;

/// A stream that has neither ended nor advanced this long after the faults is stuck.
const STUCK_MS: u64 = 45_000;

#[derive(Default)]
pub(super) struct Checks {
    pub asked: u64,
    pub answered: u64,
    pub tokens: u64,
    /// Streams that continued after a pause.
    pub resumed: u64,
    pub abandoned: u64,
    pub ended_with_node: u64,
    pub loads: u64,
    /// Times that a loaded model became unloaded.
    pub unloads: u64,
    pub whole_after_ms_max: u64,
    failed: u64,
    /// Those of each node's clients.
    failed_at: BTreeMap<usize, u64>,
    why_failed: BTreeMap<String, u64>,
    pub promises: Vec<Promise>,
    /// The confirmed versions, by name.
    pub kept: Vec<(String, Version)>,
    /// By worker and secret.
    epochs: BTreeMap<(u32, [u8; 32]), u64>,
}

impl std::fmt::Debug for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { asked, answered, failed, abandoned, ended_with_node, .. } = self;
        let Self { tokens, resumed, loads, unloads, whole_after_ms_max, .. } = self;
        write!(
            f,
            "{asked} streams: {answered} whole, {failed} failed, {abandoned} abandoned, \
             {ended_with_node} ended with their node; {tokens} tokens, {resumed} pauses, {loads} \
             loads, {unloads} unloads; whole after at most {whole_after_ms_max} ms"
        )?;
        for (why, times) in &self.why_failed {
            write!(f, "\n{times:>8} {why}")?;
        }
        Ok(())
    }
}

impl Checks {
    pub(super) fn failed(&mut self, node: usize, reason: String) {
        self.failed += 1;
        *self.failed_at.entry(node).or_default() += 1;
        // Without names and numbers, so that reasons of one kind are counted together.
        let words = reason.split(' ').filter(|word| !word.starts_with("i-"));
        let kind = words.collect::<Vec<_>>().join(" ");
        let kind: String = kind.chars().filter(|char| !char.is_ascii_digit()).take(70).collect();
        *self.why_failed.entry(kind).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.asked += other.asked;
        self.answered += other.answered;
        self.tokens += other.tokens;
        self.resumed += other.resumed;
        self.abandoned += other.abandoned;
        self.ended_with_node += other.ended_with_node;
        self.loads += other.loads;
        self.unloads += other.unloads;
        self.failed += other.failed;
        self.whole_after_ms_max = self.whole_after_ms_max.max(other.whole_after_ms_max);
        for (why, times) in &other.why_failed {
            *self.why_failed.entry(why.clone()).or_default() += times;
        }
    }

    pub(super) fn failures(&self) -> u64 {
        self.failed
    }

    /// Failures of the clients of other nodes.
    pub(super) fn failures_without(&self, node: usize) -> u64 {
        self.failed - self.failed_at.get(&node).unwrap_or(&0)
    }
}

impl World {
    /// Runs with every tick of a node.
    pub(super) fn check_node(&mut self, node: usize) {
        let seed = self.seed;
        let Some(daemon) = &self.machines[node].daemon else { return };
        for (instance, owned) in daemon.instances.table.current() {
            let claim = owned.machine.fixed().claim;
            assert_eq!(claim.node, id(node), "seed {seed}: n{node} runs {instance} of another");
            assert!(
                daemon.host.ctx.is_current(instance, claim),
                "seed {seed}: n{node} runs on {instance}"
            );
        }
        for (key, hosted) in daemon.host.workers.all().filter(|(_, hosted)| !hosted.ending) {
            let known =
                daemon.host.ctx.desired.find(&hosted.order.instance).map(|(entry, _)| entry.claim);
            let superseded = known.is_some_and(|claim| claim > hosted.order.claim);
            let superseded = superseded && !hosted.is_orphan();
            assert!(!superseded, "seed {seed}: n{node} keeps worker {key:?} of a former owner");
        }
    }

    /// Checks a message that a node sends.
    pub(super) fn check_sent(&self, node: usize, message: &Message) {
        if let Message::Spawn { order, .. } = message {
            let (seed, claim) = (self.seed, order.claim);
            assert_eq!(claim.node, id(node), "seed {seed}: n{node} orders under a foreign claim");
        }
    }

    /// Checks a command to a worker.
    pub(super) fn check_command(&mut self, pid: u32, command: &WorkerCommand) {
        let (seed, process) = (self.seed, &self.processes[&pid]);
        if let WorkerCommand::Connect { epoch, secret, .. } = command {
            let last = self.checks.epochs.insert((pid, secret.0), *epoch).unwrap_or(0);
            assert!(*epoch > last, "seed {seed}: worker {pid} goes from epoch {last} to {epoch}");
        }
        if let WorkerCommand::Connect { .. } | WorkerCommand::Generate { .. } = command {
            let Some(daemon) = &self.machines[process.node].daemon else { return };
            let mut hosted = daemon.host.workers.all().map(|(_, hosted)| hosted);
            let hosted = hosted.find(|hosted| hosted.process == process.key);
            let claim = hosted.expect("it is commanded").order.claim;
            let found = daemon.host.ctx.desired.find(&process.order.instance);
            let superseded = found.is_some_and(|(entry, _)| entry.claim > claim);
            assert!(!superseded, "seed {seed}: worker {pid} obeys a former owner");
        }
    }

    /// Whether the cluster is whole again; the error names what is missing.
    pub(super) fn is_whole(&self) -> std::result::Result<(), String> {
        if let Some(node) = self.nodes().find(|node| self.is_frozen(*node)) {
            return Err(format!("n{node} is still frozen"));
        }
        let daemons: Vec<&Core> =
            self.machines.iter().filter_map(|machine| machine.daemon.as_ref()).collect();
        let document = daemons[0].host.ctx.desired.document();
        for (node, daemon) in daemons.iter().enumerate() {
            let reached = daemon.host.ctx.membership.reachable().count();
            if reached + 1 < daemons.len() {
                return Err(format!("n{node} reaches {reached} of {}", daemons.len() - 1));
            }
            if daemon.host.ctx.desired.document() != document {
                return Err(format!("n{node} has another document than n0"));
            }
            self.are_instances_whole(node, daemon)?;
        }
        for (name, version) in &self.checks.kept {
            let known = document.entries.iter().find(|entry| entry.name == *name);
            if known.is_none_or(|entry| entry.version < *version) {
                return Err(format!("{name} in version {version:?} is forgotten"));
            }
        }
        let stuck = self.clients.iter().find(|c| self.now > c.asked_at + STUCK_MS * MS);
        if let Some(client) = stuck {
            return Err(format!("a stream of n{} neither ends nor goes on", client.node));
        }
        Ok(())
    }

    fn are_instances_whole(&self, node: usize, daemon: &Core) -> std::result::Result<(), String> {
        for (entry, wanted) in daemon.host.ctx.desired.wanted() {
            let name = &entry.name;
            let owned = daemon.instances.table.get(&wanted.id);
            if entry.owner() != id(node) {
                continue;
            }
            // Without the file it waits for it, while another replica answers.
            let lacks_file = !self.machines[node].files.contains(&wanted.digest);
            let has_others = !daemon.host.ctx.desired.other_replicas(&wanted.id).is_empty();
            match owned.map(|owned| owned.machine.state()) {
                None if entry.unloaded || (lacks_file && has_others) => {}
                Some(InstanceState::Ready) => {}
                other => return Err(format!("{name} of n{node} is {other:?}")),
            }
        }
        for (key, hosted) in daemon.host.workers.all().filter(|(_, hosted)| !hosted.ending) {
            if !daemon.host.ctx.is_current(&hosted.order.instance, hosted.order.claim) {
                return Err(format!("worker {key:?} on n{node} is of no instance"));
            }
        }
        let streams = self.clients.iter().filter(|client| client.node == node).count();
        let told = daemon.requests.all().filter(|stream| stream.is_of_a_client()).count();
        if told != streams {
            return Err(format!("n{node} has {told} streams for {streams} clients"));
        }
        let is_stopped =
            |stream: &Stream| daemon.host.ctx.desired.find(stream.instance()).is_none();
        if daemon.requests.all().any(is_stopped) {
            return Err(format!("a stream of n{node} has yet to hear that its model is stopped"));
        }
        Ok(())
    }

    /// Whether a drained node is empty.
    pub(super) fn is_empty(&self, node: usize) -> bool {
        let Some(daemon) = &self.machines[node].daemon else { return true };
        daemon.host.workers.all().map(|(_, hosted)| hosted).all(|hosted| hosted.ending)
            && daemon.instances.table.current().next().is_none()
    }

    /// Whether a removed node is on its own, and the others work without it.
    pub(super) fn is_removed(&self, node: usize) -> std::result::Result<(), String> {
        for other in self.nodes() {
            let Some(daemon) = &self.machines[other].daemon else { continue };
            let knows = daemon.host.ctx.membership.is_member(id(node));
            if other == node && !(daemon.host.ctx.membership.is_alone() && self.is_empty(node)) {
                return Err(format!("n{node} still has members or workers"));
            }
            if other != node && knows {
                return Err(format!("n{node} is still a member for n{other}"));
            }
            let drains = daemon.host.ctx.desired.document().drains;
            if other != node && drains.iter().any(|drain| drain.node == id(node) && drain.is_on) {
                return Err(format!("n{node} is still drained for n{other}"));
            }
            self.are_instances_whole(other, daemon)?;
        }
        Ok(())
    }

    /// What each node runs of what it owns, and where its clients' streams are.
    fn describe(&self) -> String {
        let mut lines = Vec::new();
        for (node, machine) in self.machines.iter().enumerate() {
            let Some(daemon) = &machine.daemon else { continue };
            let drained = daemon.host.ctx.desired.is_drained(id(node));
            lines.push(format!("n{node} drained: {drained}, files {:?}", machine.files));
            for (entry, wanted) in daemon.host.ctx.desired.wanted() {
                if entry.owner() == id(node) {
                    let owned = daemon.instances.table.get(&wanted.id);
                    let state = owned.map(|owned| owned.machine.state());
                    let (name, id, unloaded) = (&entry.name, &wanted.id, entry.unloaded);
                    lines.push(format!("{name} ({id}) of n{node}: {state:?}, {unloaded}"));
                }
            }
            let streams = daemon.requests.all().map(|stream| stream.place_in_words());
            lines.extend(streams.map(|place| format!("a stream of n{node}: {place}")));
        }
        lines.join("; ")
    }

    /// Counts models that have become unloaded.
    pub(super) fn count_unloads(&mut self) {
        let daemons = self.machines.iter().filter_map(|machine| machine.daemon.as_ref());
        let unloaded = daemons
            .flat_map(|daemon| {
                daemon.instances.table.slots().filter(|(_, slot)| slot.unloaded.is_some())
            })
            .count();
        self.checks.unloads += unloaded as u64;
    }

    /// The highest count of any claim, over all nodes.
    pub(super) fn claims(&self) -> u64 {
        let daemons = self.machines.iter().filter_map(|machine| machine.daemon.as_ref());
        let counts = daemons.flat_map(|daemon| {
            daemon.host.ctx.desired.document().entries.into_iter().map(|entry| entry.claim.count)
        });
        counts.max().unwrap_or(0)
    }

    /// Every node answers for every model.
    pub(super) fn everybody_asks(&mut self, until_ms: u64) {
        let entries =
            self.machines.iter().find_map(|machine| machine.daemon.as_ref()).expect("one is up");
        let entries = entries.host.ctx.desired.document();
        let served: Vec<usize> = (0..2)
            .filter(|model| {
                let name = format!("m{model}");
                entries.entries.iter().any(|e| e.name == name && e.wanted.is_some())
            })
            .collect();
        let (failures, begun) = (self.checks.failed, self.now);
        for node in self.nodes().filter(|node| self.is_up(*node)).collect::<Vec<_>>() {
            for model in &served {
                assert!(self.ask(node, *model), "seed {}: n{node} refuses m{model}", self.seed);
            }
        }
        let mut until_ms = until_ms;
        // Further requests come meanwhile.
        while self.clients.iter().any(|client| client.asked_at <= begun) {
            until_ms += 1000;
            self.run(until_ms);
            let hangs = self.now >= begun + STUCK_MS * MS;
            assert!(!hangs, "seed {}: an answer hangs: {}", self.seed, self.describe());
        }
        let now = self.describe();
        assert_eq!(self.checks.failed, failures, "seed {}: {:?}; {now}", self.seed, self.checks);
    }
}
