//! The libraries' messages: their warnings and errors, of which the last is reported with a
//! failure, and their reason for ending the process.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::sync::Mutex;

use crate::ffi::{Api, LOG_ERROR, LOG_WARN};

/// Enough for a sentence or two; drivers may print pages.
const BYTES_MAX: usize = 300;

static LAST: Mutex<String> = Mutex::new(String::new());

/// Captures the libraries' messages from now on; they would write them to this process's stderr.
pub(crate) fn listen(api: &Api) {
    // SAFETY: the callbacks live as long as the process, and need no data.
    unsafe {
        (api.log_set)(Some(note), std::ptr::null_mut());
        (api.abort_set)(Some(tell));
    }
}

/// Writes one line to stderr, which the parent process reports; the libraries would write pages,
/// and start a debugger.
unsafe extern "C-unwind" fn tell(why: *const c_char) {
    if why.is_null() {
        return;
    }
    // SAFETY: the library passes a text that ends in zero and lives for this call.
    let why = unsafe { CStr::from_ptr(why) }.to_string_lossy();
    let line = [why.trim(), &take()].join(" ").replace('\n', " ");
    // There is no other place to report to.
    let _ = writeln!(std::io::stderr(), "{}", line.trim_end());
}

unsafe extern "C-unwind" fn note(level: c_int, text: *const c_char, _data: *mut c_void) {
    if text.is_null() || !(level == LOG_WARN || level == LOG_ERROR) {
        return;
    }
    // SAFETY: the library passes a text that ends in zero and lives for this call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    if let (false, Ok(mut last)) = (text.trim().is_empty(), LAST.lock()) {
        add(&mut last, &text);
    }
}

/// An indented line continues the one before: CUDA prints the reason first, then the location.
fn add(last: &mut String, text: &str) {
    if text.starts_with(' ') && !last.is_empty() {
        last.push_str("; ");
    } else {
        last.clear();
    }
    last.push_str(text.trim());
    if let Some((end, _)) = last.char_indices().nth(BYTES_MAX) {
        last.truncate(end);
    }
}

/// Takes the last message.
pub(crate) fn take() -> String {
    LAST.lock().map(|mut last| std::mem::take(&mut *last)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_kept_with_the_lines_that_are_set_in_after_it() {
        let mut last = String::new();
        add(&mut last, "an earlier warning\n");
        add(&mut last, "CUDA error: no kernel image is available\n");
        add(&mut last, "  current device: 0\n");
        add(&mut last, "  cudaFuncGetAttributes(&attr, kernel)\n");
        let whole = "CUDA error: no kernel image is available; current device: 0; \
                     cudaFuncGetAttributes(&attr, kernel)";
        assert_eq!(last, whole);
        add(&mut last, &format!("  {}", "x".repeat(2 * BYTES_MAX)));
        assert_eq!(last.len(), BYTES_MAX);
    }
}
