//! Random requests on a model that consists only of its cache: every value that a row reads must be
//! the one written by its own sequence, or the answers differ.
//!
//! A position's value is computed from its token and the value before it, and a token is drawn from
//! all values of its sequence. Values are read and written through the same tables that ranks keep,
//! in the steps' own order, some steps late, as in a pipeline. In half of the worlds layers also
//! carry a state: computed from the same values, it must equal the value at the row before,
//! whatever was speculated, shared or restarted. In half of them some layers keep only their
//! window: there each row must find the same values within it. Worlds share a disk, which keeps
//! what it gets, loses some of it, and takes its time; a part of it lies on members' disks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::Begin;
use fastrand::Rng;
use layout::{PAGE_POSITIONS, Window};
use protocol::{EngineStats, FinishReason, GenerateRequest, RequestId, Speculation, Token};

use disk::SharedDisk;

use super::Scheduler;
use super::fetch::Fetch;
use super::sequence::Sequence;
use crate::page_orders::{Loaded, PageKey, PageOrder};
use crate::prompt_store::Shelf;
use crate::step::{Limits, Output, StateStep, Step, StepSegment};
use crate::tables::Tables;

mod disk;

const CONTEXT_TOKENS: usize = 640;
const VOCAB: u64 = 50;
const END: Token = 50;

fn mix(a: u64, b: u64) -> u64 {
    let z = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 29)
}

fn draw(values: impl Iterator<Item = u64> + Clone) -> Token {
    let all = values.clone().fold(0, mix);
    let repeats_itself = values.clone().next().is_some_and(|first| first.is_multiple_of(2));
    match all {
        _ if all.is_multiple_of(97) => END,
        _ if repeats_itself && !all.is_multiple_of(5) => (values.count() % 9) as Token,
        _ => (all % VOCAB) as Token,
    }
}

/// The expected answer of a request.
fn expected(request: &GenerateRequest) -> Vec<Token> {
    let (mut values, mut answer) = (Vec::new(), Vec::new());
    let mut next = request.prompt.clone();
    loop {
        for token in next.drain(..) {
            values.push(mix(values.last().copied().unwrap_or(1), u64::from(token)));
        }
        let token = draw(values.iter().copied());
        if token == END {
            return answer;
        }
        answer.push(token);
        if answer.len() >= request.max_tokens || values.len() + 1 >= CONTEXT_TOKENS {
            return answer;
        }
        next.push(token);
    }
}

type Place = (PageKey, [Option<u32>; 3]);

fn place_of(order: &PageOrder) -> Place {
    (order.key, [order.page, order.window, order.checkpoint])
}

/// All ranks together.
struct Ranks {
    disk: SharedDisk,
    /// The places being loaded, with the steps until they are, and those that are.
    loads: HashMap<Place, usize>,
    placed: HashSet<Place>,
    tables: Tables,
    /// The values in each page.
    memory: Vec<[u64; PAGE_POSITIONS]>,
    /// The same in layers with a window.
    window: Option<(Window, Vec<[u64; PAGE_POSITIONS]>)>,
    states: Option<States>,
    /// Copies of pages.
    copied: usize,
}

/// The states of sequences, by slot, and their copies.
struct States {
    slots: Vec<u64>,
    /// The guesses kept by each slot.
    kept: Vec<Vec<Token>>,
    checkpoints: Vec<u64>,
}

impl States {
    /// Adds a segment's tokens; returns the state after each row.
    fn run(&mut self, segment: &StepSegment, tokens: &[Token]) -> Vec<u64> {
        let StateStep { begin, guesses, save } = segment.state;
        let mut state = match begin {
            Begin::Zero => 1,
            Begin::Restore { checkpoint } => self.checkpoints[checkpoint],
            Begin::GoOn { .. } => self.slots[segment.slot],
        };
        let kept = std::mem::take(&mut self.kept[segment.slot]);
        let (certain, guessed) = tokens.split_at(tokens.len() - guesses);
        let mut behind = Vec::new();
        let accepted = segment.state.accepted();
        for (at, token) in kept[..accepted].iter().chain(certain).enumerate() {
            state = mix(state, u64::from(*token));
            if save.is_some_and(|save| save.after == at + 1) {
                self.checkpoints[save.unwrap().checkpoint] = state;
            }
            if at >= accepted {
                behind.push(state);
            }
        }
        self.slots[segment.slot] = state;
        for token in guessed {
            state = mix(state, u64::from(*token));
            behind.push(state);
        }
        self.kept[segment.slot] = guessed.to_vec();
        behind
    }
}

impl Ranks {
    fn keep(&self, order: &PageOrder) {
        let mut disk = self.disk.0.lock().unwrap();
        if let Some(page) = order.page {
            disk.pages.insert(order.key, self.memory[page as usize]);
        }
        if let Some((page, (_, memory))) = order.window.zip(self.window.as_ref()) {
            disk.windows.insert(order.key, memory[page as usize]);
        }
        if let Some((checkpoint, states)) = order.checkpoint.zip(self.states.as_ref()) {
            disk.states.insert(order.key, states.checkpoints[checkpoint as usize]);
        }
    }

    fn load(&mut self, orders: &mut [PageOrder], rng: &mut Rng) {
        let all: HashSet<Place> = orders.iter().map(place_of).collect();
        self.loads.retain(|place, _| all.contains(place));
        self.placed.retain(|place| all.contains(place));
        for order in orders {
            let left = *self.loads.entry(place_of(order)).or_insert_with(|| rng.usize(..5));
            self.loads.insert(place_of(order), left.saturating_sub(1));
            order.loaded = match left {
                0 if self.placed.contains(&place_of(order)) || self.place(order, rng) => {
                    self.placed.insert(place_of(order));
                    Loaded::Placed
                }
                0 => Loaded::Missing,
                _ => Loaded::Pending,
            };
        }
    }

    /// Fills the places of an order; `false` if something is missing.
    fn place(&mut self, order: &PageOrder, rng: &mut Rng) -> bool {
        let mut disk = self.disk.0.lock().unwrap();
        if rng.usize(..40) == 0 {
            disk.pages.remove(&order.key);
        }
        let mut is_there = true;
        if let Some(page) = order.page {
            let values = disk.pages.get(&order.key);
            is_there &= values.is_some();
            values.iter().for_each(|values| self.memory[page as usize] = **values);
        }
        if let Some((page, (_, memory))) = order.window.zip(self.window.as_mut()) {
            let values = disk.windows.get(&order.key);
            is_there &= values.is_some();
            values.iter().for_each(|values| memory[page as usize] = **values);
        }
        if let Some((checkpoint, states)) = order.checkpoint.zip(self.states.as_mut()) {
            let state = disk.states.get(&order.key);
            is_there &= state.is_some();
            state.iter().for_each(|state| states.checkpoints[checkpoint as usize] = **state);
        }
        disk.loaded += usize::from(is_there);
        disk.missing += usize::from(!is_there);
        is_there
    }

    /// Runs a step; returns the tokens drawn for its outputs.
    fn run(&mut self, step: &mut Step, rng: &mut Rng) -> Vec<Token> {
        self.tables.update(step).unwrap();
        step.keeps.iter().for_each(|order| self.keep(order));
        self.load(&mut step.loads, rng);
        for (from, to) in &step.copies {
            self.memory[*to as usize] = self.memory[*from as usize];
            self.copied += 1;
        }
        let (mut tokens, mut drawn) = (step.tokens.iter(), Vec::new());
        for segment in &step.segments {
            let own = &tokens.as_slice()[..segment.rows];
            let states = self.states.as_mut().map(|states| states.run(segment, own));
            let table = self.tables.get(segment.slot);
            let place = |at: usize| (table[at / PAGE_POSITIONS] as usize, at % PAGE_POSITIONS);
            let in_window = self.tables.window(segment.slot);
            let end = segment.first_position + segment.rows;
            for position in segment.first_position..end {
                let before = position.checked_sub(1).map(place);
                let before = before.map_or(1, |(page, at)| self.memory[page][at]);
                let (page, at) = place(position);
                self.memory[page][at] = mix(before, u64::from(*tokens.next().unwrap()));
                if let Some(states) = &states {
                    let state = states[position - segment.first_position];
                    assert_eq!(state, self.memory[page][at], "the state at {position}");
                }
                if let Some((window, memory)) = &mut self.window {
                    let own = |at: usize| in_window[at / PAGE_POSITIONS] as usize;
                    memory[own(position)][at] = self.memory[page][at];
                    for seen in (position + 1).saturating_sub(window.positions)..position {
                        let (page, at) = place(seen);
                        assert_eq!(memory[own(seen)][at], self.memory[page][at], "at {position}");
                    }
                }
                if position + segment.outputs >= end {
                    let seen = (0..=position).map(place);
                    drawn.push(draw(seen.map(|(page, at)| self.memory[page][at])));
                }
            }
        }
        drawn
    }
}

struct Asked {
    request: GenerateRequest,
    answer: Vec<Token>,
    expected: Vec<Token>,
}

struct World {
    scheduler: Scheduler,
    ranks: Ranks,
    in_flight: VecDeque<(Step, Vec<Token>)>,
    depth: usize,
    requests: HashMap<RequestId, Asked>,
    now: Instant,
    ended: usize,
}

impl World {
    fn new(rng: &mut Rng, disk: &SharedDisk) -> Self {
        let stages = rng.usize(1..4);
        let pages = CONTEXT_TOKENS / PAGE_POSITIONS + rng.usize(..12);
        let slots = rng.usize(1..7);
        let rows_max = [16, 64, 200][rng.usize(..3)];
        let window = Window::new(1 + rng.usize(..200), slots, rows_max, rng.usize(..9));
        let (window, has_states) = (rng.bool().then_some(window), rng.bool());
        let limits = Limits {
            slots,
            context_tokens: CONTEXT_TOKENS,
            pages,
            rows_max,
            outputs_max: slots + rng.usize(..8),
            width: 1,
            window,
            keeps_all: window.is_none() && !has_states,
            has_states,
            checkpoints: rng.usize(..9),
            picture_room: 0,
            additions: 0,
            is_encoder: false,
        };
        let states = limits.has_states.then(|| States {
            slots: vec![0; slots],
            kept: vec![Vec::new(); slots],
            checkpoints: vec![0; limits.checkpoints],
        });
        Self {
            scheduler: Scheduler::new(
                limits,
                stages,
                Speculation::Prompt,
                rng.bool().then(|| Arc::new(disk.clone()) as Arc<dyn Shelf>),
            ),
            ranks: Ranks {
                disk: disk.clone(),
                loads: HashMap::new(),
                placed: HashSet::new(),
                tables: Tables::new(&limits),
                memory: vec![[0; PAGE_POSITIONS]; pages],
                window: limits.window.map(|of| (of, vec![[0; PAGE_POSITIONS]; of.pages])),
                states,
                copied: 0,
            },
            in_flight: VecDeque::new(),
            depth: if stages == 1 { 1 } else { 2 * stages },
            requests: HashMap::new(),
            now: Instant::now(),
            ended: 0,
        }
    }

    fn add(&mut self, id: RequestId, rng: &mut Rng) {
        // A few beginnings, shared by many prompts.
        let stem = rng.u32(..3);
        let shared = (0..rng.usize(..400)).map(|at| (at as u32 * 7 + stem) % VOCAB as u32);
        let mut prompt: Vec<Token> = shared.collect();
        prompt.extend((0..rng.usize(1..150)).map(|_| rng.u32(..VOCAB as u32)));
        let request = GenerateRequest {
            prompt,
            max_tokens: rng.usize(1..200),
            end_tokens: vec![END],
            client: rng.u64(..3),
            ..GenerateRequest::default()
        };
        self.scheduler.add(id, (request.clone(), Vec::new()), self.now).unwrap();
        let (answer, expected) = (Vec::new(), expected(&request));
        self.requests.insert(id, Asked { request, answer, expected });
    }

    fn cancel(&mut self, id: RequestId) {
        if self.requests.remove(&id).is_some() {
            let done = self.scheduler.cancel(id, self.now).expect("it has not ended");
            assert_eq!(done.reason, FinishReason::Cancelled);
            assert!(self.scheduler.cancel(id, self.now).is_none());
        }
    }

    /// Starts a step if possible, and finishes the oldest if it is due.
    fn step(&mut self, rng: &mut Rng) {
        let mut step = Step::default();
        let mut is_begun = false;
        if self.in_flight.len() < self.depth {
            self.offer_drafts(rng);
            is_begun = self.scheduler.schedule(&mut step, self.now);
            self.check();
        }
        if is_begun {
            let drawn = self.ranks.run(&mut step, rng);
            self.in_flight.push_back((step, drawn));
        }
        self.now += Duration::from_micros(rng.u64(500..3000));
        let is_late = !is_begun || self.depth == 1 || rng.bool();
        if let Some((step, drawn)) = self.in_flight.pop_front_if(|_| is_late) {
            self.scheduler.finish_step(&step, self.now);
            assert_eq!(step.outputs.len(), drawn.len());
            for (output, token) in step.outputs.iter().zip(drawn) {
                self.commit(*output, token);
            }
        } else {
            assert!(is_begun || self.scheduler.is_idle(), "nothing goes on");
        }
    }

    /// Guesses of a draft model that are often right.
    fn offer_drafts(&mut self, rng: &mut Rng) {
        self.scheduler.want_drafts(3);
        let jobs = self.scheduler.draft_jobs();
        let jobs: Vec<_> = jobs.map(|job| (job.id, job.text.len(), job.count)).collect();
        self.scheduler.drafted(Duration::from_micros(100), 1);
        for (id, known, count) in jobs {
            let Asked { request, answer, expected } = &self.requests[&id];
            assert_eq!(known, request.prompt.len() + answer.len());
            let guess = |token: &Token| if rng.usize(..6) == 0 { 7 } else { *token };
            let ended = expected.iter().chain([&END]);
            let guesses: Vec<Token> = ended.skip(answer.len()).take(count).map(guess).collect();
            self.scheduler.offer(id, &guesses);
        }
    }

    fn commit(&mut self, output: Output, token: Token) {
        let Some(committed) = self.scheduler.commit(output, &token.into(), self.now) else {
            return;
        };
        let Asked { request, answer, .. } = self.requests.get_mut(&output.request).unwrap();
        assert_eq!(output.position, request.prompt.len() + answer.len());
        answer.extend(committed.is_answer.then_some(token));
        if let Some(done) = committed.done {
            let Asked { request, answer, expected } =
                self.requests.remove(&output.request).unwrap();
            assert_eq!(answer, expected, "request {}", output.request);
            assert_eq!(done.generated_tokens, answer.len());
            assert!(done.cached_tokens < request.prompt.len());
            self.ended += 1;
        }
    }

    fn check(&self) {
        let fetched = |one: &'_ Sequence| one.fetch.iter().flat_map(Fetch::pages).collect();
        let fetched: Vec<Vec<_>> = self.scheduler.running.iter().map(fetched).collect();
        let tables = self.scheduler.running.iter().map(|one| &one.pages[..]);
        self.scheduler.pages.check(tables.chain(fetched.iter().map(|pages| &pages[..])));
        let seen = |one: &'_ Sequence| {
            let fetched = one.fetch.iter().flat_map(Fetch::seen);
            one.pages[one.first_seen..].iter().copied().chain(fetched).collect::<Vec<_>>()
        };
        let seen: Vec<_> = self.scheduler.running.iter().map(seen).collect();
        let most = self.scheduler.pages.pages_behind() + 2;
        assert!(self.ranks.window.is_none() || seen.iter().all(|pages| pages.len() <= most));
        self.scheduler.pages.check_windows(seen.into_iter().flatten());
        assert!(self.scheduler.waiting.iter().all(|one| one.pages.is_empty()));
        let stats = self.scheduler.stats();
        assert!(stats.pages.used + stats.pages.cached <= stats.pages.total);
    }
}

/// Returns the counters, and the number of copies of pages.
fn run(seed: u64, disk: &SharedDisk) -> (EngineStats, usize) {
    let mut rng = Rng::with_seed(seed);
    let mut world = World::new(&mut rng, disk);
    let (count, every) = (rng.u64(10..60), rng.usize(1..40));
    let (mut added, mut steps) = (0, 0);
    while added < count || !world.requests.is_empty() {
        if added < count && rng.usize(..every) == 0 {
            world.add(added, &mut rng);
            added += 1;
        }
        if rng.usize(..150) == 0 {
            world.cancel(rng.u64(..count));
        }
        world.step(&mut rng);
        steps += 1;
        assert!(steps < 200_000, "{} requests do not end", world.requests.len());
    }
    while !(world.in_flight.is_empty() && world.scheduler.is_idle()) {
        world.step(&mut rng);
    }
    assert!(world.scheduler.is_idle() && world.ended > 0);
    let stats = world.scheduler.stats();
    assert_eq!((stats.running, stats.waiting, stats.pages.used), (0, 0, 0));
    (stats, world.ranks.copied)
}

#[test]
fn whatever_comes_every_answer_is_its_own_and_no_page_is_lost() {
    let (mut all, mut copies) = (EngineStats::default(), 0);
    let disk = SharedDisk::default();
    for seed in 0..1000 {
        println!("seed {seed}");
        let (stats, copied) = run(seed, &disk);
        copies += copied;
        all.preemptions += stats.preemptions;
        all.prefix_hit_tokens += stats.prefix_hit_tokens;
        all.guessed_tokens += stats.guessed_tokens;
        all.guessed_right_tokens += stats.guessed_right_tokens;
    }
    assert!(all.preemptions > 300 && all.prefix_hit_tokens > 100_000, "{all:?}: too easy");
    let (right, wrong) = (all.guessed_right_tokens, all.guessed_tokens - all.guessed_right_tokens);
    assert!(right > 10_000 && wrong > 3_000, "{all:?}: too easy");
    assert!(copies > 300, "{copies} copies: too easy");
    let disk = disk.0.lock().unwrap();
    let (loaded, missing) = (disk.loaded, disk.missing);
    assert!(loaded > 1000 && missing > 50, "{loaded} loads, {missing} missing: too easy");
    assert!(disk.elsewhere > 100, "{} texts of members: too easy", disk.elsewhere);
}
