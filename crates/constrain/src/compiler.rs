//! Compiles grammars on a separate thread, one after the other.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use protocol::{Grammar, RequestId};

use crate::{ConstrainError, Constraint, Vocabulary};

/// The most waiting grammars.
pub const QUEUE_MAX: usize = 64;

/// The stack for parsers of grammars, which recurse as deep as a grammar is nested.
const STACK_BYTES: usize = 64 << 20;

type Compiled = Result<Constraint, ConstrainError>;

/// A thread that compiles grammars; it ends when this is dropped.
pub struct Compiler {
    jobs: SyncSender<(RequestId, Grammar)>,
    compiled: Receiver<(RequestId, Compiled)>,
}

impl Compiler {
    /// `read`: reads the model's vocabulary, when the first grammar arrives.
    pub fn start(
        read: impl FnOnce() -> Result<Vocabulary, ConstrainError> + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, todo) = sync_channel::<(RequestId, Grammar)>(QUEUE_MAX);
        let (done, compiled) = channel();
        let thread = std::thread::Builder::new().name("grammars".into()).stack_size(STACK_BYTES);
        thread.spawn(move || {
            let Ok(mut job) = todo.recv() else { return };
            let vocabulary = read();
            loop {
                let (request, grammar) = job;
                let result = vocabulary.as_ref().map_err(Clone::clone);
                let result = result.and_then(|vocabulary| vocabulary.compile(&grammar));
                let Ok(()) = done.send((request, result)) else { return };
                let Ok(next) = todo.recv() else { return };
                job = next;
            }
        })?;
        Ok(Self { jobs, compiled })
    }

    /// Queues a grammar.
    ///
    /// # Errors
    /// Too many are waiting.
    pub fn submit(&self, request: RequestId, grammar: Grammar) -> Result<(), ConstrainError> {
        self.jobs.try_send((request, grammar)).map_err(|_| ConstrainError::Busy)
    }

    /// The next compiled grammar; waits for `wait`.
    pub fn next(&self, wait: Duration) -> Option<(RequestId, Compiled)> {
        self.compiled.recv_timeout(wait).ok()
    }
}
