//! Who may compile a grammar now: few at once, so that streams keep the processors, and fewer of
//! one client, so that nobody's grammars hold up those of others.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Grammars compiled at once.
const AT_ONCE: usize = 4;
/// The same, of one client.
const AT_ONCE_OF_ONE: usize = 2;

/// How often those who wait see whether somebody still wants their grammar.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The client of each grammar that is being compiled.
    clients: Mutex<Vec<u64>>,
    left: Condvar,
}

/// Leave to compile.
#[derive(Debug)]
pub(crate) struct Turn<'t> {
    turns: &'t Turns,
    client: u64,
}

impl Turns {
    /// Waits for a turn; `None` once `is_gone` says that nobody wants the grammar.
    pub(crate) fn take(&self, client: u64, is_gone: impl Fn() -> bool) -> Option<Turn<'_>> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if is_gone() {
                return None;
            }
            let own = clients.iter().filter(|one| **one == client).count();
            if clients.len() < AT_ONCE && own < AT_ONCE_OF_ONE {
                clients.push(client);
                return Some(Turn { turns: self, client });
            }
            let waited = self.left.wait_timeout(clients, LOOK);
            clients = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut clients = self.turns.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = clients.iter().position(|client| *client == self.client) {
            clients.swap_remove(at);
        }
        self.turns.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_client_leaves_turns_to_others() {
        let turns = Turns::default();
        // Whether a turn is to be had without waiting.
        let take = |client| {
            let looks = Cell::new(0);
            turns.take(client, || looks.replace(looks.get() + 1) > 0)
        };
        let first = [take(7), take(7)];
        assert!(first.iter().all(Option::is_some) && take(7).is_none());
        let others = [take(8), take(9)];
        assert!(others.iter().all(Option::is_some) && take(10).is_none());
        drop(first);
        assert!(take(7).is_some());
    }
}
