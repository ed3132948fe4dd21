//! Bounds of what another member sends: of each number, text and list in each message. A value
//! beyond its bound becomes the bound, before anything reads it. What the document and orders of
//! workers may hold is refused as a whole instead, see `desired::sound`.
//!
//! Each type names all of its fields here, so that a new field does not compile without a decision.
//! Identifiers (numbers of streams, requests, workers, epochs and heartbeats, seeds, hashes) may
//! have any value: nothing is computed with them.

mod answers;
mod statuses;

use std::time::Duration;

use placement::{ClassRates, Classes, Rates, Speed};
use protocol::{WorkerCommand, WorkerEvent};

use super::{Heartbeat, KeptRank, Message, Offer, Question, Report, WorkerOrder};
use crate::api::pull::{self, PULLS_MAX, PullStatus};
use crate::desired::{Document, ENTRIES_MAX, MODEL_BYTES_MAX, check_spec, check_split};
use crate::members::{ADDRESSES_MAX, MEMBERS_MAX, NAME_CHARS_MAX};
use crate::{Edge, LINK_ADDRESSES_MAX, NodeDevice, PairRequest, Paired, Sensors};

/// A pebibyte: of memory, or through a link.
const BYTES_MAX: u64 = 1 << 50;
/// Of tokens, steps, pages and requests.
const COUNT_MAX: u64 = 1 << 50;
/// 35 years in microseconds.
const TIME_US_MAX: u64 = 1 << 50;
/// The last second of the year 9999.
const UNIX_S_MAX: u64 = 253_402_300_799;
const THREADS_MAX: usize = 1 << 16;
/// Bytes, operations or tokens a second.
const RATE_MAX: f64 = 1e18;
/// Of seconds, microseconds, degrees, watts and per cents.
const FIGURE_MAX: f64 = 1e12;
/// A reason with the last words of a worker, and a remedy.
const TEXT_BYTES_MAX: usize = 8 << 10;
/// Names of versions, nodes and devices, and ids.
const NAME_BYTES_MAX: usize = 4 * NAME_CHARS_MAX;
/// Names of models are repositories and paths.
const MODEL_NAME_BYTES_MAX: usize = 4 << 10;
const NOTES_MAX: usize = 64;
/// Pages of a prompt of four million tokens.
const KEYS_MAX: usize = 1 << 16;
/// Addresses of each other member.
const EDGES_MAX: usize = MEMBERS_MAX * ADDRESSES_MAX;
/// Machines that wait at one member; fewer are shown.
const REQUESTS_MAX: usize = 64;

/// The message within bounds; `None` if no member may send it.
pub(crate) fn within_bounds(mut message: Message) -> Option<Message> {
    match &mut message {
        Message::Heartbeat(heartbeat) => heartbeat.bound(),
        Message::Report(report) => report.bound(),
        Message::Desired(document) => document.bound(),
        Message::Command { worker: _, command } => bound_command(command)?,
        Message::Event { worker: _, event } => event.bound(),
        Message::Exited { worker: _, how } => text(how, TEXT_BYTES_MAX),
        Message::Generate { stream: _, name, request: _, relays } => {
            // The worker checks the request.
            text(name, MODEL_NAME_BYTES_MAX);
            most(relays, 1);
        }
        Message::Generated { stream: _, event, let_go: _ } => event.bound(),
        Message::Quote { stream: _, instance, question } => {
            text(instance, NAME_BYTES_MAX);
            let Question { keys, prompt_tokens, answer_tokens } = question;
            keys.truncate(KEYS_MAX);
            sizes([prompt_tokens, answer_tokens]);
        }
        Message::Quoted { stream: _, instance, offer } => {
            text(instance, NAME_BYTES_MAX);
            if let Some(Offer { unread_tokens, cost_us }) = offer {
                sizes([unread_tokens]);
                most(cost_us, TIME_US_MAX);
            }
        }
        Message::Decide { call: _, node: _, number } => {
            number.iter_mut().for_each(|number| text(number, NAME_BYTES_MAX));
        }
        Message::Decided { call: _, outcome } => match outcome {
            Ok(paired) => paired.iter_mut().for_each(Bound::bound),
            Err(why) => text(why, TEXT_BYTES_MAX),
        },
        // `Members::sanitized` and `check_order` bound these; the others have identifiers alone.
        Message::Members(_)
        | Message::Spawn { .. }
        | Message::HeartbeatSeen { .. }
        | Message::End { .. }
        | Message::Spawned { .. }
        | Message::CancelGenerate { .. } => {}
    }
    Some(message)
}

/// # Errors
/// An order has a number, text or list beyond its bound; the text names it.
pub(crate) fn check_order(order: &WorkerOrder) -> Result<(), String> {
    let WorkerOrder {
        instance,
        claim: _,
        rank,
        numerics: _,
        spec,
        split,
        digest: _,
        model_bytes,
        memory_bytes,
        bind: _,
    } = order;
    check_spec(spec)?;
    check_split(split)?;
    let ranks = split.shares.len().max(1);
    if *rank >= ranks {
        return Err(format!("it is for rank {rank} of {ranks}"));
    }
    if instance.len() > NAME_BYTES_MAX {
        return Err(format!("its id has {} bytes", instance.len()));
    }
    if *model_bytes > MODEL_BYTES_MAX || *memory_bytes > BYTES_MAX {
        return Err(format!("a model of {model_bytes} bytes in {memory_bytes} bytes of memory"));
    }
    Ok(())
}

/// An owner commands its workers only what follows their start.
fn bound_command(command: &mut WorkerCommand) -> Option<()> {
    match command {
        WorkerCommand::Connect { epoch: _, endpoints, ring: _, secret: _, segments } => {
            endpoints.truncate(MEMBERS_MAX);
            endpoints.iter_mut().for_each(|addresses| addresses.truncate(LINK_ADDRESSES_MAX + 1));
            segments.truncate(EDGES_MAX);
            Some(())
        }
        WorkerCommand::Disconnect
        | WorkerCommand::Generate { request: _, generate: _ }
        | WorkerCommand::Cancel { request: _ } => Some(()),
        // Of the worker's own daemon alone.
        WorkerCommand::Open(_) | WorkerCommand::Called | WorkerCommand::CalledBy { .. } => None,
    }
}

fn text(text: &mut String, bytes_max: usize) {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
}

fn texts(list: &mut Vec<String>, len_max: usize) {
    list.truncate(len_max);
    list.iter_mut().for_each(|one| text(one, TEXT_BYTES_MAX));
}

fn most<N: Copy + Ord>(number: &mut N, most: N) {
    *number = (*number).min(most);
}

fn all_most<const N: usize>(numbers: [&mut u64; N], limit: u64) {
    numbers.into_iter().for_each(|number| most(number, limit));
}

fn sizes<const N: usize>(numbers: [&mut usize; N]) {
    numbers.into_iter().for_each(|number| most(number, COUNT_MAX as usize));
}

fn floats<const N: usize>(numbers: [&mut f64; N], most: f64) {
    for number in numbers {
        *number = if number.is_finite() { number.clamp(0.0, most) } else { 0.0 };
    }
}

fn times<const N: usize>(times: [&mut Duration; N]) {
    times.into_iter().for_each(|time| most(time, Duration::from_micros(TIME_US_MAX)));
}

/// A value that another node sent.
trait Bound {
    fn bound(&mut self);
}

impl Bound for Heartbeat {
    fn bound(&mut self) {
        let Self {
            seq: _,
            name,
            version,
            memory_bytes,
            memory_used_bytes,
            threads,
            numerics: _,
            speed,
            device,
            instances,
            sees,
            document: _,
            files,
            kept,
            cannot_copy,
            requests,
        } = self;
        text(name, NAME_BYTES_MAX);
        text(version, NAME_BYTES_MAX);
        all_most([memory_bytes, memory_used_bytes], BYTES_MAX);
        most(threads, THREADS_MAX);
        speed.iter_mut().for_each(Bound::bound);
        device.iter_mut().for_each(Bound::bound);
        instances.truncate(ENTRIES_MAX);
        instances.iter_mut().for_each(Bound::bound);
        sees.truncate(MEMBERS_MAX);
        files.truncate(ENTRIES_MAX);
        kept.retain(|KeptRank { instance, rank, split }| {
            let is_one = instance.len() <= NAME_BYTES_MAX && *rank < split.shares.len();
            is_one && check_split(split).is_ok()
        });
        kept.truncate(ENTRIES_MAX);
        cannot_copy.truncate(ENTRIES_MAX);
        requests.truncate(REQUESTS_MAX);
        requests.iter_mut().for_each(Bound::bound);
    }
}

impl Bound for Document {
    fn bound(&mut self) {
        let Self { entries, drains, presets } = self;
        entries.truncate(ENTRIES_MAX);
        drains.truncate(ENTRIES_MAX);
        presets.truncate(ENTRIES_MAX);
    }
}

impl Bound for Report {
    fn bound(&mut self) {
        let Self { machine, sensors, edges, uncalled, downloads, unix_ms } = self;
        *machine = std::mem::take(machine).within_limits();
        most(&mut machine.cores, THREADS_MAX);
        let Sensors { temperature_celsius, power_watts, others_processors } = sensors;
        for figure in [temperature_celsius, power_watts, others_processors] {
            *figure = figure.filter(|figure| figure.abs() <= FIGURE_MAX);
        }
        edges.truncate(EDGES_MAX);
        edges.iter_mut().for_each(Bound::bound);
        uncalled.truncate(MEMBERS_MAX);
        downloads.truncate(PULLS_MAX);
        *downloads = pull::within_limits(std::mem::take(downloads));
        downloads.iter_mut().for_each(Bound::bound);
        unix_ms.iter_mut().for_each(|ms| most(ms, UNIX_S_MAX * 1000));
    }
}

impl Bound for PullStatus {
    fn bound(&mut self) {
        let Self {
            model: _,
            stage: _,
            note: _,
            file: _,
            sha256: _,
            file_done_bytes,
            file_total_bytes,
            done_bytes,
            total_bytes,
            bytes_per_sec,
        } = self;
        let bytes = [file_done_bytes, file_total_bytes, done_bytes, total_bytes];
        all_most(bytes, BYTES_MAX);
        floats([bytes_per_sec], RATE_MAX);
    }
}

impl Bound for Edge {
    fn bound(&mut self) {
        let Self {
            peer: _,
            address: _,
            local: _,
            round_trip_us,
            bytes_per_sec,
            age_secs,
            is_up: _,
            is_rdma: _,
            packet_bytes: _,
        } = self;
        floats([round_trip_us], FIGURE_MAX);
        floats([bytes_per_sec], RATE_MAX);
        most(age_secs, TIME_US_MAX);
    }
}

impl Bound for NodeDevice {
    fn bound(&mut self) {
        let Self { name, description, kind, library, memory_bytes, memory_free_bytes } = self;
        for one in [name, description, kind, library] {
            text(one, NAME_BYTES_MAX);
        }
        all_most([memory_bytes, memory_free_bytes], BYTES_MAX);
    }
}

impl Bound for Speed {
    fn bound(&mut self) {
        let Self { rates, machine, operation_secs, cut_secs, classes, disk_bytes_per_sec } = self;
        for rates in [rates, machine] {
            let Rates { read_bytes_per_sec, quantised_ops_per_sec, float_ops_per_sec } = rates;
            floats([read_bytes_per_sec, quantised_ops_per_sec, float_ops_per_sec], RATE_MAX);
        }
        floats([operation_secs, cut_secs], FIGURE_MAX);
        if let Some(rate) = disk_bytes_per_sec {
            floats([rate], RATE_MAX);
        }
        if let Some(Classes { few_bits, eight_bits, floats: of_floats }) = classes {
            for rates in [few_bits, eight_bits, of_floats] {
                let ClassRates { read_bytes_per_sec, ops_per_sec } = rates;
                floats([read_bytes_per_sec, ops_per_sec], RATE_MAX);
            }
        }
    }
}

impl Bound for PairRequest {
    fn bound(&mut self) {
        let Self { id: _, name, address: _, expires_in_secs, at } = self;
        text(name, NAME_BYTES_MAX);
        text(at, NAME_BYTES_MAX);
        most(expires_in_secs, TIME_US_MAX);
    }
}

impl Bound for Paired {
    fn bound(&mut self) {
        let Self { node: _, name, members } = self;
        text(name, NAME_BYTES_MAX);
        most(members, MEMBERS_MAX);
    }
}

impl Bound for WorkerEvent {
    fn bound(&mut self) {
        match self {
            Self::Listening { port: _, more } => more.truncate(LINK_ADDRESSES_MAX),
            Self::Loading { done_bytes, total_bytes, arrived_bytes } => {
                all_most([done_bytes, total_bytes, arrived_bytes], BYTES_MAX);
            }
            Self::Loaded { weight_bytes, kv_bytes, buffer_bytes, load_us } => {
                all_most([weight_bytes, kv_bytes, buffer_bytes], BYTES_MAX);
                most(load_us, TIME_US_MAX);
            }
            Self::Linked { epoch: _, notes } => texts(notes, NOTES_MAX),
            Self::Began(generation) | Self::Done(generation) => generation.bound(),
            Self::Token { request: _, answer } => answer.bound(),
            Self::Cached { came, gone } => {
                came.truncate(KEYS_MAX);
                gone.truncate(KEYS_MAX);
            }
            Self::Stats(stats) => stats.bound(),
            Self::RankStats(stats) => stats.bound(),
            Self::Lost { epoch: _, rank: _, reason, unreached } => {
                text(reason, TEXT_BYTES_MAX);
                unreached.truncate(MEMBERS_MAX);
            }
            Self::Rejected { request: _, kind: _, reason } | Self::Failed { reason } => {
                text(reason, TEXT_BYTES_MAX);
            }
            Self::Alive => {}
        }
    }
}
