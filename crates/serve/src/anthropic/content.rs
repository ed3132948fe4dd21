//! Message contents: a string, or blocks of text, pictures, tools and documents.

use protocol::Detail;
use serde::Deserialize;
use serde_json::Value;

use crate::foreign;
use crate::http::error::ApiError;
use crate::pictures::{Pictures, join, misplaced};

const BLOCKS_MAX: usize = 4096;
/// The part of an unknown type that a message shows.
const KIND_SHOWN: usize = 32;

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "content must be a string or a list of content blocks")]
pub(super) enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

/// A block; its type determines the required fields. `cache_control` and `citations` have no
/// effect: every prompt's prefix is cached, and answers contain no citations.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Block {
    #[serde(rename = "type")]
    pub kind: String,
    pub text: Option<String>,
    /// For `tool_use`.
    pub id: Option<String>,
    pub name: Option<String>,
    pub input: Option<Value>,
    /// For `tool_result`.
    pub tool_use_id: Option<String>,
    pub is_error: Option<bool>,
    /// For `tool_result` and `search_result`, and for parts of other servers.
    content: Option<Value>,
    pub thinking: Option<String>,
    /// An object for a document or an image, a string for a `search_result`.
    source: Option<Value>,
    title: Option<String>,
    context: Option<String>,
}

/// What stands for a file that a container of Anthropic's has.
const FILE: &str = "[a file that this model cannot read]";
/// What stands for a document in the result of a tool that is no text.
const DOCUMENT: &str = "[a document that this model cannot read]";

/// The beginning of a line that Claude Code puts before its instructions. It differs in each
/// session, so the prompt of a second session would share nothing with that of the first.
const BILLING: &str = "x-anthropic-billing-header:";

impl Content {
    /// A system prompt without the line for Anthropic's accounts.
    pub fn without_billing(self) -> Self {
        let without = |mut block: Block| {
            let text = block.text.as_deref().filter(|text| text.starts_with(BILLING));
            let Some(text) = text else { return Some(block) };
            let rest = text.split_once('\n').map(|(_, rest)| rest.trim_start_matches('\n'));
            block.text = Some(rest.filter(|rest| !rest.is_empty())?.to_owned());
            Some(block)
        };
        match self {
            Self::Text(text) => {
                let block = Block { kind: "text".into(), text: Some(text), ..Block::default() };
                Self::Blocks(without(block).into_iter().collect())
            }
            Self::Blocks(blocks) => Self::Blocks(blocks.into_iter().filter_map(without).collect()),
        }
    }

    /// The blocks, each with its path in the request. A string is one text block.
    ///
    /// # Errors
    /// 400: too many blocks.
    pub fn into_blocks(self, at: &str) -> Result<Vec<(String, Block)>, ApiError> {
        let blocks = match self {
            Self::Text(text) => {
                let block = Block { kind: "text".into(), text: Some(text), ..Block::default() };
                return Ok(vec![(at.to_owned(), block)]);
            }
            Self::Blocks(blocks) => blocks,
        };
        if blocks.len() > BLOCKS_MAX {
            let message = format!("{at} has {} blocks; {BLOCKS_MAX} are the most", blocks.len());
            return Err(ApiError::invalid_value(at, message));
        }
        let place = |(index, block)| (format!("{at}[{index}]"), block);
        Ok(blocks.into_iter().enumerate().map(place).collect())
    }

    /// The text of blocks without tools: a system prompt or a tool result. Without `pictures` there
    /// may be none.
    ///
    /// # Errors
    /// 400 naming the first block that cannot be read.
    pub fn into_text(
        self,
        at: &str,
        mut pictures: Option<&mut Pictures>,
    ) -> Result<String, ApiError> {
        self.joined(at, |at, block| block.into_text(at, pictures.as_deref_mut()))
    }

    /// The text of a tool's result. Nobody can take it back, so a sentence stands for a document
    /// that cannot be read.
    ///
    /// # Errors
    /// 400 naming the first block that cannot be read.
    pub fn into_result(self, at: &str, pictures: &mut Pictures) -> Result<String, ApiError> {
        self.joined(at, |at, block| match block.kind.as_str() {
            "document" if !block.is_text() => Ok(DOCUMENT.to_owned()),
            "text" | "image" | "document" | "search_result" | "tool_reference" => {
                block.into_text(at, Some(pictures))
            }
            _ => Ok(block.into_readable()),
        })
    }

    fn joined(
        self,
        at: &str,
        mut text: impl FnMut(&str, Block) -> Result<String, ApiError>,
    ) -> Result<String, ApiError> {
        let mut content: Option<String> = None;
        for (at, block) in self.into_blocks(at)? {
            let text = text(&at, block)?;
            match &mut content {
                Some(content) => join(content, &text),
                None => content = Some(text),
            }
        }
        Ok(content.unwrap_or_default())
    }
}

impl Block {
    /// The text of a block, or a picture's place in the text.
    ///
    /// # Errors
    /// 400 naming the block and why it cannot be read.
    pub fn into_text(
        mut self,
        at: &str,
        pictures: Option<&mut Pictures>,
    ) -> Result<String, ApiError> {
        match self.kind.as_str() {
            "text" => {
                let missing = || ApiError::invalid_value(at, format!("{at} has no text"));
                self.text.ok_or_else(missing)
            }
            "image" => self.into_picture(at, pictures.ok_or_else(|| misplaced(at))?),
            "document" => self.into_document(at, pictures),
            "search_result" => {
                let text = self.content(at)?.map(|text| text.into_text(at, None)).transpose()?;
                let source = self.source.as_ref().and_then(Value::as_str).unwrap_or_default();
                let title = self.title.unwrap_or_default();
                let text = text.unwrap_or_default();
                Ok(format!(
                    "<search_result source=\"{source}\" title=\"{title}\">\n{text}\n</search_result>"
                ))
            }
            // A tool found by a search; it is also listed in `tools`.
            "tool_reference" => Ok(format!("Tool: {}", self.name.unwrap_or_default())),
            "container_upload" => Ok(FILE.to_owned()),
            // A conversation that began on Anthropic's servers goes on here.
            kind if kind.ends_with("_tool_result") => Ok(self.into_readable()),
            kind => {
                let message = format!(
                    "{at} is of type {kind}; only text and pictures can be read. Send text, an \
                     image, or a document whose source is text"
                );
                Err(ApiError::unsupported(at, message))
            }
        }
    }

    /// The content of a result.
    ///
    /// # Errors
    /// 400: it is neither a string nor a list of blocks.
    pub fn content(&mut self, at: &str) -> Result<Option<Content>, ApiError> {
        let read = |content| {
            let param = format!("{at}.content");
            let odd = |error| ApiError::invalid_value(&param, format!("{param}: {error}"));
            Content::deserialize(content).map_err(odd)
        };
        self.content.take().filter(|content| !content.is_null()).map(read).transpose()
    }

    /// The texts of a part that only another server understands; may be empty.
    pub fn into_readable(self) -> String {
        let Self { kind, text, name, input, content, .. } = self;
        let fields = [
            ("type", Some(kind.into())),
            ("name", name.map(Value::from)),
            ("text", text.map(Value::from)),
            ("input", input),
            ("content", content),
        ];
        let given = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        foreign::readable(&given.collect())
    }

    /// Whether the source of a document is text.
    fn is_text(&self) -> bool {
        let kind = self.source.as_ref().and_then(|source| source.get("type")?.as_str());
        matches!(kind, Some("text" | "content"))
    }

    fn into_picture(self, at: &str, pictures: &mut Pictures) -> Result<String, ApiError> {
        let source = self.source.unwrap_or_default();
        let text = |key| source.get(key).and_then(Value::as_str);
        match (text("type"), text("data"), text("url")) {
            (Some("base64"), Some(data), _) => pictures.base64(at, data, Detail::Auto),
            (Some("url"), _, Some(address)) => pictures.address(at, address, Detail::Auto),
            (kind, ..) => {
                let kind: String = kind.unwrap_or("none").chars().take(KIND_SHOWN).collect();
                let message = format!(
                    "{at}.source is of type {kind:?} or incomplete. Send a source of type base64 \
                     with the bytes of the picture's file as data"
                );
                Err(ApiError::unsupported(at, message))
            }
        }
    }

    fn into_document(self, at: &str, pictures: Option<&mut Pictures>) -> Result<String, ApiError> {
        let source = self.source.unwrap_or_default();
        let text = match source.get("type").and_then(Value::as_str) {
            Some("text") => source.get("data").and_then(Value::as_str).map(str::to_owned),
            Some("content") => {
                let content = source.get("content").cloned().unwrap_or_default();
                let content = Content::deserialize(content).map_err(|error| {
                    ApiError::invalid_value(at, format!("{at}.source.content: {error}"))
                })?;
                Some(content.into_text(&format!("{at}.source.content"), pictures)?)
            }
            kind => {
                let kind = kind.unwrap_or("none");
                let message = format!(
                    "{at}.source is of type {kind}; PDF files, links and uploads cannot be read. \
                     Send the document's text as a source of type text"
                );
                return Err(ApiError::unsupported(at, message));
            }
        };
        let missing = || ApiError::invalid_value(at, format!("{at}.source has no data"));
        let text = text.ok_or_else(missing)?;
        let heads = [self.title, self.context].into_iter().flatten();
        Ok(heads.chain([text]).collect::<Vec<_>>().join("\n"))
    }
}
