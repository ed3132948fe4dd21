use std::collections::HashMap;

/// What a row of an answer counts in rows of a prompt; as in the paper.
const ANSWER_COST: u64 = 2;

/// Whose prompt is next: one rule for the requests that wait at an instance's owner and for those
/// that rank 0 has.
///
/// Time is counted in rows of prompts, one a token, that were computed or, at the owner, handed out
/// to be. A request is *due* once as many rows have been computed since it came as its own prompt
/// has, and the one that is due first is next. So a short prompt overtakes a long one, but none
/// that comes once so many rows have been computed.
///
/// Between clients, each counts what was computed for it, and the one that has had least goes
/// first: the virtual token counters of Sheng et al., "Fairness in Serving Large Language Models"
/// (OSDI 2024). Who comes back begins with the least of those who are there, so that nobody saves
/// turns up.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Rows of prompts that were computed.
    clock: u64,
    /// Those with requests.
    clients: HashMap<u64, Client>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Client {
    requests: usize,
    served: u64,
}

impl Turns {
    /// A request of a client has come, with a prompt of so many rows; returns when it is due.
    pub fn arrive(&mut self, client: u64, rows: usize) -> u64 {
        let least = self.least();
        let new = Client { requests: 0, served: least };
        self.clients.entry(client).or_insert(new).requests += 1;
        self.clock + rows as u64
    }

    /// One of a client's requests has ended.
    pub fn leave(&mut self, client: u64) {
        let Some(one) = self.clients.get_mut(&client) else { return };
        one.requests -= 1;
        if one.requests == 0 {
            self.clients.remove(&client);
        }
    }

    /// Rows were computed for a client.
    pub fn serve(&mut self, client: u64, prompt_rows: usize, answer_rows: usize) {
        let cost = prompt_rows as u64 + ANSWER_COST * answer_rows as u64;
        self.clock += prompt_rows as u64;
        self.clients.entry(client).and_modify(|one| one.served += cost);
    }

    /// The smaller it is, the sooner is the turn of a request of `client` that is `due`.
    pub fn rank(&self, client: u64, due: u64) -> (u64, u64) {
        (self.clients.get(&client).map_or(0, |client| client.served), due)
    }

    /// What the client with requests that had least has had.
    fn least(&self) -> u64 {
        self.clients.values().map(|client| client.served).min().unwrap_or(0)
    }
}
