//! Searches the hub for repositories with GGUF files, the most downloaded first.

use std::io::Read;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::http::{Address, encode};
use crate::listing::is_page;
use crate::name::{repo_name, shown};
use crate::{Hub, HubError};

/// The most repositories of an answer.
const FOUND_MAX: usize = 100;
/// The longest search in characters.
const WORDS_CHARS_MAX: usize = 200;
/// The most time of a search, from the name's resolution to the last byte: a person waits for it.
const TIME_MAX: Duration = Duration::from_secs(10);
/// The longest answer: twenty repositories with their tags have a few dozen KiB.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// A repository that a search found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// `org/repo`.
    pub name: String,
    /// In the last 30 days.
    pub downloads: u64,
    pub likes: u64,
    /// Whether its files need an account that has accepted its terms.
    pub gated: bool,
    /// The day of the last change, `2026-11-27`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    id: Option<String>,
    model_id: Option<String>,
    downloads: Option<u64>,
    likes: Option<u64>,
    /// False, or how access is granted.
    #[serde(default)]
    gated: Value,
    last_modified: Option<String>,
}

impl Row {
    /// Leaves out what is no name of a repository.
    fn found(self) -> Option<Found> {
        let name = repo_name(&self.id.or(self.model_id)?)?;
        let is_day = |day: &&str| day.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        let changed = self.last_modified.as_deref().and_then(|time| time.get(..10));
        Some(Found {
            name,
            downloads: self.downloads.unwrap_or_default(),
            likes: self.likes.unwrap_or_default(),
            gated: !matches!(self.gated, Value::Null | Value::Bool(false)),
            changed: changed.filter(is_day).map(str::to_owned),
        })
    }
}

impl Hub {
    /// Searches by words, in ten seconds at most.
    ///
    /// # Errors
    /// The hub may not be asked, or does not answer in time.
    pub fn search(&self, words: &str) -> Result<Vec<Found>, HubError> {
        if let Some(why) = self.settings.offline {
            return Err(HubError::SearchOffline { why });
        }
        let words: String = words.trim().chars().take(WORDS_CHARS_MAX).collect();
        let endpoint = &self.settings.endpoint;
        let address = format!(
            "{endpoint}/api/models?search={}&filter=gguf&sort=downloads&limit={FOUND_MAX}",
            encode(&words)
        );
        let address = Address::parse(&address)
            .ok_or_else(|| HubError::Endpoint { endpoint: endpoint.clone() })?;
        let host = address.origin();
        let what = format!("the search for \"{}\"", shown(&words));
        let response = self.client.get_within(&address, TIME_MAX);
        let response = response.map_err(|why| HubError::Unreachable { host: host.clone(), why })?;
        match (response.status().as_u16(), self.client.token_origin()) {
            (200, _) if is_page(&response) => return Err(HubError::Page { host, what }),
            (200, _) => {}
            (401, Some(token)) => {
                return Err(HubError::BadToken { host, token: token.to_owned() });
            }
            (429, _) => return Err(HubError::TooMany { host, wait: String::new() }),
            (status, _) => return Err(HubError::Status { host, status, what }),
        }
        let mut text = Vec::new();
        let reader = response.into_body().into_reader().take(ANSWER_BYTES_MAX);
        { reader }.read_to_end(&mut text).map_err(|error| HubError::Unreachable {
            host: host.clone(),
            why: error.to_string(),
        })?;
        let rows: Vec<Value> = serde_json::from_slice(&text)
            .map_err(|error| HubError::Nonsense { host, what, why: error.to_string() })?;
        Ok(found_in(rows))
    }
}

/// What rows name; one that makes no sense is left out, and the others count.
fn found_in(rows: Vec<Value>) -> Vec<Found> {
    let rows = rows.into_iter().filter_map(|row| serde_json::from_value::<Row>(row).ok());
    rows.filter_map(Row::found).take(FOUND_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_makes_no_sense_hides_no_other() {
        let rows = serde_json::json!([
            {"id": "a/one", "downloads": null}, {"id": 7}, "text", null,
            {"id": "a/two", "downloads": "many"}, {"id": "a/three", "likes": 2, "gated": null},
        ]);
        let found = found_in(serde_json::from_value(rows).unwrap());
        let names: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["a/one", "a/three"]);
    }

    #[test]
    fn rows_of_the_hub() {
        let read = |text: &str| serde_json::from_str::<Row>(text).unwrap().found();
        let found = read(
            r#"{"id": "org/Repo-GGUF", "downloads": 7, "likes": 2, "gated": "auto", "tags": ["gguf"],
                "lastModified": "2026-11-27T08:00:00.000Z"}"#,
        )
        .unwrap();
        assert_eq!((found.name.as_str(), found.downloads, found.likes), ("org/Repo-GGUF", 7, 2));
        assert_eq!((found.gated, found.changed.as_deref()), (true, Some("2026-11-27")));
        let found = read(r#"{"modelId": "a/b", "gated": false, "lastModified": "\u001b[31mred-"}"#);
        let found = found.unwrap();
        assert_eq!((found.gated, found.changed), (false, None));
        for hostile in [r#"{}"#, r#"{"id": "../x"}"#, r#"{"id": "a/b\u001b[2J"}"#, r#"{"id": "x"}"#]
        {
            assert_eq!(read(hostile), None, "{hostile}");
        }
    }
}
