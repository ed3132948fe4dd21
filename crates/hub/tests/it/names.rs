//! The files of names, their paths, and checks before the download.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Mutex;

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

/// A file with a header of about `bytes` bytes, and the same amount of weights.
fn with_header(bytes: usize) -> Vec<u8> {
    let mut writer = gguf::Writer::new();
    writer.set("general.architecture", gguf::Value::String("odd".to_owned()));
    writer.set("general.description", gguf::Value::String("x".repeat(bytes)));
    writer.declare("t", &[bytes as u64], gguf::TensorType::F32);
    let mut file = Vec::new();
    let weights = vec![7; 4 * bytes];
    writer.write(&mut file, |_, _, _, out| out.write_all(&weights)).unwrap();
    file
}

#[test]
fn a_header_tells_before_the_weights_come_whether_a_model_can_be_run() {
    for (header, faults) in [
        (1_000, vec![]),
        (700_000, vec![]),
        (700_000, vec![Fault::Cut { after: 100_000, times: 3 }]),
        (700_000, vec![Fault::IgnoresRange]),
    ] {
        let bench = Bench::new();
        let file = with_header(header);
        bench.fake.add("org/H", "H-Q4_0.gguf", file.clone());
        let has_ranges = !faults.contains(&Fault::IgnoresRange);
        faults.into_iter().for_each(|fault| bench.fake.fail(fault));
        let (hub, watch) = (bench.hub(), |_: &Progress| ControlFlow::Continue(()));
        let plan = hub.plan(&Name::parse("org/H").unwrap(), None, &watch).unwrap();
        let refuse = |_: &gguf::Directory| Err("it is odd".to_owned());
        let refused = hub.check_header(&plan, bench.dir.path(), None, &refuse, &watch);
        assert_eq!(refused.is_err(), has_ranges, "{header}");
        if let Err(error) = refused {
            assert!(error.to_string().contains("it is odd"), "{error}");
            assert!(!bench.dir.path().join("org").exists(), "nothing of it is left");
            let sent = bench.fake.bytes_sent() as usize;
            assert!(sent < header + (1 << 20), "{sent} for a header of {header}");
        }
        let asked = Mutex::new(String::new());
        let agree = |header: &gguf::Directory| {
            *asked.lock().unwrap() = header.str("general.architecture").unwrap().to_owned();
            Ok(())
        };
        let before = bench.fake.bytes_sent();
        hub.check_header(&plan, bench.dir.path(), None, &agree, &watch).unwrap();
        let pulled = hub.fetch(&plan, bench.dir.path(), &watch).unwrap();
        assert_eq!(std::fs::read(&pulled.path).unwrap(), file);
        if has_ranges {
            assert_eq!(asked.into_inner().unwrap(), "odd");
            let sent = bench.fake.bytes_sent() - before;
            assert!(sent <= file.len() as u64 + 64_000, "each byte is sent once: {sent}");
        }
    }
}
