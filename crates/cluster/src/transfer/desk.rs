//! Serves and plans models on this node's disk, for its own handles and for other members.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gguf::{Bytes, Directory};
use store::{Digest, Store, Tree};
use tokio::sync::{mpsc, oneshot, watch};

use crate::context::{Placeable, Prepared};
use crate::core::{Call, Event};
use crate::desired::{Document, check_spec};
use crate::io::kept::Saver;
use crate::io::on_thread::on_thread;
use crate::io::prompts::KeptPrompts;
use crate::transfer::burn::Burner;
use crate::transfer::lookup::{self, Asked};
use crate::transfer::prepare::{self, draft_bytes};
use crate::transfer::visits::Visits;
use crate::{
    CheckText, ClusterStatus, Error, InstanceSpec, InstanceStatus, NodeId, NodeState, NodeStatus,
    Result,
};

/// Measuring a node takes some tenths of a second; a probe takes less on any link worth splitting
/// over.
const MEASURING_MAX: Duration = Duration::from_secs(2);

/// A model of this node as members read it: its files in sequence.
#[derive(Debug)]
pub(crate) struct OpenModel {
    parts: Vec<Arc<dyn Bytes>>,
    pub tree: Tree,
}

impl OpenModel {
    pub fn lens(&self) -> Vec<u64> {
        self.parts.iter().map(|part| part.len()).collect()
    }

    /// Fills `out` with the bytes from `start` on.
    ///
    /// # Errors
    /// The range exceeds the model, or its file is unreadable.
    pub fn read(&self, mut start: u64, mut out: &mut [u8]) -> io::Result<()> {
        for part in &self.parts {
            let here = part.len().saturating_sub(start).min(out.len() as u64);
            let (now, rest) = out.split_at_mut(here as usize);
            if !now.is_empty() {
                part.read(start, now)?;
            }
            (start, out) = (start.saturating_sub(part.len()), rest);
        }
        if out.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Whether a group no longer has its original hash.
    fn is_damaged(&self, group: u64) -> bool {
        let (start, len) = self.tree.extent(group);
        let mut bytes = vec![0; len as usize];
        self.read(start, &mut bytes).is_err() || !self.tree.is_group(group, &bytes)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Desk {
    pub id: NodeId,
    pub store: Arc<Store>,
    pub desired: Arc<Saver<Document>>,
    /// Weak, so that it does not keep the node running.
    pub calls: mpsc::WeakSender<Call>,
    pub inputs: mpsc::WeakSender<Event>,
    pub status: watch::Receiver<Arc<ClusterStatus>>,
    pub burner: Burner,
    pub prompts: KeptPrompts,
    pub visits: Visits,
    pub check_text: CheckText,
}

impl Desk {
    /// Places a model of this node's disk and starts its workers; returns the instance's id.
    ///
    /// # Errors
    /// The model is missing, unreadable, or served already, or no set of nodes has room.
    pub async fn serve(&self, spec: InstanceSpec, asked: Asked) -> Result<String> {
        // A successful reply promises that the model stays served, so it must be possible to save
        // that.
        self.desired.clone().check_room().await?;
        let prepared = self.prepare(spec, asked).await?;
        self.measured().await;
        self.call(|reply| Call::Serve { prepared, reply }).await
    }

    /// The plan for a model: its placement, its speed, and the reasons against other plans.
    ///
    /// # Errors
    /// The model is missing or unreadable, or no set of nodes has room.
    pub async fn plan(&self, spec: InstanceSpec, asked: Asked) -> Result<placement::Plan> {
        let Prepared { spec, model, .. } = *self.prepare(spec, asked).await?;
        self.plan_model(spec, model).await
    }

    /// The plan for a model of which only the header is known: none of its files need be here. A
    /// shape's header has no vocabulary to check.
    ///
    /// # Errors
    /// This version cannot run it, or no set of nodes has room.
    pub async fn plan_header(
        &self,
        spec: InstanceSpec,
        name: String,
        header: Arc<Directory>,
        has_vocabulary: bool,
    ) -> Result<placement::Plan> {
        let unchecked: CheckText = |_| Ok(Vec::new());
        let check = if has_vocabulary { self.check_text } else { unchecked };
        let read = on_thread(move || {
            let draft = draft_bytes(&spec, &header)?;
            Ok((Placeable::read(name, &header, draft, check)?, spec))
        });
        let (model, spec) = read.await.map_err(|_| Error::ShutDown)?.map_err(Error::Unusable)?;
        self.plan_model(spec, model).await
    }

    /// Deletes the prompts that this node keeps on disk; returns the bytes freed.
    ///
    /// # Errors
    /// Some stay.
    pub async fn forget_prompts(&self) -> Result<u64> {
        self.prompts.forget().await.map_err(Error::Unusable)
    }

    /// Deletes a model from this node's model folder, or what an interrupted download has left of
    /// it; returns the bytes freed.
    ///
    /// # Errors
    /// The model is missing, served, another program's, or cannot be deleted.
    pub async fn remove(&self, model: &str) -> Result<u64> {
        let (store, asked) = (self.store.clone(), model.to_owned());
        let look =
            move || lookup::locate(&store, &asked).ok().and_then(|(_, at)| store.known_digest(&at));
        let digest = on_thread(look).await.map_err(|_| Error::ShutDown)?;
        let instances = self.status.borrow().instances.clone();
        let is_it = |one: &InstanceStatus| match digest {
            Some(_) => one.digest == digest,
            None => one.model == model || one.id == model,
        };
        if let Some(served) = instances.iter().find(|one| is_it(one)) {
            let name = &served.model;
            let text = format!("{name} is served. Stop it first: sinew stop {name}");
            return Err(Error::Unusable(text));
        }
        let (store, model) = (self.store.clone(), model.to_owned());
        let remove = on_thread(move || match lookup::remove(&store, &model) {
            Err(missing @ Error::NotHere(_)) => {
                let left = hub::remove_unfinished(store.models_dir(), &model);
                left.map_err(|error| Error::Unusable(error.to_string()))?.ok_or(missing)
            }
            outcome => outcome,
        });
        remove.await.map_err(|_| Error::ShutDown)?
    }

    async fn plan_model(&self, spec: InstanceSpec, model: Placeable) -> Result<placement::Plan> {
        self.measured().await;
        let (spec, model) = (Box::new(spec), Box::new(model));
        self.call(|reply| Call::Plan { spec, model, reply }).await
    }

    /// Opens a model by its content, for a member: from this node's disk, or from an instance that
    /// holds it open after a replacement.
    pub async fn open(&self, peer: NodeId, digest: Digest, bytes: u64) -> Option<OpenModel> {
        let store = self.store.clone();
        let find = on_thread(move || {
            let path = store.find(&digest, bytes)?;
            Some((store.tree(&digest, bytes)?, checkpoint::files(&path).ok()?))
        });
        if let Some((tree, parts)) = find.await.ok().flatten() {
            return Some(OpenModel { parts, tree });
        }
        let (reply, answer) = oneshot::channel();
        let inputs = self.inputs.upgrade()?;
        inputs.send(Event::BulkAsked { peer, digest, reply }).await.ok()?;
        let (served, store) = (answer.await.ok()??, self.store.clone());
        let open = on_thread(move || {
            let parts = served.intact()?.parts();
            Some(OpenModel { parts, tree: store.tree(&digest, bytes)? })
        });
        open.await.ok().flatten()
    }

    /// Checks a group after a member read bytes with a wrong hash. If the group is damaged, the
    /// file is no longer used.
    pub async fn doubt(&self, model: Arc<OpenModel>, group: u64) {
        let Some(inputs) = self.inputs.upgrade() else { return };
        let (store, node) = (self.store.clone(), self.id);
        let look = on_thread(move || {
            let digest = model.tree.digest;
            model.is_damaged(group).then(|| {
                store.doubt(&digest, model.tree.bytes);
                Event::Damaged { node, digest, group: Some(group) }
            })
        });
        if let Some(event) = look.await.ok().flatten() {
            // Sending fails only if the whole node has ended.
            let _ = inputs.send(event).await;
        }
    }

    /// The memory for models on this node.
    pub fn room_bytes(&self) -> u64 {
        let status = self.status.borrow();
        let me = status.nodes.iter().find(|node| node.id == status.node);
        me.map_or(0, |me| me.memory_bytes)
    }

    /// Waits a moment for nodes that have just connected to measure themselves.
    async fn measured(&self) {
        let mut watch = self.status.clone();
        let is_known = |node: &NodeStatus| node.measured || node.state != NodeState::Live;
        let all = watch.wait_for(|status| status.nodes.iter().all(is_known));
        // Planning goes on without the measurements that are missing by then.
        let _ = tokio::time::timeout(MEASURING_MAX, all).await;
    }

    /// Reads the files of a model to be served; slow for a file that is new and must be hashed.
    async fn prepare(&self, spec: InstanceSpec, asked: Asked) -> Result<Box<Prepared>> {
        check_spec(&spec).map_err(Error::Unusable)?;
        let (store, check) = (self.store.clone(), self.check_text);
        let prepare = on_thread(move || prepare(&store, spec, asked, check));
        prepare.await.map_err(|_| Error::ShutDown)?.map(Box::new)
    }

    async fn call<T>(&self, call: impl FnOnce(oneshot::Sender<Result<T>>) -> Call) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let calls = self.calls.upgrade().ok_or(Error::ShutDown)?;
        calls.send(call(reply)).await.map_err(|_| Error::ShutDown)?;
        answer.await.map_err(|_| Error::ShutDown)?
    }
}

fn prepare(
    store: &Store,
    mut spec: InstanceSpec,
    asked: Asked,
    check: CheckText,
) -> Result<Prepared> {
    if let Some(tower) = spec.mmproj.take() {
        let (name, path) = store.with_tower(&spec.model, &tower).map_err(lookup::refuse)?;
        spec.name.get_or_insert(name);
        spec.model = path.to_string_lossy().into_owned();
    }
    let found = lookup::find(store, &spec.model, asked, &|_| {}).map_err(lookup::refuse)?;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let created_unix_s = since_1970.map_or(0, |since| since.as_secs());
    prepare::prepare(spec, found, created_unix_s, check, false).map_err(Error::Unusable)
}
