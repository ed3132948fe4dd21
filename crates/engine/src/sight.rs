//! Rank 0's vision tower: it looks at pictures on a thread of its own, beside the steps.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::Duration;

use backend::Backend;
use gguf::Source;
use layout::Config;
use protocol::{Detail, GenerateRequest, PictureFile, Token};
use vision::{Footprint, Picture, Piece, Plan, Pool, SeeError, Seen, Tower};

use crate::EngineError;

/// The most pictures in memory as rows, those in work included. Memory for them is planned.
const KEPT_MAX: usize = layout::PICTURES_KEPT;

/// A picture of a request, in its prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placed {
    /// Its number in the prompt, from 1 on.
    pub number: usize,
    pub file: PictureFile,
    pub detail: Detail,
    /// In order. Their rows are those of the tower, one grid after the other.
    pub grids: Vec<PlacedGrid>,
    /// Its rows, while they are needed.
    pub seen: Option<Arc<Seen>>,
}

/// A grid of a picture's rows in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlacedGrid {
    /// The index of its first token.
    pub at: usize,
    pub columns: usize,
    pub lines: usize,
    /// The index of its first row among the picture's.
    pub first: usize,
    /// The rotary positions that it takes.
    pub turns: usize,
    /// Whether its rows see each other, and so must be in one step.
    pub whole: bool,
}

impl PlacedGrid {
    pub fn rows(&self) -> usize {
        self.columns * self.lines
    }

    /// The index of the token after it.
    pub fn end(&self) -> usize {
        self.at + self.rows()
    }
}

impl Placed {
    /// The index of its first row in the prompt.
    pub fn start(&self) -> usize {
        self.grids.first().map_or(0, |grid| grid.at)
    }

    /// The index of the token after its last row.
    pub fn end(&self) -> usize {
        self.grids.last().map_or(0, PlacedGrid::end)
    }
}

/// Why a picture of a request cannot be looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unseen {
    #[error(
        "the model reads text only, as it was loaded without a vision tower. Serve it with its \
         mmproj file on a node without --device, or ask without pictures"
    )]
    NoTower,
    #[error("picture {number} cannot be used: {reason}")]
    Picture { number: usize, reason: String },
    #[error(
        "picture {number} has other tokens in the prompt than the model's tower asks for: token \
         {at} is {found}. The nodes read the model's mmproj file differently; update Sinew on all"
    )]
    Tokens { number: usize, at: usize, found: String },
    #[error("a picture can be asked about, and not be embedded. Leave it out")]
    Embedding,
}

/// A vision tower, and what it saw last.
pub(crate) struct Sight {
    config: vision::Config,
    /// Whether the model's pairs turn by time, line and column.
    has_axes: bool,
    is_whole: bool,
    /// Bytes of its weights, and for pictures.
    weight_bytes: u64,
    buffer_bytes: u64,
    jobs: SyncSender<(PictureFile, Detail)>,
    looked: Receiver<Look>,
    /// The latest last.
    kept: Vec<Look>,
    /// In work.
    begun: Option<(PictureFile, Detail)>,
}

/// What was seen of a picture, or why nothing was.
struct Look {
    file: PictureFile,
    detail: Detail,
    seen: Result<Arc<Seen>, String>,
}

impl Look {
    fn is_of(&self, placed: &Placed) -> bool {
        (&self.file, self.detail) == (&placed.file, placed.detail)
    }

    /// Whether a request needs it.
    fn is_needed(&self) -> bool {
        self.seen.as_ref().is_ok_and(|seen| Arc::strong_count(seen) > 1)
    }
}

impl Sight {
    /// As [`Self::load`]; a tower that cannot be used is left out, which `notes` then say. The
    /// model still reads text.
    ///
    /// # Errors
    /// Threads are short.
    pub fn load_if_usable<B: Backend>(
        source: &dyn Source,
        config: &Config,
        threads: usize,
        notes: &mut Vec<String>,
    ) -> Result<Option<Self>, EngineError> {
        match Self::load::<B>(source, config, threads, notes) {
            Err(error @ (EngineError::Vision(_) | EngineError::OtherTower { .. })) => {
                notes.push(format!("no picture can be seen: {error}"));
                Ok(None)
            }
            loaded => loaded,
        }
    }

    /// Loads the tower beside a model's weights; `None` if the file has none, or the device cannot
    /// take its rows, which `notes` then say.
    ///
    /// # Errors
    /// The tower cannot be used, or is another model's; memory or threads are short.
    fn load<B: Backend>(
        source: &dyn Source,
        config: &Config,
        threads: usize,
        notes: &mut Vec<String>,
    ) -> Result<Option<Self>, EngineError> {
        let Some(of_tower) = vision::Config::find(source.directory())? else { return Ok(None) };
        let has_axes = config.rope.axes.is_some();
        if has_axes && B::COMPILES {
            const WHY: &str = "this device does not rotate by lines and columns (M-RoPE)";
            notes.push(format!("no picture can be seen: {WHY}"));
            return Ok(None);
        }
        let pool = Pool::new(threads).map_err(backend::BackendError::from)?;
        let tower = Tower::load(&pool, source, of_tower.clone())?;
        if tower.width() != config.width {
            let (found, wanted) = (tower.width(), config.width);
            return Err(EngineError::OtherTower { found, wanted });
        }
        let footprint = Footprint::new(&of_tower, source.directory());
        let buffer_bytes = footprint.bytes(KEPT_MAX) - footprint.weights;
        let weight_bytes = tower.bytes() as u64;
        let (jobs, todo) = sync_channel::<(PictureFile, Detail)>(1);
        let (done, looked) = channel();
        let look = move || {
            // It ends with the rank.
            while let Ok((file, detail)) = todo.recv() {
                let seen = see(&tower, &pool, &file, detail);
                if done.send(Look { file, detail, seen }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("tower".into());
        thread.spawn(look).map_err(|error| EngineError::Thread(error.to_string()))?;
        Ok(Some(Self {
            has_axes,
            is_whole: config.sight.is_some(),
            config: of_tower,
            weight_bytes,
            buffer_bytes,
            jobs,
            looked,
            kept: Vec::new(),
            begun: None,
        }))
    }

    /// Bytes of its weights.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Bytes for pictures: the largest while it is looked at, and the rows that are kept.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes
    }

    /// Finds each picture's rows in a prompt.
    ///
    /// # Errors
    /// A picture cannot be used, or the prompt has other tokens in its place.
    pub fn place(&self, request: &GenerateRequest) -> Result<Vec<Placed>, Unseen> {
        if request.embedding.is_some() && !request.pictures.is_empty() {
            return Err(Unseen::Embedding);
        }
        let mut end = 0;
        let mut all = Vec::with_capacity(request.pictures.len());
        for (number, picture) in (1..).zip(&request.pictures) {
            let unseen = |reason: vision::PictureError| Unseen::Picture {
                number,
                reason: reason.to_string(),
            };
            let (width, height) = Picture::size(picture.file.bytes()).map_err(unseen)?;
            let plan = Plan::new(&self.config, width, height, picture.detail).map_err(unseen)?;
            // A picture that begins inside of the one before.
            let inside = Unseen::Tokens { number, at: picture.at, found: "a row".to_owned() };
            check_text(number, request.prompt.get(end..picture.at).ok_or(inside)?, end)?;
            let mut tokens = picture.row_tokens();
            let (mut at, mut first, mut grids) = (picture.at, 0, Vec::new());
            for piece in inner(&plan.pieces) {
                if let Piece::Grid { columns, rows: lines } = *piece {
                    let rows = columns * lines;
                    for (at, due) in (at..).zip(tokens.by_ref().take(rows)) {
                        check_token(number, &request.prompt, at, |token| token == due)?;
                    }
                    let turns = if self.has_axes { columns.max(lines) } else { rows };
                    let whole = self.is_whole;
                    grids.push(PlacedGrid { at, columns, lines, first, turns, whole });
                    first += rows;
                } else {
                    check_token(number, &request.prompt, at, |token| {
                        !protocol::is_of_picture(token)
                    })?;
                }
                at += piece.tokens();
            }
            end = at;
            let (file, detail) = (picture.file.clone(), picture.detail);
            all.push(Placed { number, file, detail, grids, seen: None });
        }
        check_text(all.len(), &request.prompt[end..], end)?;
        Ok(all)
    }

    /// What was seen of a picture; if it is new, the tower begins to look at it as soon as it can.
    pub fn look(&mut self, placed: &Placed) -> Option<Result<Arc<Seen>, String>> {
        self.collect(Duration::ZERO);
        if let Some(at) = self.kept.iter().position(|look| look.is_of(placed)) {
            let look = self.kept.remove(at);
            let seen = look.seen.clone();
            if seen.is_ok() {
                self.kept.push(look);
            }
            return Some(seen);
        }
        if self.begun.is_some() {
            return None;
        }
        if self.kept.len() >= KEPT_MAX {
            let at = self.kept.iter().position(|look| !look.is_needed())?;
            self.kept.remove(at);
        }
        let job = (placed.file.clone(), placed.detail);
        match self.jobs.try_send(job.clone()) {
            Ok(()) => {
                self.begun = Some(job);
                None
            }
            Err(_) => Some(Err("the vision tower has stopped. Restart the model".to_owned())),
        }
    }

    /// Takes what has been seen meanwhile; waits up to `wait` if the tower is at work.
    pub fn collect(&mut self, wait: Duration) {
        if self.begun.is_none() {
            return;
        }
        match self.looked.recv_timeout(wait) {
            Ok(look) => self.kept.push(look),
            Err(RecvTimeoutError::Timeout) => return,
            // The next look fails.
            Err(RecvTimeoutError::Disconnected) => {}
        }
        self.begun = None;
    }
}

fn see(
    tower: &Tower,
    pool: &Pool,
    file: &PictureFile,
    detail: Detail,
) -> Result<Arc<Seen>, String> {
    let look = || {
        let picture = Picture::decode(file.bytes())?;
        tower.see(pool, &picture, detail)
    };
    let seen = look().map_err(|error: SeeError| error.to_string())?;
    match seen.rows.iter().all(|number| number.is_finite()) {
        true => Ok(Arc::new(seen)),
        false => Err("the vision tower computed numbers that are not finite".to_owned()),
    }
}

/// The pieces from the first grid to the last.
fn inner(pieces: &[Piece]) -> &[Piece] {
    let is_grid = |piece: &Piece| matches!(piece, Piece::Grid { .. });
    let first = pieces.iter().position(is_grid).unwrap_or(0);
    let end = pieces.iter().rposition(is_grid).map_or(0, |last| last + 1);
    &pieces[first.min(end)..end]
}

fn check_token(
    number: usize,
    prompt: &[Token],
    at: usize,
    is_due: impl Fn(Token) -> bool,
) -> Result<(), Unseen> {
    match prompt.get(at) {
        Some(token) if is_due(*token) => Ok(()),
        found => {
            let found = found.map_or("missing".to_owned(), Token::to_string);
            Err(Unseen::Tokens { number, at, found })
        }
    }
}

/// Checks that text has no rows of pictures.
fn check_text(number: usize, text: &[Token], first: usize) -> Result<(), Unseen> {
    let mut tokens = (first..).zip(text);
    match tokens.find(|(_, token)| protocol::is_of_picture(**token)) {
        Some((at, _)) => Err(Unseen::Tokens { number, at, found: "a row of it".to_owned() }),
        None => Ok(()),
    }
}
