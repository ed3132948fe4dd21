//! The used parts of `ggml.h`, `ggml-backend.h` and `ggml-backend-impl.h`, declared by hand for
//! [`VERSION`](crate::VERSION).
//!
//! Functions are `C-unwind`: Vulkan's device throws C++ exceptions when it is lost. Functions that
//! may throw are called through [`barrier`](crate::barrier), so no exception reaches Rust.
//! Structures are only passed by pointer, except for the few here.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

#[repr(C)]
pub struct Context {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct Tensor {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct Graph {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct BufferType {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct Buffer {
    _opaque: [u8; 0],
}
/// A device's work queue, which ggml calls a backend.
#[repr(C)]
pub struct Stream {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct Device {
    _opaque: [u8; 0],
}

/// The first field of a device library's registry.
#[repr(C)]
pub struct Registry {
    pub api_version: c_int,
}

#[repr(C)]
pub struct InitParams {
    pub mem_size: usize,
    pub mem_buffer: *mut c_void,
    pub no_alloc: bool,
}

/// `GGML_BACKEND_API_VERSION`.
pub const INTERFACE: c_int = 2;
pub const STATUS_SUCCESS: c_int = 0;
pub const USAGE_WEIGHTS: c_int = 1;
pub const USAGE_COMPUTE: c_int = 2;
/// `GGML_PREC_F32`.
pub const PRECISION_F32: c_int = 10;
/// `GGML_SORT_ORDER_DESC`.
pub const SORT_DESCENDING: c_int = 1;
/// `GGML_LOG_LEVEL_WARN` and `GGML_LOG_LEVEL_ERROR`.
pub const LOG_WARN: c_int = 3;
pub const LOG_ERROR: c_int = 4;

pub type Init = unsafe extern "C-unwind" fn() -> *mut Registry;
pub type Score = unsafe extern "C-unwind" fn() -> c_int;
pub type SetThreads = unsafe extern "C-unwind" fn(*mut Stream, c_int);
pub type AbortCallback = unsafe extern "C-unwind" fn(*const c_char);
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
    abort_set: "ggml_set_abort_callback", fn(Option<AbortCallback>) -> Option<AbortCallback>;
    log_set: "ggml_log_set", fn(Option<LogCallback>, *mut c_void);

    init: "ggml_init", fn(InitParams) -> *mut Context;
    free: "ggml_free", fn(*mut Context);
    tensor_overhead: "ggml_tensor_overhead", fn() -> usize;
    graph_overhead: "ggml_graph_overhead_custom", fn(usize, bool) -> usize;
    new_graph: "ggml_new_graph_custom", fn(*mut Context, usize, bool) -> *mut Graph;
    build: "ggml_build_forward_expand", fn(*mut Graph, *mut Tensor);
    new_tensor: "ggml_new_tensor",
        fn(*mut Context, c_int, c_int, *const i64) -> *mut Tensor;
    bytes: "ggml_nbytes", fn(*const Tensor) -> usize;
    block_numbers: "ggml_blck_size", fn(c_int) -> i64;
    row_size: "ggml_row_size", fn(c_int, i64) -> usize;

    set_output: "ggml_set_output", fn(*mut Tensor);
    view: "ggml_view_4d",
        fn(
            *mut Context, *mut Tensor, i64, i64, i64, i64, usize, usize, usize, usize,
        ) -> *mut Tensor;
    reshape: "ggml_reshape_4d",
        fn(*mut Context, *mut Tensor, i64, i64, i64, i64) -> *mut Tensor;
    transpose: "ggml_transpose", fn(*mut Context, *mut Tensor) -> *mut Tensor;
    cont: "ggml_cont", fn(*mut Context, *mut Tensor) -> *mut Tensor;
    copy: "ggml_cpy", fn(*mut Context, *mut Tensor, *mut Tensor) -> *mut Tensor;
    concat: "ggml_concat", fn(*mut Context, *mut Tensor, *mut Tensor, c_int) -> *mut Tensor;
    get_rows: "ggml_get_rows", fn(*mut Context, *mut Tensor, *mut Tensor) -> *mut Tensor;
    set_rows: "ggml_set_rows",
        fn(*mut Context, *mut Tensor, *mut Tensor, *mut Tensor) -> *mut Tensor;
    add: "ggml_add", fn(*mut Context, *mut Tensor, *mut Tensor) -> *mut Tensor;
    mul: "ggml_mul", fn(*mut Context, *mut Tensor, *mut Tensor) -> *mut Tensor;
    div: "ggml_div", fn(*mut Context, *mut Tensor, *mut Tensor) -> *mut Tensor;
    sum_rows: "ggml_sum_rows", fn(*mut Context, *mut Tensor) -> *mut Tensor;
    clamp: "ggml_clamp", fn(*mut Context, *mut Tensor, f32, f32) -> *mut Tensor;
    fill: "ggml_fill", fn(*mut Context, *mut Tensor, f32) -> *mut Tensor;
    argsort: "ggml_argsort", fn(*mut Context, *mut Tensor, c_int) -> *mut Tensor;
    scale: "ggml_scale", fn(*mut Context, *mut Tensor, f32) -> *mut Tensor;
    unary: "ggml_unary", fn(*mut Context, *mut Tensor, c_int) -> *mut Tensor;
    glu: "ggml_glu_split",
        fn(*mut Context, *mut Tensor, *mut Tensor, c_int) -> *mut Tensor;
    swiglu_oai: "ggml_swiglu_oai",
        fn(*mut Context, *mut Tensor, *mut Tensor, f32, f32) -> *mut Tensor;
    rms_norm: "ggml_rms_norm", fn(*mut Context, *mut Tensor, f32) -> *mut Tensor;
    norm: "ggml_norm", fn(*mut Context, *mut Tensor, f32) -> *mut Tensor;
    mul_mat: "ggml_mul_mat", fn(*mut Context, *mut Tensor, *mut Tensor) -> *mut Tensor;
    sum_precision: "ggml_prec_set_acc", fn(*mut Tensor, c_int) -> bool;
    mul_mat_id: "ggml_mul_mat_id",
        fn(*mut Context, *mut Tensor, *mut Tensor, *mut Tensor) -> *mut Tensor;
    add_id: "ggml_add_id",
        fn(*mut Context, *mut Tensor, *mut Tensor, *mut Tensor) -> *mut Tensor;
    rope: "ggml_rope_ext",
        fn(
            *mut Context, *mut Tensor, *mut Tensor, *mut Tensor, c_int, c_int, c_int, f32, f32, f32,
            f32, f32, f32,
        ) -> *mut Tensor;
    soft_max: "ggml_soft_max_ext",
        fn(*mut Context, *mut Tensor, *mut Tensor, f32, f32) -> *mut Tensor;
    soft_max_sinks: "ggml_soft_max_add_sinks", fn(*mut Tensor, *mut Tensor);
    flash: "ggml_flash_attn_ext",
        fn(
            *mut Context, *mut Tensor, *mut Tensor, *mut Tensor, *mut Tensor, f32, f32, f32,
        ) -> *mut Tensor;
    flash_sinks: "ggml_flash_attn_ext_add_sinks", fn(*mut Tensor, *mut Tensor);

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
    device_buffers: "ggml_backend_dev_buffer_type", fn(*mut Device) -> *mut BufferType;
    operation: "ggml_op_desc", fn(*const Tensor) -> *const c_char;
    device_host_buffers: "ggml_backend_dev_host_buffer_type", fn(*mut Device) -> *mut BufferType;
    device_supports: "ggml_backend_dev_supports_op", fn(*mut Device, *const Tensor) -> bool;

    buffers_alloc: "ggml_backend_buft_alloc_buffer", fn(*mut BufferType, usize) -> *mut Buffer;
    buffers_alignment: "ggml_backend_buft_get_alignment", fn(*mut BufferType) -> usize;
    buffers_size_of: "ggml_backend_buft_get_alloc_size",
        fn(*mut BufferType, *const Tensor) -> usize;
    buffer_free: "ggml_backend_buffer_free", fn(*mut Buffer);
    buffer_base: "ggml_backend_buffer_get_base", fn(*mut Buffer) -> *mut c_void;
    buffer_clear: "ggml_backend_buffer_clear", fn(*mut Buffer, u8);
    buffer_usage: "ggml_backend_buffer_set_usage", fn(*mut Buffer, c_int);

    tensor_place: "ggml_backend_tensor_alloc",
        fn(*mut Buffer, *mut Tensor, *mut c_void) -> c_int;
    view_place: "ggml_backend_view_init", fn(*mut Tensor) -> c_int;
    tensor_set: "ggml_backend_tensor_set", fn(*mut Tensor, *const c_void, usize, usize);
    tensor_set_async: "ggml_backend_tensor_set_async",
        fn(*mut Stream, *mut Tensor, *const c_void, usize, usize);
    tensor_get_async: "ggml_backend_tensor_get_async",
        fn(*mut Stream, *const Tensor, *mut c_void, usize, usize);

    stream_free: "ggml_backend_free", fn(*mut Stream);
    stream_synchronise: "ggml_backend_synchronize", fn(*mut Stream);
    stream_compute: "ggml_backend_graph_compute_async", fn(*mut Stream, *mut Graph) -> c_int;
}
