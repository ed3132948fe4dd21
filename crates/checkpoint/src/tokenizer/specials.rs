//! Tokens with a meaning: where a text begins and ends.

use gguf::Value;
use serde_json::Value as Json;

use super::pieces::Pieces;
use super::stored::Stored;
use crate::Error;
use crate::config::Config;
use crate::header::Header;

/// The tokens with a meaning, and whether texts get them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Specials {
    bos: Option<u64>,
    eos: Option<u64>,
    unknown: Option<u64>,
    padding: Option<u64>,
    /// Further tokens that end a reply.
    ends: Vec<u64>,
    add_bos: Option<bool>,
    add_eos: Option<bool>,
}

impl Specials {
    /// `own` is the tokenizer's configuration; `configs` are the model's, and its generation's.
    pub fn read(
        stored: &Stored,
        own: &Config,
        (config, generation): (&Config, &Config),
        pieces: &Pieces,
    ) -> Result<Self, Error> {
        let is_known = |id: &u64| *id < pieces.texts.len() as u64;
        let text = |name: &str| text_of(own.get(&format!("{name}_token")));
        let id = |name: &str| {
            let by_text = text(name).and_then(|text| stored.id(text));
            let by_id = config.get(&format!("{name}_token_id")).and_then(first_id);
            by_text.or(by_id).filter(is_known)
        };
        let (bos, eos) = (id("bos"), id("eos"));
        let all_ends = [generation, config].map(|it| it.get("eos_token_id").map(ids));
        let mut ends: Vec<u64> = all_ends.into_iter().flatten().flatten().collect();
        ends.retain(|end| is_known(end) && Some(*end) != eos);
        ends.dedup();
        let unknown = id("unk").or_else(|| stored.id(stored.model.unk_token.as_deref()?));
        let (add_bos, add_eos) = bounds(stored, bos, eos);
        Ok(Self {
            bos,
            eos,
            unknown: unknown.filter(is_known),
            padding: id("pad"),
            ends,
            add_bos: add_bos.or(own.find_bool("add_bos_token")?),
            add_eos: add_eos.or(own.find_bool("add_eos_token")?),
        })
    }

    /// Sets the metadata. A vocabulary of bytes has no usual beginning of texts.
    pub fn set(&self, header: &mut Header, is_of_bytes: bool) {
        let named = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("unknown", self.unknown),
            ("padding", self.padding),
            ("eot", self.ends.first().copied()),
            ("eom", self.ends.get(1).copied()),
        ];
        for (name, id) in named {
            if let Some(id) = id {
                let key = format!("tokenizer.ggml.{name}_token_id");
                header.set_whole(&key, Value::U32(id as u32));
            }
        }
        let add_bos = self.add_bos.or(is_of_bytes.then_some(false));
        for (name, flag) in [("bos", add_bos), ("eos", self.add_eos)] {
            if let Some(flag) = flag {
                header.set_whole(&format!("tokenizer.ggml.add_{name}_token"), Value::Bool(flag));
            }
        }
    }
}

/// A token's text, which may stand in an object of its own.
fn text_of(value: Option<&Json>) -> Option<&str> {
    let value = value?;
    value.as_str().or(value["content"].as_str())
}

fn ids(value: &Json) -> Vec<u64> {
    match value.as_array() {
        Some(all) => all.iter().filter_map(Json::as_u64).collect(),
        None => value.as_u64().into_iter().collect(),
    }
}

fn first_id(value: &Json) -> Option<u64> {
    ids(value).first().copied()
}

/// Whether the template of single texts puts a token before or after them; `None` if it does not
/// tell.
fn bounds(stored: &Stored, bos: Option<u64>, eos: Option<u64>) -> (Option<bool>, Option<bool>) {
    let steps = Stored::steps(&stored.post_processor, "processors");
    let template = steps.iter().find(|it| it["type"] == "TemplateProcessing");
    let Some(single) = template.and_then(|it| it["single"].as_array()) else {
        let is_bytes = steps.iter().any(|it| it["type"] == "ByteLevel");
        return (is_bytes.then_some(false), None);
    };
    let special = |step: Option<&Json>| {
        step.and_then(|step| step["SpecialToken"]["id"].as_str()).and_then(|text| stored.id(text))
    };
    let is_end =
        |step, id: Option<u64>| (single.len() > 1).then(|| id.is_some() && special(step) == id);
    (is_end(single.first(), bos), is_end(single.last(), eos))
}
