//! The journal: a bounded history of the cluster's events as text, as seen by this node.
//!
//! Events result from the difference between one published [`ClusterStatus`] and the next, so every
//! change of the status is covered without further calls. Pure: time is an argument, and the
//! publisher passes each status in. Failed requests, which no status shows, are recorded
//! separately.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{ClusterStatus, InstanceState, InstanceStatus, NodeId, NodeState, NodeStatus};

/// Limit of the history: days of a calm cluster, the last minutes of a troubled one.
pub const EVENTS_MAX: usize = 500;
/// A repeated failure of requests within this time raises a count instead of adding an event.
const REPEAT_MS: u64 = 10_000;

/// The history, the oldest event first.
pub type History = Arc<VecDeque<ClusterEvent>>;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterEvent {
    /// Grows with each event, also across restarts of the node.
    pub id: u64,
    /// Milliseconds since 1970 by this node's clock.
    pub at_ms: u64,
    pub kind: EventKind,
    pub tone: Tone,
    /// Description for the user.
    pub text: String,
    /// Name of the node concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Number of occurrences within a few seconds, if more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// The event that this one continues to count, which is no longer in the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// This node's daemon was started.
    Started,
    NodeJoined,
    NodeReachable,
    NodeSilent,
    NodeLost,
    NodeRemoved,
    /// It runs another version than before.
    NodeUpdated,
    ModelLoading,
    ModelReady,
    ModelUnloaded,
    ModelRecovering,
    ModelFailed,
    /// Its ranks are on other nodes, or another node owns it.
    ModelMoved,
    ModelStopped,
    /// Another node has its file.
    ModelCopied,
    RequestFailed,
    Notice,
}

/// Severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    Good,
    Info,
    /// A loss that is being repaired.
    Warning,
    /// Needs a person's attention.
    Error,
}

/// The history, and the status to compare the next one with.
pub(crate) struct Journal {
    seen: Option<Arc<ClusterStatus>>,
    history: watch::Sender<History>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { seen: None, history: watch::channel(History::default()).0 }
    }
}

impl Journal {
    /// A journal that goes on from the history of earlier runs.
    pub fn after(history: History) -> Self {
        Self { seen: None, history: watch::channel(history).0 }
    }

    /// The history, updated with each new event.
    pub fn watch(&self) -> watch::Receiver<History> {
        self.history.subscribe()
    }

    /// Records the differences to the previous status.
    pub fn observe(&mut self, status: &Arc<ClusterStatus>, now_ms: u64) {
        let found = match self.seen.replace(Arc::clone(status)) {
            Some(before) => differences(&before, status),
            None => started(status).into_iter().collect(),
        };
        for draft in found {
            self.note(draft, now_ms);
        }
    }

    /// Records a failed request of this node's clients.
    pub fn request_failed(&mut self, model: &str, reason: &str, now_ms: u64) {
        let text = format!("a request to {model} failed: {reason}");
        let mut draft = Draft::new(EventKind::RequestFailed, Tone::Error, text).model(model);
        let before = self.history.borrow().iter().rev().find(|event| draft.is(event)).cloned();
        if let Some(before) = before.filter(|before| now_ms < before.at_ms + REPEAT_MS) {
            draft.times = Some(before.times.unwrap_or(1).saturating_add(1));
            draft.replaces = Some(before.id);
        }
        self.note(draft, now_ms);
    }

    fn note(&mut self, draft: Draft, now_ms: u64) {
        self.history.send_modify(|history| {
            let history = Arc::make_mut(history);
            let last = history.back().map_or(0, |event| event.id);
            if let Some(replaced) = draft.replaces {
                history.retain(|event| event.id != replaced);
            }
            if history.len() == EVENTS_MAX {
                history.pop_front();
            }
            // Ids start at the present time, so that a restarted node's events come after.
            history.push_back(draft.into_event(now_ms.max(last + 1), now_ms));
        });
    }
}

/// An event without its number and time.
struct Draft {
    kind: EventKind,
    tone: Tone,
    text: String,
    node: Option<String>,
    model: Option<String>,
    times: Option<u32>,
    replaces: Option<u64>,
}

impl Draft {
    fn new(kind: EventKind, tone: Tone, text: String) -> Self {
        Self { kind, tone, text, node: None, model: None, times: None, replaces: None }
    }

    fn node(self, name: &str) -> Self {
        Self { node: Some(name.to_owned()), ..self }
    }

    fn model(self, name: &str) -> Self {
        Self { model: Some(name.to_owned()), ..self }
    }

    fn is(&self, event: &ClusterEvent) -> bool {
        self.kind == event.kind && self.text == event.text
    }

    fn into_event(self, id: u64, at_ms: u64) -> ClusterEvent {
        let Self { kind, tone, text, node, model, times, replaces } = self;
        ClusterEvent { id, at_ms, kind, tone, text, node, model, times, replaces }
    }
}

fn started(status: &ClusterStatus) -> Option<Draft> {
    let me = status.nodes.iter().find(|node| node.id == status.node)?;
    let text = format!("{} was started (sinew {})", me.name, me.version);
    Some(Draft::new(EventKind::Started, Tone::Info, text).node(&me.name))
}

fn differences(before: &ClusterStatus, after: &ClusterStatus) -> Vec<Draft> {
    let mut found = nodes(before, after);
    found.extend(models(before, after));
    let new = after.notices.iter().filter(|notice| !before.notices.contains(notice));
    found.extend(new.map(|text| Draft::new(EventKind::Notice, Tone::Warning, text.clone())));
    found
}

fn nodes(before: &ClusterStatus, after: &ClusterStatus) -> Vec<Draft> {
    let known: BTreeMap<NodeId, &NodeStatus> = before.nodes.iter().map(|n| (n.id, n)).collect();
    let mut found = Vec::new();
    for node in &after.nodes {
        let draft = |kind, tone, what: &str| {
            Draft::new(kind, tone, format!("{} {what}", node.name)).node(&node.name)
        };
        let Some(was) = known.get(&node.id) else {
            found.push(draft(EventKind::NodeJoined, Tone::Good, "is a member now"));
            continue;
        };
        if was.state != node.state {
            found.push(match node.state {
                NodeState::Live => draft(EventKind::NodeReachable, Tone::Good, "can be reached"),
                NodeState::Suspect => draft(EventKind::NodeSilent, Tone::Warning, "is silent"),
                NodeState::Lost => draft(EventKind::NodeLost, Tone::Error, "was lost"),
            });
        }
        if !was.version.is_empty() && !node.version.is_empty() && was.version != node.version {
            let what = format!("runs sinew {} now, {} before", node.version, was.version);
            found.push(draft(EventKind::NodeUpdated, Tone::Info, &what));
        }
    }
    let is_gone = |node: &&NodeStatus| !after.nodes.iter().any(|there| there.id == node.id);
    found.extend(before.nodes.iter().filter(is_gone).map(|node| {
        let text = format!("{} is no member any more", node.name);
        Draft::new(EventKind::NodeRemoved, Tone::Info, text).node(&node.name)
    }));
    found
}

fn models(before: &ClusterStatus, after: &ClusterStatus) -> Vec<Draft> {
    let known = |id: &str| before.instances.iter().find(|one| one.id == id);
    let mut found = Vec::new();
    for now in &after.instances {
        let was = known(&now.id);
        if let Some(was) = was {
            found.extend(moved(was, now, after));
            found.extend(copied(was, now, before));
        }
        let epoch = was.map_or(0, |was| was.epoch);
        // A new epoch is news once it is ready; the reason of its recovery is recorded already.
        let is_again = now.state == InstanceState::Ready && now.epoch > epoch.max(1);
        if was.map(|was| &was.state) != Some(&now.state) || is_again {
            found.push(stands(now));
        }
    }
    let is_gone = |one: &&InstanceStatus| !after.instances.iter().any(|now| now.id == one.id);
    found.extend(before.instances.iter().filter(is_gone).map(|one| {
        let text = format!("{} was stopped", one.model);
        Draft::new(EventKind::ModelStopped, Tone::Info, text).model(&one.model)
    }));
    found
}

fn stands(one: &InstanceStatus) -> Draft {
    let model = &one.model;
    let (kind, tone, text) = match &one.state {
        InstanceState::Loading => {
            let on = if one.ranks.is_empty() { String::new() } else { format!(" on {}", on(one)) };
            (EventKind::ModelLoading, Tone::Info, format!("{model} is loading{on}"))
        }
        InstanceState::Ready => {
            let text = format!("{model} is ready on {} (epoch {})", on(one), one.epoch);
            (EventKind::ModelReady, Tone::Good, text)
        }
        InstanceState::Unloaded => {
            let text = format!("{model} is unloaded; the first request loads it");
            (EventKind::ModelUnloaded, Tone::Info, text)
        }
        InstanceState::Recovering { reason } => {
            let is_move = reason.starts_with(InstanceState::MOVES);
            let tone = if is_move { Tone::Info } else { Tone::Warning };
            (EventKind::ModelRecovering, tone, format!("{model} is recovering: {reason}"))
        }
        InstanceState::Failed { reason } => {
            (EventKind::ModelFailed, Tone::Error, format!("{model} has failed: {reason}"))
        }
    };
    Draft::new(kind, tone, text).model(model)
}

fn moved(was: &InstanceStatus, now: &InstanceStatus, status: &ClusterStatus) -> Vec<Draft> {
    let model = &now.model;
    let draft = |text| Draft::new(EventKind::ModelMoved, Tone::Info, text).model(model);
    let holders = |one: &InstanceStatus| one.ranks.iter().map(|rank| rank.node).collect::<Vec<_>>();
    let mut found = Vec::new();
    if !was.ranks.is_empty() && !now.ranks.is_empty() && holders(was) != holders(now) {
        found.push(draft(format!("{model} moves from {} to {}", on(was), on(now))));
    }
    if was.owner != now.owner {
        let owner = status.nodes.iter().find(|node| node.id == now.owner);
        let owner = owner.map_or_else(|| now.owner.short().to_string(), |node| node.name.clone());
        found.push(draft(format!("{owner} drives {model} now")));
    }
    found
}

/// The nodes that could be reached before and have the file since then.
fn copied(was: &InstanceStatus, now: &InstanceStatus, before: &ClusterStatus) -> Vec<Draft> {
    let live = before.nodes.iter().filter(|node| node.state == NodeState::Live);
    let new = live.filter(|node| {
        let is_in = |one: &InstanceStatus| one.file_nodes.contains(&node.name);
        !was.file_nodes.is_empty() && !is_in(was) && is_in(now)
    });
    new.map(|node| {
        let text = format!("{} has the file of {} too", node.name, now.model);
        Draft::new(EventKind::ModelCopied, Tone::Good, text).node(&node.name).model(&now.model)
    })
    .collect()
}

/// The nodes of an instance, with their parts of the weights where there are several.
fn on(one: &InstanceStatus) -> String {
    let named = one.ranks.iter().map(|rank| match one.ranks.len() {
        1 => rank.node_name.clone(),
        _ => format!("{} {:.0} %", rank.node_name, rank.percent),
    });
    named.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RankStatus;
    use protocol::Transport;

    fn node(number: u8, name: &str, state: NodeState) -> NodeStatus {
        serde_json::from_value(serde_json::json!({
            "id": NodeId([number; 32]), "name": name, "address": "10.0.0.1:8751", "state": state,
            "version": "0.1.0", "memory_bytes": 1, "memory_used_bytes": 0, "threads": 1,
            "round_trip_us": null,
        }))
        .unwrap()
    }

    fn instance(state: InstanceState, epoch: u64, nodes: &[(u8, &str)]) -> InstanceStatus {
        let ranks: Vec<RankStatus> = nodes
            .iter()
            .enumerate()
            .map(|(rank, (number, name))| {
                serde_json::from_value(serde_json::json!({
                    "rank": rank, "node": NodeId([*number; 32]), "node_name": name, "pid": null,
                    "share": 1, "percent": 100.0 / nodes.len() as f64, "loaded_bytes": 0, "total_bytes": 1, "kv_bytes": 0,
                }))
                .unwrap()
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "id": "i-1", "model": "tiny", "owner": NodeId([1; 32]), "state": state,
            "epoch": epoch, "context_tokens": 512, "transport": Transport::Tcp, "ranks": ranks,
            "requests_running": 0, "last_decode_tokens_per_sec": null,
        }))
        .unwrap()
    }

    fn status(nodes: Vec<NodeStatus>, instances: Vec<InstanceStatus>) -> Arc<ClusterStatus> {
        let node = NodeId([1; 32]);
        Arc::new(ClusterStatus { node, nodes, instances, ..ClusterStatus::empty(node) })
    }

    /// The texts of the new events after each status.
    fn told(statuses: &[Arc<ClusterStatus>]) -> Vec<Vec<String>> {
        let mut journal = Journal::default();
        let mut count = 0;
        let mut told = Vec::new();
        for (at, status) in statuses.iter().enumerate() {
            journal.observe(status, 1000 + at as u64);
            let history = journal.watch().borrow().clone();
            told.push(history.iter().skip(count).map(|event| event.text.clone()).collect());
            count = history.len();
        }
        told
    }

    #[test]
    fn what_happens_to_nodes_is_told_once() {
        let me = || node(1, "desk", NodeState::Live);
        let other = |state| node(2, "mac", state);
        let found = told(&[
            status(vec![me()], vec![]),
            status(vec![me(), other(NodeState::Live)], vec![]),
            status(vec![me(), other(NodeState::Live)], vec![]),
            status(vec![me(), other(NodeState::Suspect)], vec![]),
            status(vec![me(), other(NodeState::Lost)], vec![]),
            status(vec![me(), other(NodeState::Live)], vec![]),
            status(vec![me()], vec![]),
        ]);
        let expected: [&[&str]; 7] = [
            &["desk was started (sinew 0.1.0)"],
            &["mac is a member now"],
            &[],
            &["mac is silent"],
            &["mac was lost"],
            &["mac can be reached"],
            &["mac is no member any more"],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_model_is_followed_from_its_loading_to_its_stop() {
        let both: &[(u8, &str)] = &[(1, "desk"), (2, "mac")];
        let with = |state, epoch, nodes| {
            status(vec![node(1, "desk", NodeState::Live)], vec![instance(state, epoch, nodes)])
        };
        let recovering = InstanceState::Recovering { reason: "mac was lost".to_owned() };
        let found = told(&[
            status(vec![node(1, "desk", NodeState::Live)], vec![]),
            with(InstanceState::Loading, 1, both),
            with(InstanceState::Ready, 1, both),
            with(recovering.clone(), 1, both),
            with(recovering, 2, both),
            with(InstanceState::Ready, 2, &[(1, "desk")]),
            // Another epoch whose beginning no status showed.
            with(InstanceState::Ready, 3, &[(1, "desk")]),
            status(vec![node(1, "desk", NodeState::Live)], vec![]),
        ]);
        let expected: [&[&str]; 8] = [
            &["desk was started (sinew 0.1.0)"],
            &["tiny is loading on desk 50 %, mac 50 %"],
            &["tiny is ready on desk 50 %, mac 50 % (epoch 1)"],
            &["tiny is recovering: mac was lost"],
            &[],
            &["tiny moves from desk 50 %, mac 50 % to desk", "tiny is ready on desk (epoch 2)"],
            &["tiny is ready on desk (epoch 3)"],
            &["tiny was stopped"],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_history_is_bounded_ordered_and_counts_what_repeats() {
        let mut journal = Journal::default();
        for at in 0..2 * EVENTS_MAX as u64 {
            journal.request_failed("tiny", &format!("reason {at}"), 5);
        }
        let history = journal.watch().borrow().clone();
        assert_eq!(history.len(), EVENTS_MAX);
        assert!(history.iter().zip(history.iter().skip(1)).all(|(a, b)| a.id < b.id));
        let mut journal = Journal::default();
        for now_ms in [0, 1, 2, REPEAT_MS + 2, 3 * REPEAT_MS] {
            journal.request_failed("tiny", "desk was lost", now_ms);
        }
        let history = journal.watch().borrow().clone();
        let times: Vec<_> = history.iter().map(|event| event.times).collect();
        assert_eq!(times, [Some(3), None, None]);
        assert!(history[0].replaces.is_some());
    }
}
