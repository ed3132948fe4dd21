//! Requests for admission by number, and a count of wrong numbers. Pure: time is an argument.
//!
//! Each number is tried against one request and uses it up, so a machine has one guess for each
//! number that a user types here.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use crate::members::Member;
use crate::{Error, FindNodeError, NodeId, PairRequest, Result, find_node};

/// Requests at a time: as many machines as a user sets up at once.
pub(crate) const REQUESTS_MAX: usize = 8;
/// How long a request keeps its place when all are taken; meanwhile its user types the number. It
/// counts from the first request of the machine or its address, so that renewed requests from many
/// addresses keep others out no longer than this.
const SAFE: Duration = Duration::from_secs(60);
/// Machines and addresses whose first request is remembered.
const SEEN_MAX: usize = 256;
/// Requests from one address, so that one machine cannot keep out the others.
const REQUESTS_PER_ADDRESS_MAX: usize = 2;
/// Time for a user to walk from one machine to the other.
pub(crate) const REQUEST_MAX: Duration = Duration::from_secs(300);
/// Wrong numbers in one window before all are refused for its rest: an attacker with that many
/// guesses succeeds once in 200,000.
const WRONG_MAX: usize = 5;
const WRONG_WINDOW: Duration = Duration::from_secs(600);

/// Recent wrong numbers, at either end.
#[derive(Debug, Default)]
pub(crate) struct Wrong(VecDeque<Duration>);

impl Wrong {
    /// # Errors
    /// There were too many.
    pub(crate) fn check(&mut self, now: Duration) -> Result<()> {
        while self.0.front().is_some_and(|at| now >= *at + WRONG_WINDOW) {
            self.0.pop_front();
        }
        match self.0.front() {
            Some(first) if self.0.len() >= WRONG_MAX => {
                let left = (*first + WRONG_WINDOW).saturating_sub(now);
                Err(Error::PairingPaused { wrong: WRONG_MAX, minutes: left.as_secs() / 60 + 1 })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn note(&mut self, now: Duration) {
        self.0.push_back(now);
    }
}

/// A request that waits at this node; `D` is the channel for the user's decision.
#[derive(Debug)]
pub(crate) struct Waiting<D> {
    pub ticket: u64,
    pub member: Member,
    address: IpAddr,
    /// The first request of its machine or address.
    since: Duration,
    until: Duration,
    pub decide: D,
}

/// A machine that has requested admission, also after it hung up.
#[derive(Debug)]
struct Asker {
    node: NodeId,
    address: IpAddr,
    first: Duration,
    last: Duration,
}

#[derive(Debug)]
pub(crate) struct Requests<D> {
    last: u64,
    waiting: Vec<Waiting<D>>,
    /// The latest last.
    seen: VecDeque<Asker>,
    pub wrong: Wrong,
}

impl<D> Default for Requests<D> {
    fn default() -> Self {
        let (waiting, seen, wrong) = Default::default();
        Self { last: 0, waiting, seen, wrong }
    }
}

impl<D> Requests<D> {
    /// Adds a request, which replaces an earlier one of the same node; returns its ticket.
    ///
    /// # Errors
    /// Too many requests wait, or too many numbers were wrong.
    pub(crate) fn add(
        &mut self,
        member: Member,
        address: IpAddr,
        decide: D,
        now: Duration,
    ) -> Result<u64> {
        self.wrong.check(now)?;
        self.waiting.retain(|one| one.member.id != member.id && now < one.until);
        let from = |address| self.waiting.iter().filter(|one| one.address == address).count();
        let is_full = || Error::ManyRequests { waiting: self.waiting.len() };
        let same = from(address);
        if same >= REQUESTS_PER_ADDRESS_MAX {
            return Err(is_full());
        }
        if self.waiting.len() >= REQUESTS_MAX {
            // In order of arrival.
            let many = |one: &Waiting<D>| from(one.address) > same + 1;
            let late = |one: &Waiting<D>| now >= one.since + SAFE;
            let places = 0..self.waiting.len();
            let oldest = places.min_by_key(|at| self.waiting[*at].since);
            let oldest = oldest.filter(|at| late(&self.waiting[*at]));
            let at = self.waiting.iter().position(many).or(oldest).ok_or_else(is_full)?;
            self.waiting.remove(at);
        }
        let since = self.first_of(member.id, address, now);
        self.last += 1;
        let (ticket, until) = (self.last, now + REQUEST_MAX);
        self.waiting.push(Waiting { ticket, member, address, since, until, decide });
        Ok(ticket)
    }

    /// When a machine or its address first requested admission; notes this request. Who requests
    /// nothing for as long as a request waits begins anew.
    fn first_of(&mut self, node: NodeId, address: IpAddr, now: Duration) -> Duration {
        self.seen.retain(|one| now < one.last + REQUEST_MAX);
        let same = |one: &&Asker| one.node == node || one.address == address;
        let first = self.seen.iter().filter(same).map(|one| one.first).min().unwrap_or(now);
        self.seen.retain(|one| (one.node, one.address) != (node, address));
        self.seen.push_back(Asker { node, address, first, last: now });
        if self.seen.len() > SEEN_MAX {
            self.seen.pop_front();
        }
        first
    }

    /// Drops requests that have waited too long; returns whether there were any.
    pub(crate) fn expire(&mut self, now: Duration) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|one| now < one.until);
        self.waiting.len() < before
    }

    /// Drops a request whose machine has hung up.
    pub(crate) fn forget(&mut self, ticket: u64) {
        self.waiting.retain(|one| one.ticket != ticket);
    }

    /// Takes out a node's request.
    ///
    /// # Errors
    /// The node has no request here.
    pub(crate) fn take(&mut self, node: NodeId, now: Duration) -> Result<Waiting<D>> {
        self.expire(now);
        match self.waiting.iter().position(|one| one.member.id == node) {
            Some(at) => Ok(self.waiting.remove(at)),
            None => Err(Error::NoRequest { waiting: names(&self.list(now)) }),
        }
    }

    pub(crate) fn list(&self, now: Duration) -> Vec<PairRequest> {
        let shown = self.waiting.iter().map(|one| PairRequest {
            id: one.member.id,
            name: one.member.name.clone(),
            address: one.address,
            expires_in_secs: one.until.saturating_sub(now).as_secs(),
            at: String::new(),
        });
        shown.collect()
    }
}

/// The request that a user means, and the member where it waits: the only one, or that of the
/// machine which [`find_node()`] finds.
///
/// # Errors
/// No request or several requests match.
pub(crate) fn choose<T: Copy>(
    all: &[(PairRequest, T)],
    node: Option<&str>,
) -> Result<(PairRequest, T)> {
    let waiting = || names(all.iter().map(|(one, _)| one));
    let all_names = all.iter().map(|(one, _)| (one.id, one.name.as_str()));
    let meant = match node.map(|name| find_node(name, all_names)).transpose() {
        Ok(meant) => meant,
        Err(FindNodeError::Nobody { .. }) => return Err(Error::NoRequest { waiting: waiting() }),
        Err(other) => return Err(other.into()),
    };
    let mut meant = all.iter().filter(|(one, _)| meant.is_none_or(|id| one.id == id));
    match (meant.next(), meant.next()) {
        (Some((one, at)), None) => Ok((one.clone(), *at)),
        (None, _) => Err(Error::NoRequest { waiting: waiting() }),
        (Some(_), Some(_)) => Err(Error::WhichRequest { waiting: waiting() }),
    }
}

fn names<'a>(requests: impl IntoIterator<Item = &'a PairRequest>) -> String {
    let name = |one: &PairRequest| format!("{} ({})", one.name, one.id.short());
    let names: Vec<String> = requests.into_iter().map(name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn member(id: u8) -> Member {
        let (id, name) = (NodeId([id; 32]), format!("node-{id}"));
        Member { id, name, addresses: Vec::new(), admitted: 0 }
    }

    fn address(at: u8) -> IpAddr {
        [10, 0, 0, at].into()
    }

    #[test]
    fn a_request_is_taken_once_and_by_name_where_there_are_several() {
        let mut requests = Requests::default();
        let id = |at: u8| NodeId([at; 32]);
        assert!(matches!(requests.take(id(1), SECOND), Err(Error::NoRequest { .. })));
        requests.add(member(1), address(1), (), SECOND).unwrap();
        // A second request of the same node replaces the first.
        let ticket = requests.add(member(1), address(1), (), SECOND).unwrap();
        assert_eq!(requests.list(SECOND).len(), 1);
        requests.add(member(2), address(2), (), SECOND).unwrap();
        let all: Vec<_> = requests.list(SECOND).into_iter().map(|one| (one, ())).collect();
        let which = choose(&all, None).unwrap_err().to_string();
        assert!(which.contains("node-1 (01010101)") && which.contains("node-2"), "{which}");
        assert!(choose(&all, Some("node-3")).is_err() && choose(&all[..0], None).is_err());
        assert_eq!(choose(&all, Some("0101")).unwrap().0.id, id(1));
        assert_eq!(choose(&all[1..], None).unwrap().0.name, "node-2");
        assert_eq!(requests.take(id(1), SECOND).unwrap().ticket, ticket);
        assert!(requests.take(id(1), SECOND).is_err());
        assert_eq!(requests.take(id(2), SECOND).unwrap().member.name, "node-2");
    }

    #[test]
    fn requests_expire_and_are_bounded() {
        let mut requests = Requests::default();
        for at in 0..20 {
            // Two addresses with many requests each, and as many addresses with one each.
            let from = if at < 10 { at % 2 } else { at };
            drop(requests.add(member(at), address(from), (), SECOND));
            let of_first = requests.list(SECOND).iter().filter(|r| r.address == address(0)).count();
            assert!(of_first <= REQUESTS_PER_ADDRESS_MAX);
        }
        assert_eq!(requests.list(SECOND).len(), REQUESTS_MAX);
        let from_one = requests.list(SECOND).iter().filter(|one| one.address == address(0)).count();
        assert_eq!(from_one, 1, "it had two, and gave one up");
        assert!(!requests.expire(REQUEST_MAX));
        assert!(requests.expire(REQUEST_MAX + SECOND));
        assert_eq!(requests.list(SECOND), []);
    }

    #[test]
    fn strangers_that_fill_all_places_keep_nobody_out_for_long() {
        let full = |per_address: u8| {
            let mut requests = Requests::default();
            for at in 0..REQUESTS_MAX as u8 {
                let from = address(at / per_address);
                requests.add(member(at), from, (), u32::from(at) * SECOND).unwrap();
            }
            requests
        };
        let ids = |requests: &Requests<()>, now| {
            requests.list(now).iter().map(|one| one.id.0[0]).collect::<Vec<_>>()
        };
        // An address with two places yields one to an address with none.
        let (mut requests, now) = (full(2), 10 * SECOND);
        requests.add(member(100), address(100), (), now).unwrap();
        assert_eq!(ids(&requests, now), [1, 2, 3, 4, 5, 6, 7, 100]);
        // Of requests from one address each, the first yields its place after a minute.
        let mut requests = full(1);
        let early = requests.add(member(100), address(100), (), SAFE - SECOND).unwrap_err();
        assert!(matches!(early, Error::ManyRequests { waiting: REQUESTS_MAX }), "{early}");
        requests.add(member(100), address(100), (), SAFE).unwrap();
        assert!(requests.add(member(101), address(101), (), SAFE).is_err());
        assert_eq!(ids(&requests, SAFE), [1, 2, 3, 4, 5, 6, 7, 100]);
    }

    /// Strangers at eight addresses renew their requests each 25 s, with the same keys or others,
    /// over new connections or not, and at once when one has lost its place.
    #[test]
    fn strangers_that_renew_their_requests_keep_nobody_out() {
        for (changes_keys, hangs_up) in [(false, false), (true, false), (false, true), (true, true)]
        {
            let mut requests = Requests::default();
            let (mut tickets, mut admitted_at) = ([0; REQUESTS_MAX], None);
            for second in 0..200u8 {
                let now = u32::from(second) * SECOND;
                for at in 0..REQUESTS_MAX as u8 {
                    let ticket = &mut tickets[usize::from(at)];
                    let is_there = requests.waiting.iter().any(|one| one.ticket == *ticket);
                    if is_there && second % 25 != at {
                        continue;
                    }
                    if hangs_up {
                        requests.forget(*ticket);
                    }
                    let round = if changes_keys { second / 25 } else { 0 };
                    let key = member(at + round * REQUESTS_MAX as u8);
                    *ticket = requests.add(key, address(at), (), now).unwrap_or(0);
                }
                let is_there = requests.list(now).iter().any(|one| one.name == "node-200");
                assert_eq!(is_there, admitted_at.is_some(), "at {second} s");
                if admitted_at.is_none() {
                    let added = requests.add(member(200), address(200), (), now);
                    admitted_at = added.ok().map(|_| now);
                }
            }
            let at = admitted_at.expect("a place became free");
            assert!(at <= SAFE, "after {at:?}; {changes_keys} {hangs_up}");
        }
    }

    #[test]
    fn wrong_numbers_end_pairing_for_a_while() {
        let mut requests = Requests::default();
        for _ in 0..WRONG_MAX {
            requests.add(member(1), address(1), (), SECOND).unwrap();
            requests.take(NodeId([1; 32]), SECOND).unwrap();
            requests.wrong.note(SECOND);
        }
        let paused = requests.add(member(1), address(1), (), 10 * SECOND).unwrap_err();
        assert!(matches!(paused, Error::PairingPaused { minutes: 10, .. }), "{paused}");
        requests.add(member(1), address(1), (), WRONG_WINDOW + SECOND).unwrap();
    }
}
