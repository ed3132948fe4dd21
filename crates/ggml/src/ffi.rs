//! What of `ggml.h`, `ggml-backend.h` and `ggml-backend-impl.h` is used, declared by hand for
//! [`VERSION`](crate::VERSION).
//!
//! Functions are `C-unwind`: Vulkan's device throws C++ exceptions when it is lost, and those must
//! be able to end the process in good order. Structures are only handed on by pointer.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

/// A device's queue of work, which ggml calls a backend.
#[repr(C)]
pub struct Stream {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct Device {
    _opaque: [u8; 0],
}

/// The first field of what a device library returns.
#[repr(C)]
pub struct Registry {
    pub api_version: c_int,
}

/// `GGML_BACKEND_API_VERSION`.
pub const INTERFACE: c_int = 2;
/// `GGML_LOG_LEVEL_WARN` and `GGML_LOG_LEVEL_ERROR`.
pub const LOG_WARN: c_int = 3;
pub const LOG_ERROR: c_int = 4;

pub type Init = unsafe extern "C-unwind" fn() -> *mut Registry;
pub type Score = unsafe extern "C-unwind" fn() -> c_int;
pub type SetThreads = unsafe extern "C-unwind" fn(*mut Stream, c_int);
pub type LogCallback = unsafe extern "C-unwind" fn(c_int, *const c_char, *mut c_void);

/// Declares the table of loaded functions and how to fill it.
macro_rules! functions {
    ($($name:ident: $symbol:literal, fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions of `libggml-base`, which stays loaded until the process ends.
        pub struct Api {
            $(pub $name: unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,)*
            _library: Library,
        }

        impl Api {
            /// # Errors
            /// One of the functions is missing.
            pub fn resolve(library: Library) -> Result<Self, libloading::Error> {
                Ok(Api {
                    // SAFETY: the signatures are those of the headers of this version, which the
                    // caller checks before it calls any other.
                    $($name: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }?,)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    version: "ggml_version", fn() -> *const c_char;
    log_set: "ggml_log_set", fn(Option<LogCallback>, *mut c_void);

    registry_name: "ggml_backend_reg_name", fn(*mut Registry) -> *const c_char;
    registry_devices: "ggml_backend_reg_dev_count", fn(*mut Registry) -> usize;
    registry_device: "ggml_backend_reg_dev_get", fn(*mut Registry, usize) -> *mut Device;
    registry_function: "ggml_backend_reg_get_proc_address",
        fn(*mut Registry, *const c_char) -> *mut c_void;

    device_name: "ggml_backend_dev_name", fn(*mut Device) -> *const c_char;
    device_description: "ggml_backend_dev_description", fn(*mut Device) -> *const c_char;
    device_memory: "ggml_backend_dev_memory", fn(*mut Device, *mut usize, *mut usize);
    device_kind: "ggml_backend_dev_type", fn(*mut Device) -> c_int;
    device_start: "ggml_backend_dev_init", fn(*mut Device, *const c_char) -> *mut Stream;

    stream_free: "ggml_backend_free", fn(*mut Stream);
    stream_synchronise: "ggml_backend_synchronize", fn(*mut Stream);
}
