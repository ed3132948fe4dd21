//! Serving and planning what lies on this node's disk, for its own handles and for other members.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use store::Store;
use tokio::sync::{mpsc, oneshot, watch};

use crate::daemon::{Call, Prepared, draft_bytes};
use crate::desired::Document;
use crate::kept::Saver;
use crate::model_file::ServedFile;
use crate::pulls::{self, Asked};
use crate::{ClusterStatus, Error, InstanceSpec, NodeState, NodeStatus, Result};

/// Measuring a node takes some tenths of a second, and a probe less on any link worth splitting
/// over.
const MEASURING_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Desk {
    pub store: Arc<Store>,
    pub desired: Arc<Saver<Document>>,
    /// Does not keep the node running.
    pub calls: mpsc::WeakSender<Call>,
    pub status: watch::Receiver<Arc<ClusterStatus>>,
}

impl Desk {
    /// Places a model of this node's disk, and starts its workers; returns the instance's id.
    ///
    /// # Errors
    /// The model is not here or unreadable, is served already, or fits on no set of nodes.
    pub async fn serve(&self, spec: InstanceSpec, asked: Asked) -> Result<String> {
        // Who is told that a model is served may rely on it, so it must be possible to save it.
        self.desired.clone().check_room().await?;
        let prepared = self.prepare(spec, asked).await?;
        self.measured().await;
        self.call(|reply| Call::Serve { prepared, reply }).await
    }

    /// How it would be placed now, how fast it would be, and why not otherwise.
    ///
    /// # Errors
    /// The model is not here or unreadable, or fits on no set of nodes.
    pub async fn plan(&self, spec: InstanceSpec, asked: Asked) -> Result<placement::Plan> {
        let prepared = self.prepare(spec, asked).await?;
        self.measured().await;
        self.call(|reply| Call::Plan { prepared, reply }).await
    }

    /// What models may take of this node's memory.
    pub fn room_bytes(&self) -> u64 {
        let status = self.status.borrow();
        let me = status.nodes.iter().find(|node| node.id == status.node);
        me.map_or(0, |me| me.memory_bytes)
    }

    /// Waits a moment for nodes that have just met to measure what they can do.
    async fn measured(&self) {
        let mut watch = self.status.clone();
        let is_known = |node: &NodeStatus| node.measured || node.state != NodeState::Live;
        let all = watch.wait_for(|status| status.nodes.iter().all(is_known));
        // What was not measured by then is planned for without.
        let _ = tokio::time::timeout(MEASURING_MAX, all).await;
    }

    /// Reads from disk what serving a model takes; slow the first time that a file is seen.
    async fn prepare(&self, spec: InstanceSpec, asked: Asked) -> Result<Box<Prepared>> {
        let store = self.store.clone();
        let prepare = tokio::task::spawn_blocking(move || prepare(&store, spec, asked));
        prepare.await.map_err(|_| Error::ShutDown)?.map(Box::new)
    }

    async fn call<T>(&self, call: impl FnOnce(oneshot::Sender<Result<T>>) -> Call) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let calls = self.calls.upgrade().ok_or(Error::ShutDown)?;
        calls.send(call(reply)).await.map_err(|_| Error::ShutDown)?;
        answer.await.map_err(|_| Error::ShutDown)?
    }
}

fn prepare(store: &Store, spec: InstanceSpec, asked: Asked) -> Result<Prepared> {
    let unusable = |error: &dyn std::fmt::Display| Error::Unusable(error.to_string());
    let found = pulls::find(store, &spec.model, asked, &|_| {}).map_err(pulls::refuse)?;
    let file = ServedFile::open(&found.path).map_err(|error| unusable(&error))?;
    let model = layout::Outline::read(file.directory()).map_err(|error| unusable(&error))?;
    let draft_bytes = draft_bytes(&spec).map_err(Error::Unusable)?;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let created_unix_s = since_1970.map_or(0, |since| since.as_secs());
    Ok(Prepared { spec, found, file: Arc::new(file), model, draft_bytes, created_unix_s })
}
