//! Clients that know the whole answer, and users who serve and stop models.

use protocol::{FailureKind, FinishReason, KeepAlive, Sampling, Token};
use store::ModelFile;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::faults::Mode;
use super::workers::answer;
use super::*;
use crate::context::ServedFile;
use crate::context::{Events, Placeable};
use crate::desired::Version;
use crate::{Error, GenerateEvent, InstanceSpec, Result};

pub(super) struct Client {
    pub node: usize,
    pub asked_at: u64,
    stream: u64,
    events: Events,
    expected: (Vec<Token>, FinishReason),
    got: usize,
    waited: bool,
}

/// A user's command without a confirmation yet.
pub(super) struct Promise {
    node: usize,
    life: u64,
    name: String,
    version: Version,
    kept: Kept,
}

enum Kept {
    Served(oneshot::Receiver<Result<String>>),
    Stopped(oneshot::Receiver<Result<()>>),
}

/// A model whose file any node can claim to have.
pub(super) fn model() -> Prepared {
    let path = fixtures::path("models/llama3-tied.gguf");
    let file = ServedFile::open(&path).expect("a fixture");
    let model =
        Placeable::read("m".to_owned(), file.directory(), Default::default(), |_| Ok(Vec::new()));
    let bytes = std::fs::metadata(&path).expect("a fixture").len();
    let found = ModelFile { name: "m".to_owned(), path, digest: digest(0), bytes };
    let spec = InstanceSpec {
        model: "m".to_owned(),
        context_tokens: Some(128),
        sequences_max: Some(2),
        ..InstanceSpec::default()
    };
    Prepared {
        spec,
        found,
        file: Arc::new(file),
        model: model.expect("a model"),
        created_unix_s: 0,
    }
}

impl World {
    pub(super) fn serve(&mut self, node: usize, model: usize) {
        if !self.machines[node].files.contains(&digest(model)) {
            return;
        }
        let name = format!("m{model}");
        let mut prepared = self.model.clone();
        prepared.found.digest = digest(model);
        prepared.spec.name = Some(name.clone());
        prepared.spec.nodes = self.random.bool().then(|| (1 + self.random.usize(..3)).into());
        (prepared.spec.keep_alive, prepared.spec.on_request) = self.resting();
        prepared.spec.replicas = self.faults.replicas;
        let (reply, served) = oneshot::channel();
        self.trace(|| format!("n{node} is to serve {name} on {:?}", prepared.spec.nodes));
        let prepared = Box::new(prepared);
        self.step(node, |daemon| daemon.call(Call::Serve { prepared, reply }));
        self.promise(node, name, Kept::Served(served));
    }

    /// The `keep_alive` of this world's models. It draws no random numbers, so that a seed's faults
    /// stay the same.
    fn resting(&self) -> (Option<KeepAlive>, bool) {
        let secs = match self.faults.mode {
            Mode::Resting => [Some(0), Some(1), Some(2), Some(1)],
            Mode::Safety | Mode::Liveness | Mode::Losses(2) => [None, Some(0), None, Some(2)],
            Mode::Losses(_) | Mode::Cut => [None; 4],
        };
        let kind = (self.seed / 2 % 4) as usize;
        (secs[kind].map(KeepAlive::secs), secs[kind].is_some() && kind == 3)
    }

    pub(super) fn stop(&mut self, node: usize, model: usize) {
        let (name, (reply, stopped)) = (format!("m{model}"), oneshot::channel());
        self.trace(|| format!("n{node} is to stop {name}"));
        let asked = name.clone();
        self.step(node, |daemon| daemon.call(Call::Stop { name: asked, reply }));
        self.promise(node, name, Kept::Stopped(stopped));
    }

    /// Drains a node or ends its draining.
    pub(super) fn drain(&mut self, on: usize, node: usize, is_on: bool) {
        let node = id(node);
        self.trace(|| format!("n{on} hears that n{} is to be empty: {is_on}", number(node)));
        // The effects show whether it is done.
        let reply = oneshot::channel().0;
        let call = if is_on {
            Call::Drain { node, models: Vec::new(), reply }
        } else {
            Call::Undrain { node, reply }
        };
        self.step(on, |daemon| daemon.call(call));
    }

    /// Removes a node from the cluster.
    pub(super) fn remove(&mut self, on: usize, node: usize) {
        self.trace(|| format!("n{on} removes n{node}"));
        self.removed.insert(node);
        // The effects show whether it is done.
        let reply = oneshot::channel().0;
        let call = Call::Remove { name: format!("n{node}"), reply };
        self.step(on, |daemon| daemon.call(call));
    }

    fn promise(&mut self, node: usize, name: String, kept: Kept) {
        let machine = &self.machines[node];
        let Some(daemon) = &machine.daemon else { return };
        let entries = daemon.host.ctx.desired.document().entries;
        let Some(entry) = entries.into_iter().find(|entry| entry.name == name) else { return };
        let (life, version) = (machine.life, entry.version);
        self.checks.promises.push(Promise { node, life, name, version, kept });
    }

    /// Takes the confirmations so far.
    pub(super) fn hear_promises(&mut self) {
        let machines = &self.machines;
        let mut kept = Vec::new();
        self.checks.promises.retain_mut(|promise| {
            let outcome = match &mut promise.kept {
                Kept::Served(reply) => reply.try_recv().map(|outcome| outcome.map(drop)),
                Kept::Stopped(reply) => reply.try_recv(),
            };
            match outcome {
                Ok(Ok(())) => kept.push((promise.name.clone(), promise.version)),
                Err(TryRecvError::Empty) => return machines[promise.node].life == promise.life,
                Ok(Err(_)) | Err(TryRecvError::Closed) => {}
            }
            false
        });
        self.checks.kept.extend(kept);
    }

    pub(super) fn ask(&mut self, node: usize, model: usize) -> bool {
        if !self.is_up(node) || self.is_frozen(node) {
            return false;
        }
        let request = GenerateRequest {
            prompt: vec![1 + self.random.u32(..1000), 1, 2],
            sampling: Sampling { seed: self.random.u64(..), ..Sampling::default() },
            max_tokens: 1 + self.random.usize(..40),
            client: self.random.u64(..3),
            ..GenerateRequest::default()
        };
        let expected = answer(&request);
        let (reply, mut answered) = oneshot::channel();
        let (name, request) = (format!("m{model}"), Box::new(request));
        self.step(node, |daemon| daemon.call(Call::Generate { name, request, reply }));
        let Some(daemon) = &self.machines[node].daemon else { return false };
        let stream = daemon.requests.last();
        match answered.try_recv() {
            Ok(Ok(events)) => {
                self.checks.asked += 1;
                self.trace(|| format!("n{node} is asked for m{model}: stream {stream}"));
                let (asked_at, got, waited) = (self.now, 0, false);
                let new = Client { node, asked_at, stream, events, expected, got, waited };
                self.clients.push(new);
                self.hear_clients(node);
                true
            }
            Ok(Err(Error::NotServed { .. } | Error::Failed { .. } | Error::QueueFull { .. })) => {
                false
            }
            other => panic!("seed {}: asking led to {other:?}", self.seed),
        }
    }

    /// Takes the events of a node's clients, and compares them with the expected answers.
    pub(super) fn hear_clients(&mut self, node: usize) {
        let mut at = 0;
        while at < self.clients.len() {
            if self.clients[at].node == node && self.hear_client(at) {
                self.clients.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Returns whether the stream has ended.
    fn hear_client(&mut self, at: usize) -> bool {
        let (seed, client) = (self.seed, &mut self.clients[at]);
        let stream = client.stream;
        while let Ok(event) = client.events.try_recv() {
            match event {
                GenerateEvent::Began(_) => {}
                GenerateEvent::Waiting { .. } => client.waited |= client.got > 0,
                GenerateEvent::Tokens(tokens) => {
                    for token in tokens {
                        let expected = client.expected.0.get(client.got);
                        assert_eq!(
                            Some(&token.token),
                            expected,
                            "seed {seed}: token {} of stream {stream} contradicts the answer",
                            client.got
                        );
                        client.got += 1;
                        self.checks.tokens += 1;
                        self.checks.resumed += u64::from(std::mem::take(&mut client.waited));
                    }
                }
                GenerateEvent::Done(done) => {
                    let (tokens, reason) = &client.expected;
                    let whole = (tokens.len(), tokens.len(), *reason);
                    let ended = (client.got, done.generated_tokens, done.reason);
                    assert_eq!(ended, whole, "seed {seed}: stream {stream} ends as complete");
                    self.checks.answered += 1;
                    return true;
                }
                GenerateEvent::Failed { kind, reason } => {
                    let is_known = !matches!(kind, FailureKind::Invalid);
                    assert!(is_known && !reason.is_empty(), "seed {seed}: {kind:?} {reason}");
                    let node = client.node;
                    self.trace(|| format!("n{node} stream {stream} fails: {reason}"));
                    self.checks.failed(node, reason);
                    return true;
                }
            }
        }
        false
    }

    pub(super) fn abandon(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let at = self.random.usize(..self.clients.len());
        let Client { node, stream, .. } = self.clients.swap_remove(at);
        self.tell(node, 0, Event::Abandoned { stream });
        self.checks.abandoned += 1;
    }

    /// The clients of a node end with it.
    pub(super) fn lose_clients(&mut self, node: usize) {
        let before = self.clients.len();
        self.clients.retain(|client| client.node != node);
        self.checks.ended_with_node += (before - self.clients.len()) as u64;
    }
}
