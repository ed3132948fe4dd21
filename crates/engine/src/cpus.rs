/// The CPUs that this process may use, in order of their ids; empty where the system does not say.
#[cfg(target_os = "linux")]
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// The CPUs that this process may use, in order of their ids; empty where the system does not say.
#[cfg(not(target_os = "linux"))]
pub fn allowed_cpus() -> Vec<usize> {
    Vec::new()
}

/// `threads` CPUs of its own for process `index` of `count`, or none if there are not enough.
pub fn own_cpus(index: usize, count: usize, threads: usize) -> Vec<usize> {
    let allowed = allowed_cpus();
    if count * threads > allowed.len() {
        return Vec::new();
    }
    allowed[index * threads..(index + 1) * threads].to_vec()
}

/// Keeps the calling thread, and what it starts, to these CPUs, if there are any. A thread that may
/// not be kept is slower, and otherwise well.
#[cfg(target_os = "linux")]
pub fn keep_to(cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    if !cpus.is_empty() {
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Keeps the calling thread, and what it starts, to these CPUs, where the system can do that.
#[cfg(not(target_os = "linux"))]
pub fn keep_to(_cpus: &[usize]) {}

/// The CPUs that a thread may use, kept to be given back to it: a thread that computes is pinned,
/// and what it starts later, or measures next, must not inherit that.
pub(crate) struct Unpin(Vec<usize>);

impl Unpin {
    pub fn remember() -> Self {
        Self(allowed_cpus())
    }
}

#[cfg(target_os = "linux")]
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
