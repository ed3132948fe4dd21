//! What members are asked about their models. First, who has them (the questions of
//! [`crate::transfer::elsewhere`]). Second, files that another member has fetched already, or is
//! fetching: a file comes from the hub once, whatever the number of nodes that want it.
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
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use protocol::frame::FrameError;
use store::{Listed, Store};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::io::frames;
use crate::io::net::{Connection, DialError};
use crate::node::burn;
use crate::node::desk::{Desk, OpenModel};
use crate::transfer::asks::{ASK_BYTES_MAX, Ask, BYTES_MAX, Having, Outcome};
use crate::transfer::lookup::{self, Asked};
use crate::transfer::pulls::Pulls;
use crate::{Error, ModelAbout};

/// Models that a member hears of.
const LISTED_MAX: usize = 1000;
/// How often a member that waits for a decision hears that it is worked on.
const SIGN_EVERY: Duration = Duration::from_secs(2);
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
                    Some(_) => Having::Here,
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
