//! `sinew bench serve` against a real node.

use crate::common::{Node, demo_model, refused, stdout};
use serde_json::Value;

#[test]
fn a_node_is_measured_in_vllms_terms() {
    let node = Node::start("a");
    node.run(&["serve", &demo_model()]);
    let load = ["bench", "serve", "--url", &node.api, "--requests", "6", "--concurrency", "3"];
    let sizes = ["--input-tokens", "64", "--shared-prefix-tokens", "16", "--output-tokens", "8"];
    let goals = ["--goodput", "ttft:60000", "e2e:60000"];
    let text = stdout(&[&load[..], &sizes, &goals, &["--json"]].concat());
    let figures: Value = serde_json::from_str(&text).unwrap();
    let figure = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("{name}: {text}"));
    assert_eq!(figures["model_id"], "sinew-demo");
    assert_eq!((figure("completed"), figure("failed")), (6.0, 0.0), "{text}");
    let (input, output) = (figure("total_input_tokens"), figure("total_output_tokens"));
    assert!((340.0..430.0).contains(&input), "6 prompts of about 64 tokens: {input}");
    assert!((6.0..=48.0).contains(&output), "6 answers of at most 8 tokens: {output}");
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6 * b, "{a} {b}");
    close(figure("output_throughput") * figure("duration"), output);
    close(figure("total_token_throughput") * figure("duration"), input + output);
    close(figure("request_goodput"), figure("request_throughput"));
    for name in ["mean_ttft_ms", "median_tpot_ms", "p90_itl_ms", "p99_e2el_ms"] {
        assert!(figure(name) > 0.0, "{name}: {text}");
    }
    assert!(figure("p99_ttft_ms") <= figure("p99_e2el_ms"), "{text}");

    let table = stdout(&[&load[..], &sizes, &["--request-rate", "50"]].concat());
    for expected in ["Successful requests:                     6", "P99 TTFT (ms):", "req/s"] {
        assert!(table.contains(expected), "{table}");
    }
    let unknown = refused(&[&load[..], &["--model", "nobody"]].concat());
    assert!(unknown.contains("404") && unknown.contains("nobody"), "{unknown}");
}

#[test]
fn a_server_that_is_not_there_is_said_so() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let error = refused(&["bench", "serve", "--url", &url]);
    assert!(error.contains(&url) && error.contains("does not answer"), "{error}");
}
