//! Calls that let no C++ exception escape.
//!
//! ggml's Vulkan throws one when its device is lost or has no memory left. Rust cannot catch it,
//! and would run destructors that need the device. Here the search for a handler ends at a frame
//! unknown to the unwinder, and then C++ ends the process at the throw: with the exception's text
//! on stderr, which the parent process reports.

use std::ffi::{c_char, c_int, c_void};

use crate::ffi::{self, Api};

/// A value that fits an integer register.
trait Word {
    fn out(self) -> usize;
    fn back(word: usize) -> Self;
}

impl<T> Word for *mut T {
    fn out(self) -> usize {
        self.expose_provenance()
    }

    fn back(word: usize) -> Self {
        std::ptr::with_exposed_provenance_mut(word)
    }
}

impl<T> Word for *const T {
    fn out(self) -> usize {
        self.expose_provenance()
    }

    fn back(word: usize) -> Self {
        std::ptr::with_exposed_provenance(word)
    }
}

impl Word for usize {
    fn out(self) -> usize {
        self
    }

    fn back(word: usize) -> Self {
        word
    }
}

impl Word for c_int {
    fn out(self) -> usize {
        self as usize
    }

    /// The upper half of a register with a `c_int` is undefined.
    fn back(word: usize) -> Self {
        word as c_int
    }
}

impl Word for () {
    fn out(self) -> usize {
        0
    }

    fn back(_word: usize) -> Self {}
}

/// Methods that call functions of the table through the barrier.
macro_rules! barred {
    ($($name:ident, $function:ident($($argument:ident: $ty:ty),*) -> $result:ty;)*) => {
        impl Api {
            $(
                /// # Safety
                /// As for the function with that name in ggml's headers.
                pub unsafe fn $name(&self, $($argument: $ty),*) -> $result {
                    let function: unsafe extern "C-unwind" fn($($ty),*) -> $result = self.$function;
                    let mut words = [0; ARGUMENTS_MAX];
                    for (word, argument) in words.iter_mut().zip([$($argument.out()),*]) {
                        *word = argument;
                    }
                    // SAFETY: the caller's promise; it takes and returns only words.
                    <$result>::back(unsafe { call(function as *const (), words) })
                }
            )*
        }
    };
}

barred! {
    start, device_start(device: *mut ffi::Device, options: *const c_char) -> *mut ffi::Stream;
    synchronise, stream_synchronise(stream: *mut ffi::Stream) -> ();
    compute, stream_compute(stream: *mut ffi::Stream, graph: *mut ffi::Graph) -> c_int;
    set, tensor_set(to: *mut ffi::Tensor, from: *const c_void, at: usize, bytes: usize) -> ();
    set_async, tensor_set_async(
        stream: *mut ffi::Stream, to: *mut ffi::Tensor, from: *const c_void, at: usize, bytes: usize
    ) -> ();
    get_async, tensor_get_async(
        stream: *mut ffi::Stream, from: *const ffi::Tensor, to: *mut c_void, at: usize, bytes: usize
    ) -> ();
}

const ARGUMENTS_MAX: usize = 5;

/// Calls a C function; superfluous arguments do no harm.
///
/// # Safety
/// As for `function` itself, which must take and return only integers and pointers.
#[cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn call(function: *const (), words: [usize; ARGUMENTS_MAX]) -> usize {
    let [a, b, c, d, e] = words;
    // SAFETY: the caller's promise.
    unsafe { step(function, a, b, c, d, e) }
}

/// Calls `function` with the other arguments, each moved by one register.
#[cfg(all(unix, target_arch = "x86_64"))]
#[unsafe(naked)]
unsafe extern "C" fn step(f: *const (), a: usize, b: usize, c: usize, d: usize, e: usize) -> usize {
    std::arch::naked_asm!(
        "sub rsp, 8",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov rcx, r8",
        "mov r8, r9",
        "call rax",
        "add rsp, 8",
        "ret",
    )
}

#[cfg(all(unix, target_arch = "aarch64"))]
#[unsafe(naked)]
unsafe extern "C" fn step(f: *const (), a: usize, b: usize, c: usize, d: usize, e: usize) -> usize {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "mov x29, sp",
        "mov x9, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "blr x9",
        "ldp x29, x30, [sp], #16",
        "ret",
    )
}

#[cfg(not(all(unix, any(target_arch = "x86_64", target_arch = "aarch64"))))]
unsafe fn call(function: *const (), words: [usize; ARGUMENTS_MAX]) -> usize {
    type Any = unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize) -> usize;
    let [a, b, c, d, e] = words;
    // SAFETY: the caller's promise.
    unsafe { std::mem::transmute::<*const (), Any>(function)(a, b, c, d, e) }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn digits(a: usize, b: usize, c: usize, d: usize, e: usize) -> usize {
        [a, b, c, d, e].iter().fold(0, |number, digit| 10 * number + digit)
    }

    #[test]
    fn arguments_and_result_come_through_in_their_order() {
        let function = digits as extern "C" fn(usize, usize, usize, usize, usize) -> usize;
        // SAFETY: it takes and returns integers.
        let result = unsafe { call(function as *const (), [1, 2, 3, 4, 5]) };
        assert_eq!(result, 12345);
    }

    /// The child throws like C++'s own library.
    #[cfg(target_os = "linux")]
    #[test]
    fn an_exception_ends_the_process_with_its_text_and_unwinds_nothing() {
        use std::os::unix::process::ExitStatusExt;

        const CHILD: &str = "SINEW_TEST_THROWS";
        // SAFETY: that library has no harmful initialisers.
        let Ok(library) = (unsafe { libloading::Library::new("libstdc++.so.6") }) else {
            eprintln!("there is no libstdc++ here: nothing is tested");
            return;
        };
        if std::env::var_os(CHILD).is_some() {
            struct Unwound;
            impl Drop for Unwound {
                fn drop(&mut self) {
                    eprintln!("unwound");
                }
            }
            let _unwound = Unwound;
            type Throw = unsafe extern "C" fn(*const c_char);
            // SAFETY: `std::__throw_out_of_range(char const*)`.
            let throw: Throw = *unsafe { library.get(b"_ZSt20__throw_out_of_rangePKc") }.unwrap();
            let text = c"what was thrown".as_ptr().expose_provenance();
            // SAFETY: it takes a text, and does not return.
            unsafe { call(throw as *const (), [text, 0, 0, 0, 0]) };
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let name =
            "barrier::tests::an_exception_ends_the_process_with_its_text_and_unwinds_nothing";
        let ended = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(6), "{said}");
        assert!(said.contains("what was thrown") && !said.contains("unwound"), "{said}");
    }
}
