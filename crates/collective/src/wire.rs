//! The content of a collective's messages: a short header, then bytes of the payload.
//!
//! Links keep order, so the header carries no number. It names the sender's operation, so that
//! ranks that fell out of step notice instead of misreading each other's bytes.

/// Bytes of the header; a multiple of what keeps f32 payloads aligned.
pub(crate) const HEADER_BYTES: usize = 16;

/// The step a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Parts for every rank: the one-shot all-reduce.
    Reduce,
    /// Parts of the receiver's chunk: the first of the two phases.
    ReduceScatter,
    /// Sums of a chunk on their way round the ring.
    RingReduce,
    AllGather,
    Broadcast,
    Gather,
    Send,
    Barrier,
    /// The sender's group has failed; the payload names the culprit.
    Goodbye,
}

const OPS: [Op; 9] = [
    Op::Reduce,
    Op::ReduceScatter,
    Op::RingReduce,
    Op::AllGather,
    Op::Broadcast,
    Op::Gather,
    Op::Send,
    Op::Barrier,
    Op::Goodbye,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub op: Op,
    /// Bytes of the whole payload; this message holds the next part of it.
    pub total: u64,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.op as u8;
        bytes[8..16].copy_from_slice(&self.total.to_le_bytes());
        bytes
    }

    /// Splits a message into its header and its part of the payload.
    pub fn decode(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = message.split_first_chunk::<HEADER_BYTES>()?;
        let op = *OPS.get(header[0] as usize)?;
        let total = u64::from_le_bytes(header[8..16].try_into().expect("a slice of 8 bytes"));
        Some((Header { op, total }, payload))
    }
}

/// Copies f32 values into a message as little-endian bytes.
pub(crate) fn put_f32(bytes: &mut [u8], values: &[f32]) {
    assert_eq!(bytes.len(), 4 * values.len());
    for (bytes, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *bytes = value.to_le_bytes();
    }
}

/// Copies f32 values out of a message.
pub(crate) fn get_f32(bytes: &[u8], values: &mut [f32]) {
    assert_eq!(bytes.len(), 4 * values.len());
    for (bytes, value) in bytes.as_chunks::<4>().0.iter().zip(values) {
        *value = f32::from_le_bytes(*bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_undoes_encode_and_refuses_the_rest() {
        for op in OPS {
            let header = Header { op, total: 0x0123_4567_89ab };
            let mut message = header.encode().to_vec();
            message.extend_from_slice(b"payload");
            assert_eq!(Header::decode(&message), Some((header, &b"payload"[..])));
        }
        assert_eq!(Header::decode(&[0; HEADER_BYTES - 1]), None);
        assert_eq!(Header::decode(&[OPS.len() as u8; HEADER_BYTES]), None);
    }

    #[test]
    fn floats_keep_every_bit() {
        let values = [0.0, -0.0, f32::MIN_POSITIVE / 2.0, f32::NAN, f32::NEG_INFINITY, 1.5];
        let mut bytes = [0; 24];
        put_f32(&mut bytes, &values);
        let mut back = [9.0; 6];
        get_f32(&bytes, &mut back);
        assert_eq!(values.map(f32::to_bits), back.map(f32::to_bits));
    }
}
