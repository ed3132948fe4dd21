//! Models whose vocabularies the tests constrain.

use constrain::Vocabulary;
use gguf::{File, Source};
use text::Tokenizer;

const MODELS: [&str; 2] = ["demo-model/sinew-demo.gguf", "fixtures/models/llama-spm.gguf"];

pub struct Model {
    pub vocabulary: Vocabulary,
    pub tokenizer: Tokenizer,
}

impl Model {
    pub fn all() -> impl Iterator<Item = Self> {
        MODELS.iter().map(|path| {
            let file = File::open(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
            let tokenizer = Tokenizer::from_gguf(file.directory()).unwrap();
            Self { vocabulary: Vocabulary::read(file.directory()).unwrap(), tokenizer }
        })
    }
}
