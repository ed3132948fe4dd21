//! A scripted cluster.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::{
    BurnReport, BurnSpec, ByteStream, ClusterStatus, Forgotten, Found, GenerateDone, GenerateEvent,
    GenerateRequest, Held, History, Identified, InstanceSpec, InstanceState, Invite, Joined,
    Library, ModelAbout, NodeId, Offer, PairAsking, PairRequest, PairState, PairWith, Paired,
    Pairing, Parted, Plan, Planned, PullStatus,
};
use futures_util::stream;
use protocol::{AnswerToken, FailureKind, FinishReason, Logprobs, Preset, Token};
use serve::{BoxFuture, Cluster, EventStream, PullStream, Refusal, RefusalKind};
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};

pub use super::act::{Act, Writer};
use super::nodes::two_nodes;
use super::vectors::embedding;
use super::ways::Ways;

// Short: figures that an answer tells of itself; nobody waits for them.
const PREFILL: Duration = Duration::from_millis(250);
const DECODE: Duration = Duration::from_millis(500);

/// A cluster of two nodes with one instance, `tiny/qwen3`, with the vocabulary and template of a
/// fixture.
pub struct Double {
    pub status: Mutex<ClusterStatus>,
    pub header: Arc<gguf::Directory>,
    /// Whether the node with the header does not answer.
    pub header_hangs: AtomicBool,
    tokenizer: text::Tokenizer,
    /// One script per answer, in order; the last one is repeated.
    scripts: Mutex<VecDeque<Vec<Act>>>,
    /// Makes the script from the prompt's text, if set.
    pub writer: Mutex<Option<Writer>>,
    /// The refusal of the next calls other than `generate`.
    pub refusal: Mutex<Option<Refusal>>,
    /// All requests received.
    pub asked: Mutex<Vec<GenerateRequest>>,
    /// The statuses of a pull; if empty, every model is already on the disk.
    pub pulls: Mutex<Vec<PullStatus>>,
    /// Running answers.
    pub running: Arc<AtomicUsize>,
    /// Every administrative call, as text.
    pub calls: Mutex<Vec<String>>,
    /// Past events.
    pub events: watch::Sender<History>,
    pub ways: Ways,
}

impl Double {
    pub fn new(script: &[Act]) -> Arc<Self> {
        Arc::new(Self::with_header(fixture(), script))
    }

    pub fn with_header(header: gguf::Directory, script: &[Act]) -> Self {
        Self {
            ways: Ways::new(),
            status: Mutex::new(two_nodes()),
            tokenizer: text::Tokenizer::from_gguf(&header).unwrap(),
            header: Arc::new(header),
            header_hangs: AtomicBool::default(),
            scripts: Mutex::new(VecDeque::from([script.to_vec()])),
            writer: Mutex::default(),
            refusal: Mutex::default(),
            asked: Mutex::default(),
            pulls: Mutex::default(),
            running: Arc::default(),
            calls: Mutex::default(),
            events: watch::channel(History::default()).0,
        }
    }

    pub fn play(&self, script: &[Act]) {
        *self.scripts.lock().unwrap() = VecDeque::from([script.to_vec()]);
    }

    /// One script per answer, in order.
    pub fn play_all(&self, scripts: &[&[Act]]) {
        *self.scripts.lock().unwrap() = scripts.iter().map(|script| script.to_vec()).collect();
    }

    pub fn set_state(&self, state: InstanceState) {
        self.status.lock().unwrap().instances[0].state = state;
    }

    /// The text of the last prompt received.
    pub fn last_prompt(&self) -> String {
        let asked = self.asked.lock().unwrap();
        self.text(&asked.last().expect("something was asked").prompt)
    }

    fn text(&self, prompt: &[Token]) -> String {
        // Control tokens are shown, because templates write them.
        let mut stream = text::TextStream::continuing(&self.tokenizer).with_special();
        prompt.iter().map(|token| stream.push(*token)).collect()
    }

    fn next_script(&self) -> Vec<Act> {
        let mut scripts = self.scripts.lock().unwrap();
        if scripts.len() > 1 { scripts.pop_front().unwrap() } else { scripts[0].clone() }
    }

    fn events(&self, script: &[Act], request: &GenerateRequest) -> VecDeque<Event> {
        let prompt_tokens = request.prompt.len();
        let mut events = VecDeque::new();
        let mut generated_tokens = 0;
        for act in script {
            match act {
                Act::Pause(time) => events.push_back(Event::Pause(*time)),
                Act::Hang => events.push_back(Event::Pause(Duration::from_secs(3600))),
                Act::Vanish => break,
                Act::Say(text) | Act::Begin(text) => {
                    let mut tokens = self.tokenizer.encode(text, text::Special::Plain, false);
                    if matches!(act, Act::Begin(_)) {
                        tokens.pop();
                    }
                    for token in tokens {
                        generated_tokens += 1;
                        events.push_back(Event::Now(GenerateEvent::Tokens(vec![token.into()])));
                    }
                }
                Act::Likely(text) => {
                    for token in self.tokenizer.encode(text, text::Special::Plain, false) {
                        generated_tokens += 1;
                        let top = vec![(token, -0.5), (token + 1, -1.5)];
                        let logprobs = Some(Logprobs { drawn: -0.5, top });
                        let token = AnswerToken { token, logprobs, mirostat_mu: None };
                        events.push_back(Event::Now(GenerateEvent::Tokens(vec![token])));
                    }
                }
                Act::Waiting(reason) => events
                    .push_back(Event::Now(GenerateEvent::Waiting { reason: (*reason).to_owned() })),
                Act::Cached(cached_tokens) => {
                    events.push_back(Event::Now(GenerateEvent::Began(GenerateDone {
                        reason: FinishReason::Cancelled,
                        prompt_tokens,
                        generated_tokens: 1,
                        cached_tokens: *cached_tokens,
                        guesses: Default::default(),
                        queue: Duration::ZERO,
                        prefill: PREFILL,
                        decode: Duration::ZERO,
                        waits: Vec::new(),
                        embedding: None,
                    })))
                }
                Act::Failed(reason) => events.push_back(Event::Now(GenerateEvent::Failed {
                    kind: FailureKind::Lost,
                    reason: (*reason).to_owned(),
                })),
                Act::Refused(reason) => events.push_back(Event::Now(GenerateEvent::Failed {
                    kind: FailureKind::Invalid,
                    reason: (*reason).to_owned(),
                })),
                Act::Done(reason) => {
                    events.push_back(Event::Now(GenerateEvent::Done(GenerateDone {
                        reason: *reason,
                        prompt_tokens,
                        generated_tokens,
                        cached_tokens: 0,
                        guesses: Default::default(),
                        queue: Duration::ZERO,
                        prefill: PREFILL,
                        decode: DECODE,
                        waits: Vec::new(),
                        embedding: embedding(request),
                    })));
                }
            }
        }
        events
    }

    fn refused(&self) -> Result<(), Refusal> {
        self.refusal.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn call(&self, call: String) -> Result<(), Refusal> {
        self.calls.lock().unwrap().push(call);
        self.refused()
    }
}

enum Event {
    Pause(Duration),
    Now(GenerateEvent),
}

/// Counts an answer while it is held.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Cluster for Double {
    fn status(&self) -> ClusterStatus {
        self.status.lock().unwrap().clone()
    }

    fn events(&self) -> watch::Receiver<History> {
        self.events.subscribe()
    }

    fn invite(&self, ttl: Duration) -> BoxFuture<'_, Result<Invite, Refusal>> {
        let called = self.call(format!("invite {}", ttl.as_secs()));
        let invite = Invite { code: "sinew-abc".to_owned(), expires_in_secs: ttl.as_secs() };
        Box::pin(async move { called.map(|()| invite) })
    }

    fn join<'a>(&'a self, code: &'a str) -> BoxFuture<'a, Result<Joined, Refusal>> {
        let called = self.call(format!("join {code}"));
        let joined = Joined { by: NodeId([1; 32]), by_name: "desk".to_owned(), members: 2 };
        Box::pin(async move { called.map(|()| joined) })
    }

    fn pair(&self, with: PairWith) -> BoxFuture<'_, Result<PairAsking, Refusal>> {
        let called = self.call(format!("pair {:?} {:?}", with.node, with.peer));
        let asking = PairAsking {
            me: NodeId([2; 32]),
            number: "048213".to_owned(),
            node: Some(NodeId([1; 32])),
            name: "desk".to_owned(),
            state: PairState::Waiting,
            expires_in_secs: 300,
        };
        Box::pin(async move { called.map(|()| asking) })
    }

    fn accept<'a>(
        &'a self,
        number: &'a str,
        node: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Paired, Refusal>> {
        let called = self.call(format!("accept {number} {node:?}"));
        let paired = Paired { node: NodeId([2; 32]), name: "mac".to_owned(), members: 2 };
        Box::pin(async move { called.map(|()| paired) })
    }

    fn refuse<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<PairRequest, Refusal>> {
        let called = self.call(format!("refuse {node}"));
        let request = PairRequest {
            id: NodeId([2; 32]),
            name: "mac".to_owned(),
            address: [10, 0, 0, 2].into(),
            expires_in_secs: 60,
            at: "desk".to_owned(),
        };
        Box::pin(async move { called.map(|()| request) })
    }

    fn withdraw(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        let called = self.call("withdraw".to_owned());
        Box::pin(async move { called })
    }

    fn pairing(&self) -> BoxFuture<'_, Result<Pairing, Refusal>> {
        let called = self.call("pairing".to_owned());
        Box::pin(async move { called.map(|()| Pairing::default()) })
    }

    fn remove<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Parted, Refusal>> {
        let called = self.call(format!("remove {node}"));
        Box::pin(async move { called.map(|()| parted()) })
    }

    fn leave(&self) -> BoxFuture<'_, Result<Parted, Refusal>> {
        let called = self.call("leave".to_owned());
        Box::pin(async move { called.map(|()| parted()) })
    }

    fn burn(&self, spec: BurnSpec) -> BoxFuture<'_, Result<BurnReport, Refusal>> {
        let called = self.call(format!("burn {} {:?}", spec.seconds, spec.memory_bytes));
        let report = BurnReport {
            seconds: spec.seconds,
            nodes: vec![],
            links: vec![],
            slowest_node: None,
            slowest_link: None,
            wrong: 0,
        };
        Box::pin(async move { called.map(|()| report) })
    }

    fn plan(&self, request: InstanceSpec) -> BoxFuture<'_, Result<Planned, Refusal>> {
        let called = self.call(format!("plan {} {:?}", request.model, request.nodes));
        let plan = Plan {
            ranks: vec![],
            split: Default::default(),
            name: "one node".to_owned(),
            prediction: None,
            alternatives: vec![],
            why: vec!["a reason".to_owned()],
        };
        Box::pin(async move { called.map(|()| plan.into()) })
    }

    fn serve(&self, request: InstanceSpec) -> BoxFuture<'_, Result<String, Refusal>> {
        let called = self.call(format!("serve {} {:?}", request.model, request.nodes));
        let id = self.status.lock().unwrap().instances[0].id.clone();
        Box::pin(async move { called.map(|()| id) })
    }

    fn pull<'a>(
        &'a self,
        model: &'a str,
        _: bool,
        _: bool,
    ) -> BoxFuture<'a, Result<PullStream, Refusal>> {
        let called = self.call(format!("pull {model}"));
        let pulls: PullStream = Box::pin(stream::iter(self.pulls.lock().unwrap().clone()));
        Box::pin(async move { called.map(|()| pulls) })
    }

    fn has_model<'a>(&'a self, _model: &'a str) -> BoxFuture<'a, bool> {
        let has = self.pulls.lock().unwrap().is_empty();
        Box::pin(async move { has })
    }

    fn models(&self) -> BoxFuture<'_, Vec<Held>> {
        Box::pin(async { Vec::new() })
    }

    fn library(&self) -> BoxFuture<'_, Library> {
        Box::pin(async {
            Library {
                free_bytes: 8 << 30,
                whose: "the 2 nodes have".to_owned(),
                disks: Vec::new(),
                interrupted: Vec::new(),
                catalogue: Vec::new(),
            }
        })
    }

    fn variants<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<Vec<Offer>, Refusal>> {
        let called = self.call(format!("variants {model}"));
        Box::pin(async move { called.map(|()| Vec::new()) })
    }

    fn search<'a>(&'a self, words: &'a str) -> BoxFuture<'a, Result<Vec<Found>, Refusal>> {
        let called = self.call(format!("search {words}"));
        Box::pin(async move { called.map(|()| Vec::new()) })
    }

    fn forget_prompts(&self) -> BoxFuture<'_, Vec<Forgotten>> {
        let problem = self.call("forget prompts".to_owned()).err().map(|_| "busy".to_owned());
        let told = Forgotten { node: "desk".to_owned(), freed_bytes: 7, problem };
        Box::pin(async { vec![told] })
    }

    fn stop_pull<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        let called = self.call(format!("stop pull {model}"));
        Box::pin(async move { called })
    }

    fn identify<'a>(&'a self, _model: &'a str) -> BoxFuture<'a, Result<Identified, Refusal>> {
        Box::pin(async { Ok(Identified::default()) })
    }

    fn describe<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<ModelAbout, Refusal>> {
        let called = self.call(format!("describe {model}"));
        let missing = Refusal::new(RefusalKind::NotFound, "there is no such model");
        Box::pin(async move { called.and(Err(missing)) })
    }

    fn remove_model<'a>(
        &'a self,
        model: &'a str,
        _: Option<&'a str>,
    ) -> BoxFuture<'a, Result<u64, Refusal>> {
        let called = self.call(format!("remove {model}"));
        Box::pin(async move { called.map(|()| 1 << 20) })
    }

    fn stop<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        let called = self.call(format!("stop {name}"));
        Box::pin(async move { called })
    }

    fn drain<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<NodeId, Refusal>> {
        let called = self.call(format!("drain {node}"));
        self.status.lock().unwrap().nodes[1].drained = true;
        Box::pin(async move { called.map(|()| NodeId([2; 32])) })
    }

    fn undrain<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<NodeId, Refusal>> {
        let called = self.call(format!("undrain {node}"));
        self.status.lock().unwrap().nodes[1].drained = false;
        Box::pin(async move { called.map(|()| NodeId([2; 32])) })
    }

    fn presets(&self) -> Arc<[Preset]> {
        self.status.lock().unwrap().presets.clone()
    }

    fn write_preset(&self, preset: Preset) -> BoxFuture<'_, Result<(), Refusal>> {
        let called = self.call(format!("preset {}", preset.name));
        if called.is_ok() {
            let mut status = self.status.lock().unwrap();
            let mut all = status.presets.to_vec();
            all.retain(|other| other.name != preset.name);
            all.push(preset);
            status.presets = all.into();
        }
        Box::pin(async move { called })
    }

    fn remove_preset<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        let called = self.call(format!("remove preset {name}"));
        let mut status = self.status.lock().unwrap();
        status.presets = status.presets.iter().filter(|one| one.name != name).cloned().collect();
        Box::pin(async move { called })
    }

    fn generate<'a>(
        &'a self,
        _name: &'a str,
        request: GenerateRequest,
    ) -> BoxFuture<'a, Result<EventStream, Refusal>> {
        let refused = self.refused();
        let written = self.writer.lock().unwrap().as_ref().map(|w| w(&self.text(&request.prompt)));
        let script = written.unwrap_or_else(|| self.next_script());
        let events = self.events(&script, &request);
        self.asked.lock().unwrap().push(request);
        self.running.fetch_add(1, Ordering::SeqCst);
        let state = (events, Running(Arc::clone(&self.running)));
        let events: EventStream = Box::pin(stream::unfold(state, |(mut events, running)| async {
            loop {
                match events.pop_front()? {
                    // Sleeps: the script says so.
                    Event::Pause(time) => tokio::time::sleep(time).await,
                    Event::Now(event) => return Some((event, (events, running))),
                }
            }
        }));
        Box::pin(async move { refused.map(|()| events) })
    }

    fn model_header<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Arc<gguf::Directory>, Refusal>> {
        let known = self.status().instances.iter().any(|one| one.id == name);
        let gone = Refusal::new(RefusalKind::NotFound, format!("{name} is gone"));
        Box::pin(async move {
            if self.header_hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if known { Ok(Arc::clone(&self.header)) } else { Err(gone) }
        })
    }

    fn visits(&self) -> Option<mpsc::Receiver<DuplexStream>> {
        self.ways.visits()
    }

    fn visit<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Box<dyn ByteStream>, Refusal>> {
        self.ways.visit(node)
    }
}

fn parted() -> Parted {
    Parted { node: NodeId([2; 32]), name: "mac".to_owned(), told: 1, untold: 0 }
}

/// The metadata of a tiny model.
pub fn fixture() -> gguf::Directory {
    let bytes = std::fs::read(fixtures::path("models/qwen3.gguf")).unwrap();
    gguf::Directory::parse(&bytes, bytes.len() as u64).unwrap()
}

/// The same with a different chat template.
pub fn fixture_with_template(template: &str) -> gguf::Directory {
    let mut writer = gguf::Writer::new();
    for (key, value) in fixture().metadata().filter(|(key, _)| *key != TEMPLATE) {
        writer.set(key, value.clone());
    }
    writer.set(TEMPLATE, gguf::Value::String(template.to_owned()));
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
    gguf::Directory::parse(&bytes, bytes.len() as u64).unwrap()
}

const TEMPLATE: &str = "tokenizer.chat_template";
