use std::collections::HashMap;

/// The cost of an answer's row, in rows of a prompt; as in the paper.
const ANSWER_COST: u64 = 2;

/// The order of waiting prompts: one rule for the requests that wait at an instance's owner and for
/// those on rank 0.
///
/// Time is counted in rows of prompts, one a token, that were computed (at the owner: dispatched).
/// A request is *due* when the rows computed since its arrival equal the rows of its own prompt;
/// the earliest due request is next. So a short prompt overtakes a long one, but a prompt of `n`
/// rows is overtaken only until `n` more rows have been computed.
///
/// Between clients, each counts its computed rows, and the client with the least goes first: the
/// virtual token counters of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024).
/// A returning client starts with the least count of the present clients, so that idle time earns
/// no credit.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Computed rows of prompts.
    clock: u64,
    /// The clients with requests.
    clients: HashMap<u64, Client>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Client {
    requests: usize,
    served: u64,
}

impl Turns {
    /// Adds a request of a client, with a prompt of `rows` rows; returns when it is due.
    pub fn arrive(&mut self, client: u64, rows: usize) -> u64 {
        let least = self.least();
        let new = Client { requests: 0, served: least };
        self.clients.entry(client).or_insert(new).requests += 1;
        self.clock + rows as u64
    }

    /// Removes one of a client's requests.
    pub fn leave(&mut self, client: u64) {
        let Some(one) = self.clients.get_mut(&client) else { return };
        one.requests -= 1;
        if one.requests == 0 {
            self.clients.remove(&client);
        }
    }

    /// Counts the computed rows of a client.
    pub fn serve(&mut self, client: u64, prompt_rows: usize, answer_rows: usize) {
        let cost = prompt_rows as u64 + ANSWER_COST * answer_rows as u64;
        self.clock += prompt_rows as u64;
        self.clients.entry(client).and_modify(|one| one.served += cost);
    }

    /// The sort key of a request of `client` with this due time; the smallest is next.
    pub fn rank(&self, client: u64, due: u64) -> (u64, u64) {
        (self.clients.get(&client).map_or(0, |client| client.served), due)
    }

    /// The least count of all clients with requests.
    fn least(&self) -> u64 {
        self.clients.values().map(|client| client.served).min().unwrap_or(0)
    }
}
