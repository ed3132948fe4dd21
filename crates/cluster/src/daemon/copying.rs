//! Keeping the files of what is served on as many nodes as was asked for.
//!
//! Every node looks for itself: of those that lack a file which too few have, the ones with the
//! lowest ids copy it, as many as copies are missing. Who has tried in vain says so, and the next
//! one takes its turn.

use std::time::Duration;

use store::Digest;
use tracing::{info, warn};

use super::Daemon;
use crate::NodeId;
use crate::desired::Wanted;

/// A node that restarts is back by then, and gigabytes need not be copied.
const SHORT_MAX: Duration = Duration::from_secs(10);
/// How often a copy that failed is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// A copy of a file that this node makes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Copying {
    /// Too few nodes have the file, since then.
    Short(Duration),
    Running,
    /// Why it failed, and when that was.
    Failed(String, Duration),
}

impl Daemon {
    /// Begins to copy what too few nodes have, if it is this node's turn.
    pub(super) fn keep_copies(&mut self) {
        let now = self.now();
        let short: Vec<(Wanted, usize)> =
            self.desired.wanted().filter_map(|(_, wanted)| self.shortage(wanted)).collect();
        self.duties.copying.retain(|digest, copying| {
            *copying == Copying::Running || short.iter().any(|(it, _)| it.digest == *digest)
        });
        for (wanted, missing) in short {
            let digest = wanted.digest;
            let since = self.duties.copying.entry(digest).or_insert(Copying::Short(now));
            let is_due = match since {
                Copying::Short(since) => now.saturating_sub(*since) >= SHORT_MAX,
                Copying::Running => false,
                Copying::Failed(_, since) => now.saturating_sub(*since) >= TRY_AGAIN,
            };
            let turn = self.takers(&digest).iter().position(|node| *node == self.me);
            if is_due && turn.is_some_and(|turn| turn < missing) {
                info!(model = wanted.spec.model, "this node copies a model's file");
                self.duties.copying.insert(digest, Copying::Running);
                let sources = self.sources(None, digest, wanted.bytes);
                self.outside.copy(wanted, sources);
            }
        }
    }

    /// How many more nodes should have a file, if too few that can be reached have it.
    fn shortage(&self, wanted: &Wanted) -> Option<(Wanted, usize)> {
        let holders = self.holders(&wanted.digest).len();
        let missing = wanted.spec.copies?.saturating_sub(holders);
        (holders > 0 && missing > 0).then(|| (wanted.clone(), missing))
    }

    fn holders(&self, digest: &Digest) -> Vec<NodeId> {
        let here = self.duties.file_here(digest).map(|_| self.me);
        let others = self.membership.reachable().filter(|id| self.says(*id, digest, true));
        here.into_iter().chain(others).collect()
    }

    /// The nodes that lack a file and could take it, in the order in which they do.
    fn takers(&self, digest: &Digest) -> Vec<NodeId> {
        let is_mine = self.files().contains(&(*digest, false));
        let mine = is_mine.then_some(self.me);
        let has_failed = |id: NodeId| {
            let heartbeat = self.views.get(&id).and_then(|view| view.heartbeat.as_ref());
            heartbeat.is_some_and(|heartbeat| heartbeat.cannot_copy.contains(digest))
        };
        let others = self.membership.reachable();
        let others = others.filter(|id| self.says(*id, digest, false) && !has_failed(*id));
        let mut takers: Vec<NodeId> = mine.into_iter().chain(others).collect();
        takers.sort();
        takers
    }

    /// Whether a member says that it has a file, or that it has not.
    pub(super) fn says(&self, id: NodeId, digest: &Digest, has: bool) -> bool {
        let heartbeat = self.views.get(&id).and_then(|view| view.heartbeat.as_ref());
        heartbeat.is_some_and(|heartbeat| heartbeat.files.contains(&(*digest, has)))
    }

    /// What this node has tried to copy in vain.
    pub(super) fn cannot_copy(&self) -> Vec<Digest> {
        let failed = |(_, copying): &(&Digest, &Copying)| matches!(copying, Copying::Failed(..));
        self.duties.copying.iter().filter(failed).map(|(digest, _)| *digest).collect()
    }

    pub(super) fn copied(&mut self, digest: Digest, copied: Result<std::path::PathBuf, String>) {
        self.dirty = true;
        match copied {
            Ok(path) => {
                info!(path = %path.display(), "a model's file was copied to this node");
                self.duties.copying.remove(&digest);
                self.located(digest, Some(path));
            }
            Err(why) => {
                warn!(why, "a model's file cannot be copied to this node");
                let failed = Copying::Failed(why, self.now());
                self.duties.copying.insert(digest, failed);
                self.send_heartbeats();
            }
        }
    }

    /// What a person should know of files that are on fewer nodes than was asked for.
    pub(super) fn copy_notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        for (entry, wanted) in self.desired.wanted() {
            let (name, here) = (&entry.name, &self.config.name);
            if let Some(Copying::Failed(why, _)) = self.duties.copying.get(&wanted.digest) {
                notices.push(format!("the file of {name} cannot be copied to node {here}: {why}"));
            }
            let asked = wanted.spec.copies.unwrap_or(0);
            let nodes = self.membership.members().count() + 1;
            if entry.owner() == self.me && asked > nodes {
                notices.push(format!(
                    "{asked} nodes were asked to have the file of {name}, and the cluster has \
                     {nodes}. Let more nodes join (sinew invite)"
                ));
            }
        }
        notices
    }
}
