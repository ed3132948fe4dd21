//! One descriptor to sleep on for everything that may wake an RDMA link: the TCP connection, and
//! the device's events where it has them. Where it has none, a timer ends the sleep now and then.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The first sleep without events, and the longest: an idle link wakes a hundred times a second.
const NAP_MIN: Duration = Duration::from_micros(200);
const NAP_MAX: Duration = Duration::from_millis(10);

pub(super) struct Sleeper {
    waker: platform::Waker,
    /// How long to sleep without events; `None` where the device has them.
    nap: Option<Duration>,
}

impl Sleeper {
    pub fn new(stream: BorrowedFd<'_>, events: Option<BorrowedFd<'_>>) -> std::io::Result<Self> {
        let waker = platform::Waker::new(stream, events)?;
        Ok(Sleeper { waker, nap: events.is_none().then_some(NAP_MIN) })
    }

    /// Something came: the next sleep without events is short again.
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

#[cfg(target_os = "linux")]
mod platform {
    use super::*;
    use rustix::event::epoll;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    pub(super) struct Waker {
        epoll: OwnedFd,
        timer: OwnedFd,
    }

    impl Waker {
        pub fn new(
            stream: BorrowedFd<'_>,
            events: Option<BorrowedFd<'_>>,
        ) -> std::io::Result<Self> {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            for fd in [Some(stream), events, Some(timer.as_fd())].into_iter().flatten() {
                let data = epoll::EventData::new_u64(0);
                epoll::add(&epoll, fd, data, epoll::EventFlags::IN | epoll::EventFlags::RDHUP)?;
            }
            Ok(Waker { epoll, timer })
        }

        /// Also takes an earlier expiry away.
        pub fn start_timer(&self, after: Duration) -> std::io::Result<()> {
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let it_value = Timespec { tv_sec: 0, tv_nsec: after.subsec_nanos() as _ };
            let once = Itimerspec { it_interval: zero, it_value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
            Ok(())
        }

        pub fn fd(&self) -> BorrowedFd<'_> {
            self.epoll.as_fd()
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;

    use super::*;
    use rustix::event::kqueue::{Event, EventFilter, EventFlags, kevent, kqueue};

    /// The timer's name in the queue.
    const TIMER: isize = 1;

    /// Two descriptors and the timer.
    const EVENTS_MAX: usize = 3;

    pub(super) struct Waker {
        kqueue: OwnedFd,
    }

    impl Waker {
        pub fn new(
            stream: BorrowedFd<'_>,
            events: Option<BorrowedFd<'_>>,
        ) -> std::io::Result<Self> {
            let waker = Waker { kqueue: kqueue()? };
            for fd in [Some(stream), events].into_iter().flatten() {
                let filter = EventFilter::Read(fd.as_raw_fd());
                waker.change(&[Event::new(filter, EventFlags::ADD, std::ptr::null_mut())])?;
            }
            Ok(waker)
        }

        /// Also takes an earlier expiry away.
        pub fn start_timer(&self, after: Duration) -> std::io::Result<()> {
            let filter = EventFilter::Timer { ident: TIMER, timer: Some(after) };
            let flags = EventFlags::ADD | EventFlags::ONESHOT;
            self.change(&[Event::new(filter, flags, std::ptr::null_mut())])
        }

        /// Changes the queue and takes what has happened off it; sockets stay readable.
        fn change(&self, changes: &[Event]) -> std::io::Result<()> {
            let mut happened = [const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX];
            // SAFETY: the descriptors in the queue are open for as long as it: the link that owns
            // the queue also owns them.
            unsafe { kevent(&self.kqueue, changes, &mut happened[..], Some(Duration::ZERO)) }?;
            Ok(())
        }

        pub fn fd(&self) -> BorrowedFd<'_> {
            self.kqueue.as_fd()
        }
    }
}
