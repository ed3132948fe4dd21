//! What speculates next tokens on rank 0 beside the text itself: a draft model, an MTP block, the
//! model's own or that of another file, an EAGLE-3 head, or Gemma 4's assistant.

use std::sync::Arc;

use backend::Backend;
use gguf::Source;
use layout::{BlockFile, Config};
use model::Model;
use protocol::{Speculation, Split, SplitOptions, Token};

use crate::EngineError;
use crate::draft::{Draft, DraftJob};
use crate::mtp::{Mtp, Target};
use crate::rank::{DraftFile, RankOptions};
use crate::step::Step;

const FAR: &str = "its draft guesses no tokens in a pipeline, where other machines have what it reads. \
                   With --strategy tensor it would";

pub(crate) enum Speculator<B: Backend> {
    Draft(Box<Draft<B>>),
    Mtp(Box<Mtp<B>>),
}

impl<B: Backend> Speculator<B> {
    /// Loads what the options ask for. `notes` gets a sentence on what is missing.
    ///
    /// # Errors
    /// It cannot be used, or memory is short.
    pub fn load(
        backend: &mut B,
        (source, config): (&Arc<dyn Source>, &Config),
        options: &RankOptions,
        file: DraftFile,
        notes: &mut Vec<String>,
    ) -> Result<Option<Self>, EngineError> {
        let RankOptions { rank, options: SplitOptions { draft, speculation, .. }, split, .. } =
            options;
        let has_block = *rank == 0 && *speculation == Speculation::Prompt && split.mtp;
        match (file, draft) {
            (Some(Ok(file)), _) => {
                Self::of_file(backend, &(Arc::new(file) as _), (source, config), split, notes)
            }
            // The present leader may not have the file.
            (Some(Err(error)), Some(path)) => {
                let path = path.display();
                let why = format!("{path} cannot be read: {error}");
                notes.push(format!("no draft model guesses tokens: {why}"));
                Ok(None)
            }
            (None, None) if has_block => {
                // The model runs without its block.
                let mtp = Mtp::load(backend, source, split.context_tokens);
                let mtp = mtp.unwrap_or_else(|error| {
                    notes.push(format!("its MTP block guesses no tokens: {error}"));
                    None
                });
                Ok(mtp.map(|mtp| Self::Mtp(Box::new(mtp))))
            }
            _ => Ok(None),
        }
    }

    /// A draft model or a block, which a file has.
    fn of_file(
        backend: &mut B,
        file: &Arc<dyn Source>,
        (source, config): (&Arc<dyn Source>, &Config),
        split: &Split,
        notes: &mut Vec<String>,
    ) -> Result<Option<Self>, EngineError> {
        let context_tokens = split.context_tokens;
        if !BlockFile::is_one(file.directory()) {
            let due = (source.directory().as_ref(), config);
            let draft = Draft::load(backend, file, due, context_tokens)?;
            return Ok(Some(Self::Draft(Box::new(draft))));
        }
        if split.stages.len() > 1 && BlockFile::reads_layers(file.directory()) {
            notes.push(FAR.to_owned());
            return Ok(None);
        }
        let block = Mtp::load_file(backend, file, (source, config), context_tokens)?;
        Ok(Some(Self::Mtp(Box::new(block))))
    }

    /// The layers of the model before which it reads the residual stream, if it reads any.
    pub fn tapped_layers(&self) -> &[usize] {
        match self {
            Self::Draft(_) => &[],
            Self::Mtp(mtp) => mtp.tapped_layers(),
        }
    }

    /// Its model, for the bytes that it takes.
    pub fn model(&self) -> &Model<B> {
        match self {
            Self::Draft(draft) => draft.model(),
            Self::Mtp(mtp) => mtp.model(),
        }
    }

    /// Keeps the states of a finished step's outputs, `[outputs, width]` f32, if it reads them;
    /// `states` computes them.
    ///
    /// # Errors
    /// Those of `states`.
    pub fn note<'a, E>(
        &mut self,
        step: &Step,
        states: impl FnOnce() -> Result<&'a [f32], E>,
    ) -> Result<(), E> {
        match self {
            Self::Mtp(mtp) if !step.outputs.is_empty() => mtp.note(step, states()?),
            _ => {}
        }
        Ok(())
    }

    /// Speculates: see [`Draft::guess`] and [`Mtp::guess`].
    ///
    /// # Errors
    /// The device failed.
    pub fn guess(
        &mut self,
        backend: &mut B,
        target: &mut Target<'_, B>,
        jobs: &[DraftJob<'_>],
        guesses: &mut [Vec<Token>],
    ) -> Result<usize, EngineError> {
        match self {
            Self::Draft(draft) => draft.guess(backend, jobs, guesses),
            Self::Mtp(mtp) => mtp.guess(backend, target, jobs, guesses),
        }
    }
}
