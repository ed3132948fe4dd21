//! Calls of a [`Node`] about the cluster (members, drained nodes, burn-ins) and about models: what
//! there is on disks and on the hub, plans, and downloads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hub::Room;
use protocol::Preset;
use tokio::sync::watch;

use super::{Node, find};
use crate::context::tower_bytes;
use crate::core::Call;
use crate::io::on_thread::on_thread;
use crate::transfer::burn;
use crate::transfer::library;
use crate::transfer::lookup::{self, Asked};
use crate::transfer::preview::Preview;
use crate::transfer::remote::{self, RemoteModel};
use crate::{
    BurnReport, BurnSpec, ClusterStatus, Error, Forgotten, Held, Identified, InstanceSpec,
    InstanceState, InstanceStatus, Invite, Joined, Library, ModelAbout, NodeId, NodeState,
    NodeStatus, Offer, PairAsking, PairRequest, PairWith, Paired, Pairing, Parted, Planned,
    PullStatus, Result,
};

/// A code still unused after this time was lost on the way.
const INVITE_TTL_MAX: Duration = Duration::from_secs(24 * 3600);
/// Messages that a member sent before its answer arrive within a round trip or two.
const TELLING_MAX: Duration = Duration::from_secs(5);

impl Node {
    /// Makes a one-time code for one machine. It is valid for `ttl`, at most a day.
    ///
    /// # Errors
    /// The node has been shut down.
    pub async fn invite(&self, ttl: Duration) -> Result<Invite> {
        let ttl = ttl.min(INVITE_TTL_MAX);
        let code = self.call(|reply| Call::Invite { ttl, reply }).await?;
        Ok(Invite { code, expires_in_secs: ttl.as_secs() })
    }

    /// Joins the cluster of the node that made `code`.
    ///
    /// # Errors
    /// The code is malformed, the node does not answer, or it refuses.
    pub async fn join(&self, code: &str) -> Result<Joined> {
        let code = code.to_owned();
        self.call(|reply| Call::Join { code, reply }).await
    }

    /// Removes a member, given by its name or the first digits of its id, from the cluster. Its
    /// connections end at once, and its key needs a new invitation to come back.
    ///
    /// # Errors
    /// No member or several members match, or it is this node.
    pub async fn remove(&self, name: &str) -> Result<Parted> {
        let name = name.to_owned();
        self.call(|reply| Call::Remove { name, reply }).await
    }

    /// Leaves the cluster. This node then has no members and serves nothing.
    ///
    /// # Errors
    /// The node belongs to no cluster.
    pub async fn leave(&self) -> Result<Parted> {
        self.call(|reply| Call::Leave { reply }).await
    }

    /// Requests admission from a node nearby or at an address, and returns the number that a person
    /// must type there; [`Node::pairing`] reports the outcome. Replaces an earlier request.
    ///
    /// # Errors
    /// The node is ambiguous, does not answer, or takes no requests.
    pub async fn pair(&self, with: PairWith) -> Result<PairAsking> {
        self.call(|reply| Call::Pair { with, reply }).await
    }

    /// Admits the machine that shows this number: the only one that waits, or the one with this
    /// name or these first digits of an id.
    ///
    /// # Errors
    /// The machine shows another number, none or several wait, or there were too many wrong
    /// numbers.
    pub async fn accept(&self, number: &str, node: Option<&str>) -> Result<Paired> {
        let (number, node) = (number.to_owned(), node.map(str::to_owned));
        self.call(|reply| Call::Accept { number, node, reply }).await
    }

    /// Ends this node's request for admission, if it has one: the other node forgets it.
    ///
    /// # Errors
    /// The node has been shut down.
    pub async fn withdraw(&self) -> Result<()> {
        self.call(|reply| Call::WithdrawRequest { reply }).await
    }

    /// Rejects a machine that waits for admission.
    ///
    /// # Errors
    /// No machine or several machines of that name wait.
    pub async fn refuse(&self, node: &str) -> Result<PairRequest> {
        let node = node.to_owned();
        self.call(|reply| Call::RefuseRequest { node, reply }).await
    }

    /// The machines that wait for admission, and this node's own request.
    ///
    /// # Errors
    /// The node has been shut down.
    pub async fn pairing(&self) -> Result<Pairing> {
        self.call(|reply| Call::Pairing { reply }).await
    }

    /// Empties a node, given by its name or the first digits of its id: it gets no new ranks or
    /// instances, and its present ones move to other nodes. Moving continues after this returns. It
    /// is complete once the node's status shows no memory in use and no instance names it.
    ///
    /// # Errors
    /// No node or several nodes match, or the others do not suffice. Nothing changes then.
    pub async fn drain(&self, name: &str) -> Result<NodeId> {
        let status = self.status();
        let node = find(&status, name)?;
        let mut models = Vec::new();
        for instance in status.instances.iter().filter(|instance| instance.is_held_by(node)) {
            let header = match self.model_header(&instance.id).await {
                Ok(header) => header,
                // Nothing of it could move.
                Err(_) if matches!(instance.state, InstanceState::Failed { .. }) => continue,
                Err(error) => {
                    return Err(Error::Unusable(format!(
                        "node {name} cannot be emptied now: whether {} fits on the others is unknown \
                         without its header. {error}. Nothing was changed: try again, or stop the \
                         model",
                        instance.model
                    )));
                }
            };
            let model = layout::Outline::read(&header);
            let model = model.map_err(|e| Error::Unusable(e.to_string()))?;
            // A node leaves out a tower that it cannot use, too.
            let tower_bytes = tower_bytes(&header).unwrap_or(0);
            models.push((instance.id.clone(), model, tower_bytes));
        }
        self.call(|reply| Call::Drain { node, models, reply }).await?;
        Ok(node)
    }

    /// Ends the draining of a node, given by its name or the first digits of its id.
    ///
    /// # Errors
    /// No node or several nodes match.
    pub async fn undrain(&self, node: &str) -> Result<NodeId> {
        let node = find(&self.status(), node)?;
        self.call(|reply| Call::Undrain { node, reply }).await?;
        Ok(node)
    }

    /// The presets of the cluster, by name.
    pub fn presets(&self) -> Arc<[Preset]> {
        self.shared.desk.status.borrow().presets.clone()
    }

    /// Writes a preset on all nodes, instead of one of the same name. Its model must be there; a
    /// preset of another preset takes over what it does not set itself.
    ///
    /// # Errors
    /// No node has the model, a value is out of its range, or a served model has the name.
    pub async fn write_preset(&self, mut preset: Preset) -> Result<()> {
        let presets = self.presets();
        if let Some(base) = presets.iter().find(|base| base.name == preset.model) {
            preset = preset.over(base);
        }
        let asked = std::mem::take(&mut preset.model);
        let Identified { served_as, name } = self.identify(&asked).await?;
        let is_served = served_as.is_some();
        preset.model = served_as.or(name).ok_or_else(|| {
            Error::NotHere(format!("no node has {asked}. Fetch it first: sinew pull {asked}"))
        })?;
        // Requests will name it, so a path is not enough.
        if !is_served && preset.model != asked && !self.is_known(&preset.model).await? {
            return Err(Error::Unusable(format!(
                "{asked} is in no folder where nodes look for models. Put it into {}, or serve it \
                 first: sinew serve {asked}",
                self.shared.store.models_dir().display()
            )));
        }
        let (name, preset) = (preset.name.clone(), Some(Box::new(preset)));
        self.call(|reply| Call::WritePreset { name, preset, reply }).await
    }

    /// Removes a preset from all nodes.
    ///
    /// # Errors
    /// There is none of this name.
    pub async fn remove_preset(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.call(|reply| Call::WritePreset { name, preset: None, reply }).await
    }

    /// Loads the memory and cores of all live nodes, and all links between them, for
    /// `spec.seconds`. Dropping the future ends the load on all nodes within seconds.
    ///
    /// # Errors
    /// A model is served and `while_serving` is false, or a node refuses or is lost; the error
    /// names it.
    pub async fn burn(&self, spec: BurnSpec) -> Result<BurnReport> {
        let (desk, pulls) = (&self.shared.desk, &self.shared.pulls);
        let status = desk.status.borrow().clone();
        burn::burn(&desk.burner, pulls.net(), pulls.neighbours(), &status, spec).await
    }

    /// Places a model and starts its workers; returns the instance's id while it is loading. If
    /// only another node has the model, that node serves it.
    ///
    /// # Errors
    /// The model is missing, unreadable, or served already, or no set of nodes has room.
    pub async fn serve(&self, spec: InstanceSpec) -> Result<String> {
        let shared = &self.shared;
        let missing = match shared.desk.serve(spec.clone(), Asked::Here).await {
            Err(error @ Error::NotHere(_)) => error,
            outcome => return outcome,
        };
        let found = self.find_elsewhere(&spec.model).await?;
        let found = found.ok_or_else(|| self.or_away(missing))?;
        let id = remote::serve(shared.pulls.net(), &found, spec).await?;
        let mut watch = self.watch();
        let is_told = |status: &Arc<ClusterStatus>| status.instances.iter().any(|i| i.id == id);
        // The next request for the model must find it here. The other node has already sent the
        // change to its members.
        let _ = tokio::time::timeout(TELLING_MAX, watch.wait_for(is_told)).await;
        Ok(id)
    }

    /// The plan for a model: its placement, its speed, and the reasons against other plans. Of a
    /// model that no node has, the header is read on the hub, or is the catalogue's shape.
    ///
    /// # Errors
    /// There is no such model, it is unreadable, or no set of nodes has room.
    pub async fn plan(&self, spec: InstanceSpec) -> Result<Planned> {
        let missing = match self.shared.desk.plan(spec.clone(), Asked::Here).await {
            Err(error @ Error::NotHere(_)) => error,
            outcome => return Ok(outcome?.into()),
        };
        if let Some(found) = self.find_elsewhere(&spec.model).await? {
            return Ok(remote::plan(self.shared.pulls.net(), &found, spec).await?.into());
        }
        if let Some((_, header)) = self.served(&spec.model).await? {
            let name = spec.model.clone();
            return Ok(self.shared.desk.plan_header(spec, name, header, true).await?.into());
        }
        let (previews, room, name) =
            (self.shared.previews.clone(), self.room(), spec.model.clone());
        let look = on_thread(move || previews.look(&name, &room));
        let Preview { download, header, is_shape } =
            look.await.map_err(|_| Error::ShutDown)??.ok_or(missing)?;
        let name = download.name.clone();
        let plan = self.shared.desk.plan_header(spec, name, header, !is_shape).await?;
        Ok(Planned { plan, download: Some(download) })
    }

    /// The instance that serves a model of this name, and its header: its file may be in no folder
    /// that a node looks into.
    async fn served(&self, name: &str) -> Result<Option<(InstanceStatus, Arc<gguf::Directory>)>> {
        let instances = self.status().instances;
        match instances.into_iter().find(|one| one.model == name) {
            Some(one) => Ok(Some((one.clone(), self.model_header(&one.id).await?))),
            None => Ok(None),
        }
    }

    /// Whether a node finds a model by this name.
    async fn is_known(&self, name: &str) -> Result<bool> {
        Ok(self.has_model(name).await || self.find_elsewhere(name).await?.is_some())
    }

    /// The error about a model that no node in reach has: others may have it.
    fn or_away(&self, missing: Error) -> Error {
        let status = self.status();
        let away = status.nodes.iter().filter(|node| node.state == NodeState::Lost);
        let away: Vec<&str> = away.map(|node| node.name.as_str()).collect();
        match missing {
            Error::NotHere(why) if !away.is_empty() => Error::NotHere(format!(
                "{why}. {} cannot be reached now, and may have it",
                away.join(", ")
            )),
            missing => missing,
        }
    }

    /// Finds a model on other nodes.
    async fn find_elsewhere(&self, model: &str) -> Result<Option<RemoteModel>> {
        let pulls = &self.shared.pulls;
        remote::find(pulls.net(), pulls.neighbours(), model).await
    }

    /// Whether this model, given by name or path, is served. Compares the content of files: the
    /// model is hashed if a served one has the same length.
    ///
    /// # Errors
    /// The file is unreadable.
    pub async fn identify(&self, model: &str) -> Result<Identified> {
        let instances = self.status().instances;
        let by_name = instances.iter().find(|one| one.model == model || one.id == model);
        if let Some(served) = by_name.filter(|_| !Path::new(model).exists()) {
            let served_as = Some(served.model.clone());
            return Ok(Identified { served_as: served_as.clone(), name: served_as });
        }
        let (store, asked) = (self.shared.store.clone(), model.to_owned());
        let lens: Vec<u64> = instances.iter().map(|one| one.model_bytes).collect();
        let look = on_thread(move || lookup::identify(&store, &asked, &lens));
        let (name, digest) = match look.await.map_err(|_| Error::ShutDown)? {
            Err(Error::NotHere(_)) => match self.find_elsewhere(model).await? {
                Some(found) => (found.listed.model.name, found.listed.digest),
                None => return Ok(Identified::default()),
            },
            identified => identified?,
        };
        let same = instances.iter().find(|one| digest.is_some() && one.digest == digest);
        Ok(Identified { served_as: same.map(|one| one.model.clone()), name: Some(name) })
    }

    /// The description of a model from its header, on any node.
    ///
    /// # Errors
    /// No node has the model, or its file is unreadable.
    pub async fn describe(&self, model: &str) -> Result<ModelAbout> {
        let (store, asked) = (self.shared.store.clone(), model.to_owned());
        let (room, check) = (self.shared.desk.room_bytes(), self.shared.desk.check_text);
        let read = on_thread(move || {
            let (_, path) = lookup::locate(&store, &asked).map_err(lookup::refuse)?;
            let read = ModelAbout::read(&asked, &path, room, check);
            read.map_err(|error| Error::Unusable(error.to_string()))
        });
        let missing = match read.await.map_err(|_| Error::ShutDown)? {
            Err(error @ Error::NotHere(_)) => error,
            read => return read,
        };
        let Some(found) = self.find_elsewhere(model).await? else {
            let (one, header) = self.served(model).await?.ok_or(missing)?;
            return Ok(ModelAbout::of(model, model, (&header, one.model_bytes), room, check));
        };
        let about = remote::describe(self.shared.pulls.net(), &found, model).await?;
        Ok(ModelAbout { node: Some(found.holder.name), ..about })
    }

    /// Fetches a model, given by name or path, to this node's disk unless it is there. The
    /// receiver's last value has a final stage. Dropping all receivers ends the download; its data
    /// stays.
    ///
    /// # Errors
    /// The name is invalid, or too many models are being fetched.
    pub async fn pull(&self, model: &str, update: bool) -> Result<watch::Receiver<PullStatus>> {
        let (pulls, room, model) = (self.shared.pulls.clone(), self.room(), model.to_owned());
        let asked = model.clone();
        let start = on_thread(move || pulls.start(&asked, Some(room), update));
        let missing = match start.await.map_err(|_| Error::ShutDown)? {
            Err(error @ Error::NotHere(_)) => error,
            outcome => return outcome,
        };
        let found = self.find_elsewhere(&model).await?;
        let found = found.ok_or_else(|| self.or_away(missing))?;
        let inputs = self.shared.desk.inputs.upgrade().ok_or(Error::ShutDown)?;
        Ok(remote::pull(self.shared.pulls.clone(), inputs, found, model))
    }

    /// Like [`Self::pull`], but it goes on without its caller, and after a restart of this node.
    ///
    /// # Errors
    /// Those of [`Self::pull`].
    pub async fn pull_through(
        &self,
        model: &str,
        update: bool,
    ) -> Result<watch::Receiver<PullStatus>> {
        let told = self.pull(model, update).await?;
        self.shared.pulls.unfinished().follow(model, told.clone()).await;
        Ok(told)
    }

    /// Whether a model, given by name or path, is on this node's disk.
    pub async fn has_model(&self, model: &str) -> bool {
        let (store, model) = (self.shared.store.clone(), model.to_owned());
        let look = on_thread(move || lookup::is_here(&store, &model));
        look.await.unwrap_or(false)
    }

    /// The models on all nodes' disks, this machine's first.
    pub async fn models(&self) -> Vec<Held> {
        let (store, pulls) = (self.shared.store.clone(), &self.shared.pulls);
        let here = on_thread(move || store.list());
        let others = remote::list(pulls.net(), pulls.neighbours());
        let (here, others) = tokio::join!(here, others);
        let here = here.unwrap_or_default().into_iter();
        let here = here.map(|listed| Held { listed, node: None });
        let others = others.into_iter().flat_map(|(node, listed)| {
            let of = move |listed| Held { listed, node: Some(node.clone()) };
            listed.into_iter().map(of)
        });
        here.chain(others).collect()
    }

    /// What this cluster could serve: the models on its disks, and those with a short name.
    pub async fn library(&self) -> Library {
        let (store, under_way) = (self.shared.store.clone(), self.shared.pulls.list());
        let left = on_thread(move || library::interrupted(store.models_dir(), &under_way));
        let (held, left) = tokio::join!(self.models(), left);
        library::collect(self.room(), held, left.unwrap_or_default())
    }

    /// The quantisations of a model on the hub, the smallest first.
    ///
    /// # Errors
    /// That is no name of a repository, or the hub does not list it.
    pub async fn variants(&self, model: &str) -> Result<Vec<Offer>> {
        let (previews, name) = (self.shared.previews.clone(), model.to_owned());
        let list = on_thread(move || previews.variants(&name));
        list.await.map_err(|_| Error::ShutDown)?
    }

    /// Searches the hub for models, the most downloaded first.
    ///
    /// # Errors
    /// The hub may not be asked, or does not answer in time.
    pub async fn search(&self, words: &str) -> Result<Vec<hub::Found>> {
        let (previews, words) = (self.shared.previews.clone(), words.to_owned());
        let search = on_thread(move || previews.search(&words));
        search.await.map_err(|_| Error::ShutDown)?
    }

    /// Stops a download of this node, whichever client waits for it.
    ///
    /// # Errors
    /// There is none of that model.
    pub async fn stop_pull(&self, model: &str) -> Result<()> {
        self.shared.pulls.unfinished().remove(model).await;
        self.shared.pulls.stop(model)
    }

    /// Deletes a model from this node's model folder, or from that of the member with this name;
    /// returns the bytes freed.
    ///
    /// # Errors
    /// The model is missing, served, another program's, or cannot be deleted.
    pub async fn remove_model(&self, model: &str, node: Option<&str>) -> Result<u64> {
        let pulls = &self.shared.pulls;
        if let Some(node) = node.filter(|node| *node != self.name()) {
            let holder = pulls.neighbours().into_iter().find(|other| other.name == node);
            let gone =
                || Error::NotHere(format!("node {node} is not here. List them: sinew nodes"));
            return remote::remove(pulls.net(), &holder.ok_or_else(gone)?, model).await;
        }
        match self.shared.desk.remove(model).await {
            Err(Error::NotHere(why)) => match self.find_elsewhere(model).await {
                Ok(Some(found)) => Err(Error::NotHere(format!(
                    "{model} is on node {0}, not here. Type on {0}: sinew rm {model}",
                    found.holder.name
                ))),
                _ => Err(Error::NotHere(why)),
            },
            outcome => outcome,
        }
    }

    /// Deletes the prompts that the connected nodes keep on disk, also of served models; memory
    /// keeps what it has.
    pub async fn forget_prompts(&self) -> Vec<Forgotten> {
        let (own, pulls) = (self.name().to_owned(), &self.shared.pulls);
        let here = self.shared.desk.prompts.forget();
        remote::forget_all(pulls.net(), pulls.neighbours(), (own, here)).await
    }

    /// The free memory of the live nodes, for the choice of a model's size.
    fn room(&self) -> Room {
        let nodes = self.status().nodes;
        let live: Vec<_> = nodes.iter().filter(|node| node.state == NodeState::Live).collect();
        let free = |node: &&NodeStatus| node.memory_bytes.saturating_sub(node.memory_used_bytes);
        let whose = match live.len() {
            0 | 1 => "this machine has".to_owned(),
            count => format!("the {count} nodes have"),
        };
        Room { bytes: live.iter().map(free).fold(0, u64::saturating_add), whose }
    }
}
