//! The engine under every collective: sends to and receives from all peers at once.
//!
//! It never waits for one peer while another could move, and always drains what comes while it
//! sends, so no order of ranks can deadlock it. Payloads longer than a message are cut into
//! messages, which pipeline through the links' slots.

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

    /// Runs it to its end on all lanes, and takes in what comes through pipes meanwhile.
    fn run(&mut self, op: Op, payload: &mut impl Payload) -> Result<(), CollectiveError> {
        let Group { first, lanes, pipes, options, .. } = self;
        let payload = &mut InStage { first: *first, payload };
        for lane in lanes.iter_mut() {
            lane.start(payload);
        }
        let mut back_off = BackOff::new(&self.abort, self.spin);
        loop {
            let mut moved = false;
            // Sends first: others wait for them, while our own receives wait for others.
            for lane in lanes.iter_mut().filter(|lane| lane.is_sending()) {
                moved |= lane.advance_send(op, payload)?;
            }
            for lane in lanes.iter_mut().filter(|lane| lane.is_receiving()) {
                moved |= lane.advance_recv(op, payload)?;
            }
            if lanes.iter().all(|lane| !lane.is_sending() && !lane.is_receiving()) {
                self.waited += back_off.total();
                return Ok(());
            }
            if moved {
                back_off.reset();
                continue;
            }
            pipe::drain(pipes, options.bytes_max)?;
            let phase = back_off.pause()?;
            if phase == Phase::Spinning {
                continue;
            }
            check_silence(lanes, pipes, options.silence_max)?;
            if back_off.waited() >= options.wait_max {
                return Err(CollectiveError::late(
                    waited_for(lanes),
                    back_off.waited(),
                    options.wait_max,
                ));
            }
            if phase == Phase::Sleeping {
                std::thread::sleep(back_off.nap());
            }
        }
    }
}

/// The rank that is waited for: one that owes us bytes, or else one that takes none of ours.
fn waited_for(lanes: &[Lane]) -> usize {
    let owes = lanes.iter().find(|lane| lane.is_receiving());
    let stuck = owes.or_else(|| lanes.iter().find(|lane| lane.is_sending()));
    stuck.expect("a wait is for somebody").peer
}
