//! The file that stores a run's probabilities, for comparison with other runs.
//!
//! ```text
//! "SinewKL1" | vocab u32 | context u32 | top u32 | chunks u32
//! | { token u32 [context] | position [scored] } [chunks]
//!
//! position: next f32 | rest f32 | { token u32 | log-probability f32 } [top + 64]
//! ```
//!
//! Little-endian. `next` is the log-probability of the text's next token, `rest` that of all tokens
//! outside `top` together. 64 of these follow, drawn by their probabilities. If there are fewer,
//! token 0 with `-inf` fills the place. Written and read position by position: no chunk's
//! probabilities are ever whole in memory.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use protocol::Token;

use super::scores::{Position, SAMPLED};
use crate::error::{Doing, Error};

const MAGIC: &[u8; 8] = b"SinewKL1";

/// The longest chunk, in tokens. A larger number in a file is damage.
pub const CONTEXT_MAX: usize = 1 << 17;

/// Tolerance for the sum of a position's probabilities around 1: far more than rounding to f32
/// leaves, far less than a wrong byte causes.
const SUM_ERROR_MAX: f64 = 1e-3;

/// Replaces a sampled token if all tokens are in `top`.
const NO_SAMPLE: (Token, f32) = (0, f32::NEG_INFINITY);

/// The parameters of a base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub vocab: usize,
    /// Tokens of a chunk.
    pub context: usize,
    /// Tokens of each position with their own probability.
    pub top: usize,
    pub chunks: usize,
}

impl Header {
    /// Scored tokens of a chunk: those of its second half that follow another one of it.
    pub fn scored(&self) -> usize {
        self.context - self.context / 2 - 1
    }

    fn position_bytes(&self) -> usize {
        8 + 8 * (self.top + SAMPLED)
    }

    /// Of the whole file. Fits for hostile numbers too: 2^32 chunks of at most 2^53 bytes.
    fn file_bytes(&self) -> u128 {
        let positions = self.scored() as u128 * self.position_bytes() as u128;
        24 + self.chunks as u128 * (4 * self.context as u128 + positions)
    }
}

/// A base during writing.
pub struct BaseWriter {
    header: Header,
    path: PathBuf,
    out: BufWriter<File>,
}

impl BaseWriter {
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, header: Header) -> Result<Self, Error> {
        let out = File::create(path).doing(format!("cannot write {}", path.display()))?;
        let mut writer = Self { header, path: path.to_owned(), out: BufWriter::new(out) };
        writer.write(MAGIC)?;
        let Header { vocab, context, top, chunks } = header;
        writer.words([vocab, context, top, chunks].map(|number| number as u32))?;
        Ok(writer)
    }

    /// Begins a chunk of `context` tokens. Its `scored` positions follow.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn chunk(&mut self, tokens: &[Token]) -> Result<(), Error> {
        self.words(tokens.iter().copied())
    }

    /// # Errors
    /// The file cannot be written.
    pub fn position(&mut self, position: &Position) -> Result<(), Error> {
        debug_assert_eq!(position.top.len(), self.header.top);
        self.words([position.next.to_bits(), position.rest.to_bits()])?;
        let filling = std::iter::repeat_n(&NO_SAMPLE, SAMPLED - position.sampled.len());
        let tokens = position.top.iter().chain(&position.sampled).chain(filling);
        self.words(tokens.flat_map(|(token, ln)| [*token, ln.to_bits()]))
    }

    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<(), Error> {
        self.out.flush().doing(format!("cannot write {}", self.path.display()))
    }

    fn words(&mut self, words: impl IntoIterator<Item = u32>) -> Result<(), Error> {
        words.into_iter().try_for_each(|word| self.write(&word.to_le_bytes()))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).doing(format!("cannot write {}", self.path.display()))
    }
}

/// A base during reading.
#[derive(Debug)]
pub struct Base {
    header: Header,
    path: PathBuf,
    input: BufReader<File>,
    bytes: Vec<u8>,
    position: Position,
}

impl Base {
    /// Opens a base of a model with `vocab` tokens, made in chunks of `context` tokens.
    ///
    /// # Errors
    /// The file is unreadable, is not a base, is damaged, or has other parameters.
    pub fn open(path: &Path, vocab: usize, context: usize) -> Result<Self, Error> {
        let doing = || format!("cannot read {}", path.display());
        let file = File::open(path).doing(doing())?;
        let found_bytes = file.metadata().doing(doing())?.len();
        let mut input = BufReader::new(file);
        let refuse = |why: String| Err(Error::Usage(format!("{}: {why}", path.display())));
        let mut head = [0; 24];
        let is_whole = input.read_exact(&mut head).is_ok();
        if !is_whole || !head.starts_with(MAGIC) {
            let advice = "Make one with --save-base FILE, or with benches/quality.py";
            return refuse(format!("this is no base of `sinew bench quality`. {advice}"));
        }
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| head[at + byte]));
        let [v, c, t, n] = [8, 12, 16, 20].map(|at| number(at) as usize);
        let header = Header { vocab: v, context: c, top: t, chunks: n };
        if !(MIN_CONTEXT..=CONTEXT_MAX).contains(&c) || t == 0 || t > v || n == 0 {
            return refuse(format!(
                "a base of {n} chunks of {c} tokens, with {t} of {v} probabilities, cannot be. The \
                 file is damaged; make it again"
            ));
        }
        if header.file_bytes() != u128::from(found_bytes) {
            let due = header.file_bytes();
            return refuse(format!(
                "it has {found_bytes} bytes, and its header promises {due}. The file was cut off or \
                 damaged; make it again"
            ));
        }
        if v != vocab {
            return refuse(format!(
                "it is of a model with {v} tokens, and this one has {vocab}. Use the same model's base"
            ));
        }
        if c != context {
            return refuse(format!(
                "it is of chunks of {c} tokens, and {context} are asked for. Add: --ctx {c}"
            ));
        }
        let (path, position) = (path.to_owned(), Position::default());
        Ok(Self { header, path, input, bytes: Vec::new(), position })
    }

    pub fn chunks(&self) -> usize {
        self.header.chunks
    }

    /// Advances to the next chunk, which must have these tokens.
    ///
    /// # Errors
    /// The file is unreadable, or has other tokens.
    pub fn chunk(&mut self, tokens: &[Token]) -> Result<(), Error> {
        self.read(4 * self.header.context)?;
        let found = self.bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let mut pairs = found.zip(tokens).enumerate();
        let Some((at, (found, due))) = pairs.find(|(_, (found, due))| found != *due) else {
            return Ok(());
        };
        self.refuse(format!(
            "it is of another text or tokenizer: token {at} of a chunk is {found}, and {due} here. \
             Use the text that it was made of, or make it again"
        ))
    }

    /// The next position of the chunk.
    ///
    /// # Errors
    /// The file is unreadable or damaged.
    pub fn position(&mut self) -> Result<&Position, Error> {
        let Header { vocab, top, .. } = self.header;
        self.read(self.header.position_bytes())?;
        let words = self.bytes.as_chunks::<4>().0;
        let float = |bytes: [u8; 4]| f32::from_le_bytes(bytes);
        let pairs = words[2..].as_chunks().0.iter();
        let mut pairs = pairs.map(|[token, ln]| (u32::from_le_bytes(*token), float(*ln)));
        self.position.next = float(words[0]);
        self.position.rest = float(words[1]);
        self.position.top.clear();
        self.position.top.extend(pairs.by_ref().take(top));
        self.position.sampled.clear();
        self.position.sampled.extend(pairs.filter(|pair| *pair != NO_SAMPLE));
        let Position { next, rest, top, sampled } = &self.position;
        let lns = top.iter().map(|(_, ln)| *ln).chain([*rest]);
        let sum: f64 = lns.map(|ln| f64::from(ln).exp()).sum();
        let is_odd = |(token, ln): &(Token, f32)| *token as usize >= vocab || ln.is_nan();
        let is_outside = top.iter().chain(sampled).any(is_odd);
        // False for NaN.
        let is_near = (sum - 1.0).abs() <= SUM_ERROR_MAX;
        if is_outside || !is_near || next.is_nan() {
            return self.refuse("its probabilities make no sense. The file is damaged".to_owned());
        }
        Ok(&self.position)
    }

    /// The next bytes; `open` has checked that the file has them.
    fn read(&mut self, count: usize) -> Result<(), Error> {
        self.bytes.resize(count, 0);
        let read = self.input.read_exact(&mut self.bytes);
        read.doing(format!("cannot read {}", self.path.display()))
    }

    fn refuse<T>(&self, why: String) -> Result<T, Error> {
        Err(Error::Usage(format!("{}: {why}", self.path.display())))
    }
}

/// The shortest chunk with a scored token.
pub const MIN_CONTEXT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header { vocab: 9, context: 4, top: 2, chunks: 1 };
    const TOKENS: [Token; 4] = [1, 8, 3, 4];

    fn position() -> Position {
        let top = vec![(8, 0.5f32.ln()), (0, 0.3f32.ln())];
        Position { next: -3.0, rest: 0.2f32.ln(), top, sampled: vec![(4, 0.1f32.ln()); 3] }
    }

    /// A whole base, and its path.
    fn written(dir: &Path) -> PathBuf {
        let path = dir.join("base");
        let mut writer = BaseWriter::create(&path, HEADER).unwrap();
        writer.chunk(&TOKENS).unwrap();
        writer.position(&position()).unwrap();
        writer.finish().unwrap();
        path
    }

    fn refusal(path: &Path, vocab: usize, context: usize) -> String {
        Base::open(path, vocab, context).unwrap_err().to_string()
    }

    #[test]
    fn a_base_comes_back_as_it_went() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        assert_eq!(HEADER.scored(), 1);
        let mut base = Base::open(&path, 9, 4).unwrap();
        assert_eq!(base.chunks(), 1);
        base.chunk(&TOKENS).unwrap();
        assert_eq!(*base.position().unwrap(), position());
    }

    #[test]
    fn what_a_base_was_not_made_for_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        assert!(refusal(&path, 10, 4).contains("a model with 9 tokens"));
        assert!(refusal(&path, 9, 8).contains("--ctx 4"));
        let mut base = Base::open(&path, 9, 4).unwrap();
        let why = base.chunk(&[1, 8, 7, 4]).unwrap_err().to_string();
        assert!(why.contains("token 2 of a chunk is 3, and 7 here"), "{why}");
    }

    #[test]
    fn no_damage_is_taken_for_a_base() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let whole = std::fs::read(&path).unwrap();
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            let why = refusal(&path, 9, 4);
            let expected = if len < 24 { "no base" } else { "cut off" };
            assert!(why.contains(expected), "{len} bytes: {why}");
        }
        // Each number of the header, huge, and zero.
        for (at, word) in [8, 12, 16, 20].into_iter().flat_map(|at| [(at, u32::MAX), (at, 0)]) {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            std::fs::write(&path, bytes).unwrap();
            let why = refusal(&path, 9, 4);
            assert!(why.contains("cannot be") || why.contains("promises") || at == 8, "{why}");
        }
        // A token outside the vocabulary, and a probability of another magnitude.
        for (at, byte) in [(24 + 16 + 8 + 3, 1), (24 + 16 + 12 + 3, 0x3f)] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            std::fs::write(&path, bytes).unwrap();
            let mut base = Base::open(&path, 9, 4).unwrap();
            base.chunk(&TOKENS).unwrap();
            assert!(base.position().unwrap_err().to_string().contains("damaged"), "byte {at}");
        }
    }
}
