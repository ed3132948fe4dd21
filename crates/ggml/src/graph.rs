//! Graphs: recorded once, with every result at a place of its own, and computed as often as wanted.
//!
//! The operations have ggml's names and meanings; their shapes are in `ggml.h`. A shape has its
//! fastest dimension first: rows of activations `[rows, width]` are `[width, rows]` here.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::{Device, Stream};
use crate::error::Error;
use crate::ffi::{self, Api, PRECISION_F32};
use crate::memory::{Array, Buffer, Context, Type, Usage, place};

/// A recorded graph. It keeps what it reads and writes alive.
pub struct Graph {
    raw: NonNull<ffi::Graph>,
    /// The graph lies in it.
    _context: Context,
    _arrays: Vec<Arc<Array>>,
    _results: Vec<Arc<Buffer>>,
}

// SAFETY: it is only read after it was recorded, and belongs to no thread.
unsafe impl Send for Graph {}

/// One result, or one array, of the graph that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node(usize);

/// Where results go that nobody named a place for. One operation's are overwritten by the next's.
#[derive(Default)]
pub struct Temporary {
    chunks: Vec<Arc<Buffer>>,
    /// Where the next result goes: in which chunk, and how many bytes from its start.
    at: (usize, usize),
}

/// Bytes of the first chunk of temporary results.
const TEMPORARY_BYTES: usize = 1 << 20;

/// A graph while it is recorded.
pub struct Recorder<'a> {
    device: Device,
    api: &'static Api,
    temporary: &'a mut Temporary,
    context: Context,
    graph: NonNull<ffi::Graph>,
    slots: Vec<Slot>,
    slots_max: usize,
    arrays: Vec<Arc<Array>>,
}

struct Slot {
    raw: NonNull<ffi::Tensor>,
    ty: Type,
    buffer: Arc<Buffer>,
    address: usize,
    /// Bytes from the address to the end of what may be read or written there.
    room: usize,
}

/// The two functions of one number that models need beside [`Glu`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unary {
    Tanh = 4,
    Sigmoid = 7,
}

/// `activation(gate) * up`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Glu {
    /// With the hyperbolic tangent.
    Gelu,
    Silu,
    /// gpt-oss's.
    Clamped {
        alpha: f32,
        limit: f32,
    },
}

/// How heads are rotated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Rotated numbers of each head.
    pub dims: usize,
    /// Halves are pairs, not neighbours.
    pub neox: bool,
    /// Multiplies sine and cosine.
    pub magnitude: f32,
}

impl Temporary {
    /// Room for `bytes`, and where.
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

    /// Bytes of the device that it has taken.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes).sum()
    }
}

impl<'a> Recorder<'a> {
    /// Begins a graph of at most `nodes_max` nodes and arrays.
    pub fn new(stream: &Stream, temporary: &'a mut Temporary, nodes_max: usize) -> Self {
        let device = stream.device().clone();
        let api = device.api;
        let context = Context::new(api, nodes_max, nodes_max);
        // SAFETY: the context has room for it.
        let graph = unsafe { (api.new_graph)(context.raw.as_ptr(), nodes_max, false) };
        let graph = NonNull::new(graph).expect("ggml ends the process rather than return null");
        let (slots, arrays) = (Vec::new(), Vec::new());
        temporary.at = (0, 0);
        Self { device, api, temporary, context, graph, slots, slots_max: nodes_max, arrays }
    }

    /// What was recorded.
    pub fn finish(self) -> Graph {
        Graph {
            raw: self.graph,
            _context: self.context,
            _arrays: self.arrays,
            _results: self.slots.into_iter().map(|slot| slot.buffer).collect(),
        }
    }

    /// Temporary results so far are not needed any more.
    pub fn forget_temporary(&mut self) {
        self.temporary.at = (0, 0);
    }

    /// An array as an operand or a place.
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

    /// A part of a node, or another shape of it: `strides` in bytes, of all dimensions but the
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

    /// Swaps the first two dimensions of a view.
    pub fn transpose(&mut self, of: Node) -> Node {
        // SAFETY: both are alive.
        let view = unsafe { (self.api.transpose)(self.context.raw.as_ptr(), self.raw(of)) };
        self.place_view(view, of, 0)
    }

    /// `to = from`, of as many numbers, in their order.
    pub fn copy(&mut self, from: Node, to: Node) -> Node {
        let (context, from) = (self.context.raw.as_ptr(), self.raw(from));
        // SAFETY: all are alive.
        let copy = unsafe { (self.api.copy)(context, from, self.raw(to)) };
        let node = self.place_view(copy, to, 0);
        self.build(node);
        node
    }

    /// Rows of `from` go to where `indices` says in `to`.
    pub fn set_rows(&mut self, to: Node, from: Node, indices: Node) -> Node {
        let context = self.context.raw.as_ptr();
        let [raw, from, indices] = [to, from, indices].map(|node| self.raw(node));
        // SAFETY: all are alive.
        let written = unsafe { (self.api.set_rows)(context, raw, from, indices) };
        let node = self.place_view(written, to, 0);
        self.build(node);
        node
    }

    pub fn cont(&mut self, x: Node, to: Option<Node>) -> Result<Node, Error> {
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.cont)(self.context.raw.as_ptr(), self.raw(x)) };
        self.place(raw, self.slots[x.0].ty, to)
    }

    pub fn concat(
        &mut self,
        a: Node,
        b: Node,
        dim: usize,
        to: Option<Node>,
    ) -> Result<Node, Error> {
        let (context, a, b) = (self.context.raw.as_ptr(), self.raw(a), self.raw(b));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.concat)(context, a, b, dim as c_int) };
        self.place(raw, Type::F32, to)
    }

    pub fn get_rows(&mut self, x: Node, rows: Node, to: Option<Node>) -> Result<Node, Error> {
        let (context, x, rows) = (self.context.raw.as_ptr(), self.raw(x), self.raw(rows));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.get_rows)(context, x, rows) };
        self.place(raw, Type::F32, to)
    }

    pub fn add(&mut self, a: Node, b: Node, to: Option<Node>) -> Result<Node, Error> {
        let (context, a, b) = (self.context.raw.as_ptr(), self.raw(a), self.raw(b));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.add)(context, a, b) };
        self.place(raw, Type::F32, to)
    }

    pub fn mul(&mut self, a: Node, b: Node, to: Option<Node>) -> Result<Node, Error> {
        let (context, a, b) = (self.context.raw.as_ptr(), self.raw(a), self.raw(b));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.mul)(context, a, b) };
        self.place(raw, Type::F32, to)
    }

    pub fn scale(&mut self, x: Node, factor: f32, to: Option<Node>) -> Result<Node, Error> {
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.scale)(self.context.raw.as_ptr(), self.raw(x), factor) };
        self.place(raw, Type::F32, to)
    }

    pub fn unary(&mut self, of: Unary, x: Node, to: Option<Node>) -> Result<Node, Error> {
        let (context, x) = (self.context.raw.as_ptr(), self.raw(x));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.unary)(context, x, of as c_int) };
        self.place(raw, Type::F32, to)
    }

    pub fn glu(&mut self, of: Glu, gate: Node, up: Node, to: Option<Node>) -> Result<Node, Error> {
        let (context, gate, up) = (self.context.raw.as_ptr(), self.raw(gate), self.raw(up));
        // SAFETY: all are alive.
        let raw = unsafe {
            match of {
                Glu::Gelu => (self.api.glu)(context, gate, up, 1),
                Glu::Silu => (self.api.glu)(context, gate, up, 2),
                Glu::Clamped { alpha, limit } => {
                    (self.api.swiglu_oai)(context, gate, up, alpha, limit)
                }
            }
        };
        self.place(raw, Type::F32, to)
    }

    pub fn rms_norm(&mut self, x: Node, eps: f32, to: Option<Node>) -> Result<Node, Error> {
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.rms_norm)(self.context.raw.as_ptr(), self.raw(x), eps) };
        self.place(raw, Type::F32, to)
    }

    /// Where the matrix is exact, so is the sum; else devices may add up in half precision.
    pub fn mul_mat(&mut self, matrix: Node, x: Node, to: Option<Node>) -> Result<Node, Error> {
        if self.slots[matrix.0].ty == Type::F32 {
            return self.mul_mat_f32(matrix, x, to);
        }
        let raw = self.product(matrix, x);
        self.place(raw, Type::F32, to)
    }

    /// The same, added up in single precision whatever the matrix is.
    pub fn mul_mat_f32(&mut self, matrix: Node, x: Node, to: Option<Node>) -> Result<Node, Error> {
        let raw = self.product(matrix, x);
        // SAFETY: it was just made, by a product.
        unsafe { (self.api.mul_mat_precision)(raw, PRECISION_F32) };
        self.place(raw, Type::F32, to)
    }

    fn product(&mut self, matrix: Node, x: Node) -> *mut ffi::Tensor {
        let (context, matrix, x) = (self.context.raw.as_ptr(), self.raw(matrix), self.raw(x));
        // SAFETY: all are alive.
        unsafe { (self.api.mul_mat)(context, matrix, x) }
    }

    /// Products with those matrices of a stack that `ids` names for each row.
    pub fn mul_mat_id(&mut self, stack: Node, x: Node, ids: Node) -> Result<Node, Error> {
        let context = self.context.raw.as_ptr();
        let [stack, x, ids] = [stack, x, ids].map(|node| self.raw(node));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.mul_mat_id)(context, stack, x, ids) };
        self.place(raw, Type::F32, None)
    }

    /// `x` and those rows of `rows` that `ids` names.
    pub fn add_id(&mut self, x: Node, rows: Node, ids: Node) -> Result<Node, Error> {
        let context = self.context.raw.as_ptr();
        let [x, rows, ids] = [x, rows, ids].map(|node| self.raw(node));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.add_id)(context, x, rows, ids) };
        self.place(raw, Type::F32, None)
    }

    /// Rotates heads `[dim, heads, rows]`; `periods`: one over each pair's frequency.
    pub fn rope(
        &mut self,
        of: Rope,
        x: Node,
        positions: Node,
        periods: Node,
        to: Node,
    ) -> Result<Node, Error> {
        let context = self.context.raw.as_ptr();
        let [x, positions, periods] = [x, positions, periods].map(|node| self.raw(node));
        let (dims, mode) = (of.dims as c_int, if of.neox { 2 } else { 0 });
        // With base 1 the angle is the position over the period, whatever the schedule was; with
        // an extension of 0 the last two numbers mean nothing.
        // SAFETY: all are alive.
        let raw = unsafe {
            let (base, scale, extension) = (1.0, 1.0, 0.0);
            let magnitude = of.magnitude;
            (self.api.rope)(
                context, x, positions, periods, dims, mode, 0, base, scale, extension, magnitude,
                32.0, 1.0,
            )
        };
        self.place(raw, Type::F32, Some(to))
    }

    pub fn soft_max(
        &mut self,
        x: Node,
        mask: Node,
        scale: f32,
        sinks: Option<Node>,
    ) -> Result<Node, Error> {
        let (context, x, mask) = (self.context.raw.as_ptr(), self.raw(x), self.raw(mask));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.soft_max)(context, x, mask, scale, 0.0) };
        if let Some(sinks) = sinks {
            // SAFETY: as above.
            unsafe { (self.api.soft_max_sinks)(raw, self.raw(sinks)) };
        }
        self.place(raw, Type::F32, None)
    }

    /// Attention in one operation, or `None` where the device has none for these shapes.
    /// `[q, k, v, mask]`: `[dim, rows, heads]`, twice `[dim, n_kv, kv_heads]`, `[n_kv, rows]`; the
    /// result is `[dim, heads, rows]`.
    pub fn flash(
        &mut self,
        [q, k, v, mask]: [Node; 4],
        scale: f32,
        sinks: Option<Node>,
        to: Option<Node>,
    ) -> Result<Option<Node>, Error> {
        if self.device.is_llvmpipe() {
            return Ok(None);
        }
        let context = self.context.raw.as_ptr();
        let [q, k, v, mask] = [q, k, v, mask].map(|node| self.raw(node));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.flash)(context, q, k, v, mask, scale, 0.0, 0.0) };
        if let Some(sinks) = sinks {
            // SAFETY: as above.
            unsafe { (self.api.flash_sinks)(raw, self.raw(sinks)) };
        }
        // SAFETY: as above.
        if !unsafe { (self.api.device_supports)(self.device.raw.as_ptr(), raw) } {
            self.slots_max -= 1;
            return Ok(None);
        }
        self.place(raw, Type::F32, to).map(Some)
    }

    /// A later graph reads what is at this node's place.
    pub fn keep(&mut self, node: Node) {
        // SAFETY: it is alive.
        unsafe { (self.api.set_output)(self.raw(node)) };
    }

    fn raw(&self, node: Node) -> *mut ffi::Tensor {
        self.slots[node.0].raw.as_ptr()
    }

    fn push(&mut self, slot: Slot) -> Node {
        assert!(self.slots.len() < self.slots_max, "more than {} nodes", self.slots_max);
        self.slots.push(slot);
        Node(self.slots.len() - 1)
    }

    fn build(&mut self, node: Node) {
        // SAFETY: the graph is of this context, and has room, as `push` has counted.
        unsafe { (self.api.build)(self.graph.as_ptr(), self.raw(node)) };
    }

    fn place_view(&mut self, raw: *mut ffi::Tensor, of: Node, offset: usize) -> Node {
        let raw = NonNull::new(raw).expect("ggml ends the process rather than return null");
        // SAFETY: its source is placed.
        unsafe { (self.api.view_place)(raw.as_ptr()) };
        let Slot { ty, ref buffer, address, room, .. } = self.slots[of.0];
        let buffer = buffer.clone();
        self.push(Slot { raw, ty, buffer, address: address + offset, room: room - offset })
    }

    /// Puts a result where it should go, or among the temporary ones.
    fn place(&mut self, raw: *mut ffi::Tensor, ty: Type, to: Option<Node>) -> Result<Node, Error> {
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
        let node = self.push(Slot { raw, ty, buffer, address, room: bytes });
        self.build(node);
        match to {
            // Some devices want more room than the numbers take.
            Some(to) if !is_named => Ok(self.copy(node, to)),
            _ => Ok(node),
        }
    }
}

impl Stream {
    /// Begins to compute a graph; [`Stream::synchronise`] waits for it.
    ///
    /// # Errors
    /// The device failed.
    pub fn compute(&self, graph: &Graph) -> Result<(), Error> {
        let api = self.device.api;
        // SAFETY: the graph is whole, and every tensor in it is placed.
        let status = unsafe { (api.stream_compute)(self.raw.as_ptr(), graph.raw.as_ptr()) };
        self.device.check(status, "a graph could not be computed")
    }
}
