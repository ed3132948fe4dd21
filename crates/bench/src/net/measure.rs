//! The program of every rank: each collective over all sizes, checked, then timed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use collective::{CollectiveError, Group, Options, ReducePlan, Wire};
use link::{HostId, Listener, MeshConfig, Secret, connect_mesh};
use serde::Serialize;

use super::{NetArgs, failed};
use crate::error::Error;

/// Time for the ranks to link.
const LINK_DEADLINE: Duration = Duration::from_secs(10);

/// Leaves of the sums: as many as in a model's products.
const LEAVES: usize = 16;

/// Rounds that are checked element by element, each with other values; the timed ones follow.
const CHECKED_ROUNDS: usize = 3;

/// Target time of a row, and the limits of its samples.
const ROW_TIME: Duration = Duration::from_millis(250);
const SAMPLES_MIN: usize = 5;
const SAMPLES_MAX: usize = 500;

/// Rounds of a sample, which is their mean. A rank that is ahead by the link's latency waits twice
/// as long in one round and not at all in the next, so single rounds are meaningless.
const ROUNDS: usize = 10;

/// The ranks of a measurement.
pub struct Meeting {
    pub rank: usize,
    pub secret: [u8; 32],
    /// Of each rank.
    pub addrs: Vec<Vec<SocketAddr>>,
}

/// The results of rank 0.
#[derive(Debug, Serialize)]
pub struct Report {
    pub ranks: usize,
    pub transport: String,
    pub encrypted: bool,
    /// Delay of every message between two ranks.
    pub link_latency_us: u64,
    pub algorithm: String,
    /// The CPU of each rank; empty if there are fewer CPUs than ranks.
    pub cpus: Vec<usize>,
    pub rows: Vec<Row>,
    /// Over all rows.
    pub wrong: u64,
}

#[derive(Debug, Serialize)]
pub struct Row {
    pub collective: &'static str,
    /// As in nccl-tests: of the whole vector, on each rank.
    pub size_bytes: usize,
    /// Elements of a rank's input.
    pub count: usize,
    pub redop: &'static str,
    pub rounds: usize,
    pub time_us_median: f64,
    pub time_us_min: f64,
    pub time_us_p99: f64,
    /// Size over median time; and the same times the minimum traffic factor of the collective.
    pub algbw_gb_per_s: f64,
    pub busbw_gb_per_s: f64,
    /// Wrong elements on all ranks.
    pub wrong: u64,
}

/// Runs all rows; the report is rank 0's.
pub fn run(args: &NetArgs, listener: &Listener, meeting: &Meeting) -> Result<Report, Error> {
    let ranks = meeting.addrs.len();
    let cpus: Vec<usize> = (0..ranks).flat_map(|rank| engine::own_cpus(rank, ranks, 1)).collect();
    pin(&cpus, meeting.rank);
    let mut group = connect(args, listener, meeting)?;
    group.measure().map_err(failed)?;
    let first = group.links().next();
    let transport = first.map_or_else(String::new, |link| link.transport.to_string());
    let mut report = Report {
        ranks,
        encrypted: transport == "tcp",
        transport,
        link_latency_us: args.link_latency,
        algorithm: format!("{:?}", args.algorithm()),
        cpus,
        rows: Vec::new(),
        wrong: 0,
    };
    for measure in [all_reduce, all_gather, send_recv] {
        for size_bytes in args.sizes_bytes() {
            let row = measure(&mut group, size_bytes).map_err(failed)?;
            report.wrong += row.wrong;
            report.rows.push(row);
        }
    }
    group.barrier().map_err(failed)?;
    Ok(report)
}

fn connect(args: &NetArgs, listener: &Listener, meeting: &Meeting) -> Result<Group, Error> {
    let mut instance = [0; 16];
    instance.copy_from_slice(&meeting.secret[..16]);
    let config = MeshConfig {
        rank: meeting.rank,
        addrs: meeting.addrs.clone(),
        segments: Vec::new(),
        peers: None,
        instance,
        epoch: 1,
        secret: Secret::new(meeting.secret),
        preference: args.preference(),
        encryption: args.encryption(),
        host: HostId::current(),
        latency: args.latency(),
        deadline: LINK_DEADLINE,
    };
    let abort = Arc::new(AtomicBool::new(false));
    let met = connect_mesh(listener, &config, &abort);
    let links = met.map_err(|error| Error::Failed(error.to_string()))?.links;
    let (algorithm, wire) = (args.algorithm(), args.wire());
    let options = Options { algorithm, wire, ..Options::default() };
    Group::new(meeting.rank, links, abort, options).map_err(failed)
}

/// Values are integers below this, so that sums of up to 16 of them are exact in any order.
const VALUE_MAX: f32 = 1021.0;

fn value(part: usize, at: usize, round: usize) -> f32 {
    ((part * 131 + at * 7 + round * 29) % 1021) as f32
}

/// Maximum error of a sum of `parts` values: none, or the rounding to 8 bits of each part and of
/// the total.
fn off_max(group: &Group, parts: usize) -> f32 {
    match group.options().wire {
        Wire::F32 => 0.0,
        Wire::Q8 => 2.0 * parts as f32 * VALUE_MAX / 254.0,
    }
}

fn all_reduce(group: &mut Group, size_bytes: usize) -> Result<Row, CollectiveError> {
    let (rank, ranks, count) = (group.rank(), group.ranks(), (size_bytes / 4).max(1));
    let spans: Vec<_> =
        (0..ranks).map(|rank| LEAVES * rank / ranks..LEAVES * (rank + 1) / ranks).collect();
    let plan = ReducePlan::new(LEAVES, &spans)?;
    let first: usize = (0..rank).map(|rank| plan.parts(rank)).sum();
    let mut parts = vec![0.0; plan.parts(rank) * count];
    let mut total = vec![0.0; count];
    let mut wrong = 0;
    for round in 0..CHECKED_ROUNDS {
        for (part, values) in parts.chunks_exact_mut(count).enumerate() {
            for (at, slot) in values.iter_mut().enumerate() {
                *slot = value(first + part, at, round);
            }
        }
        total.fill(f32::NAN);
        group.all_reduce(&plan, 1, &parts, &mut total)?;
        let expected = |at| (0..plan.parts_total()).map(|part| value(part, at, round)).sum::<f32>();
        let off_max = off_max(group, plan.parts_total());
        let is_wrong = |at: usize| total[at].is_nan() || (total[at] - expected(at)).abs() > off_max;
        wrong += (0..count).filter(|at| is_wrong(*at)).count() as u64;
    }
    let busbw_factor = 2.0 * (ranks - 1) as f64 / ranks as f64;
    let times = timed(group, 1, |group| group.all_reduce(&plan, 1, &parts, &mut total))?;
    row(group, ("all_reduce", 4 * count, count, "sum"), busbw_factor, times, wrong)
}

fn all_gather(group: &mut Group, size_bytes: usize) -> Result<Row, CollectiveError> {
    let (rank, ranks) = (group.rank(), group.ranks());
    let count = (size_bytes / 4 / ranks).max(1);
    let lens = vec![count; ranks];
    let (mut own, mut all) = (vec![0.0; count], vec![0.0; count * ranks]);
    let mut wrong = 0;
    for round in 0..CHECKED_ROUNDS {
        own.iter_mut().enumerate().for_each(|(at, slot)| *slot = value(rank, at, round));
        all.fill(f32::NAN);
        group.all_gather(&own, &lens, &mut all)?;
        let expected = |at: usize| value(at / count, at % count, round);
        wrong += (0..all.len()).filter(|at| all[*at] != expected(*at)).count() as u64;
    }
    let busbw_factor = (ranks - 1) as f64 / ranks as f64;
    let times = timed(group, 1, |group| group.all_gather(&own, &lens, &mut all))?;
    row(group, ("all_gather", 4 * count * ranks, count, "none"), busbw_factor, times, wrong)
}

/// Ranks 0 and 1 send back and forth; the time is half of a round trip. The others are idle.
fn send_recv(group: &mut Group, size_bytes: usize) -> Result<Row, CollectiveError> {
    let (rank, count) = (group.rank(), (size_bytes / 4).max(1));
    let mut values = vec![0.0; count];
    let mut wrong = 0;
    for round in 0..CHECKED_ROUNDS {
        let expected: Vec<f32> = (0..count).map(|at| value(0, at, round)).collect();
        if rank == 0 {
            values.copy_from_slice(&expected);
        } else {
            values.fill(f32::NAN);
        }
        to_and_fro(group, &mut values)?;
        let differ = values.iter().zip(&expected).filter(|(value, expected)| value != expected);
        wrong += if rank < 2 { differ.count() as u64 } else { 0 };
    }
    let times = timed(group, 2, |group| to_and_fro(group, &mut values))?;
    row(group, ("send_recv", 4 * count, count, "none"), 1.0, times, wrong)
}

fn to_and_fro(group: &mut Group, values: &mut [f32]) -> Result<(), CollectiveError> {
    match group.rank() {
        0 => group.send(1, values).and_then(|()| group.recv(1, values)),
        1 => group.recv(0, values).and_then(|()| group.send(0, values)),
        _ => Ok(()),
    }
}

/// Times of a round in us, each the mean of several. Rank 0 decides for all how many fill a row's
/// time. `hops`: the number of transfers in one round.
fn timed(
    group: &mut Group,
    hops: usize,
    mut act: impl FnMut(&mut Group) -> Result<(), CollectiveError>,
) -> Result<Vec<f64>, CollectiveError> {
    group.barrier()?;
    let started = Instant::now();
    (0..ROUNDS).try_for_each(|_| act(group))?;
    let samples = ROW_TIME.as_secs_f64() / started.elapsed().as_secs_f64();
    let samples = (samples as usize).clamp(SAMPLES_MIN, SAMPLES_MAX);
    let mut message = samples.to_le_bytes().to_vec();
    group.broadcast(0, &mut message)?;
    let samples = message.try_into().map_or(SAMPLES_MIN, usize::from_le_bytes).min(SAMPLES_MAX);
    let mut times_us = Vec::with_capacity(samples);
    for _ in 0..samples {
        let started = Instant::now();
        (0..ROUNDS).try_for_each(|_| act(group))?;
        times_us.push(started.elapsed().as_secs_f64() * 1e6 / (ROUNDS * hops) as f64);
    }
    Ok(times_us)
}

fn row(
    group: &mut Group,
    (collective, size_bytes, count, redop): (&'static str, usize, usize, &'static str),
    busbw_factor: f64,
    mut times_us: Vec<f64>,
    wrong: u64,
) -> Result<Row, CollectiveError> {
    let ranks = group.ranks();
    let mut wrong_by_rank = vec![0.0; ranks];
    group.all_gather(&[wrong as f32], &vec![1; ranks], &mut wrong_by_rank)?;
    times_us.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| times_us[((times_us.len() - 1) as f64 * share) as usize];
    let algbw_gb_per_s = size_bytes as f64 / at(0.5) / 1e3;
    Ok(Row {
        collective,
        size_bytes,
        count,
        redop,
        rounds: times_us.len() * ROUNDS,
        time_us_median: at(0.5),
        time_us_min: at(0.0),
        time_us_p99: at(0.99),
        algbw_gb_per_s,
        busbw_gb_per_s: algbw_gb_per_s * busbw_factor,
        wrong: wrong_by_rank.iter().map(|wrong| *wrong as u64).sum(),
    })
}

#[cfg(target_os = "linux")]
fn pin(cpus: &[usize], rank: usize) {
    let mut set = rustix::thread::CpuSet::new();
    let Some(&cpu) = cpus.get(rank) else { return };
    set.set(cpu);
    // Without pinning the figures are noisier, not wrong.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

#[cfg(not(target_os = "linux"))]
fn pin(_cpus: &[usize], _rank: usize) {}
