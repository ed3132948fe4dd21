//! Devices as listed by the libraries, and running devices.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;
use crate::ffi::{self, Api, SetThreads};
use crate::words;

/// Only one device is started at a time.
static STARTING: Mutex<()> = Mutex::new(());

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// ggml's own engine on this machine's processors.
    Cpu,
    /// A GPU with its own memory.
    Gpu,
    /// A GPU that shares the machine's memory.
    IntegratedGpu,
    /// An addition to the CPU (BLAS, AMX), which cannot run a model alone.
    Accelerator,
}

impl Kind {
    /// Whether a model can run on it.
    pub fn runs_models(self) -> bool {
        self != Self::Accelerator
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "CPU",
            Self::Gpu => "GPU",
            Self::IntegratedGpu => "integrated GPU",
            Self::Accelerator => "accelerator",
        })
    }
}

/// One device of this machine.
#[derive(Clone)]
pub struct Device {
    pub(crate) api: &'static Api,
    pub(crate) raw: NonNull<ffi::Device>,
    registry: NonNull<ffi::Registry>,
    file: PathBuf,
    backend: String,
    name: String,
    description: String,
    kind: Kind,
}

// SAFETY: ggml's functions that describe a device may be called from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// The devices that a device library has found.
    pub(crate) fn of(api: &'static Api, registry: *mut ffi::Registry, file: &Path) -> Vec<Self> {
        let Some(of) = NonNull::new(registry) else { return Vec::new() };
        // SAFETY: the registry is that of an opened library, and texts live as long as it does.
        let backend = unsafe { text((api.registry_name)(registry)) };
        // SAFETY: as above.
        let count = unsafe { (api.registry_devices)(registry) };
        let device = |at| {
            // SAFETY: as above; `at` is below the count.
            let raw = NonNull::new(unsafe { (api.registry_device)(registry, at) })?;
            // SAFETY: the device lives as long as its registry.
            let (name, description, kind) = unsafe {
                let raw = raw.as_ptr();
                let description = text((api.device_description)(raw));
                (text((api.device_name)(raw)), description, (api.device_kind)(raw))
            };
            let kind = match kind {
                0 => Kind::Cpu,
                1 => Kind::Gpu,
                2 => Kind::IntegratedGpu,
                _ => Kind::Accelerator,
            };
            let (file, backend) = (file.to_owned(), backend.clone());
            Some(Self { api, raw, registry: of, file, backend, name, description, kind })
        };
        (0..count).filter_map(device).collect()
    }

    /// Its name in its library, such as `CUDA0`, `Vulkan1`, `CPU`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The manufacturer's name.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Its driver interface, such as `CUDA`, `Vulkan`, `Metal`, `CPU`.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The file of the library that found it.
    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it is Mesa's software driver. It faults if a descriptor set names a freed buffer,
    /// used or not (docs/gpus.md); ggml leaves such sets behind for later graphs when its scratch
    /// memory grows.
    fn is_llvmpipe(&self) -> bool {
        self.description.starts_with("llvmpipe")
    }

    /// Whether fused attention is faster for keys of `k_dim` elements: Mesa's software driver takes
    /// seconds a step for 576.
    pub fn flashes(&self, k_dim: usize) -> bool {
        !self.is_llvmpipe() || k_dim <= 256
    }

    /// Free and total bytes of its memory.
    pub fn memory(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the device lives as long as its library.
        unsafe { (self.api.device_memory)(self.raw.as_ptr(), &mut free, &mut total) };
        (free, total)
    }

    /// Starts it; `threads`: the machine's threads, for a device that computes with them.
    ///
    /// # Errors
    /// Its driver refuses to start it.
    pub fn start(&self, threads: usize) -> Result<Stream, Error> {
        Ok(Stream {
            device: self.clone(),
            threads,
            raw: Cell::new(self.begin(threads)?),
            is_busy: Cell::new(true),
            kept: RefCell::default(),
        })
    }

    fn begin(&self, threads: usize) -> Result<NonNull<ffi::Stream>, Error> {
        let api = self.api;
        // Vulkan creates a device at its first start, and aborts if a second start overtakes that.
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        words::take();
        // SAFETY: the device lives as long as its library; no parameters are given.
        let raw = unsafe { api.start(self.raw.as_ptr(), std::ptr::null()) };
        let failed = || Error::Start { device: self.name.clone(), words: words::take() };
        let raw = NonNull::new(raw).ok_or_else(failed)?;
        let name = c"ggml_backend_set_n_threads".as_ptr();
        // SAFETY: the registry lives as long as its library.
        let function = unsafe { (api.registry_function)(self.registry.as_ptr(), name) };
        if !function.is_null() {
            // SAFETY: `ggml_backend_set_n_threads_t` of `ggml-backend.h`.
            let set: SetThreads = unsafe { std::mem::transmute(function) };
            let threads = c_int::try_from(threads.max(1)).unwrap_or(1);
            // SAFETY: the stream was started by this device.
            unsafe { set(raw.as_ptr(), threads) };
        }
        Ok(raw)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.description, self.kind)
    }
}

/// # Safety
/// `text` is null or a text that ends in zero.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A running device: its queue of graphs and copies.
pub struct Stream {
    pub(crate) device: Device,
    threads: usize,
    raw: Cell<NonNull<ffi::Stream>>,
    /// Whether it has work since it was last synchronised.
    pub(crate) is_busy: Cell<bool>,
    /// Buffers that it reads, kept until then.
    kept: RefCell<Vec<Arc<dyn Any + Send + Sync>>>,
}

// SAFETY: it is used by one thread at a time, as it is not `Sync`; ggml binds none to a thread.
unsafe impl Send for Stream {}

impl Stream {
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn raw(&self) -> *mut ffi::Stream {
        self.raw.get().as_ptr()
    }

    /// Before a graph: replaces the stream on a driver that reads stale descriptor sets of earlier
    /// graphs.
    pub(crate) fn forget_descriptors(&self) -> Result<(), Error> {
        if self.device.is_llvmpipe() {
            let raw = self.device.begin(self.threads)?;
            self.synchronise();
            // SAFETY: it has no work left, and no other owner.
            unsafe { (self.device.api.stream_free)(self.raw.replace(raw).as_ptr()) };
        }
        Ok(())
    }

    /// Waits for all its work.
    pub fn synchronise(&self) {
        if self.is_busy.replace(false) {
            // SAFETY: it was started, and ends with `self`.
            unsafe { self.device.api.synchronise(self.raw()) };
        }
        self.kept.borrow_mut().clear();
    }

    /// Keeps `what` until the stream has been synchronised.
    pub(crate) fn keep(&self, what: Arc<dyn Any + Send + Sync>) {
        self.kept.borrow_mut().push(what);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.synchronise();
        // SAFETY: there is no other owner.
        unsafe { (self.device.api.stream_free)(self.raw()) };
    }
}
