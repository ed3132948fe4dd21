//! A ggml device: CUDA, Metal, Vulkan, or ggml's own engine on the CPU.
//!
//! Operations (`operations`) are recorded as data (`ops`), and become one graph at the end of a
//! segment or when the host reads values (`build`). A repeated list of operations already has its
//! graph, with every operand at the same address, and the device computes that again.
//!
//! **Results differ from the CPU's bits.** The device's kernels choose their order of additions by
//! shape, so a result may depend on the number of rows of a call; sums over ranks are one part a
//! rank, not the leaves of `sumtree`.

mod build;
mod choice;
mod inputs;
mod loading;
mod mixture;
mod operations;
mod ops;
mod rows;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use ggml::{Device, Graph, Library, Memory, Stream, Temporary, Type, Usage};
use kernels::Dequantizer;

use crate::{BackendError, CacheKind, PAGE_POSITIONS, RopeTable};
use inputs::{Input, Inputs};
pub use loading::Loader;

pub use ops::{Attention, Kv, Matrix, Vector};
use ops::{Op, Ref};
pub use rows::Rows;

/// Attention reads a multiple of this many positions of the cache: devices have kernels only for
/// whole steps, and a graph is reusable while the number is unchanged.
const KV_STEP: usize = 256;

/// The most operations of all stored graphs. A decoder of a hundred layers has over a thousand for
/// each number of rows; prompts of ever new lengths must not fill the memory.
const OPS_MAX: usize = 1 << 16;

/// Operations of a step's first graph. Each further graph has four times as many. So the device
/// starts soon, and has work while the next graph is recorded; between two graphs it is idle for
/// microseconds.
const FIRST_OPS: usize = 16;
const GROWTH: usize = 4;

/// A device at work.
pub struct Ggml {
    stream: Stream,
    weights: Memory,
    state: Memory,
    temporary: Temporary,
    /// Recorded operations that have not been submitted.
    ops: Vec<Op>,
    /// The number of operations that makes a graph worthwhile now.
    enough: usize,
    /// Graphs by the hash of their operations.
    graphs: HashMap<u64, (Vec<Op>, Graph)>,
    /// The number of their operations.
    recorded: usize,
    inputs: Inputs,
    /// The reciprocal frequencies of each used table.
    periods: Vec<(RopeTable, Ref)>,
    /// The step's rotations: the index of each table.
    tables: Vec<usize>,
    positions: Vec<u32>,
    /// Biases of experts, by the first of them.
    stacks: HashMap<Ref, Ref>,
    /// Whether the model has experts: half-precision sums would flip near ties of their choice.
    has_experts: bool,
    dequantizer: Dequantizer,
    /// A failure is permanent.
    fault: Option<String>,
}

impl Ggml {
    /// Starts the device `name` of the libraries in `dir`; `threads` as in [`Ggml::new`].
    ///
    /// # Errors
    /// The libraries do not open, there is no such device, or it does not start.
    pub fn open(dir: &Path, name: &str, threads: usize) -> Result<Self, BackendError> {
        Self::new(Self::find(dir, name)?, threads)
    }

    /// The device `name` of the libraries in `dir`.
    ///
    /// # Errors
    /// The libraries do not open, or there is no such device.
    pub fn find(dir: &Path, name: &str) -> Result<&'static Device, BackendError> {
        let devices = Library::open(dir)?.devices();
        let found = devices.iter().filter(|device| device.kind().runs_models());
        match found.clone().find(|device| device.name().eq_ignore_ascii_case(name)) {
            Some(device) => Ok(device),
            None => {
                let found: Vec<_> = found.map(Device::name).collect();
                let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
                Err(BackendError::NoDevice { name: name.to_owned(), found })
            }
        }
    }

    /// Starts a device; `threads`: the machine's threads, for a device that computes with them.
    ///
    /// # Errors
    /// Its driver does not start it.
    pub fn new(device: &Device, threads: usize) -> Result<Self, BackendError> {
        Ok(Self {
            stream: device.start(threads)?,
            weights: Memory::new(device, Usage::Weights),
            state: Memory::new(device, Usage::Compute),
            temporary: Temporary::default(),
            ops: Vec::new(),
            enough: FIRST_OPS,
            graphs: HashMap::new(),
            recorded: 0,
            inputs: Inputs::default(),
            periods: Vec::new(),
            tables: Vec::new(),
            positions: Vec::new(),
            stacks: HashMap::new(),
            has_experts: false,
            dequantizer: Dequantizer::default(),
            fault: None,
        })
    }

    /// Records that an operation is not supported.
    fn refuse(&mut self, what: &str) {
        self.fault.get_or_insert_with(|| format!("it has no operation for {what}"));
    }

    fn fail(&mut self, error: ggml::Error) {
        self.fault.get_or_insert(error.to_string());
    }

    fn check(&self) -> Result<(), BackendError> {
        match &self.fault {
            Some(what) => Err(BackendError::Device { what: what.clone() }),
            None => Ok(()),
        }
    }

    fn note(&mut self, op: Option<Op>) {
        self.ops.extend(op);
    }

    /// Submits the recorded operations to the device.
    fn submit(&mut self) {
        let ops = std::mem::take(&mut self.ops);
        if ops.is_empty() || self.fault.is_some() {
            return;
        }
        if let Err(error) = self.compute(ops) {
            self.fail(error);
        }
    }

    fn compute(&mut self, ops: Vec<Op>) -> Result<(), ggml::Error> {
        let mut hasher = DefaultHasher::new();
        ops.hash(&mut hasher);
        let hash = hasher.finish();
        if !matches!(self.graphs.get(&hash), Some((found, _)) if *found == ops) {
            if self.recorded + ops.len() > OPS_MAX {
                self.stream.synchronise();
                self.graphs.clear();
                self.recorded = 0;
            }
            self.recorded += ops.len();
            let graph = build::graph(&self.stream, &mut self.temporary, self.has_experts, &ops)?;
            self.graphs.insert(hash, (ops, graph));
        }
        self.stream.compute(&self.graphs[&hash].1)
    }

    /// Copies a page of the cache over another one.
    fn copy(&mut self, kv: &Kv, pages: [u32; 2]) {
        self.submit();
        if self.fault.is_some() {
            return;
        }
        for (array, dim) in [(&kv.k, kv.k_dim), (&kv.v, kv.v_dim)] {
            let bytes = PAGE_POSITIONS * self.stream.device().row_bytes(kv.ty, dim * kv.heads);
            let [from, to] = pages.map(|page| page as usize * bytes);
            self.stream.copy_within(&array.0, from, to, bytes);
        }
    }

    /// An input's array; `None` after a failure, which is reported later.
    fn input(&mut self, input: Input) -> Option<Ref> {
        match self.inputs.array(&self.stream, &mut self.state, input) {
            Ok(array) => Some(array),
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// An array of `numbers` on the device.
    fn numbers(&mut self, numbers: &[f32]) -> Option<Ref> {
        if numbers.is_empty() {
            return None;
        }
        match self.weights.array(Type::F32, [numbers.len(), 1, 1, 1]) {
            Ok(array) => {
                self.stream.write(&array, 0, &bytes(numbers));
                Some(Ref(array))
            }
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn cache_type(&self, kind: CacheKind) -> Result<Type, BackendError> {
        match kind {
            CacheKind::F16 => Ok(Type::F16),
            CacheKind::F32 => Ok(Type::F32),
            CacheKind::Q8_0 => Ok(Type::Q8_0),
            CacheKind::I16 => Err(self.unsupported("a cache of 16-bit integers".to_owned())),
        }
    }

    fn unsupported(&self, what: String) -> BackendError {
        BackendError::Unsupported { device: self.stream.device().name().to_owned(), what }
    }
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
