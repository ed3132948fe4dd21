//! Tensors on their way from a checkpoint to GGUF: a shape, a type, and a recipe for the bytes.

use gguf::TensorType;

use crate::Error;
use crate::dtype::Dtype;
use crate::element::{of_f32, to_f32};
use crate::formats::{bf16_of_f32, f32_of};
use crate::recipe::{Map, Recipe, View};
use crate::shard::Stored;

/// Tensors under their names in GGUF.
pub(crate) type Tensors = Vec<(String, Weight)>;

/// A tensor.
#[derive(Debug, Clone)]
pub(crate) struct Weight {
    /// Its name in the checkpoint, for errors.
    pub name: String,
    /// Slowest-varying dimension first, as in the checkpoint.
    pub shape: Vec<u64>,
    pub ty: TensorType,
    pub recipe: Recipe,
    /// A factor of all numbers (NVFP4), or of those of each expert: f32.
    pub factor: Option<Recipe>,
}

impl Weight {
    /// A tensor of floats or 32-bit integers, as it is stored.
    pub fn stored(shard: usize, stored: &Stored) -> Result<Self, Error> {
        let Stored { name, dtype, shape, start, len } = stored;
        let recipe = Recipe::Stored { shard, start: *start, len: *len };
        let (ty, recipe) = match dtype.in_gguf() {
            Some(ty) => (ty, recipe),
            None => match to_f32(recipe, *dtype) {
                Some(recipe) => (TensorType::F32, recipe),
                None => {
                    let ty = dtype.name();
                    let why = format!("has the type {ty}, which is not a weight's on its own");
                    return Err(Error::tensor(name, why));
                }
            },
        };
        let shape = if shape.is_empty() { vec![1] } else { shape.clone() };
        Ok(Self { name: name.clone(), shape, ty, recipe, factor: None })
    }

    /// f32 numbers that no file holds.
    pub fn computed(name: &str, numbers: &[f32]) -> Self {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let (shape, recipe) = (vec![numbers.len() as u64], Recipe::Fixed(bytes.into()));
        Self { name: name.to_owned(), shape, ty: TensorType::F32, recipe, factor: None }
    }

    /// Integers that no file holds.
    pub fn integers(name: &str, numbers: impl Iterator<Item = i64>) -> Self {
        let bytes: Vec<u8> = numbers.flat_map(i64::to_le_bytes).collect();
        let (shape, recipe) = (vec![bytes.len() as u64 / 8], Recipe::Fixed(bytes.into()));
        Self { name: name.to_owned(), shape, ty: TensorType::I64, recipe, factor: None }
    }

    /// A weight of several stored tensors.
    pub fn quantised(name: String, shape: Vec<u64>, ty: TensorType, recipe: Recipe) -> Self {
        Self { name, shape, ty, recipe, factor: None }
    }

    /// The number of its layer in the checkpoint, if it is in one.
    pub fn layer(&self) -> Option<u64> {
        let (_, inside) = self.name.split_once("layers.")?;
        inside.split_once('.')?.0.parse().ok()
    }

    /// Elements of a row.
    pub fn columns(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    pub fn rows(&self) -> u64 {
        self.shape.iter().rev().skip(1).product()
    }

    pub fn row_bytes(&self) -> u64 {
        self.columns() / self.ty.block_len() as u64 * self.ty.block_bytes() as u64
    }

    /// The same numbers in another shape with as many rows' worth of elements.
    pub fn reshaped(mut self, shape: &[u64]) -> Result<Self, Error> {
        if shape.iter().product::<u64>() != self.shape.iter().product::<u64>() {
            return Err(self.wrong_shape(&format!("as many numbers as {shape:?}")));
        }
        self.shape = shape.to_vec();
        Ok(self)
    }

    /// As f32.
    pub fn f32(mut self) -> Result<Self, Error> {
        let of = self.recipe.clone();
        let found = match self.ty {
            TensorType::F32 => return Ok(self),
            TensorType::F16 => to_f32(of, Dtype::F16),
            TensorType::BF16 => to_f32(of, Dtype::BF16),
            ty => f32_of(of, ty),
        };
        let why = || format!("is quantised ({}) where plain numbers are needed", self.ty);
        self.recipe = found.ok_or_else(|| Error::tensor(&self.name, why()))?;
        self.ty = TensorType::F32;
        Ok(self)
    }

    /// Plain numbers: quantised ones become bf16.
    pub fn plain(self) -> Result<Self, Error> {
        if self.ty.block_len() == 1 {
            return Ok(self);
        }
        let weight = self.f32()?;
        Ok(Self { recipe: bf16_of_f32(weight.recipe), ty: TensorType::BF16, ..weight })
    }

    /// As f32, each number changed by `map`.
    pub fn mapped(self, map: Map) -> Result<Self, Error> {
        let mut weight = self.f32()?;
        weight.recipe = of_f32(weight.recipe, map);
        Ok(weight)
    }

    /// Numbers multiplied with those of another, as one vector of f32.
    pub fn times(self, other: Self) -> Result<Self, Error> {
        const PRODUCT: Map = |parts, out| {
            let numbers = parts[0].as_chunks::<4>().0.iter().zip(parts[1].as_chunks::<4>().0);
            for (out, (a, b)) in out.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
                *out = (f32::from_le_bytes(*a) * f32::from_le_bytes(*b)).to_le_bytes();
            }
        };
        let shape = vec![self.shape.iter().product()];
        let (one, other) = (self.f32()?.reshaped(&shape)?, other.f32()?.reshaped(&shape)?);
        let recipe = Recipe::mapped(vec![(one.recipe, 4), (other.recipe, 4)], 4, PRODUCT);
        Ok(Self { shape, recipe, ..one })
    }

    /// 64-bit integers as 32-bit ones; larger ones become the largest.
    pub fn narrowed(self) -> Result<Self, Error> {
        const NARROW: Map = |parts, out| {
            let numbers = parts[0].as_chunks::<8>().0;
            for (out, number) in out.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
                let number = i64::from_le_bytes(*number);
                *out = i32::try_from(number).unwrap_or(i32::MAX).to_le_bytes();
            }
        };
        if self.ty != TensorType::I64 {
            return Err(self.wrong_shape("I64"));
        }
        let recipe = Recipe::mapped(vec![(self.recipe, 8)], 4, NARROW);
        Ok(Self { recipe, ty: TensorType::I32, ..self })
    }

    /// Its rows seen as an array of `dims`, with the axes in another `order`. The shape stays.
    pub fn permuted(self, dims: &[u64], order: &[usize]) -> Result<Self, Error> {
        if dims.iter().product::<u64>() != self.rows_or_elements() {
            return Err(self.wrong_shape(&format!("rows for {dims:?}")));
        }
        let mut strides = vec![1; dims.len()];
        for axis in (0..dims.len() - 1).rev() {
            strides[axis] = strides[axis + 1] * dims[axis + 1];
        }
        let dims = order.iter().map(|axis| dims[*axis]).collect();
        let strides = order.iter().map(|axis| strides[*axis]).collect();
        let shape = self.shape.clone();
        Ok(self.viewed(shape, dims, strides, 0))
    }

    /// Rows `from..to` of each matrix of `per` rows, counted from its `from`th in steps of `step`.
    pub fn rows_of_each(self, per: u64, from: u64, count: u64, step: u64) -> Result<Self, Error> {
        let rows = self.rows_or_elements();
        let last = count.checked_sub(1).and_then(|last| last.checked_mul(step)?.checked_add(from));
        if per == 0 || !rows.is_multiple_of(per) || last.is_none_or(|last| last >= per) {
            return Err(self.wrong_shape(&format!("rows in matrices of {per}")));
        }
        let matrices = rows / per;
        let mut shape = self.shape.clone();
        let axis = shape.len().saturating_sub(2);
        shape[axis] = shape[axis] / per * count;
        Ok(self.viewed(shape, vec![matrices, count], vec![per, step], from))
    }

    /// Matrices with rows and columns exchanged. Its elements must be single numbers.
    pub fn transposed(self) -> Result<Self, Error> {
        let (matrices, unit) = (self.shape.iter().rev().skip(2).product(), self.ty.block_bytes());
        let dims = self.shape.len();
        if self.ty.block_len() != 1 || dims < 2 {
            return Err(self.wrong_shape("matrices of plain numbers"));
        }
        let (rows, columns) = (self.shape[dims - 2], self.shape[dims - 1]);
        let mut shape = self.shape.clone();
        shape.swap(dims - 2, dims - 1);
        let view = View {
            of: self.recipe,
            unit: unit as u64,
            dims: vec![matrices, columns, rows],
            strides: vec![rows * columns, 1, columns],
            base: 0,
        };
        Ok(Self { shape, recipe: Recipe::view(view), ..self })
    }

    /// Columns seen as an array of `dims` groups of `group` elements, with the two axes exchanged.
    pub fn column_groups_exchanged(self, dims: [u64; 2], group: u64) -> Result<Self, Error> {
        let len = self.ty.block_len() as u64;
        if dims[0] * dims[1] * group != self.columns() || !group.is_multiple_of(len) {
            let wanted =
                format!("columns in {dims:?} groups of {group} that cut no block of {len}");
            return Err(self.wrong_shape(&wanted));
        }
        let view = View {
            unit: group / len * self.ty.block_bytes() as u64,
            dims: vec![self.rows(), dims[1], dims[0]],
            strides: vec![dims[0] * dims[1], 1, dims[1]],
            base: 0,
            of: self.recipe,
        };
        Ok(Self { recipe: Recipe::view(view), ..self })
    }

    /// Tensors of one shape and type as one with a further, slowest dimension.
    pub fn stacked(all: Vec<Self>) -> Result<Self, Error> {
        let (first, count) = (all[0].clone(), all.len() as u64);
        if let Some(odd) = all.iter().find(|one| (&one.shape, one.ty) != (&first.shape, first.ty)) {
            return Err(odd.wrong_shape(&format!("{:?} of {}", first.shape, first.ty)));
        }
        let shape = [vec![count], first.shape.clone()].concat();
        let factors: Option<Vec<Recipe>> = all.iter().map(|one| one.factor.clone()).collect();
        let recipe = Recipe::joined(all.into_iter().map(|one| one.recipe));
        Ok(Self { shape, recipe, factor: factors.map(Recipe::joined), ..first })
    }

    /// Tensors that differ in rows alone as one.
    pub fn concatenated(all: Vec<Self>) -> Result<Self, Error> {
        let first = all[0].clone();
        let is_odd = |one: &&Self| (&one.shape[1..], one.ty) != (&first.shape[1..], first.ty);
        if let Some(odd) = all.iter().find(is_odd) {
            return Err(odd.wrong_shape(&format!("rows as in {:?} of {}", first.shape, first.ty)));
        }
        let mut shape = first.shape.clone();
        shape[0] = all.iter().map(|one| one.shape[0]).sum();
        Ok(Self { shape, recipe: Recipe::joined(all.into_iter().map(|one| one.recipe)), ..first })
    }

    pub fn wrong_shape(&self, wanted: &str) -> Error {
        let Self { shape, ty, .. } = self;
        Error::tensor(&self.name, format!("is {shape:?} of {ty}; {wanted} is needed"))
    }

    /// The units of [`permuted`](Self::permuted): rows of a matrix, elements of a vector.
    fn rows_or_elements(&self) -> u64 {
        if self.shape.len() == 1 { self.columns() } else { self.rows() }
    }

    fn viewed(self, shape: Vec<u64>, dims: Vec<u64>, strides: Vec<u64>, base: u64) -> Self {
        let is_vector = self.shape.len() == 1 && self.ty.block_len() == 1;
        let unit = if is_vector { self.ty.block_bytes() as u64 } else { self.row_bytes() };
        let view = View { of: self.recipe, unit, dims, strides, base };
        Self { shape, recipe: Recipe::view(view), ..self }
    }
}
