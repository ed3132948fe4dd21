//! A [`Local`] on a device of any kind, for measurements. Its code is compiled in this crate, once
//! and with the optimisation of a worker's.

use std::ops::ControlFlow;
use std::sync::Arc;

use backend::{Backend, CacheKind, Ggml};
use gguf::Source;
use layout::Config;
use protocol::{ExpertStats, GenerateRequest, Token, WorkerDevice, WorkerEvent};

use crate::{EngineError, Local, LocalOptions, OpenDevice};

/// The methods of [`Local`], and those of its rank that measurements need.
pub trait AnyLocal {
    fn config(&self) -> &Config;
    fn weight_bytes(&self) -> u64;
    fn kv_bytes(&self) -> u64;
    fn cache_kind(&self) -> CacheKind;
    fn expert_stats(&self) -> Option<ExpertStats>;
    fn truncate(&mut self, len: usize) -> usize;

    /// # Errors
    /// As [`Local::make_up`].
    fn make_up(&mut self, positions: usize) -> Result<(), EngineError>;

    /// # Errors
    /// As [`Local::feed_and_keep`].
    fn feed_and_keep(&mut self, tokens: &[Token]) -> Result<&[f32], EngineError>;

    /// # Errors
    /// As [`Local::feed`].
    fn feed(&mut self, tokens: &[Token]) -> Result<&[f32], EngineError>;

    /// Like [`Local::feed_each`], until `read` breaks off.
    ///
    /// # Errors
    /// As [`Local::feed_each`].
    fn feed_each(
        &mut self,
        tokens: &[Token],
        read: &mut dyn FnMut(&[f32]) -> ControlFlow<()>,
    ) -> Result<(), EngineError>;

    /// # Errors
    /// As [`Local::next`].
    fn next(&mut self, tokens: &[Token]) -> Result<Token, EngineError>;

    /// # Errors
    /// As [`Local::generate`].
    fn generate(&mut self, prompt: &[Token], count: usize) -> Result<Vec<Token>, EngineError>;

    /// # Errors
    /// As [`Local::serve`].
    fn serve(&mut self, requests: Vec<GenerateRequest>) -> Result<Vec<Vec<Token>>, EngineError>;

    /// # Errors
    /// As [`Local::run`].
    fn run(
        &mut self,
        requests: Vec<GenerateRequest>,
        report: &mut dyn FnMut(WorkerEvent),
    ) -> Result<(), EngineError>;
}

/// Loads a model on the CPU, or on a device of ggml's libraries.
///
/// # Errors
/// As [`Local::start_on`].
pub fn start_any(
    device: Option<&WorkerDevice>,
    source: Arc<dyn Source>,
    options: &LocalOptions,
) -> Result<Box<dyn AnyLocal>, EngineError> {
    Ok(match device.cloned() {
        None => Box::new(Local::start(source, options)?),
        Some(WorkerDevice { libraries, name }) => {
            let open: OpenDevice<Ggml> =
                Arc::new(move |threads, _| Ggml::open(&libraries, &name, threads));
            Box::new(Local::start_on(open, source, options)?)
        }
    })
}

/// Why [`Local::feed_each`] ended early.
enum End {
    Broken,
    Failed(EngineError),
}

impl From<EngineError> for End {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

impl<B: Backend + 'static> AnyLocal for Local<B> {
    fn config(&self) -> &Config {
        self.rank().config()
    }

    fn weight_bytes(&self) -> u64 {
        self.rank().weight_bytes()
    }

    fn kv_bytes(&self) -> u64 {
        self.rank().kv_bytes()
    }

    fn cache_kind(&self) -> CacheKind {
        self.rank().cache_kind()
    }

    fn expert_stats(&self) -> Option<ExpertStats> {
        self.rank().expert_stats()
    }

    fn truncate(&mut self, len: usize) -> usize {
        self.truncate(len)
    }

    fn make_up(&mut self, positions: usize) -> Result<(), EngineError> {
        self.make_up(positions)
    }

    fn feed_and_keep(&mut self, tokens: &[Token]) -> Result<&[f32], EngineError> {
        self.feed_and_keep(tokens)
    }

    fn feed(&mut self, tokens: &[Token]) -> Result<&[f32], EngineError> {
        self.feed(tokens)
    }

    fn feed_each(
        &mut self,
        tokens: &[Token],
        read: &mut dyn FnMut(&[f32]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let fed = self.feed_each(tokens, |logits| match read(logits) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(End::Broken),
        });
        match fed {
            Ok(()) | Err(End::Broken) => Ok(()),
            Err(End::Failed(error)) => Err(error),
        }
    }

    fn next(&mut self, tokens: &[Token]) -> Result<Token, EngineError> {
        self.next(tokens)
    }

    fn generate(&mut self, prompt: &[Token], count: usize) -> Result<Vec<Token>, EngineError> {
        self.generate(prompt, count)
    }

    fn serve(&mut self, requests: Vec<GenerateRequest>) -> Result<Vec<Vec<Token>>, EngineError> {
        self.serve(requests)
    }

    fn run(
        &mut self,
        requests: Vec<GenerateRequest>,
        report: &mut dyn FnMut(WorkerEvent),
    ) -> Result<(), EngineError> {
        self.run(requests, report)
    }
}
