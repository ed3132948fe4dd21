//! The header of an mmproj file as a [`Config`]. Every number is checked before it is used.

use gguf::Directory;
use kernels::Activation;

use crate::TowerError;
use crate::plan::tokens_max;
use crate::projector::Projector;

/// Limits on sizes; those of the largest known towers are below a quarter of them.
pub(crate) const WIDTH_MAX: u64 = 16_384;
const FEED_FORWARD_MAX: u64 = 131_072;
const LAYERS_MAX: u64 = 256;
const HEADS_MAX: u64 = 256;
const PATCH_MAX: u64 = 64;
const MERGE_MAX: u64 = 8;
const SIDE_MAX: u64 = 16_384;

/// The sizes of a tower.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub projector: Projector,
    pub layers: usize,
    /// Numbers of a patch between layers.
    pub width: usize,
    pub heads: usize,
    /// Hidden numbers of a layer's feed-forward block.
    pub feed_forward: usize,
    /// Of that block.
    pub activation: Activation,
    /// Pixels a side of a patch.
    pub patch: usize,
    /// Patches a side of a token.
    pub merge: usize,
    /// Pixels a side: of every picture, of a tile, or of the largest picture, as the projector has
    /// it.
    pub image_size: usize,
    /// The epsilon of norms.
    pub eps: f32,
    /// Mean and deviation of each channel, of numbers from 0 to 1.
    pub mean: [f32; 3],
    pub deviation: [f32; 3],
    /// Numbers of a row of the model, if the file names them.
    pub projection: Option<usize>,
    /// The layers with features for the model's first layers, ascending (deepstack).
    pub deepstack: Vec<usize>,
    /// The most pixels of a picture, if the file names them.
    pub pixels_max: Option<usize>,
    /// The fewest and the most tokens of a picture, if the file or a caller sets them: in place of
    /// the projector's own.
    pub tokens: Option<(usize, usize)>,
}

impl Config {
    /// Reads the header of an mmproj file.
    ///
    /// # Errors
    /// It is none, its projector is unknown, or a number is missing or impossible.
    pub fn read(directory: &Directory) -> Result<Self, TowerError> {
        match (directory.str("general.architecture")?, Self::find(directory)?) {
            ("clip", Some(config)) => Ok(config),
            (found, _) => Err(TowerError::Architecture { found: found.to_owned() }),
        }
    }

    /// The same of a model's header, which may have a tower's beside its own; `None` without one.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn find(directory: &Directory) -> Result<Option<Self>, TowerError> {
        if directory.find_str("general.architecture")? != Some("clip")
            && directory.find_u64("clip.vision.block_count")?.is_none()
        {
            return Ok(None);
        }
        let projector = projector(directory)?;
        let layers = size(directory, "block_count", LAYERS_MAX)?;
        let width = size(directory, "embedding_length", WIDTH_MAX)?;
        let (mean, deviation) = normalisation(directory, projector)?;
        let config = Self {
            projector,
            layers,
            width,
            heads: size(directory, "attention.head_count", HEADS_MAX)?,
            feed_forward: feed_forward(directory, width)?,
            activation: projector
                .activation(directory.find_bool("clip.use_gelu")?.unwrap_or(false)),
            patch: size(directory, "patch_size", PATCH_MAX)?,
            merge: merge(directory, projector)?,
            image_size: size(directory, "image_size", SIDE_MAX)?,
            eps: eps(directory)?,
            mean,
            deviation,
            deepstack: deepstack(directory, layers)?,
            projection: find_size(directory, "projection_dim", FEED_FORWARD_MAX)?,
            pixels_max: find_size(directory, "image_max_pixels", SIDE_MAX * SIDE_MAX)?,
            tokens: None,
        };
        let fewest = find_size(directory, "image_min_pixels", SIDE_MAX * SIDE_MAX)?;
        let area = config.token_side() * config.token_side();
        let config = match (fewest, config.pixels_max) {
            (Some(fewest), Some(most)) => config.with_tokens(fewest / area, most / area),
            _ => config,
        };
        config.check().map(Some)
    }

    /// Sets the fewest and the most tokens of a picture, in place of the projector's own.
    pub fn with_tokens(mut self, fewest: usize, most: usize) -> Self {
        self.tokens = Some((fewest, most));
        self
    }

    /// Numbers of a head.
    pub fn head_dim(&self) -> usize {
        self.width / self.heads
    }

    /// Pixels a side of a token.
    pub fn token_side(&self) -> usize {
        self.patch * self.merge
    }

    /// Numbers of a patch's pixels.
    pub(crate) fn patch_numbers(&self) -> usize {
        3 * self.patch * self.patch
    }

    /// A small one, for tests of sizes.
    #[cfg(test)]
    pub(crate) fn of_tests(projector: Projector) -> Self {
        Self {
            projector,
            layers: 1,
            width: 32,
            heads: 2,
            feed_forward: 48,
            activation: Activation::Gelu,
            patch: 8,
            merge: 2,
            image_size: 64,
            eps: 1e-6,
            mean: [0.5; 3],
            deviation: [0.5; 3],
            projection: None,
            deepstack: Vec::new(),
            pixels_max: None,
            tokens: None,
        }
    }

    fn check(self) -> Result<Self, TowerError> {
        let Self { width, heads, image_size, .. } = self;
        if width % heads != 0 || (width / heads) % 4 != 0 {
            let what = format!("a width of {width} for {heads} heads, of a multiple of 4 each");
            return Err(TowerError::impossible(what));
        }
        let side = self.token_side();
        let tokens = (image_size / side) * (image_size / side);
        let is_cut = image_size % side != 0 || tokens > tokens_max(self.merge);
        if image_size < side || self.projector.has_fixed_size() && is_cut {
            let what = format!("pictures of {image_size} pixels a side in tokens of {side}");
            return Err(TowerError::impossible(what));
        }
        Ok(self)
    }
}

fn projector(directory: &Directory) -> Result<Projector, TowerError> {
    let of_vision = directory.find_str("clip.vision.projector_type")?;
    let name = match of_vision {
        Some(name) => name,
        None => directory.str("clip.projector_type")?,
    };
    Projector::of(name).ok_or_else(|| TowerError::Projector { found: name.to_owned() })
}

fn key(name: &str) -> String {
    format!("clip.vision.{name}")
}

/// A required count from 1 to `most`.
fn size(directory: &Directory, name: &str, most: u64) -> Result<usize, TowerError> {
    match find_size(directory, name, most)? {
        Some(found) => Ok(found),
        None => Err(gguf::Error::MissingKey { key: key(name) }.into()),
    }
}

fn find_size(directory: &Directory, name: &str, most: u64) -> Result<Option<usize>, TowerError> {
    let Some(found) = directory.find_u64(&key(name))? else { return Ok(None) };
    if (1..=most).contains(&found) {
        return Ok(Some(found as usize));
    }
    let what = format!("{} is {found}; it must be from 1 to {most}", key(name));
    Err(TowerError::impossible(what))
}

/// As the first layer's tensor has it: the key means another block's for GLM. Files of early 2025
/// have the names of `ffn_up` and `ffn_down` exchanged.
fn feed_forward(directory: &Directory, width: usize) -> Result<usize, TowerError> {
    let tensor = directory.tensor("v.blk.0.ffn_up.weight")?;
    let hidden = match tensor.dims[..] {
        [cols, rows] if cols == width as u64 => rows,
        [cols, _] => cols,
        _ => 0,
    };
    match hidden {
        1..=FEED_FORWARD_MAX => Ok(hidden as usize),
        _ => {
            let what = format!("\"{}\" is {:?}, and no matrix", tensor.name, tensor.dims);
            Err(TowerError::impossible(what))
        }
    }
}

fn merge(directory: &Directory, projector: Projector) -> Result<usize, TowerError> {
    let spatial = find_size(directory, "spatial_merge_size", MERGE_MAX)?;
    let scale = find_size(directory, "projector.scale_factor", MERGE_MAX)?;
    Ok(spatial.or(scale).unwrap_or_else(|| projector.merge))
}

fn eps(directory: &Directory) -> Result<f32, TowerError> {
    let key = key("attention.layer_norm_epsilon");
    let found = directory.f32(&key)?;
    if found > 0.0 && found < 1.0 {
        return Ok(found);
    }
    Err(TowerError::impossible(format!("{key} is {found}; it must be above 0 and below 1")))
}

/// Mean and deviation. Gemma 4's file has 0 and 1.
fn normalisation(
    directory: &Directory,
    projector: Projector,
) -> Result<([f32; 3], [f32; 3]), TowerError> {
    if projector.centred_pixels {
        return Ok(([0.5; 3], [0.5; 3]));
    }
    let (mean, deviation) = (channels(directory, "image_mean")?, channels(directory, "image_std")?);
    if let Some(low) = deviation.iter().find(|deviation| **deviation <= 0.0) {
        let what = format!("{} has {low}; it must be above 0", key("image_std"));
        return Err(TowerError::impossible(what));
    }
    Ok((mean, deviation))
}

fn channels(directory: &Directory, name: &str) -> Result<[f32; 3], TowerError> {
    let key = key(name);
    let floats = directory.find_array(&key)?.and_then(|array| array.floats());
    let found: Vec<f32> = floats.map_or_else(Vec::new, |floats| floats.take(4).collect());
    match found[..] {
        [red, green, blue] if found.iter().all(|number| number.is_finite()) => {
            Ok([red, green, blue])
        }
        _ => Err(TowerError::impossible(format!("{key} is no list of three finite numbers"))),
    }
}

fn deepstack(directory: &Directory, layers: usize) -> Result<Vec<usize>, TowerError> {
    let key = key("is_deepstack_layers");
    let Some(array) = directory.find_array(&key)? else { return Ok(Vec::new()) };
    let flags: Option<Vec<i64>> = array.integers().map(|flags| flags.take(layers + 1).collect());
    match flags {
        Some(flags) if flags.len() == layers => {
            Ok((0..layers).filter(|layer| flags[*layer] != 0).collect())
        }
        _ => Err(TowerError::impossible(format!("{key} has no flag for each of {layers} layers"))),
    }
}
