//! Refuses: the keys are read behind a pseudo-terminal in place of standard input, which Windows
//! lacks.

use std::convert::Infallible;
use std::io;

use crate::interrupt::Interrupt;

/// There is none.
pub struct Keyboard(Infallible);

impl Keyboard {
    /// # Errors
    /// Always: what is typed during an answer is lost on Windows.
    pub fn open(_: Interrupt) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn reading<T>(&self, _: impl FnOnce() -> T) -> T {
        match self.0 {}
    }

    pub fn further(&self) -> impl Fn() + use<> {
        let never = &self.0;
        match *never {}
        #[expect(unreachable_code, reason = "the type of the result")]
        || {}
    }
}
