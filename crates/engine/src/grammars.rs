//! Requests with a grammar: while it is compiled, and while they run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use constrain::{Compiler, ConstrainError, Constraint, Vocabulary};
use gguf::Source;
use protocol::{GenerateRequest, RequestId, Token};

use crate::sight::Placed;

/// A request that waits for its grammar.
struct Compiling {
    id: RequestId,
    added: Added,
    at: Instant,
}

/// The grammars of one epoch's requests.
pub(crate) struct Grammars {
    source: Arc<dyn Source>,
    /// Started by the first request with a grammar.
    compiler: Option<Compiler>,
    compiling: Vec<Compiling>,
    constraints: HashMap<RequestId, Constraint>,
}

/// A request, and the pictures in its prompt.
pub(crate) type Added = (GenerateRequest, Vec<Placed>);

/// A request with a compiled grammar, and the time of its arrival; or why it cannot be constrained.
pub(crate) type Ready = (Added, Result<Instant, ConstrainError>);

impl Grammars {
    /// `source`: the model's file, which contains the vocabulary.
    pub fn new(source: Arc<dyn Source>) -> Self {
        let (compiler, compiling, constraints) = Default::default();
        Self { source, compiler, compiling, constraints }
    }

    /// Whether nothing is being compiled.
    pub fn is_idle(&self) -> bool {
        self.compiling.is_empty()
    }

    /// Starts to compile a request's grammar, if it has one; else returns the request.
    ///
    /// # Errors
    /// Too many are waiting, or the system refuses a thread.
    pub fn compile(
        &mut self,
        id: RequestId,
        added: Added,
        at: Instant,
    ) -> Result<Option<Added>, ConstrainError> {
        let Some(grammar) = added.0.grammar.clone() else { return Ok(Some(added)) };
        self.compiler()?.submit(id, grammar)?;
        self.compiling.push(Compiling { id, added, at });
        Ok(None)
    }

    /// The next request with a compiled grammar; waits for at most `wait`.
    pub fn next_ready(&mut self, wait: Duration) -> Option<(RequestId, Ready)> {
        if self.is_idle() {
            return None;
        }
        let (id, compiled) = self.compiler.as_ref()?.next(wait)?;
        // A request that was cancelled meanwhile is missing.
        let Compiling { added, at, .. } = self.forget_compiling(id)?;
        let ready = compiled.and_then(|mut constraint| {
            added.0.answered.iter().try_for_each(|token| constraint.take(*token))?;
            self.constraints.insert(id, constraint);
            Ok(at)
        });
        Some((id, (added, ready)))
    }

    /// The allowed next tokens of an answer; `None` without a constraint.
    ///
    /// # Errors
    /// The grammar is too costly, or allows nothing.
    pub fn allowed(
        &mut self,
        id: RequestId,
        end_tokens: &[Token],
    ) -> Result<Option<&[u32]>, ConstrainError> {
        let constraint = self.constraints.get_mut(&id);
        constraint.map(|constraint| constraint.allowed(end_tokens)).transpose()
    }

    /// Adds an answer's next token; returns whether the answer is complete.
    ///
    /// # Errors
    /// The grammar is too costly.
    pub fn take(&mut self, id: RequestId, token: Token) -> Result<bool, ConstrainError> {
        let Some(constraint) = self.constraints.get_mut(&id) else { return Ok(false) };
        constraint.take(token)?;
        Ok(constraint.is_done())
    }

    /// Whether the answer so far is complete.
    pub fn is_done(&self, id: RequestId) -> bool {
        self.constraints.get(&id).is_some_and(Constraint::is_done)
    }

    /// Drops a request and returns it if its grammar was still being compiled.
    pub fn forget(&mut self, id: RequestId) -> Option<GenerateRequest> {
        self.constraints.remove(&id);
        self.forget_compiling(id).map(|compiling| compiling.added.0)
    }

    fn forget_compiling(&mut self, id: RequestId) -> Option<Compiling> {
        let at = self.compiling.iter().position(|compiling| compiling.id == id)?;
        Some(self.compiling.swap_remove(at))
    }

    fn compiler(&mut self) -> Result<&Compiler, ConstrainError> {
        let source = self.source.clone();
        let start = || Compiler::start(move || Vocabulary::read(source.directory()));
        let compiler = match self.compiler.take() {
            Some(compiler) => compiler,
            None => start().map_err(|error| ConstrainError::Vocabulary(error.to_string()))?,
        };
        Ok(self.compiler.insert(compiler))
    }
}
