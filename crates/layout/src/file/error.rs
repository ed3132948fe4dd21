use crate::split::SplitError;

/// Why a model file cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "models of architecture \"{found}\" do not run here{near}. Those that run: {known}. Serve one of these; docs/adding-a-model.md says how another one is added"
    )]
    Arch { found: String, near: String, known: String },
    #[error(
        "the file is no model but {what}. Serve the file of the model itself, which is in the same repository as a rule"
    )]
    NoModel { what: &'static str },
    #[error(
        "the file is no model but a block that guesses the tokens of one (an EAGLE-3 head, an assistant or an MTP block). Serve that model, with --draft and this file"
    )]
    Block,
    #[error(
        "it has another vocabulary than the model that it guesses for. Take a smaller model of the same family"
    )]
    OtherVocabulary,
    #[error(
        "tensor \"{name}\"{probably} is none that this version knows in a model of architecture \"{arch}\", and without it the answers would be wrong. Convert the model again with a current convert_hf_to_gguf.py and its default options, or serve another file"
    )]
    UnknownTensor { name: String, probably: String, arch: String },
    #[error(
        "tensor \"{name}\" has type {ty}, which nothing here multiplies with. Types that run: {known}. Serve another quantisation of the model, such as Q4_K_M"
    )]
    WeightType { name: String, ty: gguf::TensorType, known: String },
    #[error(
        "tensor \"{name}\" is {found_cols} x {found_rows}, but the model's sizes ask for {cols} x {rows}"
    )]
    Shape { name: String, found_cols: usize, found_rows: usize, cols: usize, rows: usize },
    #[error("{what} is not supported yet")]
    Unsupported { what: String },
    #[error("the file describes an impossible model: {what}")]
    Impossible { what: String },
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(transparent)]
    File(#[from] gguf::Error),
}
