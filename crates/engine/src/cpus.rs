/// The CPUs that this process may use, in order of their ids; empty if the system does not report
/// them.
#[cfg(target_os = "linux")]
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// The CPUs that this process may use, in order of their ids; empty if the system does not report
/// them.
#[cfg(not(target_os = "linux"))]
pub fn allowed_cpus() -> Vec<usize> {
    Vec::new()
}

/// `threads` separate CPUs for process `index` of `count`, or none if there are not enough.
pub fn own_cpus(index: usize, count: usize, threads: usize) -> Vec<usize> {
    let allowed = allowed_cpus();
    if count * threads > allowed.len() {
        return Vec::new();
    }
    allowed[index * threads..(index + 1) * threads].to_vec()
}

/// Pins the calling thread, and threads it starts, to these CPUs, if there are any. A thread that
/// cannot be pinned is only slower.
#[cfg(target_os = "linux")]
pub fn keep_to(cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    if !cpus.is_empty() {
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Pins the calling thread, and threads it starts, to these CPUs, on systems that support it.
#[cfg(not(target_os = "linux"))]
pub fn keep_to(_cpus: &[usize]) {}

/// The former CPU set of a thread, restored on drop: a computing thread is pinned, and threads that
/// it starts later, or its next measurement, must not inherit that.
pub(crate) struct Unpin(Vec<usize>);

impl Unpin {
    pub fn remember() -> Self {
        Self(allowed_cpus())
    }
}

impl Drop for Unpin {
    fn drop(&mut self) {
        keep_to(&self.0);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_its_cpus_back() {
        let before = allowed_cpus();
        let unpin = Unpin::remember();
        let mut one = rustix::thread::CpuSet::new();
        one.set(before[0]);
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        assert_eq!(allowed_cpus(), before[..1]);
        drop(unpin);
        assert_eq!(allowed_cpus(), before);
    }
}
