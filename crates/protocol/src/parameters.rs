//! How a request travels between nodes of two versions: with the names of its parameters.
//!
//! A node ignores fields that it does not know, so an older one would drop a newer parameter and
//! answer another question. Therefore the sender lists the parameters that are set in
//! `must_know`, and the receiver keeps those names there that it has not read.
//! [`GenerateRequest::check`] refuses them. A node that passes a request on keeps the names too:
//! it has lost the values. Versions without the list send none and are sent one that they ignore.
//!
//! For `#[serde(with = "protocol::parameters")]`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{GenerateRequest, Sampling};

/// # Errors
/// The serialiser fails.
pub fn serialize<S: Serializer>(request: &GenerateRequest, to: S) -> Result<S::Ok, S::Error> {
    let mut sent = request.clone();
    sent.must_know.extend(request.parameters().into_iter().map(str::to_owned));
    sent.serialize(to)
}

/// # Errors
/// It is no request.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GenerateRequest, D::Error> {
    let mut request = GenerateRequest::deserialize(from)?;
    let read = request.parameters();
    request.must_know.retain(|name| !read.contains(&name.as_str()));
    Ok(request)
}

impl GenerateRequest {
    /// The names of the parameters that are set. Those that every version has are left out.
    fn parameters(&self) -> Vec<&'static str> {
        let default = Self::default();
        // Named one by one: a new field does not compile until it is listed.
        let Self {
            prompt: _,
            max_tokens: _,
            must_know: _,
            pictures,
            answered,
            sampling,
            min_tokens,
            end_tokens,
            logprobs,
            grammar,
            embedding,
            client,
            cache_salt,
            keep_alive,
        } = self;
        let mut set = sampling.parameters();
        let fields = [
            ("pictures", *pictures != default.pictures),
            ("answered", *answered != default.answered),
            ("min_tokens", *min_tokens != default.min_tokens),
            ("end_tokens", *end_tokens != default.end_tokens),
            ("logprobs", *logprobs != default.logprobs),
            ("grammar", *grammar != default.grammar),
            ("embedding", *embedding != default.embedding),
            ("client", *client != default.client),
            ("cache_salt", *cache_salt != default.cache_salt),
            ("keep_alive", *keep_alive != default.keep_alive),
        ];
        set.extend(fields.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name));
        set
    }
}

impl Sampling {
    fn parameters(&self) -> Vec<&'static str> {
        let default = Self::default();
        let Self {
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            logit_bias,
        } = self;
        let fields = [
            ("temperature", *temperature != default.temperature),
            ("top_k", *top_k != default.top_k),
            ("top_p", *top_p != default.top_p),
            ("min_p", *min_p != default.min_p),
            ("seed", *seed != default.seed),
            ("repetition_penalty", *repetition_penalty != default.repetition_penalty),
            ("frequency_penalty", *frequency_penalty != default.frequency_penalty),
            ("presence_penalty", *presence_penalty != default.presence_penalty),
            ("logit_bias", *logit_bias != default.logit_bias),
        ];
        fields.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Detail, Grammar, InvalidRequest, KeepAlive, Picture, Pooling};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sent(#[serde(with = "super")] GenerateRequest);

    fn full() -> GenerateRequest {
        let sampling = Sampling {
            temperature: 0.5,
            top_k: 1,
            top_p: 0.5,
            min_p: 0.25,
            seed: 1,
            repetition_penalty: 1.5,
            frequency_penalty: 0.5,
            presence_penalty: 0.5,
            logit_bias: vec![(1, 1.0)],
        };
        let picture = Picture { at: 1, detail: Detail::Low, file: b"picture"[..].into() };
        GenerateRequest {
            prompt: [1].into_iter().chain(picture.row_tokens().take(2)).collect(),
            pictures: vec![picture],
            answered: vec![3],
            sampling,
            max_tokens: 9,
            min_tokens: 1,
            end_tokens: vec![4],
            logprobs: Some(1),
            grammar: Some(Grammar::Regex("a".to_owned())),
            embedding: Some(Pooling::Last),
            client: 5,
            cache_salt: 6,
            keep_alive: Some(KeepAlive::FOR_GOOD),
            must_know: Vec::new(),
        }
    }

    fn over(request: &GenerateRequest, change: impl Fn(&mut serde_json::Value)) -> GenerateRequest {
        let mut sent = serde_json::to_value(Sent(request.clone())).unwrap();
        change(&mut sent);
        serde_json::from_value::<Sent>(sent).unwrap().0
    }

    #[test]
    fn a_request_arrives_as_it_was_sent_and_lists_what_is_set() {
        let default = GenerateRequest { prompt: vec![1], max_tokens: 1, ..Default::default() };
        for request in [full(), default.clone()] {
            assert_eq!(over(&request, |_| {}), request);
            assert_eq!(request.check(32, 100), Ok(()));
        }
        assert_eq!(default.parameters(), [""; 0]);
        let sent = serde_json::to_value(Sent(full())).unwrap();
        let fields = sent.as_object().unwrap().len() - ["prompt", "max_tokens", "must_know"].len();
        let sampling = sent["sampling"].as_object().unwrap().len() - 1;
        assert_eq!(sent["must_know"].as_array().unwrap().len(), fields + sampling);
    }

    #[test]
    fn a_parameter_that_the_owner_does_not_know_is_refused_by_its_name() {
        let newer = |sent: &mut serde_json::Value| {
            sent["sampling"]["mirostat"] = 2.into();
            sent["must_know"].as_array_mut().unwrap().push("mirostat".into());
        };
        let read = over(&full(), newer);
        let names = vec!["mirostat".to_owned()];
        assert_eq!(read.check(32, 100), Err(InvalidRequest::UnknownParameters { names }));
        let said = read.check(32, 100).unwrap_err().to_string();
        assert!(said.contains("does not know mirostat"), "{said}");
        // A node on the way that does not know it has dropped its value, and does not hide that.
        let relayed = over(&read, |_| {});
        assert_eq!(relayed.must_know, ["mirostat"]);
    }

    #[test]
    fn the_version_before_sends_no_list() {
        let older = |sent: &mut serde_json::Value| {
            sent.as_object_mut().unwrap().remove("must_know");
        };
        assert_eq!(over(&full(), older), full());
    }
}
