//! The bytes that a collective sends and expects: the trait, and the shapes that several share.

use std::ops::Range;

use crate::wire::{get_f32, put_f32};

/// What a rank expects from a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Nothing,
    /// A payload of exactly this many bytes (0 is a message too).
    Bytes(usize),
    /// A payload of at most this many bytes; only its sender knows the length.
    AtMost(usize),
}

/// The payloads of one collective, as bytes. `peer` is a rank. By default nothing is sent and
/// nothing expected.
pub(crate) trait Payload {
    /// Bytes to send to `peer`; `None` for no message, `Some(0)` for an empty one.
    fn outgoing(&self, _peer: usize) -> Option<usize> {
        None
    }

    /// Writes the payload for `peer` from byte `offset` on; fills `bytes`.
    fn fill(&mut self, _peer: usize, _offset: usize, _bytes: &mut [u8]) {}

    fn incoming(&self, _peer: usize) -> Expect {
        Expect::Nothing
    }

    /// Stores `bytes` of the payload from `peer`, at `offset` of its `total`.
    fn store(&mut self, _peer: usize, _offset: usize, _total: usize, _bytes: &[u8]) {}
}

/// A payload among the ranks of one stage, which count from the stage's first.
pub(crate) struct InStage<'a, P> {
    pub first: usize,
    pub payload: &'a mut P,
}

impl<P: Payload> Payload for InStage<'_, P> {
    fn outgoing(&self, peer: usize) -> Option<usize> {
        self.payload.outgoing(peer - self.first)
    }

    fn fill(&mut self, peer: usize, offset: usize, bytes: &mut [u8]) {
        self.payload.fill(peer - self.first, offset, bytes);
    }

    fn incoming(&self, peer: usize) -> Expect {
        self.payload.incoming(peer - self.first)
    }

    fn store(&mut self, peer: usize, offset: usize, total: usize, bytes: &[u8]) {
        self.payload.store(peer - self.first, offset, total, bytes);
    }
}

/// The elements of `rank` in a vector made of slices of these lengths.
pub(crate) fn slice_of(lens: &[usize], rank: usize) -> Range<usize> {
    let start = lens[..rank].iter().sum();
    start..start + lens[rank]
}

/// The bytes of this many elements, or `None` for none.
pub(crate) fn bytes_of(elements: usize) -> Option<usize> {
    (elements > 0).then_some(4 * elements)
}

pub(crate) fn expect_elements(elements: usize) -> Expect {
    bytes_of(elements).map_or(Expect::Nothing, Expect::Bytes)
}

/// A vector with a slice for each rank: the own slice goes to all ranks, theirs into the vector.
pub(crate) struct Slices<'a, F> {
    vector: &'a mut [f32],
    slice: F,
    rank: usize,
}

impl<'a, F: Fn(usize) -> Range<usize>> Slices<'a, F> {
    /// `slice`: by rank, its elements of `vector`.
    pub fn new(vector: &'a mut [f32], slice: F, rank: usize) -> Self {
        Slices { vector, slice, rank }
    }
}

impl<F: Fn(usize) -> Range<usize>> Payload for Slices<'_, F> {
    fn outgoing(&self, _peer: usize) -> Option<usize> {
        bytes_of((self.slice)(self.rank).len())
    }

    fn fill(&mut self, _peer: usize, offset: usize, bytes: &mut [u8]) {
        let start = (self.slice)(self.rank).start + offset / 4;
        put_f32(bytes, &self.vector[start..start + bytes.len() / 4]);
    }

    fn incoming(&self, peer: usize) -> Expect {
        expect_elements((self.slice)(peer).len())
    }

    fn store(&mut self, peer: usize, offset: usize, _total: usize, bytes: &[u8]) {
        let start = (self.slice)(peer).start + offset / 4;
        get_f32(bytes, &mut self.vector[start..start + bytes.len() / 4]);
    }
}

/// The same bytes to one peer or to all.
pub(crate) struct BytesOut<'a> {
    pub to: Option<usize>,
    pub bytes: &'a [u8],
}

impl Payload for BytesOut<'_> {
    fn outgoing(&self, peer: usize) -> Option<usize> {
        self.to.is_none_or(|to| to == peer).then_some(self.bytes.len())
    }

    fn fill(&mut self, _peer: usize, offset: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.bytes[offset..offset + bytes.len()]);
    }
}

/// Bytes of an unknown length from one peer.
pub(crate) struct BytesIn<'a> {
    pub from: usize,
    pub bytes_max: usize,
    pub bytes: &'a mut Vec<u8>,
}

impl Payload for BytesIn<'_> {
    fn incoming(&self, peer: usize) -> Expect {
        if peer == self.from { Expect::AtMost(self.bytes_max) } else { Expect::Nothing }
    }

    fn store(&mut self, _peer: usize, offset: usize, total: usize, bytes: &[u8]) {
        append(self.bytes, offset, total, bytes);
    }
}

/// Appends the next bytes of a message; the first ones replace the old content. The buffer grows as
/// bytes arrive, so that an announced length costs nothing.
pub(crate) fn append(message: &mut Vec<u8>, offset: usize, total: usize, bytes: &[u8]) {
    message.truncate(offset);
    message.reserve(bytes.len().max((total - offset).min(2 * offset)));
    message.extend_from_slice(bytes);
}
