//! Heartbeats through the control pages of shared memory: each side counts in the ring that it
//! sends through.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::channel::{Channel, Received};
use crate::shm::{Mapping, Ring};

pub(crate) struct ShmHeartbeats {
    send: Ring,
    recv: Ring,
    count: u64,
}

/// The counter value of a goodbye.
const GOODBYE: u64 = u64::MAX;

impl ShmHeartbeats {
    pub fn new(mapping: Arc<Mapping>, lower: bool) -> Self {
        ShmHeartbeats {
            send: Ring::new(&mapping, lower),
            recv: Ring::new(&mapping, !lower),
            count: 0,
        }
    }
}

impl Channel for ShmHeartbeats {
    fn send(&mut self) {
        self.send.heartbeats().fetch_add(1, Ordering::Relaxed);
    }

    fn say_goodbye(&mut self) {
        self.send.heartbeats().store(GOODBYE, Ordering::Relaxed);
    }

    fn recv(&mut self) -> Received {
        let before =
            std::mem::replace(&mut self.count, self.recv.heartbeats().load(Ordering::Relaxed));
        match self.count {
            GOODBYE => Received::Goodbye,
            now if now != before => Received::Heartbeat,
            _ => Received::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{OBJECT_BYTES, ObjectName};

    #[test]
    fn heartbeats_are_received_by_the_other_side_only() {
        let mut instance = [7; 16];
        instance[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let name = ObjectName::new(&instance, 1, 0, 1);
        let mapping = Arc::new(Mapping::create(&name, OBJECT_BYTES).unwrap());
        let [mut lower, mut higher] =
            [true, false].map(|end| ShmHeartbeats::new(mapping.clone(), end));
        for (sends, left, right) in [
            (true, Received::Nothing, Received::Heartbeat),
            (false, Received::Nothing, Received::Nothing),
        ] {
            if sends {
                lower.send();
            }
            assert_eq!([lower.recv(), higher.recv()], [left, right]);
        }
        higher.say_goodbye();
        assert_eq!(lower.recv(), Received::Goodbye);
    }
}
