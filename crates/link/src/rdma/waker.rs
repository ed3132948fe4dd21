//! One descriptor to sleep on several others, with a timer that may end the sleep.

pub(crate) use platform::Waker;

#[cfg(target_os = "linux")]
mod platform {
    use std::time::Duration;

    use rustix::event::epoll;
    use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    pub(crate) struct Waker {
        epoll: OwnedFd,
        timer: OwnedFd,
    }

    impl Waker {
        /// `fds` must stay open for as long as this.
        pub fn new<'a>(fds: impl IntoIterator<Item = BorrowedFd<'a>>) -> std::io::Result<Self> {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            fds.into_iter().try_for_each(|fd| watch(&epoll, fd))?;
            watch(&epoll, timer.as_fd())?;
            Ok(Waker { epoll, timer })
        }

        /// Also clears an earlier expiry.
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

    fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(0), flags)?)
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
mod platform {
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use rustix::event::kqueue::{Event, EventFilter, EventFlags, kevent, kqueue};
    use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

    /// The timer's name in the queue.
    const TIMER: isize = 1;

    /// Events taken off the queue at a time; the next change takes the rest.
    const EVENTS_MAX: usize = 16;

    pub(crate) struct Waker {
        kqueue: OwnedFd,
    }

    impl Waker {
        /// `fds` must stay open for as long as this.
        pub fn new<'a>(fds: impl IntoIterator<Item = BorrowedFd<'a>>) -> std::io::Result<Self> {
            let waker = Waker { kqueue: kqueue()? };
            for fd in fds {
                let filter = EventFilter::Read(fd.as_raw_fd());
                waker.change(&[Event::new(filter, EventFlags::ADD, std::ptr::null_mut())])?;
            }
            Ok(waker)
        }

        /// Also clears an earlier expiry.
        pub fn start_timer(&self, after: Duration) -> std::io::Result<()> {
            let filter = EventFilter::Timer { ident: TIMER, timer: Some(after) };
            let flags = EventFlags::ADD | EventFlags::ONESHOT;
            self.change(&[Event::new(filter, flags, std::ptr::null_mut())])
        }

        /// Changes the queue and drains its events; sockets stay readable.
        fn change(&self, changes: &[Event]) -> std::io::Result<()> {
            let mut happened = [const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX];
            // SAFETY: the descriptors in the queue outlive it: the link that owns the queue also
            // owns them.
            let (happened, _) =
                unsafe { kevent(&self.kqueue, changes, &mut happened[..], Some(Duration::ZERO)) }?;
            // A change that fails is told as an event, with the error's number as its data.
            match happened.iter().find(|event| event.flags().contains(EventFlags::ERROR)) {
                Some(failed) => Err(std::io::Error::from_raw_os_error(failed.data() as i32)),
                None => Ok(()),
            }
        }

        pub fn fd(&self) -> BorrowedFd<'_> {
            self.kqueue.as_fd()
        }
    }
}

/// Windows has no verbs library, so nothing asks for one.
#[cfg(windows)]
mod platform {
    use std::time::Duration;

    use rustix::fd::BorrowedFd;

    pub(crate) struct Waker {
        never: std::convert::Infallible,
    }

    impl Waker {
        pub fn new<'a>(_: impl IntoIterator<Item = BorrowedFd<'a>>) -> std::io::Result<Self> {
            Err(std::io::ErrorKind::Unsupported.into())
        }

        pub fn start_timer(&self, _: Duration) -> std::io::Result<()> {
            match self.never {}
        }

        pub fn fd(&self) -> BorrowedFd<'_> {
            match self.never {}
        }
    }
}
