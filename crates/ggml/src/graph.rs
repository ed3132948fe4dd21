//! Graphs: recorded once, with a place for every result, and computed any number of times.
//!
//! Shapes have their fastest dimension first: rows of activations `[rows, width]` are `[width,
//! rows]` here.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::{Device, Stream};
use crate::error::Error;
use crate::ffi::{self, Api};
use crate::memory::{Array, Buffer, Context, Type, Usage, place};

/// A recorded graph. It keeps its operands alive.
pub struct Graph {
    raw: NonNull<ffi::Graph>,
    /// The memory of the graph itself.
    _context: Context,
    _arrays: Vec<Arc<Array>>,
    _results: Vec<Arc<Buffer>>,
}

// SAFETY: it is only read after it was recorded, and belongs to no thread.
unsafe impl Send for Graph {}

/// One result, or one array, of the graph being recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node(usize);

/// Memory of results without an explicit place. Each operation's results overwrite those of the
/// last.
#[derive(Default)]
pub struct Temporary {
    chunks: Vec<Arc<Buffer>>,
    /// The place of the next result: the chunk, and the offset in bytes.
    at: (usize, usize),
}

/// Bytes of the first chunk of temporary results.
const TEMPORARY_BYTES: usize = 1 << 20;

/// A graph being recorded.
pub struct Recorder<'a> {
    pub(crate) device: Device,
    pub(crate) api: &'static Api,
    temporary: &'a mut Temporary,
    pub(crate) context: Context,
    graph: NonNull<ffi::Graph>,
    slots: Vec<Slot>,
    slots_max: usize,
    arrays: Vec<Arc<Array>>,
    pub(crate) adds_up_exactly: bool,
}

pub(crate) struct Slot {
    raw: NonNull<ffi::Tensor>,
    ty: Type,
    buffer: Arc<Buffer>,
    address: usize,
    /// Bytes from the address to the end of the accessible range.
    room: usize,
}

impl Temporary {
    /// A place for `bytes`.
    fn take(&mut self, device: &Device, bytes: usize) -> Result<(Arc<Buffer>, usize), Error> {
        loop {
            let (chunk, used) = self.at;
            if let Some(buffer) = self.chunks.get(chunk) {
                if used + bytes <= buffer.bytes {
                    self.at.1 += bytes;
                    return Ok((buffer.clone(), buffer.base + used));
                }
                self.at = (chunk + 1, 0);
                continue;
            }
            let least = TEMPORARY_BYTES << self.chunks.len().min(8);
            self.chunks.push(Buffer::new(device, bytes.max(least), Usage::Compute)?);
        }
    }

    /// The device bytes that it uses.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes).sum()
    }
}

impl<'a> Recorder<'a> {
    /// Starts a graph of at most `nodes_max` nodes and arrays.
    pub fn new(stream: &Stream, temporary: &'a mut Temporary, nodes_max: usize) -> Self {
        let device = stream.device().clone();
        let api = device.api;
        let context = Context::new(api, nodes_max, nodes_max);
        // SAFETY: the context has room for it.
        let graph = unsafe { (api.new_graph)(context.raw.as_ptr(), nodes_max, false) };
        let graph = NonNull::new(graph).expect("ggml ends the process rather than return null");
        let (slots, arrays) = (Vec::new(), Vec::new());
        temporary.at = (0, 0);
        let (slots_max, adds_up_exactly) = (nodes_max, false);
        Self { device, api, temporary, context, graph, slots, slots_max, arrays, adds_up_exactly }
    }

    /// From here on all [`Recorder::mul_mat`] sums are in single precision.
    pub fn add_up_exactly(&mut self) {
        self.adds_up_exactly = true;
    }

    /// The recorded graph.
    pub fn finish(self) -> Graph {
        Graph {
            raw: self.graph,
            _context: self.context,
            _arrays: self.arrays,
            _results: self.slots.into_iter().map(|slot| slot.buffer).collect(),
        }
    }

    /// Frees the temporary results so far.
    pub fn forget_temporary(&mut self) {
        self.temporary.at = (0, 0);
    }

    /// An array as an operand or a target.
    pub fn array(&mut self, array: &Arc<Array>) -> Node {
        self.arrays.push(array.clone());
        self.push(Slot {
            raw: array.raw,
            ty: array.ty,
            buffer: array.buffer.clone(),
            address: array.address,
            room: array.room(),
        })
    }

    /// A part of a node, or another shape of it: `strides` in bytes, of all dimensions except the
    /// first; `offset` in bytes.
    pub fn view(&mut self, of: Node, dims: [usize; 4], strides: [usize; 3], offset: usize) -> Node {
        let (ty, room) = (self.slots[of.0].ty, self.slots[of.0].room);
        let reach = dims[1..].iter().zip(strides).map(|(dim, stride)| (dim - 1) * stride);
        let end = offset + reach.sum::<usize>() + self.device.row_bytes(ty, dims[0]);
        assert!(end <= room, "a view up to byte {end} of {room}");
        let [ne0, ne1, ne2, ne3] = dims.map(|dim| dim as i64);
        let [nb1, nb2, nb3] = strides;
        let (context, raw) = (self.context.raw.as_ptr(), self.raw(of));
        // SAFETY: both are alive, and the view lies inside.
        let view =
            unsafe { (self.api.view)(context, raw, ne0, ne1, ne2, ne3, nb1, nb2, nb3, offset) };
        self.place_view(view, of, offset)
    }

    /// The same contiguous elements in another shape. It is part of the graph here: devices fuse
    /// the choice of experts only if they find it at the expected position.
    pub fn reshape(&mut self, of: Node, dims: [usize; 4]) -> Node {
        let [ne0, ne1, ne2, ne3] = dims.map(|dim| dim as i64);
        let (context, raw) = (self.context.raw.as_ptr(), self.raw(of));
        // SAFETY: all are alive; ggml checks that there are as many numbers.
        let shaped = unsafe { (self.api.reshape)(context, raw, ne0, ne1, ne2, ne3) };
        let node = self.place_view(shaped, of, 0);
        self.build(node);
        node
    }

    /// Swaps the first two dimensions of a view.
    pub fn transpose(&mut self, of: Node) -> Node {
        // SAFETY: both are alive.
        let view = unsafe { (self.api.transpose)(self.context.raw.as_ptr(), self.raw(of)) };
        self.place_view(view, of, 0)
    }

    /// Marks a node that a later graph reads.
    pub fn keep(&mut self, node: Node) {
        // SAFETY: it is alive.
        unsafe { (self.api.set_output)(self.raw(node)) };
    }

    pub(crate) fn ty(&self, node: Node) -> Type {
        self.slots[node.0].ty
    }

    /// Accounts for a tensor that became no node.
    pub(crate) fn give_up_slot(&mut self) {
        self.slots_max -= 1;
    }

    pub(crate) fn raw(&self, node: Node) -> *mut ffi::Tensor {
        self.slots[node.0].raw.as_ptr()
    }

    pub(crate) fn push(&mut self, slot: Slot) -> Node {
        assert!(self.slots.len() < self.slots_max, "more than {} nodes", self.slots_max);
        self.slots.push(slot);
        Node(self.slots.len() - 1)
    }

    pub(crate) fn build(&mut self, node: Node) {
        // SAFETY: the graph is of this context, and has room, as `push` has counted.
        unsafe { (self.api.build)(self.graph.as_ptr(), self.raw(node)) };
    }

    pub(crate) fn place_view(&mut self, raw: *mut ffi::Tensor, of: Node, offset: usize) -> Node {
        let raw = NonNull::new(raw).expect("ggml ends the process rather than return null");
        // SAFETY: its source is placed.
        unsafe { (self.api.view_place)(raw.as_ptr()) };
        let Slot { ty, ref buffer, address, room, .. } = self.slots[of.0];
        let buffer = buffer.clone();
        self.push(Slot { raw, ty, buffer, address: address + offset, room: room - offset })
    }

    /// Places a result at its target, or in temporary memory.
    pub(crate) fn place(
        &mut self,
        raw: *mut ffi::Tensor,
        ty: Type,
        to: Option<Node>,
    ) -> Result<Node, Error> {
        let raw = NonNull::new(raw).expect("ggml ends the process rather than return null");
        let buffers = self.device.buffers();
        // SAFETY: the tensor was just made, and the device lives as long as its library.
        let (bytes, alignment) = unsafe {
            let bytes = (self.api.buffers_size_of)(buffers, raw.as_ptr());
            (bytes, (self.api.buffers_alignment)(buffers))
        };
        let named = to
            .map(|to| &self.slots[to.0])
            .filter(|slot| slot.room >= bytes && slot.address.is_multiple_of(alignment));
        let (buffer, address) = match named {
            Some(slot) => (slot.buffer.clone(), slot.address),
            None => self.temporary.take(&self.device, bytes.max(1).next_multiple_of(alignment))?,
        };
        let is_named = named.is_some();
        place(&self.device, raw, &buffer, address)?;
        self.device.check_operation(raw)?;
        let node = self.push(Slot { raw, ty, buffer, address, room: bytes });
        self.build(node);
        match to {
            // Some devices need more room than the elements take.
            Some(to) if !is_named => Ok(self.copy(node, to)),
            _ => Ok(node),
        }
    }
}

impl Stream {
    /// Starts to compute a graph; [`Stream::synchronise`] waits for it.
    ///
    /// # Errors
    /// The device failed.
    pub fn compute(&self, graph: &Graph) -> Result<(), Error> {
        self.forget_descriptors()?;
        let api = self.device.api;
        self.is_busy.set(true);
        // SAFETY: the graph is whole, and every tensor in it is placed.
        let status = unsafe { api.compute(self.raw(), graph.raw.as_ptr()) };
        self.device.check(status, "a graph could not be computed")
    }
}
