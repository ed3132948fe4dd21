//! Which files names mean, where they lie, and what is known before they are fetched.

use super::{Bench, REPO, model};

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
