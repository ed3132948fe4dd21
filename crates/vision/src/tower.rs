//! The tower: pictures in, rows of the model out.

use gguf::{Directory, Source, TensorInfo, TensorType};
use kernels::{Matrix, Pool};

use crate::config::{Config, WIDTH_MAX};
use crate::layer::{Layer, Rows};
use crate::limits::DECODING_BYTES_MAX;
use crate::linear::{CHUNK, Linear, Work, for_all_rows};
use crate::norm::Norm;
use crate::patches::{Grid, Levels, Patches};
use crate::picture::Picture;
use crate::places::{Positions, Rotation};
use crate::plan::{Canvas, Plan, tokens_with_border};
use crate::projection::Projection;
use crate::projector;
use crate::resize::{Kernel, resize};
use crate::weights::{Weights, of_tower};
use crate::{Detail, PictureError, TowerError};

/// A vision tower with its weights.
pub struct Tower {
    config: Config,
    levels: Levels,
    /// From a patch's pixels.
    patches: Linear,
    patch_norm: Option<Norm>,
    positions: Option<Positions>,
    /// A further row, and its position (Llama 4).
    class: Option<Vec<f32>>,
    norm_before: Option<Norm>,
    layers: Vec<Layer>,
    norm_after: Option<Norm>,
    projection: Projection,
    /// For each layer, its features for the model's layers.
    features: Vec<Option<Projection>>,
}

/// Bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Of the weights.
    pub weights: u64,
    /// Of the largest picture while it is looked at.
    pub picture: u64,
    /// Of its rows, once it was seen.
    pub rows: u64,
}

/// What the tower saw.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// `[plan.rows(), width * (1 + deepstack)]`: each row is an embedding of the model, and after
    /// it what is added to the residual stream after each of the model's first layers.
    pub rows: Vec<f32>,
    /// Numbers of an embedding.
    pub width: usize,
    /// Layers of the model that get an addition.
    pub deepstack: usize,
    pub plan: Plan,
}

/// Why a picture was not seen.
#[derive(Debug, thiserror::Error)]
pub enum SeeError {
    #[error(transparent)]
    Picture(#[from] PictureError),
    #[error(transparent)]
    Tower(#[from] TowerError),
}

impl Tower {
    /// Loads a tower with the sizes of `config`.
    ///
    /// # Errors
    /// A tensor is missing, has another shape, is unknown, or cannot be read.
    pub fn load(pool: &Pool, source: &dyn Source, config: Config) -> Result<Self, TowerError> {
        let weights = Weights::new(pool, source);
        let (width, eps) = (config.width, config.eps);
        let rms = config.projector.rms_norms;
        for name in config.projector.tensors {
            source.directory().tensor(name)?;
        }
        let find_norm = |name: &str| weights.find_norm(name, width, rms, eps);
        let features = (0..config.layers).map(|layer| {
            let has = config.deepstack.contains(&layer);
            has.then(|| Projection::of_layer(&weights, &config, layer)).transpose()
        });
        let features: Vec<Option<Projection>> = features.collect::<Result<_, _>>()?;
        let layers = (0..config.layers).map(|layer| Layer::load(&weights, &config, layer));
        let tower = Self {
            levels: Levels::new(&config),
            patches: patches(&weights, &config)?,
            patch_norm: find_norm("v.norm_embd")?,
            positions: positions(&weights, &config)?,
            class: class(&weights, &config)?,
            norm_before: find_norm("v.pre_ln")?,
            layers: layers.collect::<Result<_, _>>()?,
            norm_after: find_norm("v.post_ln")?,
            projection: Projection::load(&weights, &config)?,
            features,
            config,
        };
        weights.check_all_read(tower.config.projector.name)?;
        tower.check_outputs()?;
        Ok(tower)
    }

    fn check_outputs(&self) -> Result<(), TowerError> {
        let out = self.projection.outputs();
        let features = self.features.iter().flatten().map(Projection::outputs);
        match features.chain(self.config.projection).find(|other| *other != out) {
            Some(other) => {
                let what = format!("rows of {out} numbers where {other} are expected");
                Err(TowerError::impossible(what))
            }
            None => Ok(()),
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Numbers of an embedding of the model.
    pub fn width(&self) -> usize {
        self.projection.outputs()
    }

    /// Bytes of its weights in memory.
    pub fn bytes(&self) -> usize {
        let norms = [&self.patch_norm, &self.norm_before, &self.norm_after].into_iter().flatten();
        let table = |positions: &Positions| match positions {
            Positions::Grid { table, .. } | Positions::Axes { table, .. } => {
                size_of_val(table.as_slice())
            }
        };
        self.patches.bytes()
            + norms.map(Norm::bytes).sum::<usize>()
            + self.positions.as_ref().map_or(0, table)
            + self.class.as_ref().map_or(0, |class| size_of_val(class.as_slice()))
            + self.layers.iter().map(Layer::bytes).sum::<usize>()
            + self.projection.bytes()
            + self.features.iter().flatten().map(Projection::bytes).sum::<usize>()
    }

    /// Looks at a picture. The result depends neither on the number of threads nor on the
    /// instruction set.
    ///
    /// # Errors
    /// The picture does not suit the model, or there is no memory for its patches.
    pub fn see(&self, pool: &Pool, picture: &Picture, detail: Detail) -> Result<Seen, SeeError> {
        let plan = Plan::new(&self.config, picture.width(), picture.height(), detail)?;
        let width = self.width();
        let deepstack = self.config.deepstack.len();
        let mut rows = Vec::with_capacity(plan.rows() * width * (1 + deepstack));
        let mut work = Work::new(pool);
        for canvas in &plan.canvases {
            let scaled = resize(pool, picture, canvas.scaled, self.kernel());
            let (columns, tiles) = (canvas.tiles.0, canvas.tiles.0 * canvas.tiles.1);
            for tile in 0..tiles {
                let (tile_width, tile_height) = canvas.tile();
                let origin = (tile % columns * tile_width, tile / columns * tile_height);
                rows.extend(self.see_tile(&mut work, &scaled, canvas, origin)?);
            }
        }
        Ok(Seen { rows, width, deepstack, plan })
    }

    fn kernel(&self) -> Kernel {
        if self.config.projector.scales_cubically { Kernel::Cubic } else { Kernel::Linear }
    }

    /// The rows of one tile, `[tokens, width * (1 + deepstack)]`.
    fn see_tile(
        &self,
        work: &mut Work<'_>,
        picture: &Picture,
        canvas: &Canvas,
        origin: (usize, usize),
    ) -> Result<Vec<f32>, TowerError> {
        let grid = Grid::new(&self.config, canvas);
        let mut places: Vec<[u32; 3]> = (0..grid.patches())
            .map(|at| Rotation::place(self.config.projector, grid.place(at)))
            .collect();
        places.extend(self.class.as_ref().map(|_| [0; 3]));
        let mut rows = Rows::new(work.pool, &self.config, &places)?;
        self.begin(work, picture, grid, origin, &mut rows.x);
        let (width, patches) = (self.width(), grid.patches() * self.config.width);
        let stride = width * (1 + self.config.deepstack.len());
        let mut out = vec![0.0; grid.tokens() * stride];
        let mut place = 1;
        for (layer, features) in self.layers.iter().zip(&self.features) {
            layer.run(work, &mut rows);
            if let Some(features) = features {
                project(features, work, &rows.x[..patches], &mut out, stride, place * width);
                place += 1;
            }
        }
        if let Some(norm) = &self.norm_after {
            norm.apply_in_place(work.pool, &mut rows.x);
        }
        project(&self.projection, work, &rows.x[..patches], &mut out, stride, 0);
        Ok(out)
    }

    /// Writes the residual stream before the first layer.
    fn begin(
        &self,
        work: &mut Work<'_>,
        picture: &Picture,
        grid: Grid,
        origin: (usize, usize),
        x: &mut [f32],
    ) {
        let (width, numbers) = (self.config.width, self.config.patch_numbers());
        let source =
            Patches { levels: &self.levels, picture, origin, grid, patch: self.config.patch };
        let (of_patches, of_class) = x.split_at_mut(grid.patches() * width);
        for (chunk, x) in of_patches.chunks_mut(CHUNK * width).enumerate() {
            let mut pixels = vec![0.0; x.len() / width * numbers];
            for_all_rows(work.pool, &mut pixels, numbers, |row, out| {
                source.write(chunk * CHUNK + row, out);
            });
            self.patches.apply(work, &pixels, x);
            if let Some(norm) = &self.patch_norm {
                norm.apply_in_place(work.pool, x);
            }
            if let Some(positions) = &self.positions {
                for_all_rows(work.pool, x, width, |row, x| {
                    positions.add(grid, grid.place(chunk * CHUNK + row), x);
                });
            }
        }
        if let Some(class) = &self.class {
            of_class.copy_from_slice(class);
        }
        if let Some(norm) = &self.norm_before {
            norm.apply_in_place(work.pool, x);
        }
    }
}

impl Footprint {
    /// Bytes in all, if the rows of the last `kept` pictures stay, those in work included.
    pub fn bytes(&self, kept: usize) -> u64 {
        self.weights + self.picture + kept.saturating_sub(1) as u64 * self.rows
    }

    /// Of a tower before it is loaded, from its header alone; an upper bound.
    pub fn new(config: &Config, directory: &Directory) -> Self {
        let weights = of_tower(directory).map(tensor_bytes).sum();
        let merge = config.merge * config.merge;
        let patches = tokens_with_border(config) * merge;
        // A chunk's hidden rows, twice with a gate, each with its prepared input, and as much for
        // the joined patches of tokens.
        let widest = config.feed_forward.max(config.width * merge).max(config.patch_numbers());
        let chunk = CHUNK * 8 * (widest + 2 * config.width) * size_of::<f32>();
        // The rows of the model, and those of one tile beside them.
        let outputs = config.projection.unwrap_or(WIDTH_MAX as usize);
        let row = outputs * (1 + config.deepstack.len()) * size_of::<f32>();
        let rows = row * tokens_with_border(config);
        let decoded = DECODING_BYTES_MAX as usize;
        let picture = decoded.max(Rows::bytes(config, patches) + chunk) + 2 * rows;
        Self { weights, picture: picture as u64, rows: rows as u64 }
    }
}

/// The most bytes that a tensor takes in memory.
fn tensor_bytes(tensor: &TensorInfo) -> u64 {
    let numbers = tensor.columns() * tensor.rows();
    let packed = match tensor.dims.len() {
        2 => Matrix::bytes_of(tensor.ty, tensor.rows(), tensor.columns()),
        _ => {
            Matrix::bytes_of(TensorType::F32, numbers.div_ceil(tensor.columns()), tensor.columns())
        }
    };
    packed.unwrap_or(numbers * size_of::<f32>()) as u64
}

/// Writes the projected tokens to the columns of `out` from `first` on.
fn project(
    projection: &Projection,
    work: &mut Work<'_>,
    x: &[f32],
    out: &mut [f32],
    stride: usize,
    first: usize,
) {
    let width = projection.outputs();
    let mut targets = out.chunks_exact_mut(stride);
    projection.run(work, x, |rows| {
        for (row, target) in rows.chunks_exact(width).zip(&mut targets) {
            target[first..first + width].copy_from_slice(row);
        }
    });
}

/// The convolution over a patch's pixels. Towers for films have one for each of two frames, which
/// are the same picture here.
fn patches(weights: &Weights<'_>, config: &Config) -> Result<Linear, TowerError> {
    let (width, numbers) = (config.width, config.patch_numbers());
    let mut kernels = weights.numbers("v.patch_embd.weight", width * numbers)?;
    const SECOND: &str = "v.patch_embd.weight.1";
    if weights.has(SECOND) {
        let second = weights.numbers(SECOND, width * numbers)?;
        kernels.iter_mut().zip(second).for_each(|(kernel, second)| *kernel += second);
    }
    weights.linear_of("v.patch_embd", width, &kernels)
}

fn positions(weights: &Weights<'_>, config: &Config) -> Result<Option<Positions>, TowerError> {
    const NAME: &str = "v.position_embd.weight";
    let width = config.width;
    if !weights.has(NAME) {
        return Ok(None);
    }
    let entries = weights.rows_of(NAME, width)?;
    let dims = weights.source.directory().tensor(NAME)?.dims.clone();
    let table = weights.numbers(NAME, entries * width)?;
    let filter = config.projector.filter;
    let entries = entries - usize::from(config.projector.has_class);
    let kind = config.projector.positions;
    let (rows, columns) = match (kind, &dims[1..]) {
        (projector::Positions::Axes, [places, 2]) => (2, *places as usize),
        (projector::Positions::Grid, [columns, rows]) => (*rows as usize, *columns as usize),
        (projector::Positions::Square, [_]) => (entries.isqrt(), entries.isqrt()),
        _ => (0, 0),
    };
    if dims[0] != width as u64 || rows == 0 || rows * columns != entries {
        let what = format!("\"{NAME}\" is {dims:?}, and no table of places");
        return Err(TowerError::impossible(what));
    }
    Ok(Some(match kind {
        projector::Positions::Axes => Positions::Axes { places: columns, table },
        _ => Positions::Grid { rows, columns, filter, table },
    }))
}

/// The class row, its position included, which is the table's last.
fn class(weights: &Weights<'_>, config: &Config) -> Result<Option<Vec<f32>>, TowerError> {
    if !config.projector.has_class {
        return Ok(None);
    }
    let width = config.width;
    let mut class = weights.numbers("v.class_embd", width)?;
    let entries = weights.rows_of("v.position_embd.weight", width)?;
    let table = weights.numbers("v.position_embd.weight", entries * width)?;
    let last = &table[(entries - 1) * width..];
    class.iter_mut().zip(last).for_each(|(class, position)| *class += position);
    Ok(Some(class))
}
