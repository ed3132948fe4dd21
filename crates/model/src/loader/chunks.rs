//! A tensor's slice in chunks; the next one is read while one is packed, so the disk (or the peer)
//! and the cores work at the same time.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};

use gguf::{ReadError, Source, Strided, TensorInfo};

use crate::ModelError;

/// Bytes read and packed at a time: enough work for many cores, and still in their caches between
/// the two.
const CHUNK_BYTES: usize = 2 << 20;

/// One is filled while another is packed.
const BUFFERS: usize = 2;

/// A buffer for one chunk; it may be larger than the chunk.
pub(super) type Buffer = Vec<u8>;

/// Why a tensor was not loaded.
pub(super) enum Stopped {
    Read(ReadError),
    /// An error of `take`.
    Taker(ModelError),
}

impl Stopped {
    pub fn of_tensor(self, name: &str) -> ModelError {
        match self {
            Self::Read(source) => ModelError::Read { name: name.to_owned(), source },
            Self::Taker(error) => error,
        }
    }
}

/// Several whole rows of a slice: runs of their columns, each read separately.
pub(super) struct Chunk(Vec<Strided>);

/// Runs of columns `cols` of some runs of rows, as chunks of at most [`CHUNK_BYTES`] or one row.
pub(super) fn of_runs(
    tensor: &TensorInfo,
    cols: &[Range<usize>],
    runs: &[Range<usize>],
) -> Vec<Chunk> {
    let piece = |cols: &Range<usize>| tensor.ty.row_bytes(cols.len()) as u64;
    let row: u64 = cols.iter().map(piece).sum();
    let stride = tensor.row_bytes() as u64;
    let rows_max = (CHUNK_BYTES / (row as usize).max(1)).max(1);
    let mut chunks = Vec::new();
    for run in runs.iter().filter(|_| row > 0) {
        for at in run.clone().step_by(rows_max) {
            let count = rows_max.min(run.end - at) as u64;
            let first = tensor.range.start + at as u64 * stride;
            let strided = |cols: &Range<usize>| {
                let start = first + tensor.ty.row_bytes(cols.start) as u64;
                Strided { start, piece: piece(cols), stride, count }
            };
            chunks.push(Chunk(cols.iter().map(strided).collect()));
        }
    }
    chunks
}

/// Reads the chunks and passes them to `take`, in order.
pub(super) fn read(
    source: &dyn Source,
    chunks: &[Chunk],
    buffers: &mut Vec<Buffer>,
    mut take: impl FnMut(&[u8]) -> Result<(), ModelError>,
) -> Result<(), Stopped> {
    buffers.resize_with(BUFFERS, Vec::new);
    if let [chunk] = chunks {
        let read = |run, out: &mut [u8]| source.read(run, out);
        let filled = fill(read, chunk, &mut buffers[0]).map_err(Stopped::Read)?;
        return take(filled).map_err(Stopped::Taker);
    }
    let (send_empty, empty) = channel();
    let (send_full, full) = channel();
    buffers.drain(..).for_each(|buffer| {
        send_empty.send(buffer).expect("the receiver is here");
    });
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().name("reader".to_owned());
        let reader = reader
            .spawn_scoped(scope, move || read_ahead(source, chunks, empty, send_full))
            .map_err(|error| Stopped::Read(ReadError::File(error)))?;
        let result = take_all(full, &send_empty, &mut take);
        drop(send_empty);
        // Returns the buffers for the next tensor.
        *buffers = reader.join().expect("reading does not panic");
        result
    })
}

/// A message of the reader: a buffer, and the length of the chunk in it.
type Filled = Result<(Buffer, usize), ReadError>;

/// The reader's thread: ends with the last chunk, the first error, or when the receiver is gone.
fn read_ahead(
    source: &dyn Source,
    chunks: &[Chunk],
    empty: Receiver<Buffer>,
    full: Sender<Filled>,
) -> Vec<Buffer> {
    for chunk in chunks {
        let Ok(mut buffer) = empty.recv() else { break };
        let read = |run, out: &mut [u8]| source.read(run, out);
        let filled = fill(read, chunk, &mut buffer).map(<[u8]>::len);
        let failed = filled.is_err();
        if full.send(filled.map(|len| (buffer, len))).is_err() || failed {
            break;
        }
    }
    // Closes the channel: the receiver ends, and the buffers come back.
    drop(full);
    empty.into_iter().collect()
}

fn take_all(
    full: Receiver<Filled>,
    empty: &Sender<Buffer>,
    take: &mut impl FnMut(&[u8]) -> Result<(), ModelError>,
) -> Result<(), Stopped> {
    for filled in full {
        let (buffer, len) = filled.map_err(Stopped::Read)?;
        take(&buffer[..len]).map_err(Stopped::Taker)?;
        // A reader that has ended needs no buffer.
        let _ = empty.send(buffer);
    }
    Ok(())
}

/// Reads a chunk: the bytes are in the first part of `buffer`.
pub(super) fn fill<'a>(
    read: impl Fn(Strided, &mut [u8]) -> Result<(), ReadError>,
    Chunk(runs): &Chunk,
    buffer: &'a mut Buffer,
) -> Result<&'a [u8], ReadError> {
    let len_of = |run: &Strided| (run.piece * run.count) as usize;
    let len: usize = runs.iter().map(len_of).sum();
    // Several runs are read one after the other, after the space where their rows are assembled.
    let needed = if runs.len() > 1 { 2 * len } else { len };
    if buffer.len() < needed {
        buffer.resize(needed, 0);
    }
    if let [run] = runs.as_slice() {
        read(*run, &mut buffer[..len])?;
        return Ok(&buffer[..len]);
    }
    let (rows, apart) = buffer.split_at_mut(len);
    let row: usize = runs.iter().map(|run| run.piece as usize).sum();
    let mut first = 0;
    for run in runs {
        let (piece, apart) = (run.piece as usize, &mut apart[..len_of(run)]);
        read(*run, apart)?;
        for (row, piece_of) in rows.chunks_exact_mut(row).zip(apart.chunks_exact(piece)) {
            row[first..first + piece].copy_from_slice(piece_of);
        }
        first += piece;
    }
    Ok(&buffer[..len])
}
