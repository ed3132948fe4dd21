//! The operations, with ggml's names and meanings; their shapes are in `ggml.h`. `to` is the target
//! of a result; without it, temporary memory.

use std::ffi::c_int;

use crate::error::Error;
use crate::ffi::{self, PRECISION_F32, SORT_DESCENDING};
use crate::graph::{Node, Recorder};
use crate::memory::Type;

/// The unary functions that models need beside [`Glu`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unary {
    Tanh = 4,
    Relu = 6,
    Sigmoid = 7,
    Silu = 10,
}

/// `activation(gate) * up`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Glu {
    /// With the hyperbolic tangent.
    Gelu,
    Silu,
    /// gpt-oss's activation.
    Clamped {
        alpha: f32,
        limit: f32,
    },
}

/// The rotation of heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Rotated elements of each head.
    pub dims: usize,
    /// Whether halves are pairs, not neighbours.
    pub neox: bool,
    /// The factor of sine and cosine.
    pub magnitude: f32,
}

impl Recorder<'_> {
    /// `to = from`, with the same number of elements, in their order.
    pub fn copy(&mut self, from: Node, to: Node) -> Node {
        let (context, from) = (self.context.raw.as_ptr(), self.raw(from));
        // SAFETY: all are alive.
        let copy = unsafe { (self.api.copy)(context, from, self.raw(to)) };
        let node = self.place_view(copy, to, 0);
        self.build(node);
        node
    }

    /// Writes rows of `from` to the rows `indices` of `to`.
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
        self.place(raw, self.ty(x), to)
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

    pub fn div(&mut self, a: Node, b: Node) -> Result<Node, Error> {
        let (context, a, b) = (self.context.raw.as_ptr(), self.raw(a), self.raw(b));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.div)(context, a, b) };
        self.place(raw, Type::F32, None)
    }

    /// The sum of each row, `[1, rows..]`.
    pub fn sum_rows(&mut self, x: Node) -> Result<Node, Error> {
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.sum_rows)(self.context.raw.as_ptr(), self.raw(x)) };
        self.place(raw, Type::F32, None)
    }

    /// Replaces smaller elements by `least`, and larger ones by `most`.
    pub fn clamp(&mut self, x: Node, least: f32, most: f32) -> Result<Node, Error> {
        let (context, x) = (self.context.raw.as_ptr(), self.raw(x));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.clamp)(context, x, least, most) };
        self.place(raw, Type::F32, None)
    }

    /// `value` everywhere, in the shape of `like`.
    pub fn fill(&mut self, like: Node, value: f32) -> Result<Node, Error> {
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.fill)(self.context.raw.as_ptr(), self.raw(like), value) };
        self.place(raw, Type::F32, None)
    }

    /// The indices of each row's elements, the largest first; equal ones in any order.
    pub fn argsort(&mut self, x: Node) -> Result<Node, Error> {
        let (context, x) = (self.context.raw.as_ptr(), self.raw(x));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.argsort)(context, x, SORT_DESCENDING) };
        self.place(raw, Type::I32, None)
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

    /// Like [`Recorder::rms_norm`], after subtracting the mean of `x`.
    pub fn norm(&mut self, x: Node, eps: f32, to: Option<Node>) -> Result<Node, Error> {
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.norm)(self.context.raw.as_ptr(), self.raw(x), eps) };
        self.place(raw, Type::F32, to)
    }

    /// A product. With an exact matrix the sum is exact; else devices may add up in half precision.
    pub fn mul_mat(&mut self, matrix: Node, x: Node, to: Option<Node>) -> Result<Node, Error> {
        if self.adds_up_exactly || self.ty(matrix) == Type::F32 {
            return self.mul_mat_f32(matrix, x, to);
        }
        let raw = self.product(matrix, x);
        self.place(raw, Type::F32, to)
    }

    /// The same, added up in single precision whatever the matrix.
    pub fn mul_mat_f32(&mut self, matrix: Node, x: Node, to: Option<Node>) -> Result<Node, Error> {
        let raw = self.product(matrix, x);
        // SAFETY: it was just made, by a product.
        unsafe { (self.api.sum_precision)(raw, PRECISION_F32) };
        self.place(raw, Type::F32, to)
    }

    fn product(&mut self, matrix: Node, x: Node) -> *mut ffi::Tensor {
        let (context, matrix, x) = (self.context.raw.as_ptr(), self.raw(matrix), self.raw(x));
        // SAFETY: all are alive.
        unsafe { (self.api.mul_mat)(context, matrix, x) }
    }

    /// Products with the matrices of a stack selected by `ids` for each row.
    pub fn mul_mat_id(&mut self, stack: Node, x: Node, ids: Node) -> Result<Node, Error> {
        let context = self.context.raw.as_ptr();
        let [stack, x, ids] = [stack, x, ids].map(|node| self.raw(node));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.mul_mat_id)(context, stack, x, ids) };
        self.place(raw, Type::F32, None)
    }

    /// Adds the rows of `rows` selected by `ids` to `x`.
    pub fn add_id(&mut self, x: Node, rows: Node, ids: Node) -> Result<Node, Error> {
        let context = self.context.raw.as_ptr();
        let [x, rows, ids] = [x, rows, ids].map(|node| self.raw(node));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.add_id)(context, x, rows, ids) };
        self.place(raw, Type::F32, None)
    }

    /// Rotates heads `[dim, heads, rows]`; `periods`: the reciprocal of each pair's frequency.
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
        // With base 1 the angle is the position over the period, whatever the schedule; with an
        // extension of 0 the last two numbers are unused.
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
        mask: Option<Node>,
        scale: f32,
        sinks: Option<Node>,
    ) -> Result<Node, Error> {
        let (context, x) = (self.context.raw.as_ptr(), self.raw(x));
        let mask = mask.map_or(std::ptr::null_mut(), |mask| self.raw(mask));
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.soft_max)(context, x, mask, scale, 0.0) };
        if let Some(sinks) = sinks {
            // SAFETY: as above.
            unsafe { (self.api.soft_max_sinks)(raw, self.raw(sinks)) };
        }
        self.place(raw, Type::F32, None)
    }

    /// Fused attention, added up in single precision, or `None` if the device has none for these
    /// shapes. `[q, k, v, mask]`: `[dim, rows, heads]`, twice `[dim, n_kv, kv_heads]`, `[n_kv,
    /// rows]`; the result is `[dim, heads, rows]`.
    pub fn flash(
        &mut self,
        [q, k, v, mask]: [Node; 4],
        (scale, soft_cap): (f32, Option<f32>),
        sinks: Option<Node>,
        to: Option<Node>,
    ) -> Result<Option<Node>, Error> {
        let context = self.context.raw.as_ptr();
        let [q, k, v, mask] = [q, k, v, mask].map(|node| self.raw(node));
        let cap = soft_cap.unwrap_or(0.0);
        // SAFETY: all are alive.
        let raw = unsafe { (self.api.flash)(context, q, k, v, mask, scale, 0.0, cap) };
        // As in llama.cpp: half precision flips near ties of the experts' choice.
        // SAFETY: it was just made, by an operation that adds up.
        unsafe { (self.api.sum_precision)(raw, PRECISION_F32) };
        if let Some(sinks) = sinks {
            // SAFETY: as above.
            unsafe { (self.api.flash_sinks)(raw, self.raw(sinks)) };
        }
        // SAFETY: as above.
        if !unsafe { (self.api.device_supports)(self.device.raw.as_ptr(), raw) } {
            self.give_up_slot();
            return Ok(None);
        }
        self.place(raw, Type::F32, to).map(Some)
    }
}
