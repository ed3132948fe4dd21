//! Which of a model's replicas takes a request.
//!
//! The node of the client asks the owners of those that work what the request would cost them: they
//! know their caches and queues. The least takes it. There is no router, and nothing is remembered
//! but when each was chosen last, which decides between offers that are about equal.

use std::time::Duration;

use protocol::FailureKind;

use super::replicas::owner_to_ask;
use super::stream::{Choice, Place, Stream};
use super::{Below, Requests, place};
use crate::context::Context;
use crate::membership::ConnId;
use crate::wire::{Message, Offer, Question};
use crate::{Error, GenerateEvent};

/// How long a request waits for offers: many round trips of a home's network. The choice is made by
/// the offers that have come, at the next tick.
const PATIENCE: Duration = Duration::from_millis(100);
/// Offers are about equal within this part of the least, or within this time.
const EQUAL_WITHIN: f64 = 0.25;
const EQUAL_WITHIN_US: u64 = 5_000;

impl Requests {
    /// Asks the owners of these replicas for offers.
    pub(super) fn ask_for_offers(
        &mut self,
        below: &mut Below<'_>,
        stream: u64,
        replicas: &[String],
        question: &Question,
    ) {
        let now = below.host.ctx.now();
        let mut choice = Choice { since: now, open: Vec::new(), offers: Vec::new() };
        for id in replicas {
            if below.instances.table.get(id).is_some() {
                let offer = below.instances.offer(id, question);
                choice.offers.extend(offer.map(|offer| (id.clone(), offer)));
            } else if let Some(conn) = owner_to_ask(&below.host.ctx, id) {
                let (instance, question) = (id.clone(), question.clone());
                below.host.ctx.send(conn, Message::Quote { stream, instance, question });
                choice.open.push(id.clone());
            }
        }
        if let Some(found) = self.streams.get_mut(&stream) {
            found.place = Place::Choosing(choice);
        }
        self.choose_if_due(below, stream);
    }

    /// An owner has answered.
    pub(crate) fn quoted(
        &mut self,
        below: &mut Below<'_>,
        (conn, stream): (ConnId, u64),
        instance: String,
        offer: Option<Offer>,
    ) {
        let is_its = owner_to_ask(&below.host.ctx, &instance) == Some(conn);
        let found = self.streams.get_mut(&stream).filter(|_| is_its);
        let Some(Stream { place: Place::Choosing(choice), .. }) = found else { return };
        let before = choice.open.len();
        choice.open.retain(|open| *open != instance);
        if choice.open.len() < before {
            choice.offers.extend(offer.map(|offer| (instance, offer)));
            self.choose_if_due(below, stream);
        }
    }

    /// Places the requests that have waited for offers for long enough.
    pub(crate) fn choose_late(&mut self, below: &mut Below<'_>) {
        let is_choosing = |found: &Stream| matches!(found.place, Place::Choosing(_));
        let waiting = self.streams.iter().filter(|(_, found)| is_choosing(found));
        for stream in waiting.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            self.choose_if_due(below, stream);
        }
    }

    /// Places a request at the best offer, once all have come or for long enough none has.
    fn choose_if_due(&mut self, below: &mut Below<'_>, stream: u64) {
        let now = below.host.ctx.now();
        let Some(found) = self.streams.get_mut(&stream) else { return };
        let Place::Choosing(choice) = &mut found.place else { return };
        if !choice.open.is_empty() && now.saturating_sub(choice.since) < PATIENCE {
            return;
        }
        let mut offers = std::mem::take(&mut choice.offers);
        let (request, relays) = (found.request.clone(), found.relays);
        let mut refused = None;
        while let Some(at) = self.best(&mut below.host.ctx, &offers) {
            let (id, _) = offers.swap_remove(at);
            match place(below, stream, &id, &request, relays) {
                Ok(Some(place)) => {
                    self.chosen.retain(|other| *other != id);
                    self.chosen.push(id.clone());
                    let Some(found) = self.streams.get_mut(&stream) else { return };
                    (found.instance, found.place) = (id, place);
                    return;
                }
                Ok(None) => {}
                Err(error) => refused = Some(error),
            }
        }
        let Some(found) = self.streams.get_mut(&stream) else { return };
        let reason = "no replica has room for another request now".to_owned();
        found.place = Place::Lost { reason: reason.clone(), since: now, told: now };
        let event = match refused {
            Some(error) => {
                let kind = match error {
                    Error::QueueFull { .. } => FailureKind::Busy,
                    Error::Unusable(_) => FailureKind::Invalid,
                    _ => FailureKind::Lost,
                };
                GenerateEvent::Failed { kind, reason: error.to_string() }
            }
            None => GenerateEvent::Waiting { reason },
        };
        let is_last = matches!(event, GenerateEvent::Failed { .. });
        self.tell(&mut below.host.ctx, stream, event);
        if is_last {
            self.streams.remove(&stream);
        }
    }

    /// The best offer: of those that are about equal, the one that was chosen longest ago, and of
    /// several that never were a random one.
    fn best(&self, ctx: &mut Context, offers: &[(String, Offer)]) -> Option<usize> {
        let least = offers.iter().map(|(_, offer)| offer.cost_us).min()?;
        let bound = least + EQUAL_WITHIN_US.max((least as f64 * EQUAL_WITHIN) as u64);
        let equal = offers.iter().enumerate().filter(|(_, (_, offer))| offer.cost_us <= bound);
        let last = |id: &String| self.chosen.iter().position(|chosen| chosen == id);
        let salt = u64::from(ctx.random_u32());
        let order = |id: &String, at: usize| (last(id), protocol::split_mix(salt, at as u64));
        equal.min_by_key(|(at, (id, _))| order(id, *at)).map(|(at, _)| at)
    }
}
