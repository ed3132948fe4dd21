//! Which files names mean, where they lie, and what is known before they are fetched.

use std::ops::ControlFlow;

use fakehub::Fault;
use hub::{Hub, Name, Progress, Settings, Token};

use super::{Bench, REPO, SIZE, model};

#[test]
fn two_files_of_one_quantisation_are_two_models() {
    let bench = Bench::new();
    let (large, small) = (model(40_000, 5), model(9_000, 6));
    bench.fake.add("org/Two", "Q-27b-Q4_K_M.gguf", large.clone());
    bench.fake.add("org/Two", "Q-0.5b-Q4_K_M.gguf", small.clone());
    bench.fake.add("org/Two", "draft/Q-27b-Q4_K_M.gguf", model(8_000, 7));
    let pull = |name: &str| bench.pull_with(&bench.hub(), name).unwrap();
    let asked = pull("org/Two:Q-0.5b-Q4_K_M.gguf");
    assert_eq!(std::fs::read(&asked.path).unwrap(), small);
    assert_eq!(asked.name, "org/Two:Q-0.5b-Q4_K_M.gguf");
    for name in ["org/Two", "org/Two:Q4_K_M", "org/Two:q4_k", "org/Two:Q-27b-Q4_K_M.gguf"] {
        let pulled = pull(name);
        assert_eq!(std::fs::read(&pulled.path).unwrap(), large, "{name}");
        assert_eq!(pulled.name, "org/Two:Q4_K_M");
    }
    let draft = pull("org/Two:draft/Q-27b-Q4_K_M.gguf");
    assert!(draft.name.ends_with(":draft/Q-27b-Q4_K_M.gguf") && draft.bytes == 8_000);
}

#[test]
fn revisions_and_addresses_lie_where_their_names_say() {
    let bench = Bench::new();
    bench.fake.tag(REPO, "refs/pr/1");
    let pulled = bench.pull_with(&bench.hub(), "org/Model-GGUF@refs/pr/1").unwrap();
    assert_eq!(pulled.name, "org/Model-GGUF@refs/pr/1:Q4_K_M");
    assert!(pulled.path.ends_with("org/Model-GGUF@refs%2Fpr%2F1/Model-Q4_K_M.gguf"));
    bench.fake.add("org/A", "m%a b.gguf", model(5_000, 8));
    bench.fake.add("org/B", "m%a b.gguf", model(5_000, 9));
    let url = |repo: &str| {
        let endpoint = bench.fake.endpoint();
        format!("{endpoint}/{repo}/resolve/main/m%25a%20b.gguf?signed=1")
    };
    let (a, b) = (url("org/A"), url("org/B"));
    let (first, other) =
        (bench.pull_with(&bench.hub(), &a).unwrap(), bench.pull_with(&bench.hub(), &b).unwrap());
    assert_ne!(std::fs::read(&first.path).unwrap(), std::fs::read(&other.path).unwrap());
    let place = Name::parse(&a).unwrap().place().unwrap();
    assert_eq!(first.path, bench.dir.path().join(place));
    assert!(
        bench
            .fake
            .seen()
            .iter()
            .filter(|seen| seen.path.contains("resolve/main/m"))
            .all(|seen| seen.path.ends_with("?signed=1"))
    );
}

#[test]
fn what_is_doubted_is_compared_and_fetched_again() {
    let bench = Bench::new();
    bench.pull().unwrap();
    let (hub, watch) = (bench.hub(), |_: &Progress| ControlFlow::Continue(()));
    let mut plan = hub.plan(&Name::parse(REPO).unwrap(), None, &watch).unwrap();
    plan.is_doubted = true;
    hub.fetch(&plan, bench.dir.path(), &watch).unwrap();
    assert_eq!(bench.fake.bytes_sent(), SIZE as u64, "it is what it should be");
    std::fs::write(bench.path(), vec![0; SIZE]).unwrap();
    bench.check(&hub.fetch(&plan, bench.dir.path(), &watch).unwrap());
}

#[test]
fn a_refusal_is_gated_only_if_the_hub_says_so() {
    let bench = Bench::new();
    bench.fake.fail(Fault::Refuses);
    let token = Some(Token::new("hf_right", "HF_TOKEN").unwrap());
    for token in [None, token] {
        let hub = Hub::new(Settings { token, ..bench.settings() });
        let error = bench.pull_with(&hub, REPO).unwrap_err().to_string();
        assert!(error.contains("refuses") && error.contains("is disabled"), "{error}");
        assert!(!error.contains("accept its terms"), "{error}");
    }
}
