//! Clocks that all processes of this machine share.

use windows_sys::Win32::System::Performance::{QueryPerformanceCounter, QueryPerformanceFrequency};
use windows_sys::Win32::System::SystemInformation::GetTickCount64;

/// Nanoseconds since this machine started.
pub fn monotonic_ns() -> u64 {
    let (mut count, mut per_second) = (0i64, 0i64);
    // SAFETY: both write one number; since Windows XP neither fails.
    unsafe {
        QueryPerformanceFrequency(&mut per_second);
        QueryPerformanceCounter(&mut count);
    }
    (i128::from(count) * 1_000_000_000 / i128::from(per_second.max(1))) as u64
}

/// Milliseconds since this machine started, in steps of 16; goes on while it sleeps.
pub fn with_sleep_ms() -> u64 {
    // SAFETY: takes nothing and returns a number.
    unsafe { GetTickCount64() }
}
