//! What a model is for, by its file: answers, embeddings or an order of texts; and how it does the
//! last two.

use gguf::Directory;
use protocol::{Pooling, Token};
use text::Tokenizer;

use super::CompletionError;

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Answers,
    Embeddings,
    /// It orders texts by how well they answer a query.
    Ranking,
}

/// Qwen3-Reranker's prompt, as its card has it, for files without their own.
const RERANKER_TEMPLATE: &str = "<|im_start|>system\nJudge whether the Document meets the \
    requirements based on the Query and the Instruct provided. Note that the answer can only be \
    \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n\
    <Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
/// The words with which it answers.
const RERANKER_WORDS: [&str; 2] = ["yes", "no"];
const RERANKER_INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// The pooling types of files.
const MEAN: u64 = 1;
const FIRST: u64 = 2;
const LAST: u64 = 3;
const RANK: u64 = 4;

/// How a model makes embeddings and scores.
#[derive(Debug)]
pub(super) struct Retrieval {
    /// The pooling type in the file's numbering, if the file has one.
    pooling: Option<u64>,
    /// Whether every row of a text sees all of it.
    is_encoder: bool,
    /// Whether scores are made of the mean of all rows.
    ranks_by_mean: bool,
    has_classifier: bool,
    /// The prompt of a causal model that scores.
    template: Option<String>,
    /// The width of its embeddings.
    width: Option<u64>,
}

/// How a pair of texts is written for a model, and what is asked of it.
#[derive(Debug, Clone)]
pub(super) struct Ranker {
    pub pooling: Pooling,
    /// `None` if texts are a pair for an encoder.
    template: Option<String>,
    /// The tokens whose logits are compared, for a model without a classifier.
    pub labels: Vec<Token>,
}

impl Retrieval {
    pub fn read(header: &Directory) -> Self {
        let architecture = header.find_str("general.architecture").ok().flatten();
        let key = |name: &str| Some(format!("{}.{name}", architecture?));
        let number = |name: &str| header.find_u64(&key(name)?).ok().flatten();
        let is_causal = key("attention.causal").and_then(|key| header.find_bool(&key).ok()?);
        let tensor = |name: &str| header.find_tensor(name);
        let text = |key: &str| header.find_str(key).ok().flatten();
        let name = text("general.name").unwrap_or_default().to_ascii_lowercase();
        let is_encoder = is_causal == Some(false) || ENCODERS.contains(&architecture.unwrap_or(""));
        let own = text("tokenizer.chat_template.rerank").map(str::to_owned);
        let pooling = number("pooling_type");
        let is_reranker = !is_encoder && (name.contains("reranker") || pooling == Some(RANK));
        let dense = ["dense_3.weight", "dense_2.weight"].into_iter().find_map(tensor);
        Self {
            pooling,
            is_encoder,
            ranks_by_mean: architecture == Some("modern-bert"),
            has_classifier: tensor("cls.output.weight").or(tensor("cls.weight")).is_some(),
            template: own.or_else(|| is_reranker.then(|| RERANKER_TEMPLATE.to_owned())),
            width: dense
                .map_or_else(|| number("embedding_length"), |last| Some(last.rows() as u64)),
        }
    }

    pub fn purpose(&self) -> Purpose {
        match self.pooling {
            Some(RANK) => Purpose::Ranking,
            _ if self.has_classifier || self.template.is_some() => Purpose::Ranking,
            None | Some(0) if !self.is_encoder => Purpose::Answers,
            _ => Purpose::Embeddings,
        }
    }

    /// How texts are pooled into embeddings: as the file specifies, otherwise by the mean of an
    /// encoder's rows, and by the last row of any other model.
    ///
    /// # Errors
    /// The file asks for another pooling, or for scores.
    pub fn pooling(&self) -> Result<Pooling, CompletionError> {
        match self.pooling {
            None | Some(0) if self.is_encoder => Ok(Pooling::Mean),
            None | Some(0 | LAST) => Ok(Pooling::Last),
            Some(MEAN) => Ok(Pooling::Mean),
            Some(FIRST) if self.is_encoder => Ok(Pooling::First),
            Some(RANK) => Err(unusable(
                "the model orders texts, and makes no embeddings. Ask it at /v1/rerank, or serve a \
                 model for embeddings"
                    .to_owned(),
            )),
            Some(other) => Err(unusable(format!(
                "the model's file asks for pooling {other}, and only 1 (the mean), 2 (an \
                 encoder's first row) and 3 (the last row) are known. Serve a model for embeddings"
            ))),
        }
    }

    /// How the model scores pairs of texts.
    ///
    /// # Errors
    /// It is no reranker.
    pub fn ranker(&self, tokenizer: &Tokenizer) -> Result<Ranker, CompletionError> {
        let no_reranker = || {
            unusable(
                "the model orders no texts: its file has neither a classifier nor a prompt for it. \
                 Serve a reranker, such as bge-reranker-v2-m3"
                    .to_owned(),
            )
        };
        if self.is_encoder {
            let pooling = if self.ranks_by_mean { Pooling::Mean } else { Pooling::First };
            let ranker = Ranker { pooling, template: None, labels: Vec::new() };
            return self.has_classifier.then_some(ranker).ok_or_else(no_reranker);
        }
        let template = self.template.clone().ok_or_else(no_reranker)?;
        let labels = match self.has_classifier {
            true => Vec::new(),
            false => {
                let found = RERANKER_WORDS.map(|word| tokenizer.find_token(word));
                let found: Option<Vec<Token>> = found.into_iter().collect();
                found.ok_or_else(no_reranker)?
            }
        };
        Ok(Ranker { pooling: Pooling::Last, template: Some(template), labels })
    }

    /// The number of elements that vectors shall have: `None` for all.
    ///
    /// # Errors
    /// They have fewer.
    pub fn cut_to(&self, wanted: Option<usize>) -> Result<Option<usize>, CompletionError> {
        match (wanted, self.width) {
            (Some(wanted), Some(width)) if wanted as u64 > width => {
                Err(CompletionError::Unusable {
                    field: "dimensions",
                    message: format!(
                        "dimensions is {wanted}, and the vectors of this model have {width}. Ask \
                         for as many or fewer, or leave it out"
                    ),
                })
            }
            _ => Ok(wanted),
        }
    }

    /// # Errors
    /// The model answers no chats and completes no texts.
    pub fn check_answers(&self) -> Result<(), CompletionError> {
        let what = match self.purpose() {
            Purpose::Ranking if self.is_encoder => "orders texts at /v1/rerank",
            _ if self.is_encoder => "makes embeddings at /v1/embeddings",
            _ => return Ok(()),
        };
        let message = format!("the model is an encoder: it {what} and writes nothing. Ask another");
        Err(unusable(message))
    }
}

/// Encoders, whether their files say so or not.
const ENCODERS: [&str; 8] = [
    "bert",
    "nomic-bert",
    "nomic-bert-moe",
    "modern-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "eurobert",
    "gemma-embedding",
];

fn unusable(message: String) -> CompletionError {
    CompletionError::Unusable { field: "model", message }
}

/// A query and a document as tokens.
pub(super) struct Pair {
    pub tokens: Vec<Token>,
    /// The tokens before the document, of an encoder's pair.
    pub first_tokens: Option<usize>,
}

impl Ranker {
    /// The pair in up to `tokens_max` tokens, or a few more if it is longer.
    pub fn pair(
        &self,
        tokenizer: &Tokenizer,
        [query, document]: [&str; 2],
        instruction: Option<&str>,
        tokens_max: usize,
    ) -> Pair {
        let Some(template) = &self.template else {
            let (tokens, first) = tokenizer.encode_pair([query, document], tokens_max);
            return Pair { tokens, first_tokens: Some(first) };
        };
        let instruction = instruction.unwrap_or(RERANKER_INSTRUCTION);
        let texts = [("instruction", instruction), ("query", query), ("document", document)];
        let tokens = tokenizer.encode_filled(template, &texts, tokens_max);
        Pair { tokens, first_tokens: None }
    }

    /// The pair with the longest beginning of the document with which it has up to `tokens_max`
    /// tokens; with none of it, if the query alone has more.
    pub fn pair_within(
        &self,
        tokenizer: &Tokenizer,
        [query, document]: [&str; 2],
        instruction: Option<&str>,
        tokens_max: usize,
    ) -> Pair {
        let of = |document: &str| {
            self.pair(tokenizer, [query, document], instruction, tokens_max.saturating_add(1))
        };
        let whole = of(document);
        if whole.tokens.len() <= tokens_max {
            return whole;
        }
        // The number of tokens grows with the text, but for a few at its end.
        let (mut fits, mut too_long) = (0, document.len());
        while too_long - fits > 1 {
            let mut below = (fits + 1..=fits + (too_long - fits) / 2).rev();
            let Some(middle) = below.find(|end| document.is_char_boundary(*end)) else { break };
            match of(&document[..middle]).tokens.len() <= tokens_max {
                true => fits = middle,
                false => too_long = middle,
            }
        }
        of(&document[..fits])
    }
}
