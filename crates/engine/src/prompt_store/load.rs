//! A page being read: each of its parts from the record of its own heads, or put together from
//! those of others.

use std::ops::Range;
use std::sync::mpsc::{Receiver, TryRecvError};

use backend::Backend;
use model::{Model, Part, Shared};
use records::{Pending, Record, Records};

use super::members::{Given, Members};
use super::record::{header, key_of, number};
use super::runs::{places, take_shared};
use crate::page_orders::{Loaded, PageOrder};

/// A page being read.
pub(super) struct Load {
    pub order: PageOrder,
    /// What is not in the cache yet.
    left: Vec<Piece>,
    /// Parts that are put together, by their number: this disk gets them as one record each.
    made: Vec<usize>,
    is_missing: bool,
}

/// Bytes of the part with this number.
struct Piece {
    part: usize,
    from: From,
}

enum From {
    /// Runs of a record of this disk, which has this many bytes.
    Disk(Pending<Option<Record>>, usize, Vec<Shared>),
    Members(Receiver<Given>),
}

/// Where records are looked for.
pub(super) struct Sources<'a> {
    /// Those of this disk, once they are open.
    pub records: Option<&'a Records>,
    pub parts: &'a [Part],
    /// The heads of records of this disk.
    pub known: &'a [Vec<u32>],
    pub members: Option<&'a Members>,
}

impl Load {
    pub fn begin(order: &PageOrder, sources: &Sources<'_>) -> Self {
        let mut load =
            Self { order: order.clone(), left: Vec::new(), made: Vec::new(), is_missing: false };
        for (at, part) in sources.parts.iter().enumerate() {
            if number(order, part.holder).is_some() {
                load.begin_part(at, part, sources);
            }
        }
        load
    }

    fn begin_part(&mut self, at: usize, part: &Part, sources: &Sources<'_>) {
        let Sources { records, known, members, .. } = *sources;
        let (text, header) = (self.order.key, header(&self.order));
        let has = |other: &Part| records.is_some_and(|own| own.contains(&key_of(&text, other)));
        let mut add = |other: &Part, runs: Vec<Shared>| {
            let Some(records) = records else { return };
            let pending = records.get(&key_of(&text, other), Some(&header));
            self.left.push(Piece { part: at, from: From::Disk(pending, other.bytes, runs) });
        };
        if has(part) {
            return add(part, vec![Shared { to: 0..part.bytes, from: 0 }]);
        }
        let mut missing = places(part);
        for other in known.iter().filter_map(|heads| part.with_heads(heads)) {
            if missing.is_empty() {
                break;
            }
            if has(&other) {
                let runs = take_shared(part, &other, &mut missing);
                if !runs.is_empty() {
                    add(&other, runs);
                }
            }
        }
        self.made.push(at);
        if missing.is_empty() {
            return;
        }
        match members {
            Some(members) => {
                let given = members.want(text, part.clone(), missing, header);
                self.left.push(Piece { part: at, from: From::Members(given) });
            }
            None => self.is_missing = true,
        }
    }

    /// Places what has come. Once all is there, parts that were put together are written down.
    pub fn go_on<B: Backend>(
        &mut self,
        sources: &Sources<'_>,
        backend: &mut B,
        model: &mut Model<B>,
    ) -> Loaded {
        let Self { order, left, made, is_missing } = self;
        let parts = sources.parts;
        left.retain_mut(|Piece { part, from }| {
            let Some(number) = number(order, parts[*part].holder) else { return false };
            let taken = from.take(|to, bytes| {
                model.content(backend, &parts[*part], number)[to].copy_from_slice(bytes);
            });
            *is_missing |= taken == Some(false);
            taken.is_none()
        });
        if *is_missing {
            return Loaded::Missing;
        }
        if !left.is_empty() {
            return Loaded::Pending;
        }
        for part in made.drain(..).map(|at| &parts[at]) {
            let Some(number) = number(order, part.holder) else { continue };
            let content = model.content(backend, part, number);
            let fill = |out: &mut [u8]| out.copy_from_slice(content);
            let Some(records) = sources.records else { continue };
            records.put(&key_of(&order.key, part), &header(order), part.bytes, fill);
        }
        Loaded::Placed
    }
}

impl From {
    /// Hands bytes over if they have come: whether they were there. `None`: not yet.
    fn take(&mut self, mut place: impl FnMut(Range<usize>, &[u8])) -> Option<bool> {
        match self {
            Self::Disk(pending, bytes, runs) => {
                let record = pending.try_take()?;
                let Some(record) = record.filter(|record| record.payload().len() == *bytes) else {
                    return Some(false);
                };
                for Shared { to, from } in runs {
                    place(to.clone(), &record.payload()[*from..][..to.len()]);
                }
                Some(true)
            }
            Self::Members(given) => match given.try_recv() {
                Err(TryRecvError::Empty) => None,
                Ok(Some(runs)) => {
                    runs.into_iter().for_each(|(to, bytes)| place(to, &bytes));
                    Some(true)
                }
                Ok(None) | Err(TryRecvError::Disconnected) => Some(false),
            },
        }
    }
}
