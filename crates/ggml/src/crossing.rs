//! Transfers of numbers between the host and a device.

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::{Device, Stream};
use crate::ffi::{self, Api};
use crate::memory::{Array, Type};

/// Numbers in the host's memory, of a kind that the device accesses directly if it has such memory:
/// then they are not copied on the way.
pub struct HostNumbers(Arc<Kept>);

enum Kept {
    Own(Box<[f32]>),
    OfDriver(Pinned),
}

struct Pinned {
    api: &'static Api,
    buffer: NonNull<ffi::Buffer>,
    base: NonNull<f32>,
    len: usize,
}

// SAFETY: the memory belongs to no thread, and only its exclusive owner changes it.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl HostNumbers {
    /// Whether [`Self::numbers_mut`] is possible now.
    pub fn is_free(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }

    /// `len` zeros.
    pub fn new(stream: &Stream, len: usize) -> Self {
        let pinned = Pinned::new(stream.device(), len).map(Kept::OfDriver);
        Self(Arc::new(pinned.unwrap_or_else(|| Kept::Own(vec![0.0; len].into()))))
    }

    /// # Panics
    /// A transfer to a device is in flight: call [`Stream::synchronise`] first.
    pub fn numbers_mut(&mut self) -> &mut [f32] {
        match Arc::get_mut(&mut self.0).expect("nothing of them is on its way") {
            Kept::Own(numbers) => numbers,
            // SAFETY: this many numbers are there, and `self` has exclusive access.
            Kept::OfDriver(Pinned { base, len, .. }) => unsafe {
                std::slice::from_raw_parts_mut(base.as_ptr(), *len)
            },
        }
    }
}

impl Deref for HostNumbers {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &*self.0 {
            Kept::Own(numbers) => numbers,
            // SAFETY: this many numbers are there, and nothing changes them now.
            Kept::OfDriver(Pinned { base, len, .. }) => unsafe {
                std::slice::from_raw_parts(base.as_ptr(), *len)
            },
        }
    }
}

impl Pinned {
    /// `None` if the device has no such memory.
    fn new(device: &Device, len: usize) -> Option<Self> {
        let api = device.api;
        // SAFETY: the device lives as long as its library.
        let buffers = unsafe { (api.device_host_buffers)(device.raw.as_ptr()) };
        if buffers.is_null() || len == 0 {
            return None;
        }
        // SAFETY: as above.
        let buffer = NonNull::new(unsafe { (api.buffers_alloc)(buffers, len * size_of::<f32>()) })?;
        // SAFETY: the buffer was just made.
        let base = NonNull::new(unsafe { (api.buffer_base)(buffer.as_ptr()) }.cast::<f32>());
        let base = base.expect("a buffer that is not empty lies somewhere");
        // SAFETY: it has room for `len` numbers, and such memory starts at a page.
        unsafe { base.as_ptr().write_bytes(0, len) };
        Some(Self { api, buffer, base, len })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: there is no other owner, and no copy is in flight: streams keep their buffers.
        unsafe { (self.api.buffer_free)(self.buffer.as_ptr()) };
    }
}

impl Stream {
    /// Writes into an array, `offset` bytes from its start. Complete on return, but not ordered
    /// with the stream's work.
    pub fn write(&self, array: &Array, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= array.bytes(), "beyond an array's end");
        let (raw, from) = (array.raw.as_ptr(), bytes.as_ptr().cast());
        // SAFETY: the array is placed, and has room, as was just checked.
        unsafe { self.device.api.set(raw, from, offset, bytes.len()) };
    }

    /// Copies `len` bytes of an array from one offset to another, by way of the host, after the
    /// stream's earlier work. Complete on return.
    pub fn copy_within(&self, array: &Array, from: usize, to: usize, len: usize) {
        assert!(from.max(to) + len <= array.bytes(), "beyond an array's end");
        let mut bytes = vec![0_u8; len];
        self.is_busy.set(true);
        let (stream, raw, host) = (self.raw(), array.raw.as_ptr(), bytes.as_mut_ptr().cast());
        // SAFETY: the array is placed and long enough; `bytes` lives until the copy is done.
        unsafe { self.device.api.get_async(stream, raw, host, from, len) };
        self.synchronise();
        self.write(array, to, &bytes);
    }

    /// Writes the first `len` of these numbers to an array's start, after the stream's earlier
    /// work.
    pub fn send(&self, array: &Array, numbers: &HostNumbers, len: usize) {
        let from = numbers[..len].as_ptr().cast();
        self.set(array, from, len * size_of::<f32>());
        self.keep(numbers.0.clone());
    }

    /// The caller keeps the target of `from` alive.
    fn set(&self, array: &Array, from: *const c_void, bytes: usize) {
        assert!(bytes <= array.bytes(), "beyond an array's end");
        self.is_busy.set(true);
        let (stream, raw) = (self.raw(), array.raw.as_ptr());
        // SAFETY: the array is placed and long enough; `from` is kept, unchanged, until the stream
        // has been synchronised.
        unsafe { self.device.api.set_async(stream, raw, from, 0, bytes) };
    }

    /// Reads an array from its start, after the stream's earlier work.
    pub fn read(&self, array: &Array, out: &mut [f32]) {
        let bytes = size_of_val(out);
        assert!(array.ty() == Type::F32 && bytes <= array.bytes(), "beyond an array's end");
        self.is_busy.set(true);
        let (stream, raw, to) = (self.raw(), array.raw.as_ptr(), out.as_mut_ptr().cast());
        // SAFETY: the array is placed and long enough; `out` lives until the copy is done.
        unsafe { self.device.api.get_async(stream, raw, to, 0, bytes) };
        self.synchronise();
    }
}
