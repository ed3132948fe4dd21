//! The terminal's keys while a chat runs.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::Keyboard;
#[cfg(windows)]
pub use windows::Keyboard;
