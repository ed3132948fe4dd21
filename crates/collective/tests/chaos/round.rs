//! One round: links an epoch, strikes, and judges the end of every rank.

use std::fmt;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::Signal;

use crate::host::Process;
use crate::schedule::{Schedule, Strike};

/// A rank that has not ended by then hangs: several times the longest silence.
const PATIENCE: Duration = Duration::from_secs(15);

/// An epoch that survived a pause runs for a while before it is stopped.
const AFTERLIFE: Duration = Duration::from_millis(30);

/// The totals of all rounds so far.
#[derive(Default)]
pub struct Tally {
    pub kills: usize,
    pub pauses: usize,
    pub freezes: usize,
    /// All-reduces, checked bit by bit.
    pub reduces: usize,
    wrong: usize,
    hangs: usize,
    /// Survivors of a linked epoch that blamed another rank than the victim.
    misnamed: usize,
    /// Epochs that a short pause ended.
    false_deaths: usize,
    /// Ends after which a process held more than before, and leftover shared objects.
    leaks: usize,
    /// From the strike to the end of the last survivor.
    pub killed: Vec<Duration>,
    pub frozen: Vec<Duration>,
}

impl Tally {
    pub fn is_clean(&self) -> bool {
        [self.wrong, self.hangs, self.misnamed, self.false_deaths, self.leaks] == [0; 5]
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { kills, pauses, freezes, reduces, wrong, hangs, .. } = self;
        let Tally { misnamed, false_deaths, leaks, .. } = self;
        write!(
            f,
            "{kills} kills, {pauses} pauses, {freezes} freezes, {reduces} sums checked: {wrong} \
             wrong, {hangs} hangs, {misnamed} misnamed, {false_deaths} false deaths, {leaks} leaks"
        )
    }
}

/// The processes, which live from round to round.
pub struct Arena {
    random: Rng,
    instance: [u8; 16],
    epoch: u64,
    processes: Vec<Process>,
}

/// The end of one rank: the words after `ended`.
struct End {
    rank: usize,
    linked: bool,
    words: Vec<String>,
}

impl Arena {
    pub fn new(seed: u64) -> Self {
        let instance = u128::from(seed) << 32 | u128::from(std::process::id());
        let instance = instance.to_le_bytes();
        Arena { random: Rng::with_seed(seed), instance, epoch: 0, processes: Vec::new() }
    }

    pub fn play(&mut self, round: usize, tally: &mut Tally) {
        let schedule = Schedule::random(&mut self.random);
        self.epoch += 1;
        while self.processes.len() < schedule.ranks {
            self.processes.push(Process::start());
        }
        self.link(&schedule);
        std::thread::sleep(schedule.after);
        let struck = Instant::now();
        let victim = &self.processes[schedule.victim];
        match schedule.strike {
            Strike::Kill => victim.signal(Signal::KILL),
            Strike::Pause(time) => {
                victim.signal(Signal::STOP);
                std::thread::sleep(time);
                victim.signal(Signal::CONT);
                std::thread::sleep(AFTERLIFE);
                self.processes[..schedule.ranks].iter_mut().for_each(|rank| rank.tell("stop"));
            }
            Strike::Freeze => victim.signal(Signal::STOP),
        }
        let survivors: Vec<usize> = match schedule.strike {
            Strike::Pause(_) => (0..schedule.ranks).collect(),
            _ => (0..schedule.ranks).filter(|rank| *rank != schedule.victim).collect(),
        };
        let mut ends = self.ends(&survivors);
        let took = struck.elapsed();
        let mut hangs = survivors.len() - ends.len();
        match schedule.strike {
            Strike::Kill => {
                (tally.kills, _) = (tally.kills + 1, tally.killed.push(took));
                self.processes[schedule.victim] = Process::start();
            }
            Strike::Pause(_) => tally.pauses += 1,
            Strike::Freeze => {
                (tally.freezes, _) = (tally.freezes + 1, tally.frozen.push(took));
                self.processes[schedule.victim].signal(Signal::CONT);
                let thawed = self.ends(&[schedule.victim]);
                hangs += 1 - thawed.len();
                ends.extend(thawed);
            }
        }
        tally.hangs += hangs;
        if hangs > 0 {
            println!("round {round}: {hangs} ranks hang: {schedule:?}");
            self.processes.clear();
        }
        self.judge(round, &schedule, &ends, tally);
        tally.leaks += link::unlink_leftovers(&self.instance, self.epoch, schedule.ranks);
    }

    fn link(&mut self, schedule: &Schedule) {
        let ranks = &mut self.processes[..schedule.ranks];
        let addrs: Vec<String> = ranks.iter().map(|rank| rank.addr.to_string()).collect();
        let Schedule { seed, preference, ring, algorithm, .. } = schedule;
        let instance = u128::from_le_bytes(self.instance);
        for (rank, process) in ranks.iter_mut().enumerate() {
            let (epoch, addrs) = (self.epoch, addrs.join(" "));
            process.tell(&format!(
                "{rank} {epoch} {seed} {preference:?} {ring} {algorithm:?} {instance} {addrs}"
            ));
        }
    }

    /// Waits for these ranks to end; missing ones hang.
    fn ends(&self, ranks: &[usize]) -> Vec<End> {
        let until = Instant::now() + PATIENCE;
        let mut ends = Vec::new();
        for &rank in ranks {
            let mut linked = false;
            while let Some(line) = self.processes[rank].next_line(until) {
                let mut words = line.split(' ').map(str::to_string);
                if words.next().is_some_and(|first| first == "ended") {
                    ends.push(End { rank, linked, words: words.collect() });
                    break;
                }
                linked = true;
            }
        }
        ends
    }

    fn judge(&self, round: usize, schedule: &Schedule, ends: &[End], tally: &mut Tally) {
        let all_linked = ends.iter().all(|end| end.linked);
        for end in ends {
            let text = end.words[3..].join(" ");
            tally.reduces += end.words[0].parse::<usize>().unwrap();
            let wrong: usize = end.words[1].parse().unwrap();
            let leak = self.processes.get(end.rank).is_some_and(|rank| {
                !schedule_kills(schedule, end.rank) && rank.holdings != end.words[2]
            });
            let (misnamed, false_death) = match schedule.strike {
                // Before all are linked, a rank may not know the victim.
                _ if !all_linked => (false, false),
                Strike::Pause(_) => (false, !text.contains("stopped")),
                // A thawed victim blames no rank.
                _ if end.rank == schedule.victim => (end.words[3] != "nobody", false),
                _ => (end.words[3] != schedule.victim.to_string(), false),
            };
            tally.wrong += wrong;
            tally.misnamed += usize::from(misnamed);
            tally.false_deaths += usize::from(false_death);
            tally.leaks += usize::from(leak);
            if wrong > 0 || misnamed || false_death || leak {
                let held = &end.words[2];
                println!("round {round}: rank {}: {text}; holds {held}; {schedule:?}", end.rank);
            }
        }
    }
}

fn schedule_kills(schedule: &Schedule, rank: usize) -> bool {
    schedule.strike == Strike::Kill && schedule.victim == rank
}
