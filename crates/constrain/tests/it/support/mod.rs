//! Models whose vocabularies the tests constrain.

use std::path::Path;

use constrain::Vocabulary;
use gguf::{File, Source};
use protocol::Token;
use text::Tokenizer;

pub struct Model {
    pub vocabulary: Vocabulary,
    pub tokenizer: Tokenizer,
}

impl Model {
    pub fn all() -> impl Iterator<Item = Self> {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/sinew-demo.gguf");
        [demo, fixtures::path("models/llama-spm.gguf")].into_iter().map(|path| {
            let file = File::open(path).unwrap();
            let tokenizer = Tokenizer::from_gguf(file.directory()).unwrap();
            Self { vocabulary: Vocabulary::read(file.directory()).unwrap(), tokenizer }
        })
    }

    pub fn end(&self) -> Token {
        self.tokenizer.end_ids()[0]
    }
}
