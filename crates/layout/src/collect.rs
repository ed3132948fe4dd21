//! Collects the tensors of a layer or of the output head, with each rank's part of them.

use gguf::Directory;

use crate::file::{Error, names};
use crate::tensors::{Part, Tensor, check_float, checked};

/// A layer's tensors, collected one by one.
pub(crate) struct Layer<'a> {
    pub directory: &'a Directory,
    pub layer: usize,
    pub tensors: Vec<Tensor>,
}

impl<'a> Layer<'a> {
    pub fn new(directory: &'a Directory, layer: usize) -> Self {
        Self { directory, layer, tensors: Vec::new() }
    }

    pub fn has(&self, name: &str) -> bool {
        self.directory.find_tensor(name).is_some()
    }

    /// The matrix whose role is its name.
    pub fn matrix(
        &mut self,
        role: &'static str,
        shape: [usize; 2],
        rows: Part,
        cols: Part,
    ) -> Result<(), Error> {
        let name = names::layer(self.layer, role);
        self.add(role, &name, shape, rows, cols).map(drop)
    }

    /// `count` matrices `[cols, rows]`, each multiplied separately.
    pub fn several(
        &mut self,
        role: &'static str,
        name: &str,
        count: usize,
        [cols, rows]: [usize; 2],
    ) -> Result<&mut Tensor, Error> {
        let name = names::layer(self.layer, name);
        let (shape, all) = ([cols, rows * count], Part::Of(0..cols));
        let tensor = self.add(role, &name, shape, Part::Of(0..rows), all)?;
        (tensor.shape, tensor.apart) = ([count, rows, cols], true);
        Ok(tensor)
    }

    /// One vector of `len` elements, of any shape in the file; a rank has `part`.
    pub fn flat(
        &mut self,
        role: &'static str,
        name: &str,
        len: usize,
        part: Part,
    ) -> Result<(), Error> {
        let found = self.directory.tensor(name)?;
        let (cols, rows) = (found.columns(), found.rows());
        if cols.checked_mul(rows) != Some(len) {
            let (name, found_cols, found_rows) = (name.to_owned(), cols, rows);
            return Err(Error::Shape { name, found_cols, found_rows, cols: len, rows: 1 });
        }
        check_float(found)?;
        let tensor = self.add(role, name, [cols, rows], part, Part::Of(0..1))?;
        (tensor.shape, tensor.apart, tensor.is_vector) = ([1, len, 1], true, true);
        Ok(())
    }

    /// A matrix of any type, to add or to look up.
    pub fn table(
        &mut self,
        role: &'static str,
        name: &str,
        [cols, rows]: [usize; 2],
    ) -> Result<(), Error> {
        let (own_rows, own_cols) = (Part::Of(0..rows), Part::Of(0..cols));
        self.add(role, name, [cols, rows], own_rows, own_cols)?.is_vector = true;
        Ok(())
    }

    /// A vector of `len` elements, such as a norm's gain.
    pub fn vector(&mut self, role: &'static str, name: &str, len: usize) -> Result<(), Error> {
        let name = names::layer(self.layer, name);
        self.add_vector(role, &name, 1, len).map(drop)
    }

    /// The elements `part` of a bias, if the file has it.
    pub fn find_bias(
        &mut self,
        role: &'static str,
        name: &str,
        len: usize,
        part: Part,
    ) -> Result<(), Error> {
        let name = names::bias(self.layer, name);
        if self.has(&name) {
            self.add_vector(role, &name, 1, len)?.rows = part;
        }
        Ok(())
    }

    /// `count` vectors of `len` elements in one tensor.
    pub fn add_vector(
        &mut self,
        role: &'static str,
        name: &str,
        count: usize,
        len: usize,
    ) -> Result<&mut Tensor, Error> {
        let found = checked(self.directory, name, [len, count])?;
        check_float(found)?;
        let tensor = self.add(role, name, [len, count], Part::Of(0..len), Part::Of(0..1))?;
        (tensor.matrices, tensor.shape) = (Part::Of(0..count), [count, len, 1]);
        (tensor.apart, tensor.is_vector) = (true, true);
        Ok(tensor)
    }

    /// A matrix of the file, which must have the shape `[cols, rows]`.
    pub fn add(
        &mut self,
        role: &'static str,
        name: &str,
        [cols, rows]: [usize; 2],
        own_rows: Part,
        own_cols: Part,
    ) -> Result<&mut Tensor, Error> {
        let ty = checked(self.directory, name, [cols, rows])?.ty;
        self.tensors.push(Tensor {
            role,
            name: name.to_owned(),
            ty,
            shape: [1, rows, cols],
            matrices: Part::Of(0..1),
            rows: own_rows,
            cols: own_cols,
            apart: false,
            is_vector: false,
        });
        Ok(self.tensors.last_mut().expect("one was pushed"))
    }
}
