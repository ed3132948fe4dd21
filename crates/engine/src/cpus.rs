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
