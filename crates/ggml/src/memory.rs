//! A device's memory, and the arrays in it.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::Device;
use crate::error::Error;
use crate::ffi::{self, Api, InitParams};
use crate::words;

/// The type of an array's elements, by ggml's number for it, which GGUF files also use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type(pub(crate) i32);

impl Type {
    pub const F32: Self = Self(0);
    pub const F16: Self = Self(1);
    pub const Q8_0: Self = Self(8);
    pub const I32: Self = Self(26);
    pub const I64: Self = Self(27);

    /// The type with `number` in a GGUF file; it must be one of ggml's.
    pub fn of_file(number: u32) -> Self {
        Self(number as i32)
    }

    /// Bytes of an element of one of the block-less types above.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::I64 => 8,
            _ => 4,
        }
    }
}

/// The purpose of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Written once; drivers may treat it as constant.
    Weights,
    /// Written repeatedly, and zero at first.
    Compute,
}

/// Bytes of one allocation: small arrays share it, larger ones have their own.
const CHUNK_BYTES: usize = 16 << 20;

/// A device's memory, handed out piece by piece and freed with the last array in it.
pub struct Memory {
    device: Device,
    usage: Usage,
    chunk: Option<Chunk>,
}

struct Chunk {
    buffer: Arc<Buffer>,
    used: usize,
}

pub(crate) struct Buffer {
    api: &'static Api,
    pub raw: NonNull<ffi::Buffer>,
    pub base: usize,
    pub bytes: usize,
}

// SAFETY: ggml's buffers belong to no thread; only streams access their content.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn new(device: &Device, bytes: usize, usage: Usage) -> Result<Arc<Self>, Error> {
        let api = device.api;
        words::take();
        // SAFETY: the device lives as long as its library.
        let raw = unsafe { (api.buffers_alloc)(device.buffers(), bytes) };
        let failed = || {
            let (device, words) = (device.name().to_owned(), words::take());
            Error::Memory { device, bytes, words }
        };
        let raw = NonNull::new(raw).ok_or_else(failed)?;
        // SAFETY: the buffer was just made.
        let base = unsafe { (api.buffer_base)(raw.as_ptr()) } as usize;
        let of = match usage {
            Usage::Weights => ffi::USAGE_WEIGHTS,
            Usage::Compute => ffi::USAGE_COMPUTE,
        };
        // SAFETY: as above.
        unsafe { (api.buffer_usage)(raw.as_ptr(), of) };
        if usage == Usage::Compute {
            // SAFETY: as above.
            unsafe { (api.buffer_clear)(raw.as_ptr(), 0) };
        }
        Ok(Arc::new(Self { api, raw, base, bytes }))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: no array is left in it.
        unsafe { (self.api.buffer_free)(self.raw.as_ptr()) };
    }
}

/// An array in a device's memory.
pub struct Array {
    /// The memory of its description.
    _context: Context,
    pub(crate) raw: NonNull<ffi::Tensor>,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) address: usize,
    pub(crate) ty: Type,
    bytes: usize,
    /// Its bytes including the device's padding.
    room: usize,
}

// SAFETY: its description does not change after it was made.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl Array {
    pub fn ty(&self) -> Type {
        self.ty
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the device's memory that it takes.
    pub fn room(&self) -> usize {
        self.room
    }
}

impl Memory {
    pub fn new(device: &Device, usage: Usage) -> Self {
        Self { device: device.clone(), usage, chunk: None }
    }

    /// An array of `dims` elements, contiguous in the first dimension.
    ///
    /// # Errors
    /// The device has no room for it.
    pub fn array(&mut self, ty: Type, dims: [usize; 4]) -> Result<Arc<Array>, Error> {
        let api = self.device.api;
        let context = Context::new(api, 1, 0);
        let raw = context.tensor(ty, dims);
        let buffers = self.device.buffers();
        // SAFETY: the tensor was just made, and the device lives as long as its library.
        let (bytes, room, alignment) = unsafe {
            let raw = raw.as_ptr();
            let room = (api.buffers_size_of)(buffers, raw);
            ((api.bytes)(raw), room, (api.buffers_alignment)(buffers))
        };
        let (buffer, at) = self.take(room.max(1).next_multiple_of(alignment))?;
        let address = buffer.base + at;
        place(&self.device, raw, &buffer, address)?;
        Ok(Arc::new(Array { _context: context, raw, buffer, address, ty, bytes, room }))
    }

    /// A place of `bytes` in a chunk.
    fn take(&mut self, bytes: usize) -> Result<(Arc<Buffer>, usize), Error> {
        if let Some(chunk) = &mut self.chunk
            && chunk.used + bytes <= chunk.buffer.bytes
        {
            let at = chunk.used;
            chunk.used += bytes;
            return Ok((chunk.buffer.clone(), at));
        }
        if bytes >= CHUNK_BYTES {
            return Ok((Buffer::new(&self.device, bytes, self.usage)?, 0));
        }
        let buffer = Buffer::new(&self.device, CHUNK_BYTES, self.usage)?;
        self.chunk = Some(Chunk { buffer: buffer.clone(), used: bytes });
        Ok((buffer, 0))
    }
}

/// Places a tensor at an address inside a buffer.
pub(crate) fn place(
    device: &Device,
    raw: NonNull<ffi::Tensor>,
    buffer: &Buffer,
    address: usize,
) -> Result<(), Error> {
    let address = address as *mut c_void;
    // SAFETY: the tensor is not placed yet; ggml checks that it fits where it is put.
    let status = unsafe { (device.api.tensor_place)(buffer.raw.as_ptr(), raw.as_ptr(), address) };
    device.check(status, "it does not take an array")
}

/// Memory for descriptions of tensors and of one graph.
pub(crate) struct Context {
    api: &'static Api,
    pub raw: NonNull<ffi::Context>,
}

impl Context {
    /// For `tensors`, and for a graph of `nodes` if there are any.
    pub fn new(api: &'static Api, tensors: usize, nodes: usize) -> Self {
        // SAFETY: these compute sizes.
        let (tensor, graph) =
            unsafe { ((api.tensor_overhead)(), (api.graph_overhead)(nodes, false)) };
        let graph = if nodes > 0 { graph } else { 0 };
        let mem_size = tensors * tensor + graph;
        let params = InitParams { mem_size, mem_buffer: std::ptr::null_mut(), no_alloc: true };
        // SAFETY: no memory is passed, so that it takes its own.
        let raw = NonNull::new(unsafe { (api.init)(params) });
        Self { api, raw: raw.expect("a few kilobytes") }
    }

    pub fn tensor(&self, ty: Type, dims: [usize; 4]) -> NonNull<ffi::Tensor> {
        let dims = dims.map(|dim| dim as i64);
        // SAFETY: the context has room, as its maker has counted.
        let raw = unsafe { (self.api.new_tensor)(self.raw.as_ptr(), ty.0, 4, dims.as_ptr()) };
        NonNull::new(raw).expect("ggml ends the process rather than return null")
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: its tensors are not used any more.
        unsafe { (self.api.free)(self.raw.as_ptr()) };
    }
}

impl Device {
    pub(crate) fn buffers(&self) -> *mut ffi::BufferType {
        // SAFETY: the device lives as long as its library.
        unsafe { (self.api.device_buffers)(self.raw.as_ptr()) }
    }

    pub(crate) fn check(&self, status: i32, what: &str) -> Result<(), Error> {
        if status == ffi::STATUS_SUCCESS {
            return Ok(());
        }
        let what = format!("{what} (status {status})");
        Err(Error::Failed { device: self.name().to_owned(), what, words: words::take() })
    }

    /// Checks that the device supports an operation: otherwise it would end the process.
    pub(crate) fn check_operation(&self, raw: NonNull<ffi::Tensor>) -> Result<(), Error> {
        // SAFETY: the tensor is whole, and the device lives as long as its library.
        if unsafe { (self.api.device_supports)(self.raw.as_ptr(), raw.as_ptr()) } {
            return Ok(());
        }
        // SAFETY: as above; the text is a constant.
        let operation = unsafe { CStr::from_ptr((self.api.operation)(raw.as_ptr())) };
        let operation = operation.to_string_lossy().into_owned();
        Err(Error::Operation { device: self.name().to_owned(), operation })
    }

    /// Bytes of a row of `numbers` elements.
    pub fn row_bytes(&self, ty: Type, numbers: usize) -> usize {
        // SAFETY: it computes a size.
        unsafe { (self.api.row_size)(ty.0, numbers as i64) }
    }

    /// Whether it multiplies rows of `cols` elements with a matrix `[rows, cols]` of this type.
    pub fn multiplies(&self, ty: Type, rows: usize, cols: usize) -> bool {
        let context = Context::new(self.api, 3, 0);
        let matrix = context.tensor(ty, [cols, rows, 1, 1]);
        let x = context.tensor(Type::F32, [cols, 1, 1, 1]);
        // SAFETY: the tensors are of this context, which has room for the third.
        unsafe {
            let product = (self.api.mul_mat)(context.raw.as_ptr(), matrix.as_ptr(), x.as_ptr());
            (self.api.device_supports)(self.raw.as_ptr(), product)
        }
    }
}

impl Device {
    /// Whether it has fused attention over a cache of this type, with heads that are whole blocks
    /// of it.
    pub fn attends(&self, ty: Type, k_dim: usize, v_dim: usize) -> bool {
        const POSITIONS: usize = 256;
        // SAFETY: it looks a number up.
        let block = unsafe { (self.api.block_numbers)(ty.0) } as usize;
        let is_whole = k_dim.is_multiple_of(block) && v_dim.is_multiple_of(block);
        if !is_whole || !self.flashes(k_dim) {
            return false;
        }
        let context = Context::new(self.api, 5, 0);
        let q = context.tensor(Type::F32, [k_dim, 1, 1, 1]).as_ptr();
        let k = context.tensor(ty, [k_dim, POSITIONS, 1, 1]).as_ptr();
        let v = context.tensor(ty, [v_dim, POSITIONS, 1, 1]).as_ptr();
        let mask = context.tensor(Type::F16, [POSITIONS, 1, 1, 1]).as_ptr();
        // SAFETY: the tensors are of this context, which has room for the fifth.
        unsafe {
            let sums = (self.api.flash)(context.raw.as_ptr(), q, k, v, mask, 1.0, 0.0, 0.0);
            (self.api.device_supports)(self.raw.as_ptr(), sums)
        }
    }
}
