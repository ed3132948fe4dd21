//! The file `events.json`: the history of events, for the next run of the daemon.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

use crate::core::journal::EVENTS_MAX;
use crate::io::kept::KeptFile;
use crate::io::on_thread::on_thread;
use crate::{ClusterEvent, History};

/// The least time between two writes: a troubled cluster must not wear out the disk.
const REST: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct HistoryFile(Arc<KeptFile<VecDeque<ClusterEvent>>>);

impl HistoryFile {
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self(Arc::new(KeptFile::new(data_dir, "events.json")))
    }

    /// The events of earlier runs. Without a readable file the history begins anew: no daemon stays
    /// down for it.
    pub(crate) fn load(&self) -> History {
        let loaded = self.0.load().map(|(events, _)| events);
        let mut events = loaded.unwrap_or_else(|error| {
            warn!(%error, "the events of earlier runs are lost");
            VecDeque::new()
        });
        events.drain(..events.len().saturating_sub(EVENTS_MAX));
        Arc::new(events)
    }

    /// Writes the history whenever it has changed, until the daemon ends.
    pub(crate) async fn follow(self, mut history: watch::Receiver<History>) {
        let (mut saved, mut is_over) = (None, false);
        loop {
            let now = Arc::clone(&history.borrow_and_update());
            let last = now.back().map(|event| event.id);
            if last != saved {
                saved = last;
                self.save(now).await;
            }
            if is_over {
                return;
            }
            is_over = history.changed().await.is_err();
            // Ends early only with the daemon.
            let rest = timeout(REST, history.wait_for(|_| is_over));
            is_over |= rest.await.is_ok_and(|closed| closed.is_err());
        }
    }

    async fn save(&self, history: History) {
        let file = Arc::clone(&self.0);
        let saved = on_thread(move || file.save(&history)).await;
        if let Ok(Err(error)) = saved {
            warn!(%error, "events are not kept for the next run");
        }
    }
}
