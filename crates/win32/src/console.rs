//! The console at standard input and output.

use std::io;
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    HANDLE, HANDLE_FLAG_INHERIT, SetHandleInformation, WAIT_OBJECT_0,
};
use windows_sys::Win32::System::Console::{
    CONSOLE_MODE, CONSOLE_SCREEN_BUFFER_INFO, ENABLE_EXTENDED_FLAGS, ENABLE_VIRTUAL_TERMINAL_INPUT,
    ENABLE_VIRTUAL_TERMINAL_PROCESSING, GetConsoleMode, GetConsoleScreenBufferInfo, GetStdHandle,
    INPUT_RECORD, KEY_EVENT, ReadConsoleInputW, STD_ERROR_HANDLE, STD_HANDLE, STD_INPUT_HANDLE,
    STD_OUTPUT_HANDLE, SetConsoleMode, SetConsoleOutputCP,
};
use windows_sys::Win32::System::Threading::WaitForSingleObject;

use crate::checked;

/// UTF-8.
const CODE_PAGE: u32 = 65_001;

/// Lets the console take UTF-8 and escape sequences; false if one cannot, as before Windows 10.
pub fn obeys_sequences() -> bool {
    // SAFETY: takes a number; without a console it fails.
    unsafe { SetConsoleOutputCP(CODE_PAGE) };
    let obeys = |which: STD_HANDLE| {
        let (handle, mut mode) = (standard(which), 0);
        // SAFETY: the calls take any handle and refuse those that are no console.
        unsafe {
            GetConsoleMode(handle, &mut mode) == 0
                || SetConsoleMode(handle, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING) != 0
        }
    };
    // Both, whatever the first says.
    [STD_OUTPUT_HANDLE, STD_ERROR_HANDLE].map(obeys) == [true; 2]
}

/// Columns and rows of the console's window; `None` if there is no console.
pub fn size() -> Option<(usize, usize)> {
    let mut info = CONSOLE_SCREEN_BUFFER_INFO::default();
    [STD_OUTPUT_HANDLE, STD_ERROR_HANDLE].into_iter().find_map(|which| {
        // SAFETY: the call refuses a handle that is no console, and fills the structure otherwise.
        let told = unsafe { GetConsoleScreenBufferInfo(standard(which), &mut info) } != 0;
        let window = info.srWindow;
        let size = (window.Right - window.Left + 1, window.Bottom - window.Top + 1);
        told.then(|| (usize::try_from(size.0).unwrap_or(0), usize::try_from(size.1).unwrap_or(0)))
    })
}

/// The keys of the console at standard input, at once and without echo, the others than letters as
/// escape sequences. Dropping it restores the former mode.
pub struct Keys {
    before: CONSOLE_MODE,
}

impl Keys {
    /// # Errors
    /// Standard input is no console.
    pub fn open() -> io::Result<Self> {
        let (input, mut before) = (standard(STD_INPUT_HANDLE), 0);
        // SAFETY: the call refuses a handle that is no console, and writes one number.
        checked(unsafe { GetConsoleMode(input, &mut before) })?;
        let mode = ENABLE_EXTENDED_FLAGS | ENABLE_VIRTUAL_TERMINAL_INPUT;
        // SAFETY: takes numbers.
        checked(unsafe { SetConsoleMode(input, mode) })?;
        Ok(Self { before })
    }

    /// Waits for keys, at most so long, and returns how many bytes they are.
    ///
    /// # Errors
    /// The console is gone.
    pub fn read(&self, wait: Duration, pressed: &mut [u8]) -> io::Result<usize> {
        let input = standard(STD_INPUT_HANDLE);
        let wait = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        // SAFETY: takes numbers.
        if unsafe { WaitForSingleObject(input, wait) } != WAIT_OBJECT_0 {
            return Ok(0);
        }
        let mut events = [INPUT_RECORD::default(); 16];
        let (mut count, mut len) = (0, 0);
        let to = events.as_mut_ptr();
        // SAFETY: the call writes at most as many events as there is room for, and their number.
        checked(unsafe { ReadConsoleInputW(input, to, events.len() as u32, &mut count) })?;
        for event in events.iter().take(count as usize) {
            if u32::from(event.EventType) != KEY_EVENT {
                continue;
            }
            // SAFETY: the event is one of a key, and its character is in either form a number.
            let (down, unit) = unsafe {
                let key = event.Event.KeyEvent;
                (key.bKeyDown != 0, key.uChar.UnicodeChar)
            };
            // Other characters than ASCII's mean nothing to a program that reads keys.
            if let (true, Ok(byte @ 1..=127), Some(to)) =
                (down, u8::try_from(unit), pressed.get_mut(len))
            {
                *to = byte;
                len += 1;
            }
        }
        Ok(len)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // SAFETY: takes numbers; an error means that the console is gone.
        unsafe { SetConsoleMode(standard(STD_INPUT_HANDLE), self.before) };
    }
}

/// Keeps standard input and output from programs that this one starts and that outlive it: whoever
/// reads the output would otherwise wait for their end.
pub fn keep_from_children() {
    for which in [STD_INPUT_HANDLE, STD_OUTPUT_HANDLE, STD_ERROR_HANDLE] {
        // SAFETY: takes numbers; a handle that is none has nothing to keep.
        unsafe { SetHandleInformation(standard(which), HANDLE_FLAG_INHERIT, 0) };
    }
}

fn standard(which: STD_HANDLE) -> HANDLE {
    // SAFETY: takes a number.
    unsafe { GetStdHandle(which) }
}
