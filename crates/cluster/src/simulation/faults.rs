//! The faults and their times.

use std::collections::BTreeSet;

use protocol::Replicas;

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// All kinds of faults, without end.
    Safety,
    /// The same, followed by quiet.
    Liveness,
    /// This many nodes are lost, one soon after the other, and nothing else happens.
    Losses(u32),
    /// No faults by themselves.
    Cut,
    /// Nothing fails; models are unloaded when they are idle and loaded by requests, and nodes are
    /// restarted one at a time.
    Resting,
}

pub(super) struct Faults {
    pub mode: Mode,
    /// Workers sometimes cannot be started.
    pub workers_fail: bool,
    /// Loading never ends.
    pub never_loaded: bool,
    /// How many replicas of each model are asked for.
    pub replicas: Option<Replicas>,
    /// Whether clients and users have stopped.
    is_over: bool,
    /// Time of the next loss in `Losses`.
    lose_at: u64,
    lost: u32,
}

impl Faults {
    pub(super) fn new(mode: Mode, random: &mut Rng) -> Self {
        let is_bad = !matches!(mode, Mode::Losses(_) | Mode::Cut | Mode::Resting);
        let workers_fail = is_bad && random.u64(..4) == 0;
        let lose_at = (6000 + random.u64(..4000)) * MS;
        let (never_loaded, replicas, is_over) = (false, None, false);
        Self { mode, workers_fail, never_loaded, replicas, is_over, lose_at, lost: 0 }
    }
}

impl World {
    /// Runs ten times a second.
    pub(super) fn trouble(&mut self) {
        self.hear_promises();
        let node = self.random.usize(self.nodes());
        if self.faults.is_over {
            // The only file may be on a drained node.
            let daemon = self.machines[node].daemon.as_ref();
            if daemon.is_some_and(|daemon| daemon.host.ctx.desired.is_drained(id(node))) {
                self.drain(node, node, false);
            }
            // A request retries a model that has been given up.
            if self.faults.mode != Mode::Resting && self.random.u64(..40) == 0 {
                let model = self.random.usize(..2);
                self.ask(node, model);
            }
            return;
        }
        match self.random.u64(..100) {
            0..20 => {
                let model = self.random.usize(..2);
                self.ask(node, model);
            }
            20..22 => self.abandon(),
            _ => {}
        }
        if self.now < 1000 * MS {
            // So that there is something to lose.
            let model = usize::from(node % 2 == 1);
            return self.serve(node, model);
        }
        match self.faults.mode {
            Mode::Safety | Mode::Liveness => self.any_fault(node),
            Mode::Losses(count) => self.lose_next(node, count),
            Mode::Cut | Mode::Resting => {}
        }
    }

    fn lose_next(&mut self, node: usize, count: u32) {
        let faults = &mut self.faults;
        if self.now < faults.lose_at || faults.lost == count {
            return;
        }
        let left = self.machines.iter().filter(|machine| machine.daemon.is_some()).count();
        if self.machines[node].daemon.is_some() && left > 1 {
            faults.lost += 1;
            faults.lose_at = self.now + self.random.u64(..6000 * MS);
            let power = self.random.bool();
            self.crash(node, power);
        }
    }

    fn any_fault(&mut self, node: usize) {
        if self.now < 3000 * MS {
            self.network.is_bad = self.seed.is_multiple_of(2);
            return;
        }
        let other = self.random.usize(self.nodes());
        let ms = self.random.u64(..8000);
        let time = self.now..self.now + ms * MS;
        match self.random.u64(..1000) {
            0..25 => self.kill_some_worker(),
            25..35 if self.is_up(node) => self.crash(node, true),
            35..40 if self.is_up(node) => self.crash(node, false),
            40..43 if self.is_up(node) => {
                self.crash(node, true);
                self.trace(|| format!("n{node} loses its disk"));
                self.machines[node].disk = Document::default();
                self.checks.kept.retain(|(_, version)| version.node != id(node));
            }
            43..110 if !self.is_up(node) => self.start(node),
            110..120 if node != other => {
                self.trace(|| format!("n{node} -> n{other} is cut for {ms} ms"));
                self.network.cut(node, other, time);
            }
            120..128 if node != other => {
                self.trace(|| format!("n{node} <-> n{other} is cut for {ms} ms"));
                self.network.cut(node, other, time.clone());
                self.network.cut(other, node, time);
            }
            128..134 => self.halve(&time),
            134..150 if self.is_up(node) => {
                // Mostly a pause as on a busy machine, sometimes a closed lid.
                let us = if ms < 6000 { ms / 3 } else { 2 * ms } * MS;
                self.freeze(node, us);
            }
            150..156 if self.is_up(node) => {
                self.trace(|| format!("n{node} clock jumps by {ms} ms"));
                self.machines[node].clock_zero -= (ms * MS) as i64;
            }
            156..160 => {
                let model = self.random.usize(..2);
                self.serve(node, model);
            }
            160..162 => {
                let model = self.random.usize(..2);
                self.stop(node, model);
            }
            162..165 => self.lose_file(node),
            165..172 => self.drain(node, other, true),
            172..186 => self.drain(node, other, false),
            _ => {}
        }
    }

    fn halve(&mut self, time: &Range<u64>) {
        let half: BTreeSet<usize> = self.nodes().filter(|_| self.random.bool()).collect();
        self.trace(|| format!("{half:?} is cut off until {}", time.end));
        let nodes = self.nodes();
        for (from, to) in nodes.clone().flat_map(|a| nodes.clone().map(move |b| (a, b))) {
            if half.contains(&from) != half.contains(&to) {
                self.network.cut(from, to, time.clone());
            }
        }
    }

    fn freeze(&mut self, node: usize, us: u64) {
        if self.is_frozen(node) {
            return;
        }
        self.trace(|| format!("n{node} is frozen for {} ms", us / MS));
        self.machines[node].frozen = Some(self.now..self.now + us);
        self.after(us, Todo::Thaw { node });
    }

    fn kill_some_worker(&mut self) {
        let running: Vec<u32> =
            self.processes.iter().filter(|(_, p)| p.runs).map(|(pid, _)| *pid).collect();
        if !running.is_empty() {
            let pid = running[self.random.usize(..running.len())];
            self.kill_process(pid, "was killed by signal 9");
        }
    }

    /// Deletes a model's file, unless it is the last one.
    fn lose_file(&mut self, node: usize) {
        let digest = digest(self.random.usize(..2));
        let has = |machine: &&Machine| machine.files.contains(&digest);
        if self.machines.iter().filter(has).count() > 1 {
            self.machines[node].files.retain(|file| *file != digest);
        }
    }

    pub(super) fn everybody_has_all_files(&mut self) {
        self.machines.iter_mut().for_each(|machine| machine.files = (0..2).map(digest).collect());
    }

    /// Stops further events, and leaves all faults as they are.
    pub(super) fn heal_nothing(&mut self) {
        self.faults.is_over = true;
    }

    /// Ends all faults: starts what is down, and joins what is cut; frozen nodes wake up later.
    pub(super) fn heal(&mut self) {
        self.trace(|| "the faults are over".to_owned());
        self.faults.is_over = true;
        self.faults.workers_fail = false;
        self.network.heal();
        for node in self.nodes() {
            if !self.is_up(node) {
                self.start(node);
            }
        }
    }
}
