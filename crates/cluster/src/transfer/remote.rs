//! Models on other members' disks: found by name, listed, described, and served there. The holders
//! of a file answer for it. It is copied only on a user's request.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use protocol::frame::FRAME_BYTES_MAX;
use serde::de::DeserializeOwned;
use store::Listed;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tracing::{debug, info};

use crate::context::sources::{Source, Sources};
use crate::core::Event;
use crate::io::frames;
use crate::io::net::{DialError, Net};
use crate::io::tls::Pin;
use crate::transfer::asks::{Ask, Neighbour, Outcome, ask_and_wait};
use crate::transfer::pulls::Pulls;
use crate::transfer::swarm::Swarm;
use crate::wire::Purpose;
use crate::{Error, Forgotten, InstanceSpec, ModelAbout, PullStage, PullStatus, Result};

/// A folder on a network drive may be slow, and so may the way to a member; a list waits no longer
/// than this.
const LOOK_MAX: Duration = Duration::from_secs(15);

/// A model on another member's disk.
#[derive(Debug, Clone)]
pub(crate) struct RemoteModel {
    pub holder: Neighbour,
    pub listed: Listed,
}

/// The models of all members, with the members' names. Omits members that do not answer in time.
pub(crate) async fn list(net: &Arc<Net>, others: Vec<Neighbour>) -> Vec<(String, Vec<Listed>)> {
    let asks = others.into_iter().map(async |other| {
        let listed = look::<Vec<Listed>>(net, &other, &Ask::List).await?;
        Some((other.name, listed))
    });
    join_all(asks).await.into_iter().flatten().collect()
}

/// A member with a model of that name. Prefers members that have hashed it.
///
/// # Errors
/// Members have different files under that name, or one that may have it does not answer.
pub(crate) async fn find(
    net: &Arc<Net>,
    others: Vec<Neighbour>,
    model: &str,
) -> Result<Option<RemoteModel>> {
    let asks = others.into_iter().map(async |holder| {
        let ask = Ask::Find { model: model.to_owned() };
        let listed = look::<Option<Listed>>(net, &holder, &ask).await;
        let listed = listed.ok_or_else(|| holder.name.clone())?;
        Ok(listed.map(|listed| RemoteModel { holder, listed }))
    });
    let (mut found, mut silent): (Vec<RemoteModel>, Vec<String>) = Default::default();
    for answer in join_all(asks).await {
        match answer {
            Ok(one) => found.extend(one),
            Err(name) => silent.push(name),
        }
    }
    // What the hub may have is fetched from there.
    if found.is_empty() && !silent.is_empty() && hub::Name::parse(model).is_err() {
        return Err(Error::Unusable(format!(
            "{model} is not on this node, and {}, which may have it, did not answer within {} s. Try \
             again",
            silent.join(", "),
            LOOK_MAX.as_secs()
        )));
    }
    found.sort_by_key(|found| (found.listed.digest.is_none(), found.holder.id));
    let differ = |a: &RemoteModel, b: &RemoteModel| {
        let digests = (a.listed.digest, b.listed.digest);
        let by_content = matches!(digests, (Some(a), Some(b)) if a != b);
        by_content || a.listed.model.bytes != b.listed.model.bytes
    };
    if let Some((first, other)) =
        found.first().and_then(|first| Some((first, found.iter().find(|it| differ(first, it))?)))
    {
        let tell = |found: &RemoteModel| {
            let model = &found.listed.model;
            format!("{} on {} ({} bytes)", model.path.display(), found.holder.name, model.bytes)
        };
        let (one, two) = (tell(first), tell(other));
        return Err(Error::Unusable(format!(
            "{model} is not on this node, and other nodes have different files of that name: {one}, \
             {two}. Serve the one that you mean on its node, with --name"
        )));
    }
    Ok(found.into_iter().next())
}

/// Lets a model's holder serve it; returns the instance's id.
///
/// # Errors
/// The holder refuses or is lost meanwhile.
pub(crate) async fn serve(
    net: &Arc<Net>,
    found: &RemoteModel,
    spec: InstanceSpec,
) -> Result<String> {
    info!(model = spec.model, node = found.holder.name, "a model is served where its file is");
    match decide(net, found, Ask::Serve { spec: Box::new(spec) }).await? {
        Outcome::Served { instance } => Ok(instance),
        other => Err(refusal(found, other)),
    }
}

/// The plan that a model's holder makes.
///
/// # Errors
/// Those of [`serve`].
pub(crate) async fn plan(
    net: &Arc<Net>,
    found: &RemoteModel,
    spec: InstanceSpec,
) -> Result<placement::Plan> {
    match decide(net, found, Ask::Plan { spec: Box::new(spec) }).await? {
        Outcome::Planned(plan) => Ok(*plan),
        other => Err(refusal(found, other)),
    }
}

/// Deletes a model from a member's own folder; returns the bytes freed.
///
/// # Errors
/// The member refuses or is lost meanwhile.
pub(crate) async fn remove(net: &Arc<Net>, holder: &Neighbour, model: &str) -> Result<u64> {
    let ask = Ask::Remove { model: model.to_owned() };
    let outcome = ask_and_wait(net, holder, &ask).await;
    let told = match outcome.map_err(|error| error.to_string()) {
        Ok(Outcome::Removed { freed_bytes }) => return Ok(freed_bytes),
        Ok(Outcome::Refused { reason }) | Err(reason) => reason,
        Ok(_) => "it answered something else".to_owned(),
    };
    Err(Error::Unusable(format!("{model} was not deleted on node {}: {told}", holder.name)))
}

/// Has these members delete the prompts that they keep on disk, beside this node itself.
pub(crate) async fn forget_all(
    net: &Arc<Net>,
    members: Vec<Neighbour>,
    (name, here): (String, impl Future<Output = Forgetting>),
) -> Vec<Forgotten> {
    let others = members.into_iter().map(|member| async move {
        let outcome = forget(net, &member).await;
        (member.name, outcome)
    });
    let (here, others) = tokio::join!(here, join_all(others));
    let told = |(node, outcome): (String, Forgetting)| {
        let (freed_bytes, problem) = match outcome {
            Ok(freed) => (freed, None),
            Err(why) => (0, Some(why)),
        };
        Forgotten { node, freed_bytes, problem }
    };
    std::iter::once((name, here)).chain(others).map(told).collect()
}

/// The bytes freed, or why some stay.
type Forgetting = std::result::Result<u64, String>;

async fn forget(net: &Arc<Net>, member: &Neighbour) -> Forgetting {
    match ask_and_wait(net, member, &Ask::ForgetPrompts).await {
        Ok(Outcome::Removed { freed_bytes }) => Ok(freed_bytes),
        Ok(Outcome::Refused { reason }) => Err(reason),
        Ok(_) => Err("it answered something else".to_owned()),
        Err(error) => Err(format!("{error}; an older version of Sinew cannot do this")),
    }
}

/// Copies a model from its holders to this node's model folder.
pub(crate) fn pull(
    pulls: Arc<Pulls>,
    inputs: mpsc::Sender<Event>,
    found: RemoteModel,
    model: String,
) -> watch::Receiver<PullStatus> {
    let (name, job) = pulls.begin_copy(&model);
    let receiver = job.told.subscribe();
    tokio::spawn(async move {
        let copying = async {
            let from = found.holder.name.clone();
            job.told.send_modify(|status| status.note = format!("a copy, from node {from}"));
            let wanted = hashed(&pulls, found, &model).await?;
            let swarm = Swarm::new(pulls.net().clone(), wanted, inputs);
            let is_wanted = || job.told.receiver_count() > 0;
            let copied = pulls.copy((&name, &job), &swarm, hub::DiskRoom::Enough, is_wanted).await;
            copied.map_err(|error| error.to_string())
        };
        let outcome: std::result::Result<PathBuf, String> = copying.await;
        job.told.send_modify(|status| match outcome {
            Ok(path) => {
                (status.stage, status.note) = (PullStage::Done, path.display().to_string());
                status.done_bytes = status.total_bytes;
            }
            Err(why) => (status.stage, status.note) = (PullStage::Failed, why),
        });
    });
    receiver
}

/// The content and source of a model. If its holder has not hashed the file yet, it does so first.
async fn hashed(
    pulls: &Pulls,
    found: RemoteModel,
    model: &str,
) -> std::result::Result<Sources, String> {
    let (net, holder) = (pulls.net(), &found.holder);
    let mut listed = found.listed.clone();
    if listed.digest.is_none() {
        let spec = InstanceSpec { model: model.to_owned(), ..InstanceSpec::default() };
        let spec = Box::new(spec);
        // Planning hashes the file, whether or not it succeeds.
        decide(net, &found, Ask::Plan { spec }).await.map_err(|error| error.to_string())?;
        let ask = Ask::Find { model: model.to_owned() };
        listed = look::<Option<Listed>>(net, holder, &ask).await.flatten().unwrap_or(listed);
    }
    let digest = listed.digest;
    let digest = digest.ok_or_else(|| format!("node {} cannot read its file", holder.name))?;
    let Neighbour { id: node, name, address } = holder.clone();
    let source = Source { node, name, addresses: vec![address] };
    Ok(Sources { digest, bytes: listed.model.bytes, sources: vec![source] })
}

/// The description of a model by its holder.
///
/// # Errors
/// The holder does not answer.
pub(crate) async fn describe(
    net: &Arc<Net>,
    found: &RemoteModel,
    model: &str,
) -> Result<ModelAbout> {
    let ask = Ask::Describe { model: model.to_owned() };
    let about: Option<ModelAbout> = look(net, &found.holder, &ask).await.flatten();
    about.ok_or_else(|| {
        Error::Unusable(format!("node {} has {model} but cannot read it", found.holder.name))
    })
}

fn refusal(found: &RemoteModel, outcome: Outcome) -> Error {
    match outcome {
        Outcome::AlreadyServed { model, instance } => Error::AlreadyServed { model, instance },
        Outcome::Refused { reason } => Error::Unusable(format!(
            "node {}, which has the file, and where it would be served: {reason}",
            found.holder.name
        )),
        _ => Error::Unusable(format!("node {} answered something else", found.holder.name)),
    }
}

/// Sends a request that may take as long as hashing a file.
async fn decide(net: &Arc<Net>, found: &RemoteModel, ask: Ask) -> Result<Outcome> {
    let lost = |why: String| {
        let node = &found.holder.name;
        Error::Unusable(format!("node {node}, which has the file, did not answer: {why}"))
    };
    ask_and_wait(net, &found.holder, &ask).await.map_err(|error| lost(error.to_string()))
}

/// Sends a request with an immediate answer; `None` if there is no answer.
async fn look<T: DeserializeOwned>(net: &Arc<Net>, other: &Neighbour, ask: &Ask) -> Option<T> {
    let asked = async {
        let pin = Pin::Node(other.id);
        let mut connection = net.dial(vec![other.address], pin, Purpose::Share).await?;
        frames::write(&mut connection.stream, ask).await?;
        Ok::<T, DialError>(frames::read(&mut connection.stream, FRAME_BYTES_MAX).await?)
    };
    match timeout(LOOK_MAX, asked).await {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(error)) => {
            debug!(node = %other.name, %error, "cannot be asked for its models");
            None
        }
        Err(_) => None,
    }
}
