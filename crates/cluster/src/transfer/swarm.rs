//! Reads a model's bytes from all holders and compares each group with its hash on arrival. A
//! holder with wrong bytes gets an `Ask::Doubt` and is skipped for that group; one that does not
//! answer is skipped for a while.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use gguf::File;
use store::{Checked, GROUP_BYTES, Groups, Tree};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::context::sources::Sources;
use crate::core::Event;
use crate::io::frames;
use crate::io::net::{Connection, DialError, Net};
use crate::io::on_thread::on_thread;
use crate::io::tls::Pin;
use crate::paths::cannot_call;
use crate::transfer::asks::{Ask, fill, read_bytes, unless_silent};
use crate::wire::Purpose;

/// How long a failed source comes last.
const BARRED: Duration = Duration::from_secs(5);
/// How often all sources are asked for a group while more of it comes.
const ROUNDS_MAX: usize = 8;
/// Limit of the answer to [`Ask::Open`], in which the lengths of the model's files must fit.
const LENS_BYTES_MAX: usize = 128 << 10;

pub(crate) struct Swarm {
    net: Arc<Net>,
    wanted: Sources,
    runtime: Handle,
    inputs: mpsc::Sender<Event>,
    /// Bytes of groups that have come.
    arrived: Arc<AtomicU64>,
    /// Idle connections, by the source's index.
    idle: Mutex<Vec<(usize, Connection)>>,
    barred: Mutex<BTreeMap<usize, Instant>>,
    /// By source: held by the only group that comes over a slow path; only whole ones are kept.
    alone: Vec<tokio::sync::Mutex<()>>,
}

impl std::fmt::Debug for Swarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Swarm").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

impl Swarm {
    pub fn new(net: Arc<Net>, wanted: Sources, inputs: mpsc::Sender<Event>) -> Self {
        let (arrived, idle, barred) = Default::default();
        let alone = wanted.sources.iter().map(|_| Default::default()).collect();
        Self { net, wanted, runtime: Handle::current(), inputs, arrived, idle, barred, alone }
    }

    /// Counts the bytes that come in `arrived`.
    pub fn counted_in(self, arrived: Arc<AtomicU64>) -> Self {
        Self { arrived, ..self }
    }

    /// Fetches the hashes and opens the model. Later reads block their thread.
    ///
    /// # Errors
    /// No member has the model, or it is not GGUF.
    pub async fn open(self) -> io::Result<File> {
        let (tree, lens) = self.learn().await?;
        let open = move || {
            // The GGUF reader finds parts by such names.
            let named = |count| match count {
                0 | 1 => PathBuf::from("model.gguf"),
                count => PathBuf::from(format!("model-00001-of-{count:05}.gguf")),
            };
            let checked = Checked::new(tree, self);
            let open = |count| checked.open(&named(count), &lens).map_err(unnamed);
            match open(lens.len()) {
                Ok(file) if file.parts().len() == lens.len() => Ok(file),
                // The last file is a vision tower's.
                _ if lens.len() > 1 => open(lens.len() - 1),
                other => other,
            }
        };
        on_thread(open).await.map_err(io::Error::other)?
    }

    /// The hashes of the model's groups, which the digest verifies, and the lengths of its files.
    pub async fn learn(&self) -> io::Result<(Tree, Vec<u64>)> {
        let mut why = Vec::new();
        for at in self.order(0) {
            match self.learn_from(at).await {
                Ok(learned) => return Ok(learned),
                Err(error) => why.push(self.bar(at, &error)),
            }
        }
        Err(self.nobody("the hashes", &why, false))
    }

    async fn learn_from(&self, at: usize) -> Result<(Tree, Vec<u64>), DialError> {
        let Sources { digest, bytes, .. } = self.wanted;
        let (mut connection, lens) = self.dial(at).await?;
        let count = bytes.div_ceil(GROUP_BYTES);
        let mut hashes = vec![0; if count <= 1 { 0 } else { count as usize * 32 }];
        unless_silent(frames::write(&mut connection.stream, &Ask::Tree)).await?;
        fill(&mut connection, &mut hashes, &mut 0).await?;
        self.lock_idle().push((at, connection));
        let tree = Tree::from_bytes(digest, bytes, &hashes);
        let tree = tree.ok_or_else(|| io::Error::other("its hashes are not the model's"))?;
        if lens.iter().fold(0, |sum: u64, len| sum.saturating_add(*len)) != bytes {
            return Err(io::Error::other("its files have another length").into());
        }
        Ok((tree, lens))
    }

    /// Connects to a source and opens the model there; returns the lengths of its files.
    async fn dial(&self, at: usize) -> Result<(Connection, Vec<u64>), DialError> {
        let Sources { digest, bytes, sources } = &self.wanted;
        let source = &sources[at];
        let pin = Pin::Node(source.node);
        let mut connection = self.net.dial(source.addresses.clone(), pin, Purpose::Share).await?;
        let ask = Ask::Open { digest: *digest, bytes: *bytes };
        frames::write(&mut connection.stream, &ask).await?;
        let answer = frames::read::<Option<Vec<u64>>>(&mut connection.stream, LENS_BYTES_MAX);
        let lens = unless_silent(answer).await?;
        let lens = lens.filter(|lens| !lens.is_empty());
        let lens = lens.ok_or_else(|| io::Error::other("its file is gone, or was overwritten"))?;
        Ok((connection, lens))
    }

    /// A group's bytes, from the first source with the right ones. What one source has sent before
    /// it fell silent is kept, and the next one is asked for the rest.
    ///
    /// # Errors
    /// No source has them.
    pub async fn group(&self, tree: &Tree, group: u64) -> io::Result<Vec<u8>> {
        let (mut why, mut is_damaged) = (Vec::new(), false);
        let mut part = Came::new(tree.extent(group).1);
        for _ in 0..ROUNDS_MAX {
            let before = part.came;
            (why, is_damaged) = Default::default();
            for at in self.order(group as usize) {
                match self.ask(tree, group, at, &mut part).await {
                    Ok(true) => return Ok(part.bytes),
                    Ok(false) => {
                        let name = &self.wanted.sources[at].name;
                        warn!(node = name, group, "a member's copy of a model is damaged");
                        is_damaged = true;
                        why.push(format!("the copy on {name} is damaged there"));
                    }
                    Err(error) => why.push(self.bar(at, &error)),
                }
            }
            if part.came <= before {
                break;
            }
        }
        Err(self.nobody(&format!("MiB {}", group + 1), &why, is_damaged))
    }

    /// Asks one source for what is missing of a group; `false` if its bytes have a wrong hash.
    async fn ask(
        &self,
        tree: &Tree,
        group: u64,
        at: usize,
        part: &mut Came,
    ) -> Result<bool, DialError> {
        let (start, before) = (tree.extent(group).0, part.came);
        self.fill(at, start, part).await?;
        if before > 0 && !tree.is_group(group, &part.bytes) {
            // It need not be this source whose bytes are wrong.
            part.came = 0;
            self.fill(at, start, part).await?;
        }
        if tree.is_group(group, &part.bytes) {
            return Ok(true);
        }
        part.came = 0;
        let (mut connection, _) = self.connection(at).await?;
        // The source checks its own disk and trusts only that.
        frames::write(&mut connection.stream, &Ask::Doubt { group }).await?;
        let (node, digest) = (self.wanted.sources[at].node, self.wanted.digest);
        // Sending fails only if the whole node has ended.
        let _ = self.inputs.send(Event::Damaged { node, digest, group: Some(group) }).await;
        self.lock_idle().push((at, connection));
        Ok(false)
    }

    /// Reads the rest of a group from one source.
    async fn fill(&self, at: usize, start: u64, part: &mut Came) -> Result<(), DialError> {
        let flow = self.net.flows.of(self.wanted.sources[at].node);
        let alone = self.alone[at].lock().await;
        let _alone = Some(alone).filter(|_| !flow.carries(GROUP_BYTES));
        let (mut connection, is_kept) = self.connection(at).await?;
        let (before, Came { bytes, came }) = (part.came, part);
        let counts = (&flow, &*self.arrived);
        let mut read = read_bytes(&mut connection, counts, start, bytes, came).await;
        if is_kept && read.is_err() && *came == before {
            // While it waited for its turn, the path was lost for a moment, or it was idle long.
            connection = self.dial(at).await?.0;
            read = read_bytes(&mut connection, counts, start, bytes, came).await;
        }
        read?;
        self.lock_idle().push((at, connection));
        Ok(())
    }

    /// A connection to a source, and whether it was idle before.
    async fn connection(&self, at: usize) -> Result<(Connection, bool), DialError> {
        let kept = {
            let mut idle = self.lock_idle();
            let place = idle.iter().position(|(source, _)| *source == at);
            place.map(|place| idle.swap_remove(place).1)
        };
        match kept {
            Some(connection) => Ok((connection, true)),
            None => Ok((self.dial(at).await?.0, false)),
        }
    }

    /// The indices of the sources, rotated by `turn`; recently failed ones come last.
    fn order(&self, turn: usize) -> Vec<usize> {
        let count = self.wanted.sources.len();
        let barred = self.barred.lock().unwrap_or_else(PoisonError::into_inner);
        let is_barred = |at: &usize| barred.get(at).is_some_and(|since| since.elapsed() < BARRED);
        let mut order: Vec<usize> = (0..count).map(|at| (turn + at) % count).collect();
        order.sort_by_key(is_barred);
        order
    }

    /// Moves a source to the end for a while; returns the reason as text.
    fn bar(&self, at: usize, error: &DialError) -> String {
        let name = &self.wanted.sources[at].name;
        debug!(node = name, %error, "a member gives nothing of a model");
        let mut barred = self.barred.lock().unwrap_or_else(PoisonError::into_inner);
        barred.insert(at, Instant::now());
        if !error.is_unreachable() {
            return format!("{name}: {error}");
        }
        let what = cannot_call(self.net.name(), name, &self.wanted.sources[at].addresses);
        format!("{what} ({error})")
    }

    fn nobody(&self, what: &str, why: &[String], is_damaged: bool) -> io::Error {
        let why = if why.is_empty() { "no other node has it".to_owned() } else { why.join("; ") };
        let what = format!("no node gives {what} of the model: {why}");
        io::Error::other(match is_damaged {
            true => format!(
                "{what}. Put a whole copy in the place of a damaged one, and serve the model again"
            ),
            false => what,
        })
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<(usize, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without the name that only the reader needs.
fn unnamed(error: gguf::Error) -> io::Error {
    match error {
        gguf::Error::Io { source, .. } => source,
        other => io::Error::other(other),
    }
}

/// A group of which `came` bytes have come.
struct Came {
    bytes: Vec<u8>,
    came: usize,
}

impl Came {
    fn new(len: u64) -> Self {
        Self { bytes: vec![0; len as usize], came: 0 }
    }
}

impl Groups for Swarm {
    fn fetch(&self, tree: &Tree, wanted: &[u64]) -> io::Result<Vec<Vec<u8>>> {
        self.runtime.block_on(try_join_all(wanted.iter().map(|group| self.group(tree, *group))))
    }
}
