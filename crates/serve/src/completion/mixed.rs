//! Prompts of texts and tokens in any order.

use protocol::Token;
use text::Special;

use super::Prompt;
use super::model::TextModel;

/// A piece of a mixed prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PromptPiece {
    Text(String),
    Tokens(Vec<Token>),
}

impl TextModel {
    /// The tokens of a text, a list of tokens, or both mixed, if they are at most `tokens_max`;
    /// with `add_bos`, a text at the start gets the beginning-of-sequence token if the model
    /// expects one.
    pub(super) fn tokens(
        &self,
        prompt: &Prompt,
        special: Special,
        add_bos: bool,
        tokens_max: usize,
    ) -> Option<Vec<Token>> {
        let (_, tokens_min) = self.least(prompt, &[]);
        if tokens_min > tokens_max {
            return None;
        }
        let tokens = match prompt {
            Prompt::Text(text) => self.tokenizer.encode_some(text, special, add_bos, tokens_max),
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Mixed(pieces) => self.mixed_tokens(pieces, special, add_bos, tokens_max),
            Prompt::Chat(_) | Prompt::Fill(_) => Vec::new(),
        };
        (tokens.len() <= tokens_max).then_some(tokens)
    }

    /// The tokens of the pieces, one after the other. With `add_bos`, a text at the start gets the
    /// beginning-of-sequence token if the model expects one. Stops once there are more than
    /// `tokens_max`.
    pub(super) fn mixed_tokens(
        &self,
        pieces: &[PromptPiece],
        special: Special,
        add_bos: bool,
        tokens_max: usize,
    ) -> Vec<Token> {
        let tokenizer = &self.tokenizer;
        let mut tokens = Vec::new();
        if let Some(PromptPiece::Text(_)) = pieces.first()
            && add_bos
            && tokenizer.adds_bos()
        {
            tokens.extend(tokenizer.bos());
        }
        for piece in pieces {
            let room = tokens_max.saturating_sub(tokens.len());
            match piece {
                PromptPiece::Text(text) => {
                    tokens.extend(tokenizer.encode_some(text, special, false, room));
                }
                PromptPiece::Tokens(more) => tokens.extend(more),
            }
            if tokens.len() > tokens_max {
                break;
            }
        }
        tokens
    }
}
