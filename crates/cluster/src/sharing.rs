//! What members are asked about their models. First, who has them (the questions of
//! [`crate::elsewhere`]). Second, files that another member has fetched already, or is fetching: a
//! file comes from the hub once, whatever the number of nodes that want it.
//!
//! A node that is about to fetch asks all live members. Who has the model gives its bytes, every
//! such member some of them; their SHA-256 must be the one that the hub announced, so nobody is
//! believed.
//! While another one fetches, it waits for that one. Of two that begin at once, the one with the
//! lower id goes on: each says first that it wants to, then looks whether another does, says that
//! it fetches, and looks once more.
//!
//! ```text
//! dialer      Ask
//! listener    a frame with the answer; to Bytes, so many plain bytes as were asked for; to Serve
//!             and Plan, a frame every two seconds until there is an answer
//! ```

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hub::{Nearby, RemoteFile};
use protocol::frame::{FRAME_BYTES_MAX, FrameError};
use serde::{Deserialize, Serialize};
use store::{Digest, Listed, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::{debug, info};

use crate::burn::{self, BurnOrder, Part};
use crate::desk::{Desk, OpenModel};
use crate::lookup::{self, Asked};
use crate::net::{Connection, DialError, Net};
use crate::pulls::Pulls;
use crate::tls::Pin;
use crate::wire::Purpose;
use crate::{Error, InstanceSpec, ModelAbout, NodeId, frames};

/// Bytes of one answer.
const BYTES_MAX: u64 = 4 << 20;
const ASK_BYTES_MAX: usize = 64 << 10;
/// Models that a member hears of.
const LISTED_MAX: usize = 1000;
/// How often a member that waits for a decision hears that it is worked on.
const SIGN_EVERY: Duration = Duration::from_secs(2);
/// A member that is silent for so long is passed over, or taken for lost.
const SILENCE_MAX: Duration = Duration::from_secs(15);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Every model on the listener's disk: `Vec<Listed>`.
    List,
    /// The model of that name, if the listener has it: `Option<Listed>`.
    Find { model: String },
    /// What it is: `Option<ModelAbout>`.
    Describe { model: String },
    /// The listener is to serve a model that it has: [`Outcome`].
    Serve { spec: Box<InstanceSpec> },
    /// How it would serve it: [`Outcome`].
    Plan { spec: Box<InstanceSpec> },
    /// What the listener knows of a model's file.
    About { model: String, file: String, size: u64 },
    /// Bytes of what was asked about last, [`Self::About`] or [`Self::Open`].
    Bytes { start: u64, len: u64 },
    /// The model of that content, all its files one after the other: the lengths of its files, as
    /// `Option<Vec<u64>>`.
    Open { digest: Digest, bytes: u64 },
    /// The hashes of its groups: plain bytes.
    Tree,
    /// One of its groups is not what its hash says. The listener looks for itself; no answer.
    Doubt { group: u64 },
    /// The listener is to take its part in a burn-in: [`Outcome`].
    Burn { order: Box<BurnOrder> },
    /// Both ends send so many blocks at once: [`crate::burn`].
    Exchange { blocks: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Told {
    Here,
    /// It comes from the hub.
    Fetching,
    /// It is wanted, and nothing was fetched yet.
    Wanting,
    No,
}

/// What came of [`Ask::Serve`] and [`Ask::Plan`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The file is being hashed; another frame follows.
    Working,
    Served {
        instance: String,
    },
    Planned(Box<placement::Plan>),
    Burned(Box<Part>),
    AlreadyServed {
        model: String,
        instance: String,
    },
    Refused {
        reason: String,
    },
}

/// A member and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub id: NodeId,
    pub name: String,
    pub address: SocketAddr,
}

/// Asks a member for what takes it a while, and waits as long as it says that it is at it.
///
/// # Errors
/// It cannot be reached, or falls silent.
pub(crate) async fn ask_and_wait(
    net: &Arc<Net>,
    other: &Neighbour,
    ask: &Ask,
) -> Result<Outcome, DialError> {
    let pin = Pin::Node(other.id);
    let mut connection = net.dial(vec![other.address], pin, Purpose::Share).await?;
    frames::write(&mut connection.stream, ask).await?;
    loop {
        let read = frames::read::<Outcome>(&mut connection.stream, FRAME_BYTES_MAX);
        match timeout(SILENCE_MAX, read).await {
            Err(_) => return Err(DialError::Timeout(SILENCE_MAX)),
            Ok(Ok(Outcome::Working)) => {}
            Ok(outcome) => return Ok(outcome?),
        }
    }
}

/// What the others say of a model.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub holders: Vec<Neighbour>,
    /// One to wait for.
    pub ahead: Option<Neighbour>,
}

/// Answers a member until it is done.
pub(crate) async fn answer(
    mut connection: Connection,
    pulls: Arc<Pulls>,
    desk: Desk,
) -> Result<(), DialError> {
    let mut open: Option<Opened> = None;
    loop {
        let ask = match frames::read::<Ask>(&mut connection.stream, ASK_BYTES_MAX).await {
            Err(FrameError::Closed) => return Ok(()),
            ask => ask?,
        };
        match ask {
            Ask::List => {
                let listed = on_disk(&pulls, Store::list).await?;
                frames::write(&mut connection.stream, &within_a_frame(listed)).await?;
            }
            Ask::Find { model } => {
                let found = on_disk(&pulls, move |store| lookup::named(store, &model)).await?;
                frames::write(&mut connection.stream, &found).await?;
            }
            Ask::Describe { model } => {
                let (room, check) = (desk.room_bytes(), desk.check_text);
                let about = on_disk(&pulls, move |store| {
                    let path = lookup::named(store, &model)?.model.path;
                    ModelAbout::read(&model, &path, room, check).ok()
                });
                frames::write(&mut connection.stream, &about.await?).await?;
            }
            Ask::Serve { spec } => {
                let serving = async {
                    let instance = desk.serve(*spec, Asked::ByMember).await?;
                    Ok(Outcome::Served { instance })
                };
                decide(&mut connection, serving).await?;
            }
            Ask::Plan { spec } => {
                let planning = async {
                    let plan = desk.plan(*spec, Asked::ByMember).await?;
                    Ok(Outcome::Planned(Box::new(plan)))
                };
                decide(&mut connection, planning).await?;
            }
            Ask::About { model, file, size } => {
                let (store, asked) = (pulls.store(), model.clone());
                let find = move || held(&store, &asked, &file, size);
                let found = tokio::task::spawn_blocking(find).await.map_err(io::Error::other)?;
                let told = match &found {
                    Some(_) => Told::Here,
                    None => pulls.told(&model),
                };
                open = found.map(|file| Opened::File(Arc::new(file)));
                frames::write(&mut connection.stream, &told).await?;
            }
            Ask::Bytes { start, len } => {
                let Some(opened) = open.clone().filter(|_| len <= BYTES_MAX) else {
                    return Err(io::Error::other("bytes of no file were asked for").into());
                };
                let read = move || {
                    let mut bytes = vec![0; len as usize];
                    opened.read(start, &mut bytes).map(|()| bytes)
                };
                let bytes = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
                connection.stream.write_all(&bytes).await?;
                connection.stream.flush().await?;
            }
            Ask::Open { digest, bytes } => {
                let model = desk.open(connection.peer, digest, bytes).await.map(Arc::new);
                let lens: Option<Vec<u64>> = model.as_ref().map(|model| model.lens());
                open = model.map(Opened::Model);
                frames::write(&mut connection.stream, &lens).await?;
            }
            Ask::Tree => {
                let Some(Opened::Model(model)) = &open else {
                    return Err(io::Error::other("hashes of no model were asked for").into());
                };
                connection.stream.write_all(&model.tree.to_bytes()).await?;
                connection.stream.flush().await?;
            }
            Ask::Doubt { group } => {
                if let Some(Opened::Model(model)) = open.clone() {
                    desk.doubt(model, group).await;
                }
            }
            Ask::Burn { order } => {
                let burning = async {
                    let status = desk.status.borrow().clone();
                    let (net, others) = (pulls.net(), pulls.neighbours());
                    let part = desk.burner.take_part(net, others, &status, *order).await?;
                    Ok(Outcome::Burned(Box::new(part)))
                };
                decide(&mut connection, burning).await?;
            }
            Ask::Exchange { blocks } => {
                burn::answer(&mut connection.stream, blocks.min(burn::BLOCKS_MAX)).await?;
            }
        }
    }
}

/// What a member reads of this node's disk.
#[derive(Clone)]
enum Opened {
    File(Arc<File>),
    Model(Arc<OpenModel>),
}

impl Opened {
    fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.read_exact_at(out, start),
            Self::Model(model) => model.read(start, out),
        }
    }
}

/// Looks at this node's disk.
async fn on_disk<T: Send + 'static>(
    pulls: &Arc<Pulls>,
    look: impl FnOnce(&Store) -> T + Send + 'static,
) -> io::Result<T> {
    let store = pulls.store();
    tokio::task::spawn_blocking(move || look(&store)).await.map_err(io::Error::other)
}

/// A list that a frame can hold: some kilobytes each are more than any model needs.
fn within_a_frame(mut listed: Vec<Listed>) -> Vec<Listed> {
    listed.truncate(LISTED_MAX);
    listed
}

/// Answers with what comes of `deciding`, and with signs of life until then.
async fn decide(
    connection: &mut Connection,
    deciding: impl Future<Output = crate::Result<Outcome>>,
) -> Result<(), DialError> {
    let mut deciding = std::pin::pin!(deciding);
    loop {
        let outcome = match timeout(SIGN_EVERY, &mut deciding).await {
            Err(_) => Outcome::Working,
            Ok(Ok(outcome)) => outcome,
            Ok(Err(Error::AlreadyServed { model, instance })) => {
                Outcome::AlreadyServed { model, instance }
            }
            Ok(Err(error)) => Outcome::Refused { reason: error.to_string() },
        };
        frames::write(&mut connection.stream, &outcome).await?;
        if !matches!(outcome, Outcome::Working) {
            return Ok(());
        }
    }
}

/// The file of a model of this node, by the name that the hub gives it.
fn held(store: &Store, model: &str, file: &str, size: u64) -> Option<File> {
    // A peer's words name models, never paths.
    hub::Name::parse(model).ok()?;
    let (_, path) = lookup::locate(store, model).ok()?;
    let wanted = Path::new(file).file_name()?;
    let parts = gguf::parts_of(&path);
    // Ollama's blobs and hub caches have other names for the only file of a model.
    let part = match &parts[..] {
        [only] => only,
        several => several.iter().find(|part| part.file_name() == Some(wanted))?,
    };
    let file = File::open(part).ok()?;
    (file.metadata().ok()?.len() == size).then_some(file)
}

/// Asks all members about a model's first file.
pub(crate) async fn survey(
    net: &Arc<Net>,
    neighbours: Vec<Neighbour>,
    model: &str,
    file: &RemoteFile,
) -> Survey {
    let asks = neighbours.into_iter().map(async |neighbour| {
        let told = timeout(SILENCE_MAX, ask(net, &neighbour, model, file)).await;
        match told {
            Ok(Ok((told, _))) => Some((neighbour, told)),
            Ok(Err(error)) => {
                debug!(node = %neighbour.name, %error, "cannot be asked for a model");
                None
            }
            Err(_) => None,
        }
    });
    let mut survey = Survey::default();
    for (neighbour, told) in futures_util::future::join_all(asks).await.into_iter().flatten() {
        let is_ahead = match told {
            Told::Here => {
                survey.holders.push(neighbour);
                continue;
            }
            Told::Fetching => true,
            Told::Wanting => neighbour.id < net.id(),
            Told::No => false,
        };
        if is_ahead {
            survey.ahead.get_or_insert(neighbour);
        }
    }
    survey
}

async fn ask(
    net: &Arc<Net>,
    neighbour: &Neighbour,
    model: &str,
    file: &RemoteFile,
) -> Result<(Told, Connection), DialError> {
    let addresses = vec![neighbour.address];
    let mut connection = net.dial(addresses, Pin::Node(neighbour.id), Purpose::Share).await?;
    let (model, file, size) = (model.to_owned(), file.path.clone(), file.size);
    frames::write(&mut connection.stream, &Ask::About { model, file, size }).await?;
    let told = frames::read::<Told>(&mut connection.stream, ASK_BYTES_MAX).await?;
    Ok((told, connection))
}

/// Members that have a model, as the hub's client asks them.
pub(crate) struct Holders {
    net: Arc<Net>,
    model: String,
    holders: Vec<Neighbour>,
    runtime: Handle,
    /// One connection for each of the client's, to the file that it is fetching.
    open: Mutex<Vec<Open>>,
}

struct Open {
    slot: usize,
    file: String,
    connection: Connection,
}

impl Holders {
    pub fn new(net: Arc<Net>, model: &str, holders: Vec<Neighbour>, runtime: Handle) -> Self {
        let names: Vec<&str> = holders.iter().map(|holder| holder.name.as_str()).collect();
        info!(model, nodes = names.join(", "), "a model comes from members that have it");
        Self { net, model: model.to_owned(), holders, runtime, open: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fill(
        &self,
        slot: usize,
        file: &RemoteFile,
        start: u64,
        out: &mut [u8],
    ) -> Result<(), DialError> {
        let kept = {
            let mut open = self.lock();
            let at = open.iter().position(|open| open.slot == slot && open.file == file.path);
            at.map(|at| open.swap_remove(at).connection)
        };
        let mut connection = match kept {
            Some(connection) => connection,
            None => {
                let holder = &self.holders[slot % self.holders.len()];
                match ask(&self.net, holder, &self.model, file).await? {
                    (Told::Here, connection) => connection,
                    _ => return Err(io::Error::other("it no longer has the model").into()),
                }
            }
        };
        for (at, part) in out.chunks_mut(BYTES_MAX as usize).enumerate() {
            let start = start + at as u64 * BYTES_MAX;
            let ask = Ask::Bytes { start, len: part.len() as u64 };
            frames::write(&mut connection.stream, &ask).await?;
            connection.stream.read_exact(part).await?;
        }
        self.lock().push(Open { slot, file: file.path.clone(), connection });
        Ok(())
    }
}

impl Nearby for Holders {
    fn read(&self, slot: usize, file: &RemoteFile, start: u64, out: &mut [u8]) -> bool {
        // A clock belongs to a runtime, so it is asked for inside of it.
        let fill = async { timeout(SILENCE_MAX, self.fill(slot, file, start, out)).await };
        match self.runtime.block_on(fill) {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                info!(model = self.model, %error, "a member gives no more of a model");
                false
            }
            Err(_) => false,
        }
    }
}
