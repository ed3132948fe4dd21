use std::collections::BTreeMap;
use std::time::Duration;

use protocol::{Generation, RequestId, Turns};

use crate::{GenerateDone, GenerateRequest};

/// Requests that wait for one instance: about a minute at a second each.
pub(super) const WAITING_MAX: usize = 64;
/// Interval of the `Waiting` events to a waiting request.
const REMINDER: Duration = Duration::from_secs(2);

/// The requests of one instance: waiting ones, and those at rank 0.
#[derive(Debug)]
pub(super) struct Requests {
    /// In order of arrival.
    waiting: Vec<Waiting>,
    running: BTreeMap<RequestId, Running>,
    running_max: usize,
    /// Whether two requests have run at once since the last idle moment.
    crowded: bool,
    turns: Turns,
    last: RequestId,
    reminded_at: Duration,
}

#[derive(Debug)]
struct Running {
    client: u64,
    /// Tokens of its prompt that are still to be computed: all of them until it begins to answer.
    unread: usize,
}

/// The work that an instance has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Requests at rank 0, and those that wait for a place there.
    pub running: usize,
    pub waiting: usize,
    /// Tokens of their prompts that are still to be computed.
    pub unread_tokens: usize,
}

#[derive(Debug)]
struct Waiting {
    id: RequestId,
    request: GenerateRequest,
    /// See [`Running`].
    unread: usize,
    /// See [`Turns`].
    due: u64,
}

impl Requests {
    pub(super) fn new(running_max: usize) -> Self {
        let (waiting, running, turns) = Default::default();
        let (last, reminded_at) = (0, Duration::ZERO);
        Self { waiting, running, running_max, crowded: false, turns, last, reminded_at }
    }

    /// Queues a request; `None` if the queue is full. `unread`: the tokens of its prompt that the
    /// cache lacks.
    pub(super) fn submit(&mut self, request: GenerateRequest, unread: usize) -> Option<RequestId> {
        if self.waiting.len() >= WAITING_MAX {
            return None;
        }
        self.last += 1;
        let due = self.turns.arrive(request.client, request.prompt.len());
        self.waiting.push(Waiting { id: self.last, request, unread, due });
        Some(self.last)
    }

    /// Takes the requests that may start now, in the order of their turns.
    pub(super) fn take_ready(&mut self) -> Vec<(RequestId, GenerateRequest)> {
        let mut ready = Vec::new();
        while self.running.len() < self.running_max {
            let rank = |one: &Waiting| self.turns.rank(one.request.client, one.due);
            let waiting = self.waiting.iter().enumerate();
            let Some((at, _)) = waiting.min_by_key(|(_, one)| (rank(one), one.id)) else { break };
            let Waiting { id, request, unread, .. } = self.waiting.remove(at);
            self.turns.serve(request.client, request.prompt.len(), 0);
            self.running.insert(id, Running { client: request.client, unread });
            self.crowded |= self.running.len() > 1;
            ready.push((id, request));
        }
        ready
    }

    /// Cancels a request. Returns true if it runs, so that its worker needs a `Cancel`. It counts
    /// as running until the worker reports its end.
    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.id == request) {
            let client = self.waiting.remove(at).request.client;
            self.turns.leave(client);
        }
        self.running.contains_key(&request)
    }

    /// Removes a running request that has ended with `generated_tokens` tokens; false if it was not
    /// running.
    pub(super) fn finish(&mut self, request: RequestId, generated_tokens: usize) -> bool {
        let client = self.running.remove(&request).map(|one| one.client);
        self.crowded &= !self.running.is_empty();
        if let Some(client) = client {
            self.turns.serve(client, 0, generated_tokens);
            self.turns.leave(client);
        }
        client.is_some()
    }

    pub(super) fn take_running(&mut self) -> Vec<RequestId> {
        let running = std::mem::take(&mut self.running);
        running.values().for_each(|one| self.turns.leave(one.client));
        running.into_keys().collect()
    }

    pub(super) fn take_waiting(&mut self) -> Vec<RequestId> {
        let waiting = std::mem::take(&mut self.waiting);
        waiting.iter().for_each(|one| self.turns.leave(one.request.client));
        waiting.into_iter().map(|one| one.id).collect()
    }

    pub(super) fn waiting(&self) -> Vec<RequestId> {
        self.waiting.iter().map(|waiting| waiting.id).collect()
    }

    pub(super) fn is_waiting(&self, request: RequestId) -> bool {
        self.waiting.iter().any(|waiting| waiting.id == request)
    }

    pub(super) fn is_running(&self, request: RequestId) -> bool {
        self.running.contains_key(&request)
    }

    /// A running request begins to answer: its prompt is computed. False if it does not run.
    pub(super) fn begins(&mut self, request: RequestId) -> bool {
        let found = self.running.get_mut(&request);
        found.map(|one| one.unread = 0).is_some()
    }

    pub(super) fn load(&self) -> Load {
        let running = self.running.values().map(|one| one.unread);
        let unread_tokens = running.chain(self.waiting.iter().map(|one| one.unread)).sum();
        Load { running: self.running.len(), waiting: self.waiting.len(), unread_tokens }
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether a running request has never run beside another one.
    pub(super) fn is_alone(&self) -> bool {
        !self.crowded
    }

    /// Whether waiting requests should get an event again; true at most once each [`REMINDER`].
    pub(super) fn is_reminder_due(&mut self, now: Duration) -> bool {
        let due = !self.waiting.is_empty() && now >= self.reminded_at + REMINDER;
        if due || self.waiting.is_empty() {
            self.reminded_at = now;
        }
        due
    }
}

/// The decode rate of a request in tokens per second, if it has one.
pub(super) fn rate(generation: &Generation) -> Option<f64> {
    let here_tokens = generation.generated_tokens - generation.answered_tokens;
    let steps = here_tokens.saturating_sub(1);
    let timed = steps > 0 && generation.decode_us > 0;
    timed.then(|| steps as f64 * 1e6 / generation.decode_us as f64)
}

/// Converts a worker's report of a request to the client's.
pub(super) fn account(generation: Generation) -> GenerateDone {
    GenerateDone {
        reason: generation.reason,
        prompt_tokens: generation.prompt_tokens,
        generated_tokens: generation.generated_tokens,
        cached_tokens: generation.cached_tokens,
        guesses: generation.guesses,
        queue: Duration::from_micros(generation.queue_us),
        prefill: Duration::from_micros(generation.prefill_us),
        decode: Duration::from_micros(generation.decode_us),
        waits: generation.waits_us.iter().map(|us| Duration::from_micros(*us)).collect(),
        embedding: generation.embedding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(requests: &mut Requests, client: u64, tokens: usize) -> RequestId {
        let prompt = vec![1; tokens];
        let request = GenerateRequest { prompt, client, ..GenerateRequest::default() };
        requests.submit(request, tokens).unwrap()
    }

    fn next(requests: &mut Requests) -> Vec<RequestId> {
        requests.take_ready().into_iter().map(|(request, _)| request).collect()
    }

    #[test]
    fn a_short_prompt_overtakes_a_long_one_but_not_for_ever() {
        let mut requests = Requests::new(1);
        let busy = submit(&mut requests, 0, 1);
        assert_eq!(next(&mut requests), [busy]);
        let long = submit(&mut requests, 0, 1000);
        let (mut running, mut overtaken) = (busy, 0);
        loop {
            let short = submit(&mut requests, 0, 100);
            assert!(requests.finish(running, 5) && !requests.finish(running, 5));
            running = next(&mut requests)[0];
            if running == long {
                break;
            }
            assert_eq!(running, short);
            overtaken += 1;
        }
        assert_eq!(overtaken, 9);
    }

    #[test]
    fn a_client_with_many_requests_does_not_keep_another_from_its_turn() {
        let mut requests = Requests::new(2);
        let many: Vec<_> = (0..20).map(|_| submit(&mut requests, 1, 50)).collect();
        let mut running = next(&mut requests);
        assert_eq!(running, many[..2]);
        let few: Vec<_> = (0..5).map(|_| submit(&mut requests, 2, 50)).collect();
        let mut order = Vec::new();
        while order.len() < 12 {
            requests.finish(running.remove(0), 10);
            let new = next(&mut requests);
            order.extend(new.iter().map(|request| few.contains(request)));
            running.extend(new);
        }
        let last = order.iter().rposition(|is_few| *is_few).unwrap();
        assert_eq!(order.iter().filter(|is_few| **is_few).count(), 5, "{order:?}");
        assert!((8..11).contains(&last), "{order:?}");
    }

    #[test]
    fn the_load_is_what_runs_and_waits_and_what_is_to_be_read() {
        let mut requests = Requests::new(2);
        let all = [10, 20, 30].map(|tokens| submit(&mut requests, 0, tokens));
        next(&mut requests);
        assert_eq!(requests.load(), Load { running: 2, waiting: 1, unread_tokens: 60 });
        assert!(requests.begins(all[1]) && !requests.begins(all[2]));
        requests.finish(all[0], 1);
        assert_eq!(requests.load(), Load { running: 1, waiting: 1, unread_tokens: 30 });
    }

    #[test]
    fn whoever_ends_in_whatever_way_leaves_nothing_behind() {
        let mut requests = Requests::new(1);
        for client in 0..4 {
            submit(&mut requests, client, 10);
        }
        next(&mut requests);
        assert!(requests.cancel(1) && !requests.cancel(2) && !requests.cancel(99));
        assert_eq!((requests.take_running(), requests.take_waiting()), (vec![1], vec![3, 4]));
        let mut nobody = Turns::default();
        nobody.serve(0, 10, 0);
        assert_eq!(requests.turns, nobody);
    }
}
