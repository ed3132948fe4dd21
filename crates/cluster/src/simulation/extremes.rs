//! A member that sends extremes: absurd counts, sizes, rates, times, texts and lists, in every kind
//! of message, beside what its daemon sends. The survivors neither panic nor grow, and its removal
//! leaves no trace.

use std::collections::BTreeSet;

use protocol::{Preset, WorkerCommand, WorkerEvent};
use serde_json::{Value, json};

use super::faults::Mode;
use super::*;
use crate::desired::{Entry, Service, Version};
use crate::members::MEMBERS_MAX;

/// Messages of a burst to each other node.
const BURST: usize = 6;
const BURSTS: u64 = 40;
/// Numbers of streams and workers that no honest node uses.
const MADE_UP: u64 = 1 << 50;
/// Far above what honest nodes count, and far below what is absurd.
const COUNT_MAX: u64 = 1 << 33;
const LONG: usize = 100_000;
const MANY: usize = 3000;
/// Values in a list that is made long: several of them may be made, one inside the other.
const VALUES_MAX: usize = 100_000;

/// What a daemon has sent lately, a message of each kind.
#[derive(Default)]
pub(super) struct Said(BTreeMap<String, Value>);

impl Said {
    pub(super) fn note(&mut self, message: &Message) {
        let message = serde_json::to_value(message).expect("it is JSON");
        let kind = message.as_object().and_then(|kinds| kinds.keys().next().cloned());
        self.0.insert(kind.expect("a message is an object of its kind"), message);
    }
}

/// Replaces some values of a message by extremes.
fn exaggerate(message: &mut Value, random: &mut Rng) {
    let mut paths = Vec::new();
    look("", message, &mut paths);
    for _ in 0..1 + random.usize(..4) {
        let Some(path) = random.choice(&paths) else { return };
        let Some(value) = message.pointer_mut(path) else { continue };
        let extreme = extreme(value, random);
        *value = extreme;
    }
}

/// The paths of all values.
fn look(path: &str, value: &Value, paths: &mut Vec<String>) {
    paths.push(path.to_owned());
    let mut inner = |key: &str, value: &Value| {
        let key = key.replace('~', "~0").replace('/', "~1");
        look(&format!("{path}/{key}"), value, paths);
    };
    match value {
        Value::Array(all) => {
            all.iter().enumerate().for_each(|(at, value)| inner(&at.to_string(), value));
        }
        Value::Object(all) => all.iter().for_each(|(key, value)| inner(key, value)),
        _ => {}
    }
}

/// A value, and all that are in it.
fn values_in(value: &Value) -> usize {
    1 + match value {
        Value::Array(all) => all.iter().map(values_in).sum(),
        Value::Object(all) => all.values().map(values_in).sum(),
        _ => 0,
    }
}

fn extreme(value: &Value, random: &mut Rng) -> Value {
    let numbers = [
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(u64::MAX - 1),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u32::MAX),
        json!(1u64 << 53),
        json!(1e308),
        json!(-1e308),
        json!(1e-308),
        json!(3.5e38),
    ];
    match value {
        Value::Number(_) => random.choice(&numbers).cloned().unwrap_or_default(),
        Value::String(_) if random.bool() => json!("\u{1b}[31m".repeat(LONG / 5)),
        Value::String(_) => json!(""),
        Value::Array(all) if !all.is_empty() && random.bool() => {
            let most = MANY.min(VALUES_MAX * all.len() / values_in(value));
            all.iter().cycle().take(most).cloned().collect()
        }
        Value::Array(_) => json!([]),
        Value::Bool(is) => json!(!is),
        // An optional field, or one of the values inside is chosen.
        Value::Null => random.choice(&numbers).cloned().unwrap_or_default(),
        Value::Object(_) => value.clone(),
    }
}

fn small_request() -> GenerateRequest {
    GenerateRequest { prompt: vec![1], max_tokens: 3, ..GenerateRequest::default() }
}

impl World {
    /// The liar sends a burst of extremes to everybody.
    fn lie(&mut self, liar: usize) {
        let Some(daemon) = &self.machines[liar].daemon else { return };
        let conns: Vec<ConnId> = daemon.host.ctx.conns.keys().copied().collect();
        let mut lies: Vec<Value> = Vec::new();
        for kind in ["heartbeat", "heartbeat_seen", "report", "event", "spawned", "exited", "spawn"]
        {
            lies.extend(self.said.0.get(kind).cloned());
        }
        lies.extend(self.made_up(liar));
        // Lies are no pattern for later ones.
        self.liar = None;
        for conn in conns {
            for _ in 0..BURST {
                let Some(mut lie) = self.random.choice(&lies).cloned() else { return };
                exaggerate(&mut lie, &mut self.random);
                // Other values end the connection, as if it had not been sent.
                let Ok(mut message) = serde_json::from_value(lie) else { continue };
                if let Message::Generate { request, .. } = &mut message {
                    // A worker checks it before it answers; those here do not.
                    **request = small_request();
                }
                self.send(liar, conn, message);
            }
            let count = *self
                .random
                .choice(&[u64::MAX, u64::MAX - 1, i64::MAX as u64, 1 << 53, 1 << 34])
                .expect("one of them");
            let document = self.absurd_document(liar, count);
            self.send(liar, conn, Message::Desired(document));
            let members = self.absurd_members(liar, count);
            self.send(liar, conn, Message::Members(members));
        }
        self.liar = Some(liar);
    }

    /// Messages that its daemon does not send.
    fn made_up(&mut self, liar: usize) -> Vec<Value> {
        let worker = MADE_UP + self.random.u64(..9);
        let command = |command: WorkerCommand| Message::Command { worker, command };
        let generate = |stream, name: &str| Message::Generate {
            stream,
            name: name.to_owned(),
            request: small_request().into(),
            relays: 1,
        };
        let failed = WorkerEvent::Failed { reason: "a lie".to_owned() };
        let done = json!({ "generated": { "stream": MADE_UP, "event": { "done": {
            "reason": "stop", "prompt_tokens": 1, "generated_tokens": 1,
            "prefill": { "secs": 1, "nanos": 1 }, "decode": { "secs": 1, "nanos": 1 },
        } } } });
        let messages = [
            command(WorkerCommand::Disconnect),
            command(WorkerCommand::Called),
            command(WorkerCommand::CalledBy { connection: vec![1] }),
            Message::Event { worker, event: failed },
            Message::Exited { worker, how: "a lie".to_owned() },
            Message::End { worker, at_once: true },
            Message::CancelGenerate { stream: MADE_UP },
            generate(MADE_UP + self.random.u64(..1000), "m0"),
            generate(MADE_UP + self.random.u64(..1000), "m1"),
            Message::Decide { call: 1, node: id(liar), number: Some("123456".to_owned()) },
            Message::Decided { call: 1, outcome: Err("a lie".to_owned()) },
        ];
        let messages = messages.iter().map(|one| serde_json::to_value(one).expect("it is JSON"));
        messages.chain([done]).collect()
    }

    /// Entries, claims, drains and presets of its own with such a count, and some with a count that
    /// can be and absurd content.
    fn absurd_document(&mut self, liar: usize, count: u64) -> Document {
        let Some(daemon) = &self.machines[liar].daemon else { return Document::default() };
        let known = daemon.host.ctx.desired.document();
        let version = |count| Version { count, node: id(liar) };
        let near = known.entries.iter().map(|e| e.claim.count.max(e.version.count)).max();
        let near = version(near.unwrap_or(0) + 1);
        let absurd = version(count);
        let mut entries = Vec::new();
        for mut entry in known.entries {
            let stopped = Entry { version: absurd, claim: absurd, wanted: None, ..entry.clone() };
            entries.push(stopped);
            entry.claim = absurd;
            entries.push(entry.clone());
            let Some(wanted) = entry.wanted.clone() else { continue };
            let huge =
                Service { id: "i-x".to_owned(), bytes: count.max(1 << 43), ..wanted.clone() };
            let far = Service { id: "i-y".to_owned(), created_unix_s: u64::MAX, ..wanted };
            for (name, wanted) in [("x-huge", huge), ("x-far", far)] {
                let (name, wanted) = (name.to_owned(), Some(wanted));
                entries.push(Entry { name, version: near, claim: near, wanted, ..entry.clone() });
            }
        }
        let mut other = crate::desired::Desired::new(
            id(liar),
            Document::default(),
            crate::desired::Signer::of_nobody(),
        );
        let mut drains = other.drain(id(liar), true).drains;
        // Of a node that there is not, with a sound count, and of all with an absurd one.
        drains.extend((210..230).flat_map(|node| other.drain(id(node), true).drains));
        for node in self.nodes() {
            let mut drain = other.drain(id(node), true).drains;
            drain.iter_mut().for_each(|drain| drain.version = absurd);
            drains.extend(drain);
        }
        drains.retain(|drain| drain.node != id(liar));
        let preset = Preset {
            name: "x-preset".to_owned(),
            model: "m0".to_owned(),
            system: Some("y".repeat(LONG * 10)),
            ..Preset::default()
        };
        let mut presets = other.write_preset("mine", None).presets;
        presets.iter_mut().for_each(|preset| preset.version = absurd);
        presets.extend(other.write_preset("x-preset", Some(preset)).presets);
        Document { entries, drains, presets }
    }

    /// Made-up members, and removals of all and admissions with such a version.
    fn absurd_members(&self, liar: usize, version: u64) -> Members {
        let made_up = |node: usize| Member {
            id: id(node),
            name: "made up".repeat(LONG / 10),
            addresses: (0..99).map(|port| ([10, 9, 9, 9], port).into()).collect(),
            admitted: 0,
        };
        let real = self.nodes().map(|node| Member { admitted: version, ..made_up(node) });
        let real: Vec<Member> = real.filter(|member| member.id != id(liar)).collect();
        let removed = real.iter().map(|member| crate::members::Removed {
            id: member.id,
            name: member.name.clone(),
            version,
        });
        let removed = removed.collect();
        let members = (150..250).map(made_up).chain(real).collect();
        Members { members, removed }
    }

    /// What the liar has left behind.
    fn trace_of(&self, liar: usize) -> std::result::Result<(), String> {
        for node in self.nodes().filter(|node| *node != liar) {
            let Some(daemon) = &self.machines[node].daemon else { continue };
            let ctx = &daemon.host.ctx;
            let document = ctx.desired.document();
            let entries = document.entries.iter().flat_map(|e| [e.version, e.claim]);
            let drains = document.drains.iter().map(|drain| drain.version);
            let presets = document.presets.iter().map(|preset| preset.version);
            let versions = entries.chain(drains).chain(presets);
            if let Some(version) = versions.into_iter().find(|one| one.count > COUNT_MAX) {
                return Err(format!("n{node} believes {version:?}"));
            }
            let names: BTreeSet<&str> = document.entries.iter().map(|e| &*e.name).collect();
            if names.iter().any(|name| name.starts_with("x-"))
                || ctx.desired.presets.has("x-preset")
            {
                return Err(format!("n{node} keeps {names:?}"));
            }
            let members: Vec<usize> = ctx.membership.members().map(|one| number(one.id)).collect();
            if members.iter().any(|member| *member >= self.machines.len() || *member == liar) {
                return Err(format!("n{node} has the members {members:?}"));
            }
            if ctx.views.keys().any(|peer| number(*peer) == liar) {
                return Err(format!("n{node} still shows what n{liar} reported"));
            }
            let foreign = daemon.requests.all().filter(|stream| !stream.is_of_a_client()).count();
            if foreign > 0 {
                return Err(format!("n{node} has {foreign} streams of n{liar}"));
            }
        }
        Ok(())
    }

    /// Every node that is up serves, stops and drains as ever.
    fn all_can_be_changed(&mut self, by: usize, liar: usize) {
        let seed = self.seed;
        let ms = |world: &Self| world.now / MS;
        for model in 0..2 {
            self.stop(by, model);
        }
        self.run(ms(self) + 3000);
        let up: Vec<usize> = self.nodes().filter(|node| *node != liar).collect();
        let find = |world: &Self, node: usize, name: &str| {
            let daemon = world.machines[node].daemon.as_ref().expect("it is up");
            daemon.host.ctx.desired.find(name).is_some()
        };
        for node in &up {
            let is_served = ["m0", "m1", "i-x"].iter().any(|name| find(self, *node, name));
            assert!(!is_served, "seed {seed}: a model cannot be stopped on n{node}");
        }
        self.drain(by, up[0], true);
        self.drain(by, up[0], false);
        for (model, name) in [(0, "m0"), (1, "m1")] {
            // On more nodes than there are left it is refused.
            for _ in 0..20 {
                if !find(self, by, name) {
                    self.serve(by, model);
                }
            }
        }
        self.run(ms(self) + 3000);
        for node in &up {
            let is_served = ["m0", "m1"].iter().all(|name| find(self, *node, name));
            assert!(is_served, "seed {seed}: a model cannot be served on n{node}");
            let daemon = self.machines[*node].daemon.as_ref().expect("it is up");
            let is_drained = |node: &usize| daemon.host.ctx.desired.is_drained(id(*node));
            assert!(!up.iter().any(is_drained), "seed {seed}: a node stays drained");
        }
    }
}

#[test]
fn a_member_that_sends_extremes_leaves_no_trace_after_its_removal() {
    let model = clients::model();
    let mut total = checks::Checks::default();
    for seed in runs::seeds().filter(|seed| seed % 25 == 0) {
        let mut world = World::new(seed, &model, Mode::Losses(0));
        world.everybody_has_all_files();
        let liar = world.random.usize(world.nodes());
        let by = (liar + 1) % world.nodes().len();
        world.liar = Some(liar);
        world.run(4000);
        for burst in 0..BURSTS {
            world.lie(liar);
            world.run(4000 + burst * 250);
            for node in world.nodes() {
                // So that everything that was told is shown, and noted in the journal.
                world.step(node, |daemon| {
                    daemon.host.ctx.changed();
                    daemon.publish();
                });
                let Some(daemon) = &world.machines[node].daemon else { continue };
                assert!(daemon.host.ctx.membership.members().count() < MEMBERS_MAX);
                assert!(daemon.host.workers.all().count() < 200, "seed {seed}");
            }
        }
        world.heal_nothing();
        world.remove(by, liar);
        world.run(60_000);
        world.is_removed(liar).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        world.trace_of(liar).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        // As in the second attack: after restarts of all others too.
        world.crash(liar, true);
        for node in world.nodes().filter(|node| *node != liar) {
            world.crash(node, true);
            world.start(node);
        }
        world.run(70_000);
        world.all_can_be_changed(by, liar);
        world.trace_of(liar).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let until_ms = world.now / MS;
        world.everybody_asks(until_ms);
        total.add(&world.checks);
    }
    println!("extremes: {total:?}");
    assert!(total.answered > 0, "there was nothing to see: {total:?}");
}
