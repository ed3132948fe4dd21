//! Pictures in a prompt, and the tokens that stand for their rows.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use data_encoding::BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Token;

/// The most pictures of a request.
pub const PICTURES_MAX: usize = 64;
/// The most bytes of a request's picture files together.
pub const PICTURE_BYTES_MAX: usize = 24 << 20;

/// The first token that stands for a row of a picture: above every vocabulary.
const FIRST: Token = 1 << 24;

/// Whether a token stands for a row of a picture.
pub fn is_of_picture(token: Token) -> bool {
    token >= FIRST
}

/// How closely a picture is looked at, as in OpenAI's API. The `vision` crate says what each means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    Low,
    #[default]
    Auto,
    High,
}

/// A picture in a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    /// The index of its first row in the prompt. From there on the prompt has a token for each of
    /// its rows, and the vocabulary's tokens that stand between them.
    pub at: usize,
    #[serde(default)]
    pub detail: Detail,
    pub file: PictureFile,
}

/// The bytes of a PNG, JPEG, WebP or GIF file; Base64 in JSON. Clones share them.
#[derive(Clone)]
pub struct PictureFile(Arc<Held>);

struct Held {
    bytes: Vec<u8>,
    /// Dropped with the last clone.
    _guard: Option<Box<dyn Any + Send + Sync>>,
}

impl Picture {
    /// The tokens that stand for its rows, without end. They follow from the file and the detail,
    /// so two texts share cached pages only if they have the same pictures.
    pub fn row_tokens(&self) -> impl Iterator<Item = Token> {
        row_tokens(&self.file, self.detail)
    }
}

/// As [`Picture::row_tokens`].
pub fn row_tokens(file: &PictureFile, detail: Detail) -> impl Iterator<Item = Token> {
    const CONTEXT: &str = "sinew 2026-11 tokens of a picture's rows";
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(&[detail as u8]);
    hasher.update(file.bytes());
    let mut reader = hasher.finalize_xof();
    std::iter::repeat_with(move || {
        let mut word = [0; 4];
        reader.fill(&mut word);
        // The last number stands for no token at all.
        FIRST + u32::from_le_bytes(word) % (Token::MAX - FIRST)
    })
}

impl PictureFile {
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// A file that keeps `guard`, which may count its bytes, until the last clone is dropped.
    pub fn counted(bytes: Vec<u8>, guard: impl Any + Send + Sync) -> Self {
        Self(Arc::new(Held { bytes, _guard: Some(Box::new(guard)) }))
    }
}

impl PartialEq for PictureFile {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for PictureFile {}

impl From<&[u8]> for PictureFile {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl From<Vec<u8>> for PictureFile {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Held { bytes, _guard: None }))
    }
}

impl fmt::Debug for PictureFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PictureFile of {} bytes", self.bytes().len())
    }
}

impl Serialize for PictureFile {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(self.bytes()))
    }
}

impl<'de> Deserialize<'de> for PictureFile {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        BASE64.decode(text.as_bytes()).map(Self::from).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(file: &[u8], detail: Detail) -> Vec<Token> {
        row_tokens(&file.into(), detail).take(4096).collect()
    }

    #[test]
    fn the_tokens_follow_from_the_content_and_are_in_no_vocabulary() {
        let own = tokens(b"a picture", Detail::Auto);
        assert_eq!(own, tokens(b"a picture", Detail::Auto));
        for (file, detail) in [(&b"a picturf"[..], Detail::Auto), (b"a picture", Detail::Low)] {
            let other = tokens(file, detail);
            assert!(own.iter().zip(&other).all(|(own, other)| own != other));
        }
        assert!(own.iter().all(|token| is_of_picture(*token) && *token != Token::MAX));
        assert!(!is_of_picture(FIRST - 1));
    }

    #[test]
    fn a_picture_comes_back_as_it_went() {
        let picture =
            Picture { at: 7, detail: Detail::High, file: (0..=255).collect::<Vec<u8>>().into() };
        let json = serde_json::to_string(&picture).unwrap();
        assert!(json.contains("\"high\"") && json.contains("AAECAw"), "{json}");
        assert_eq!(serde_json::from_str::<Picture>(&json).unwrap(), picture);
        assert!(serde_json::from_str::<Picture>(r#"{"at":0,"file":"?"}"#).is_err());
    }
}
