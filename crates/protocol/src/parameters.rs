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

use crate::GenerateRequest;

/// # Errors
/// The serialiser fails.
pub fn serialize<S: Serializer>(request: &GenerateRequest, to: S) -> Result<S::Ok, S::Error> {
    let mut sent = request.clone();
    sent.must_know.extend(request.parameters().into_iter().map(str::to_owned));
    sent.serialize(to)
}

/// # Errors
/// It is no request.
pub fn deserialize<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: From<GenerateRequest>,
{
    let mut request = GenerateRequest::deserialize(from)?;
    let read = request.parameters();
    request.must_know.retain(|name| !read.contains(&name.as_str()));
    Ok(request.into())
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
            embedding_options,
            client,
            cache_salt,
            keep_alive,
        } = self;
        let mut set = sampling.set_names();
        let fields = [
            ("pictures", *pictures != default.pictures),
            ("answered", *answered != default.answered),
            ("min_tokens", *min_tokens != default.min_tokens),
            ("end_tokens", *end_tokens != default.end_tokens),
            ("logprobs", *logprobs != default.logprobs),
            ("grammar", *grammar != default.grammar),
            ("embedding", *embedding != default.embedding),
            ("embedding_options", *embedding_options != default.embedding_options),
            ("client", *client != default.client),
            ("cache_salt", *cache_salt != default.cache_salt),
            ("keep_alive", *keep_alive != default.keep_alive),
        ];
        set.extend(fields.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Detail, DryBreakers, EmbeddingOptions, Grammar, InvalidRequest, KeepAlive, PARAMETERS,
        Picture, Pooling, Sampler, Sampling, SamplingChoice,
    };

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sent(#[serde(with = "super")] GenerateRequest);

    fn full() -> GenerateRequest {
        let mut choice = SamplingChoice::default();
        PARAMETERS.iter().for_each(|row| (row.choose)(&mut choice, row.fields.range.1));
        let sampling = Sampling {
            top_p: 0.5,
            typical_p: 0.5,
            repetition_penalty: 1.5,
            logit_bias: vec![(1, 1.0)],
            samplers: Some(vec![Sampler::TopK]),
            dry_breakers: DryBreakers { mask: vec![1], tails: vec![(vec![1], vec![2])] },
            mirostat_mu: Some(0.1),
            ..choice.over(&Sampling::default(), 1)
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
            embedding_options: EmbeddingOptions { raw: true, ..EmbeddingOptions::default() },
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
            sent["sampling"]["adaptive"] = 2.into();
            sent["must_know"].as_array_mut().unwrap().push("adaptive".into());
        };
        let read = over(&full(), newer);
        let names = vec!["adaptive".to_owned()];
        assert_eq!(read.check(32, 100), Err(InvalidRequest::UnknownParameters { names }));
        let said = read.check(32, 100).unwrap_err().to_string();
        assert!(said.contains("does not know adaptive"), "{said}");
        // A node on the way that does not know it has dropped its value, and does not hide that.
        let relayed = over(&read, |_| {});
        assert_eq!(relayed.must_know, ["adaptive"]);
    }

    #[test]
    fn the_version_before_sends_no_list() {
        let older = |sent: &mut serde_json::Value| {
            sent.as_object_mut().unwrap().remove("must_know");
        };
        assert_eq!(over(&full(), older), full());
    }
}
