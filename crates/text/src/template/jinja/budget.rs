//! The limits of a rendering: steps, memory and stack. Every operation is charged before it runs.

use crate::TextError;

/// The most evaluated expressions, statements and visited list items: about 200 for each of 20,000
/// messages, and half a second.
pub(in crate::template) const STEPS_MAX: u64 = 4_000_000;
/// The most bytes of all strings and lists created by a rendering, kept or not. A prompt of 4 MB,
/// for the longest contexts, costs a few times its length.
pub(in crate::template) const BYTES_MAX: usize = 256 << 20;
/// The deepest nesting of statements, expressions and calls; the stack is sized for it.
const DEPTH_MAX: usize = 1000;

/// Why a rendering ended early.
#[derive(Debug)]
pub(super) enum Fault {
    /// The template's own refusal.
    Raised(String),
    Steps,
    Bytes,
    Failed(String),
}

impl Fault {
    pub(super) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    pub(super) fn into_error(self, line: u16) -> TextError {
        match self {
            Self::Raised(message) => TextError::TemplateRaised { message },
            Self::Steps => TextError::TemplateSteps { limit: STEPS_MAX },
            Self::Bytes => TextError::TemplateBytes { limit: BYTES_MAX },
            Self::Failed(text) => {
                TextError::TemplateFailed { detail: format!("{text} (line {line})") }
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Budget {
    steps: u64,
    bytes: usize,
    depth: usize,
}

impl Budget {
    pub(super) fn step(&mut self) -> Result<(), Fault> {
        self.steps(1)
    }

    pub(super) fn steps(&mut self, count: usize) -> Result<(), Fault> {
        self.steps = self.steps.saturating_add(count as u64);
        if self.steps > STEPS_MAX { Err(Fault::Steps) } else { Ok(()) }
    }

    pub(super) fn charge(&mut self, bytes: usize) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > BYTES_MAX { Err(Fault::Bytes) } else { Ok(()) }
    }

    /// Charges for reading `bytes` of text: searching 256 of them takes about as long as a step.
    pub(super) fn read(&mut self, bytes: usize) -> Result<(), Fault> {
        self.steps(bytes / 256)
    }

    pub(super) fn enter(&mut self) -> Result<(), Fault> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Fault::failed(format!(
                "macros or expressions nest deeper than {DEPTH_MAX}"
            )));
        }
        self.step()
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }
}
