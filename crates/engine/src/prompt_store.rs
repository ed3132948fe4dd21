//! What one rank keeps of prompts on disk: parts of pages, layer by layer, each a record of its
//! own.
//!
//! A record's key says which bits it holds: of which text, model and layer, and of which heads. So
//! it is found again by every process that needs the same bits, under any split. All reads are
//! asynchronous; what was read is placed into the cache between two steps.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use backend::Backend;
use layout::Layout;
use model::{Holder, Model, Part};
use protocol::{
    HEADS_OF_DISK_MAX, Heads, PromptCache, PromptStats, Token, heads_line, heads_of_line,
};
use records::{Options, Pool, Records, RecordsError};

use crate::page_orders::{Loaded, ORDERS_MAX, PageKey, PageOrder};
use awaited::Awaited;
use load::{Load, Sources};
pub(crate) use look::Elsewhere;
use members::Members;
use record::{header, key_of, number};

mod awaited;
mod load;
mod look;
mod members;
mod record;
mod runs;

/// Changes with the layout of a part's bytes.
const FORMAT: u32 = 1;
/// What may wait to be written, if one page is not more.
const QUEUE_BYTES: usize = 32 << 20;
/// What may be read ahead of the cache.
const LOADING_BYTES_MAX: usize = 64 << 20;
/// How long a rank that ends waits for its disk; what is not written then is computed again.
const FLUSH_PATIENCE: Duration = Duration::from_secs(10);

/// The prompts of one rank.
pub(crate) struct PromptStore {
    records: Awaited,
    shape: Arc<Shape>,
    members: Option<Members>,
    /// Pages being read.
    loads: Vec<Load>,
    budget_bytes: u64,
}

/// What decides bits beside the text.
struct Shape {
    root: PageKey,
    parts: Vec<Part>,
    /// The heads of records in the folder.
    known: Vec<Heads>,
}

/// Rank 0's view of its records, for the scheduler.
pub(crate) trait Shelf: fmt::Debug + Send + Sync {
    /// The key of the empty text under a salt.
    fn root(&self, salt: u64) -> PageKey;
    /// Whether what this rank has in pages of this kind may be on disk, here or at a member: if
    /// here is some of it. Only the first and the last part are looked up: what is missing is found
    /// when it is read.
    fn has(&self, key: &PageKey, holder: Holder) -> bool;
    /// Asks members which of these pages they have; `None`: there is nobody to ask, or too little
    /// to ask about.
    fn look(&self, text: Vec<PageKey>) -> Option<Receiver<Elsewhere>>;
    /// Whether this many pages can be written now.
    fn has_room(&self, pages: usize) -> bool;
    /// Most pages to keep or to load in one step, so that it stays short and memory bounded.
    fn keeps_max(&self) -> usize;
    fn loads_max(&self) -> usize;
}

/// The key of a text of whole pages, by that of the text before its last page.
pub(crate) fn key_after(before: &PageKey, tokens: &[Token]) -> PageKey {
    let mut hasher = blake3::Hasher::new_keyed(before);
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

impl PromptStore {
    /// Opens a rank's folder; `None` if nothing is kept, for a reason in `notes` if there is one.
    /// `windows`: layers with a window have pages of their own.
    pub fn find<B: Backend>(
        spec: &PromptCache,
        (backend, model, windows): (&mut B, &mut Model<B>, bool),
        layout: &Layout,
        notes: &mut Vec<String>,
    ) -> Option<Self> {
        let parts = model.parts(backend, windows)?;
        let opened = Self::open(spec, (model, parts), layout.whole_experts());
        opened.map_err(|why| notes.push(format!("prompts are not kept on disk: {why}"))).ok()
    }

    fn open<B: Backend>(
        spec: &PromptCache,
        (model, parts): (&Model<B>, Vec<Part>),
        whole_experts: bool,
    ) -> Result<Self, RecordsError> {
        let mut hasher = blake3::Hasher::new_derive_key("sinew 2026-11 pages of prompts");
        for number in [FORMAT, protocol::NUMERICS, u32::from(whole_experts)] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(model.cache_kind().to_string().as_bytes()).update(&[0]);
        hasher.update(spec.model.as_bytes());
        let root = *hasher.finalize().as_bytes();
        let folder = spec.folder.clone();
        let kept_bytes: usize = parts.iter().map(|part| part.bytes).sum();
        let options = Options {
            reserve_bytes: spec.reserve_bytes,
            queue_bytes: QUEUE_BYTES.max(2 * kept_bytes),
            ..Options::new(folder.clone(), spec.sealing_key.0, spec.budget_bytes)
        };
        let failed = |source| RecordsError::Io { path: folder.clone(), source };
        let pool = Arc::new(Pool::new().map_err(failed)?);
        let records = Awaited::open(options, pool)?;
        let known = note_heads(&folder, &parts).map_err(failed)?;
        let shape = Arc::new(Shape { root, parts, known });
        let members = spec.members.clone().map(Members::new).transpose().map_err(failed)?;
        let budget_bytes = spec.budget_bytes;
        Ok(Self { records, shape, members, loads: Vec::new(), budget_bytes })
    }

    /// Its view for the scheduler.
    pub fn shelf(&self) -> Arc<dyn Shelf> {
        let (records, shape) = (self.records.clone(), self.shape.clone());
        Arc::new(OwnShelf { records, shape, members: self.members.clone() })
    }

    /// Writes pages down, in the background.
    pub fn keep<B: Backend>(
        &mut self,
        backend: &mut B,
        model: &mut Model<B>,
        orders: &[PageOrder],
    ) {
        let Some(records) = self.records.get() else { return };
        for order in orders {
            for part in &self.shape.parts {
                let Some(number) = number(order, part.holder) else { continue };
                let header = header(order);
                // What finds no room in the queue is a miss later.
                records.put(&key_of(&order.key, part), &header, part.bytes, |out| {
                    out.copy_from_slice(model.content(backend, part, number));
                });
            }
        }
        // Whatever happens to the disk, answers go on; the node's log has it once.
        records.take_events().iter().for_each(|event| eprintln!("prompts on disk: {event}"));
    }

    /// Goes on with the pages to load, which are all that are being read: begins new ones, forgets
    /// others, and places what has been read.
    pub fn load<B: Backend>(
        &mut self,
        backend: &mut B,
        model: &mut Model<B>,
        orders: &[PageOrder],
    ) -> Vec<Loaded> {
        let mut before: HashMap<_, Load> =
            self.loads.drain(..).map(|load| (places(&load.order), load)).collect();
        let Self { records, shape, members, loads, .. } = self;
        let Shape { parts, known, .. } = &**shape;
        let sources = Sources { records: records.get(), parts, known, members: members.as_ref() };
        for order in orders {
            let found = before.remove(&places(order));
            loads.push(found.unwrap_or_else(|| Load::begin(order, &sources)));
        }
        loads.iter_mut().map(|load| load.go_on(&sources, backend, model)).collect()
    }

    pub fn stats(&self) -> PromptStats {
        let counts = self.records.get().map(Records::counts).unwrap_or_default();
        let today = counts.written_by_day.last().map_or(0, |(_, bytes)| *bytes);
        PromptStats {
            budget_bytes: self.budget_bytes,
            disk_bytes: counts.disk_bytes,
            written_bytes: counts.written_bytes,
            written_last_day_bytes: today,
            damaged: counts.damaged,
            ..PromptStats::default()
        }
    }
}

impl Drop for PromptStore {
    /// Writes what waits, if that is soon done.
    fn drop(&mut self) {
        if let Some(records) = self.records.get() {
            records.flush().wait(Instant::now() + FLUSH_PATIENCE);
        }
    }
}

#[derive(Clone)]
struct OwnShelf {
    records: Awaited,
    shape: Arc<Shape>,
    members: Option<Members>,
}

impl fmt::Debug for OwnShelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnShelf").finish_non_exhaustive()
    }
}

impl Shelf for OwnShelf {
    fn root(&self, salt: u64) -> PageKey {
        *blake3::keyed_hash(&self.shape.root, &salt.to_le_bytes()).as_bytes()
    }

    fn has(&self, key: &PageKey, holder: Holder) -> bool {
        let mut parts = self.shape.parts.iter().filter(|part| part.holder == holder);
        let ends = [parts.next(), parts.next_back()];
        let Some(records) = self.records.get() else { return false };
        let has = |part: &Part| records.contains(&key_of(key, part));
        let has_other = |part: &Part| {
            let mut others = self.shape.known.iter().filter_map(|heads| part.with_heads(heads));
            others.any(|other| has(&other))
        };
        ends.into_iter().flatten().all(|part| has(part) || has_other(part))
    }

    fn look(&self, text: Vec<PageKey>) -> Option<Receiver<Elsewhere>> {
        /// Fewer are computed in about the time in which all members answer.
        const PAGES_MIN: usize = 16;
        if text.len() < PAGES_MIN {
            return None;
        }
        let first = |holder| self.shape.parts.iter().find(|part| part.holder == holder).cloned();
        let parts =
            [Holder::Page, Holder::Window, Holder::Checkpoint].into_iter().filter_map(first);
        Some(self.members.as_ref()?.look(text, parts.collect()))
    }

    fn has_room(&self, pages: usize) -> bool {
        let bytes = pages * self.shape.kept_bytes();
        self.records.get().is_some_and(|records| records.has_room(bytes))
    }

    fn keeps_max(&self) -> usize {
        /// Copying these bytes takes less than a millisecond.
        const KEPT_BYTES: usize = 2 << 20;
        (KEPT_BYTES / self.shape.page_bytes()).clamp(1, ORDERS_MAX)
    }

    fn loads_max(&self) -> usize {
        (LOADING_BYTES_MAX / self.shape.page_bytes()).clamp(2, ORDERS_MAX)
    }
}

impl Shape {
    /// Bytes of a page with all its parts, and of a state.
    fn kept_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Bytes of a page with all its parts.
    fn page_bytes(&self) -> usize {
        let paged = self.parts.iter().filter(|part| part.holder != Holder::Checkpoint);
        paged.map(|part| part.bytes).sum::<usize>().max(1)
    }
}

/// What tells two orders apart.
fn places(order: &PageOrder) -> (PageKey, [Option<u32>; 3]) {
    (order.key, [order.page, order.window, order.checkpoint])
}

/// The heads of a folder's records, those of `parts` included, which are written down.
fn note_heads(folder: &Path, parts: &[Part]) -> std::io::Result<Vec<Heads>> {
    let mut own: Vec<&Heads> = parts.iter().map(|part| &part.heads).collect();
    own.retain(|heads| !heads.is_empty());
    own.sort_unstable();
    own.dedup();
    for heads in own {
        records::add_note(folder, &heads_line(heads), HEADS_OF_DISK_MAX)?;
    }
    Ok(records::notes(folder).iter().filter_map(|line| heads_of_line(line)).collect())
}
