//! The engine under every collective: sends to and receives from all peers at once.
//!
//! It never waits for one peer while another could progress, and always receives while it sends, so
//! no order of ranks can deadlock it. Payloads longer than a message are cut into messages, which
//! pipeline through the links' slots.

use crate::back_off::{BackOff, Phase};
use crate::group::check_silence;
use crate::lane::Lane;
use crate::payload::{InStage, Payload};
use crate::wire::Op;
use crate::{CollectiveError, Group, pipe};

impl Group {
    /// Runs one collective on all links of the stage.
    pub(crate) fn exchange(
        &mut self,
        op: Op,
        payload: &mut impl Payload,
    ) -> Result<(), CollectiveError> {
        self.check()?;
        let done = self.run(op, payload);
        self.keep(done)
    }

    /// Runs it to its end on all lanes, and drains the pipes meanwhile.
    fn run(&mut self, op: Op, payload: &mut impl Payload) -> Result<(), CollectiveError> {
        let Group { first, lanes, pipes, options, .. } = self;
        let payload = &mut InStage { first: *first, payload };
        for lane in lanes.iter_mut() {
            lane.start(payload);
        }
        let mut back_off = BackOff::new(&self.abort, self.spin);
        let mut last: Option<usize> = None;
        loop {
            let mut moved = false;
            // Sends first: other ranks wait for them, while our own receives wait for others.
            for lane in lanes.iter_mut().filter(|lane| lane.is_sending()) {
                moved |= lane.advance_send(op, payload)?;
            }
            for lane in lanes.iter_mut().filter(|lane| lane.is_receiving()) {
                moved |= lane.advance_recv(op, payload)?;
            }
            if lanes.iter().all(|lane| !lane.is_sending() && !lane.is_receiving()) {
                // The wait counts for the peer of the last message.
                if let Some(last) = last {
                    lanes[last].waited += back_off.total();
                }
                return Ok(());
            }
            if moved {
                back_off.reset();
                continue;
            }
            last = waited_for(lanes);
            pipe::drain(pipes, options.bytes_max)?;
            let phase = back_off.pause()?;
            if phase == Phase::Spinning {
                continue;
            }
            check_silence(lanes, pipes, options.silence_max)?;
            if let Some(late) = last.filter(|_| back_off.waited() >= options.wait_max) {
                let (peer, waited) = (lanes[late].peer, back_off.waited());
                return Err(CollectiveError::late(peer, waited, options.wait_max));
            }
            if phase == Phase::Sleeping {
                std::thread::sleep(back_off.nap());
            }
        }
    }
}

/// The lane to wait for: of a rank that owes us bytes, or else of one that takes none of ours.
fn waited_for(lanes: &[Lane]) -> Option<usize> {
    let owes = lanes.iter().position(Lane::is_receiving);
    owes.or_else(|| lanes.iter().position(Lane::is_sending))
}
