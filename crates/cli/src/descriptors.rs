//! The limit of open files and connections of this process.

pub use platform::raise;

#[cfg(unix)]
mod platform {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    /// The maximum on macOS, whatever it reports (`OPEN_MAX`).
    const OPEN_MAX: u64 = 10_240;

    /// Raises the limit to the user's maximum, and returns the new limit: the defaults, 256 and
    /// 1024, are meant for programs of one user.
    pub fn raise() -> usize {
        let before = getrlimit(Resource::Nofile);
        for wanted in [before.maximum, Some(before.maximum.unwrap_or(OPEN_MAX).min(OPEN_MAX))] {
            let raised = Rlimit { current: wanted, ..before };
            // If that fails, there are only fewer connections.
            if setrlimit(Resource::Nofile, raised).is_ok() {
                break;
            }
        }
        let now = getrlimit(Resource::Nofile).current;
        now.and_then(|now| usize::try_from(now).ok()).unwrap_or(usize::MAX)
    }
}

#[cfg(windows)]
mod platform {
    /// Windows limits sockets and files by memory alone.
    pub fn raise() -> usize {
        usize::MAX
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use rustix::process::{Resource, getrlimit};

    use super::*;

    #[test]
    fn what_the_hard_limit_gives_is_taken() {
        let raised = raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum.or(limit.current));
        assert_eq!(limit.current.map(|now| now as usize).unwrap_or(usize::MAX), raised);
    }
}
