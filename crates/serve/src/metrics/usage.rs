//! Usage by API key, counted since the node began.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::cluster::{Encoded, Out};
use crate::http::keys::ApiKey;

/// The usage of all accepted API keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysUsage {
    /// When counting began.
    pub since_unix_secs: u64,
    /// By the name of the key.
    pub keys: BTreeMap<String, KeyUsage>,
}

/// The usage of one API key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyUsage {
    /// Requests that reached a model.
    pub requests: u64,
    pub prompt_tokens: u64,
    /// Tokens of prompts that were in the cache already.
    pub cached_tokens: u64,
    pub generated_tokens: u64,
}

/// Counts by the number of the key's holder. Only accepted keys have one, so clients cannot add
/// rows.
pub(crate) struct Usage {
    since: SystemTime,
    clients: Mutex<BTreeMap<u64, KeyUsage>>,
}

impl Default for Usage {
    fn default() -> Self {
        Self { since: SystemTime::now(), clients: Mutex::default() }
    }
}

impl Usage {
    /// Adds a request; 0 stands for clients without a key, which are not counted.
    pub fn add(&self, client: u64, request: KeyUsage) {
        if client == 0 {
            return;
        }
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = clients.entry(client).or_default();
        sum.requests += request.requests;
        sum.prompt_tokens += request.prompt_tokens;
        sum.cached_tokens += request.cached_tokens;
        sum.generated_tokens += request.generated_tokens;
    }

    /// The usage of each of these keys; counts of other keys are dropped.
    pub fn of(&self, keys: &[ApiKey]) -> KeysUsage {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client, _| keys.iter().any(|key| key.client_number() == *client));
        let row = |key: &ApiKey| {
            let usage = clients.get(&key.client_number()).copied().unwrap_or_default();
            (key.name.clone(), usage)
        };
        let since = self.since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        KeysUsage { since_unix_secs: since, keys: keys.iter().map(row).collect() }
    }
}

pub(super) fn encode(out: &mut Out, usage: &KeysUsage) -> Encoded {
    type Count = fn(&KeyUsage) -> u64;
    let counters: [(&str, &str, Count); 4] = [
        ("key_requests", "Requests with an API key that reached a model", |key| key.requests),
        ("key_prompt_tokens", "Tokens of an API key's prompts", |key| key.prompt_tokens),
        ("key_cached_tokens", "Of those, tokens that were in the cache already", |key| {
            key.cached_tokens
        }),
        ("key_generation_tokens", "Tokens that were generated for an API key", |key| {
            key.generated_tokens
        }),
    ];
    for (name, help, count) in counters {
        let rows = usage.keys.iter().map(|(key, usage)| (vec![("key", key.clone())], count(usage)));
        out.counter(name, help, rows)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_that_exist_are_shown() {
        let (laptop, phone) = (ApiKey::new("laptop", "a"), ApiKey::new("phone", "b"));
        let usage = Usage::default();
        let request =
            KeyUsage { requests: 1, prompt_tokens: 5, cached_tokens: 2, generated_tokens: 3 };
        for client in [0, laptop.client_number(), laptop.client_number(), phone.client_number()] {
            usage.add(client, request);
        }
        let found = usage.of(std::slice::from_ref(&laptop));
        let expected =
            KeyUsage { requests: 2, prompt_tokens: 10, cached_tokens: 4, generated_tokens: 6 };
        assert_eq!(found.keys, BTreeMap::from([("laptop".to_owned(), expected)]));
        // The phone's key was revoked meanwhile, so its counts are gone.
        assert_eq!(usage.of(&[phone]).keys["phone"], KeyUsage::default());
    }
}
