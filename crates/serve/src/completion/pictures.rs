//! What a model sees of a request's pictures: their tokens, and what stands around them.

use text::{Placeholder, Tokenizer};
use vision::{Config, Piece, Plan};

use super::CompletionError;
use crate::pictures::Picture;

/// The placeholders of pictures for a model.
///
/// # Errors
/// A picture is of another format or too large, or the vocabulary lacks a token.
pub(super) fn placeholders(
    config: &Config,
    tokenizer: &Tokenizer,
    pictures: &[Picture],
) -> Result<Vec<Placeholder>, CompletionError> {
    let each = pictures.iter().map(|picture| {
        let at = |message: String| CompletionError::Picture { at: picture.at.clone(), message };
        let refused = |error: vision::PictureError| at(format!("{}: {error}", picture.at));
        let (width, height) = vision::Picture::size(picture.file.bytes()).map_err(refused)?;
        let plan = Plan::new(config, width, height, picture.detail).map_err(refused)?;
        placeholder(&plan, tokenizer, picture).map_err(|missing| {
            at(format!(
                "the model's vocabulary has no token \"{missing}\", which its pictures need. \
                 Convert the model again"
            ))
        })
    });
    each.collect()
}

/// Texts before the first row and after the last belong to the texts beside them; between rows each
/// is one token.
///
/// # Errors
/// The text that is no token.
fn placeholder(
    plan: &Plan,
    tokenizer: &Tokenizer,
    picture: &Picture,
) -> Result<Placeholder, &'static str> {
    let is_grid = |piece: &Piece| matches!(piece, Piece::Grid { .. });
    let pieces = plan.pieces.as_slice();
    let first = pieces.iter().position(is_grid).unwrap_or(pieces.len());
    let end = pieces.iter().rposition(is_grid).map_or(pieces.len(), |last| last + 1);
    let text = |piece: &Piece| match piece {
        Piece::Token(text) => *text,
        Piece::Grid { .. } => "",
    };
    let mut rows = protocol::row_tokens(&picture.file, picture.detail);
    let mut tokens = Vec::new();
    // A vocabulary is scanned for each, and all rows have the same.
    let mut known: Vec<(&str, u32)> = Vec::new();
    for piece in &pieces[first..end] {
        match piece {
            Piece::Grid { .. } => tokens.extend(rows.by_ref().take(piece.tokens())),
            Piece::Token(text) => {
                let found = known.iter().find(|(known, _)| known == text).map(|(_, id)| *id);
                let id = found.or_else(|| tokenizer.find_token(text)).ok_or(*text)?;
                if found.is_none() {
                    known.push((text, id));
                }
                tokens.push(id);
            }
        }
    }
    Ok(Placeholder {
        name: picture.name.clone(),
        before: pieces[..first].iter().map(text).collect(),
        tokens,
        after: pieces[end..].iter().map(text).collect(),
    })
}
