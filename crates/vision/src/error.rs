use gguf::TensorType;

use crate::projector::Projector;

/// Why bytes are no picture that can be used.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    #[error("the picture is empty: 0 bytes. Send the bytes of a PNG, JPEG, WebP or GIF file")]
    Empty,
    #[error(
        "the picture has {bytes} bytes, more than the {most} that are accepted. Send a smaller one"
    )]
    FileSize { bytes: usize, most: usize },
    #[error(
        "the picture starts with \"{start}\", which is no PNG, JPEG, WebP or GIF file. Convert it \
         to one of these"
    )]
    Format { start: String },
    #[error(
        "the picture is {width} x {height} pixels; at most {side} a side and {pixels} in all are \
         accepted of {format} files like this, and at least 1 x 1. Scale it down"
    )]
    Size { format: &'static str, width: u32, height: u32, side: u32, pixels: u64 },
    #[error("the {format} file is damaged or incomplete: {reason}. Save the picture again")]
    Damaged { format: &'static str, reason: String },
    #[error(
        "the picture is {width} x {height} pixels; one side may be at most {most} times the \
         other for this model. Crop it"
    )]
    Ratio { width: u32, height: u32, most: u32 },
}

/// Why a file with a vision tower cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TowerError {
    #[error(
        "the file is no vision tower but a model of architecture \"{found}\". Give the mmproj file \
         of the model, whose general.architecture is \"clip\""
    )]
    Architecture { found: String },
    #[error(
        "vision towers with the projector \"{found}\" do not run here. Those that run: {}. Serve \
         a model with one of these, or the model without pictures",
        Projector::names()
    )]
    Projector { found: String },
    #[error("the file describes an impossible tower: {what}. Convert the model again")]
    Impossible { what: String },
    #[error(
        "tensor \"{name}\" has {found} numbers, but the tower's sizes ask for {wanted}. Convert \
         the model again"
    )]
    Shape { name: String, found: String, wanted: String },
    #[error(
        "tensor \"{name}\" has type {ty}, which is not supported for it. Convert the model \
         again, to F16, BF16, F32 or Q8_0"
    )]
    Type { name: String, ty: TensorType },
    #[error(
        "tensor \"{name}\" is none that this version knows in a tower with the projector \
         \"{projector}\", and without it pictures would be seen wrongly. Convert the model again \
         with a current converter"
    )]
    Unread { name: String, projector: &'static str },
    #[error("tensor \"{name}\": {source}")]
    Read { name: String, source: gguf::ReadError },
    #[error("tensor \"{name}\": {source}")]
    Kernel { name: String, source: kernels::Error },
    #[error("there is no memory for a picture of {patches} patches: {source}")]
    Memory { patches: usize, source: kernels::Error },
    #[error(transparent)]
    File(#[from] gguf::Error),
}

impl TowerError {
    pub(crate) fn impossible(what: impl Into<String>) -> Self {
        Self::Impossible { what: what.into() }
    }
}
