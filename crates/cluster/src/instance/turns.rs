//! Which of the requests that wait for an instance is next.
//!
//! The client that has had least goes first (the virtual token counters of Sheng et al., "Fairness
//! in Serving Large Language Models", OSDI 2024); of one client, the request that is *due* first:
//! once as many tokens of prompts have been handed out as its own has. So a short prompt overtakes
//! a long one, and none waits for ever. Rank 0 deals steps out by the same rule among those that
//! run.

use std::collections::HashMap;

use crate::GenerateRequest;

/// What a token of an answer counts in tokens of a prompt; as in the paper.
const ANSWER_COST: u64 = 2;

#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Tokens of prompts that were handed out.
    clock: u64,
    /// Those with requests.
    clients: HashMap<u64, Client>,
}

#[derive(Debug, Default)]
struct Client {
    requests: usize,
    served: u64,
}

impl Turns {
    /// A request has come; returns when it is due. Who comes back begins with the least that those
    /// who are there have had, so that nobody saves turns up.
    pub(super) fn arrive(&mut self, request: &GenerateRequest) -> u64 {
        let served = self.clients.values().map(|client| client.served).min().unwrap_or(0);
        let new = Client { requests: 0, served };
        self.clients.entry(request.client).or_insert(new).requests += 1;
        self.clock + request.prompt.len() as u64
    }

    /// The smaller it is, the sooner is the turn of a request of `client` that is `due`.
    pub(super) fn rank(&self, client: u64, due: u64) -> (u64, u64) {
        (self.clients.get(&client).map_or(0, |client| client.served), due)
    }

    /// With nobody there, after so many tokens.
    #[cfg(test)]
    pub(super) fn after(clock: u64) -> Self {
        Self { clock, clients: HashMap::new() }
    }

    /// A request is handed out.
    pub(super) fn begin(&mut self, request: &GenerateRequest) {
        let tokens = request.prompt.len() as u64;
        self.clock += tokens;
        self.clients.entry(request.client).and_modify(|one| one.served += tokens);
    }

    /// One of a client's requests has ended, with an answer of so many tokens.
    pub(super) fn end(&mut self, client: u64, generated_tokens: usize) {
        let Some(one) = self.clients.get_mut(&client) else { return };
        one.served += ANSWER_COST * generated_tokens as u64;
        one.requests -= 1;
        if one.requests == 0 {
            self.clients.remove(&client);
        }
    }
}
