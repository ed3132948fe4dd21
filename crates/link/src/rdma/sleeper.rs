//! One descriptor to sleep on for every wake-up of an RDMA link: the TCP connection, and the
//! device's events where it has them. Without events, a timer ends the sleep.

use std::time::Duration;

use rustix::fd::BorrowedFd;

use super::waker::Waker;

/// The first sleep without events, and the longest: an idle link wakes a hundred times a second.
const NAP_MIN: Duration = Duration::from_micros(200);
const NAP_MAX: Duration = Duration::from_millis(10);

pub(super) struct Sleeper {
    waker: Waker,
    /// The next sleep without events; `None` where the device has them.
    nap: Option<Duration>,
}

impl Sleeper {
    pub fn new(stream: BorrowedFd<'_>, events: Option<BorrowedFd<'_>>) -> std::io::Result<Self> {
        let waker = Waker::new([Some(stream), events].into_iter().flatten())?;
        Ok(Sleeper { waker, nap: events.is_none().then_some(NAP_MIN) })
    }

    /// Resets the sleep without events to its minimum, because something came.
    pub fn reset(&mut self) {
        if let Some(nap) = &mut self.nap {
            *nap = NAP_MIN;
        }
    }

    /// Starts a sleep: sets the timer where there are no events.
    pub fn arm(&mut self) -> std::io::Result<()> {
        let Some(nap) = &mut self.nap else {
            return Ok(());
        };
        let this_time = *nap;
        *nap = (*nap * 2).min(NAP_MAX);
        self.waker.start_timer(this_time)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.waker.fd()
    }
}
