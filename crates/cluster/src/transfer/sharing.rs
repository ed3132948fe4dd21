//! Answers members' requests about models. The first kind asks who has a model
//! ([`crate::transfer::remote`]). The second kind reads files that this node has fetched or is
//! fetching: a file comes from the hub once, however many nodes want it.
//!
//! A node that is about to fetch queries all live members. If holders exist, each of them sends
//! some of the bytes. The SHA-256 of the result must equal the hub's, so members need no trust. If
//! another member fetches, the node waits for it. If two begin at once, the one with the lower id
//! continues: each announces `Wanting`, looks for others, announces `Fetching`, and looks again.
//!
//! ```text
//! dialer      Ask
//! listener    a frame with the answer; to Bytes, `len` plain bytes; to Serve and Plan, a frame
//!             every two seconds until the answer
//! ```

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use protocol::frame::FrameError;
use records::Reader;
use store::{Listed, Store};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::io::frames;
use crate::io::net::{Connection, DialError};
use crate::io::on_thread::on_thread;
use crate::transfer::asks::{ASK_BYTES_MAX, Ask, BYTES_MAX, Having, Outcome};
use crate::transfer::burn;
use crate::transfer::burn::spec::BurnOrder;
use crate::transfer::desk::{Desk, OpenModel};
use crate::transfer::lookup::{self, Asked};
use crate::transfer::prompts;
use crate::transfer::pulls::Pulls;
use crate::{Error, ModelAbout};

/// Models in one list for another member.
const LISTED_MAX: usize = 1000;
/// Interval of the `Working` frames to a member that waits for a decision.
const SIGN_EVERY: Duration = Duration::from_secs(2);
/// Answers a member until it disconnects.
pub(crate) async fn answer(
    mut connection: Connection,
    pulls: Arc<Pulls>,
    desk: Desk,
) -> Result<(), DialError> {
    let mut open: Option<Opened> = None;
    let mut reader: Option<Arc<Reader>> = None;
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
            Ask::Remove { model } => decide(&mut connection, removed(desk.remove(&model))).await?,
            Ask::ForgetPrompts => decide(&mut connection, removed(desk.forget_prompts())).await?,
            Ask::About { model, file, size } => {
                let (store, asked) = (pulls.store(), model.clone());
                let find = move || held(&store, &asked, &file, size);
                let found = on_thread(find).await.map_err(io::Error::other)?;
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
                let bytes = on_thread(read).await.map_err(io::Error::other)??;
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
            Ask::Records { .. } | Ask::ReadRecords { .. } => {
                prompts::answer(&mut connection.stream, ask, &desk.prompts, &mut reader).await?;
            }
            Ask::Burn { order } => {
                decide(&mut connection, take_part(&pulls, &desk, *order)).await?
            }
            Ask::Exchange { blocks } => burn::answer(&mut connection.stream, blocks).await?,
            Ask::Visit => return desk.visits.carry(&mut connection).await,
        }
    }
}

/// This node's part in a burn-in.
async fn take_part(pulls: &Pulls, desk: &Desk, order: BurnOrder) -> crate::Result<Outcome> {
    let status = desk.status.borrow().clone();
    let (net, others) = (pulls.net(), pulls.neighbours());
    let part = desk.burner.take_part(net, others, &status, order).await?;
    Ok(Outcome::Burned(Box::new(part)))
}

/// An open file or model that a member reads.
#[derive(Clone)]
enum Opened {
    File(Arc<File>),
    Model(Arc<OpenModel>),
}

impl Opened {
    fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File(file) => gguf::read_exact_at(file, start, out),
            Self::Model(model) => model.read(start, out),
        }
    }
}

/// Runs `look` on a thread for blocking work.
async fn on_disk<T: Send + 'static>(
    pulls: &Arc<Pulls>,
    look: impl FnOnce(&Store) -> T + Send + 'static,
) -> io::Result<T> {
    let store = pulls.store();
    on_thread(move || look(&store)).await.map_err(io::Error::other)
}

/// Truncates a list so that it fits into a frame: a few kilobytes for each model suffice.
fn within_a_frame(mut listed: Vec<Listed>) -> Vec<Listed> {
    listed.truncate(LISTED_MAX);
    listed
}

async fn removed(freed: impl Future<Output = crate::Result<u64>>) -> crate::Result<Outcome> {
    Ok(Outcome::Removed { freed_bytes: freed.await? })
}

/// Answers with the result of `deciding`, and with `Working` frames until then.
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

/// The file of a model on this node, by its name on the hub.
fn held(store: &Store, model: &str, file: &str, size: u64) -> Option<File> {
    // A peer's request may name models, never paths.
    hub::Name::parse(model).ok()?;
    let (_, path) = lookup::locate(store, model).ok()?;
    let wanted = Path::new(file).file_name()?;
    let parts = checkpoint::paths(&path);
    // Ollama's blobs and hub caches have other file names for a model's only file.
    let part = match &parts[..] {
        [only] => only,
        several => several.iter().find(|part| part.file_name() == Some(wanted))?,
    };
    let file = File::open(part).ok()?;
    (file.metadata().ok()?.len() == size).then_some(file)
}
