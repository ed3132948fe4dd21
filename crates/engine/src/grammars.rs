//! Requests whose answers are held to a grammar: while it is compiled, and while they run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use constrain::{Compiler, ConstrainError, Constraint, Vocabulary};
use gguf::Source;
use protocol::{GenerateRequest, RequestId, Token};

/// A request that waits for its grammar.
struct Compiling {
    id: RequestId,
    request: GenerateRequest,
    added: Instant,
}

/// The grammars of one epoch's requests.
pub(crate) struct Grammars {
    source: Arc<dyn Source>,
    /// Started by the first request with a grammar.
    compiler: Option<Compiler>,
    compiling: Vec<Compiling>,
    constraints: HashMap<RequestId, Constraint>,
}

/// A request whose grammar is compiled, and when it came; or why it cannot be held to it.
pub(crate) type Ready = (GenerateRequest, Result<Instant, ConstrainError>);

impl Grammars {
    /// `source`: the model's, which has its vocabulary.
    pub fn new(source: Arc<dyn Source>) -> Self {
        let (compiler, compiling, constraints) = Default::default();
        Self { source, compiler, compiling, constraints }
    }

    /// Whether nothing is being compiled.
    pub fn is_idle(&self) -> bool {
        self.compiling.is_empty()
    }

    /// Has a request's grammar compiled, if it has one; else gives the request back.
    ///
    /// # Errors
    /// Too many are waiting, or the system has no thread for it.
    pub fn compile(
        &mut self,
        id: RequestId,
        request: GenerateRequest,
        added: Instant,
    ) -> Result<Option<GenerateRequest>, ConstrainError> {
        let Some(grammar) = request.grammar.clone() else { return Ok(Some(request)) };
        self.compiler()?.submit(id, grammar)?;
        self.compiling.push(Compiling { id, request, added });
        Ok(None)
    }

    /// The next request whose grammar is compiled; waits for one so long.
    pub fn next_ready(&mut self, wait: Duration) -> Option<(RequestId, Ready)> {
        if self.is_idle() {
            return None;
        }
        let (id, compiled) = self.compiler.as_ref()?.next(wait)?;
        // One that was cancelled meanwhile is not there.
        let Compiling { request, added, .. } = self.forget_compiling(id)?;
        let ready = compiled.and_then(|mut constraint| {
            request.answered.iter().try_for_each(|token| constraint.take(*token))?;
            self.constraints.insert(id, constraint);
            Ok(added)
        });
        Some((id, (request, ready)))
    }

    /// What may come next in an answer; `None` if it is held to nothing.
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

    /// Takes an answer's next token; whether the answer is whole with it.
    ///
    /// # Errors
    /// The grammar is too costly.
    pub fn take(&mut self, id: RequestId, token: Token) -> Result<bool, ConstrainError> {
        let Some(constraint) = self.constraints.get_mut(&id) else { return Ok(false) };
        constraint.take(token)?;
        Ok(constraint.is_done())
    }

    /// Whether the answer so far is whole.
    pub fn is_done(&self, id: RequestId) -> bool {
        self.constraints.get(&id).is_some_and(Constraint::is_done)
    }

    /// Ends a request; it is given back if its grammar was still being compiled.
    pub fn forget(&mut self, id: RequestId) -> Option<GenerateRequest> {
        self.constraints.remove(&id);
        self.forget_compiling(id).map(|compiling| compiling.request)
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
