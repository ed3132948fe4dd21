//! Commands on a machine without a node, for the node of `--url` or `SINEW_HOST`.

use std::process::{Command, Output};

use crate::common::{Node, SINEW, demo_model};

/// A command of a user who has no node.
fn laptop(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(SINEW);
    command.args(args).env("HOME", home.path()).env_remove("SINEW_DATA_DIR");
    command.envs(variables.iter().copied()).output().unwrap()
}

fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(all).unwrap()
}

#[test]
fn a_laptop_without_a_node_uses_the_cluster() {
    let node = Node::start("studio");
    let token = std::fs::read_to_string(node.dir.path().join("admin.token")).unwrap();
    let (at, owner) = ([("SINEW_HOST", node.api.as_str())], ("SINEW_API_KEY", token.as_str()));
    // Without a key, what only the owner may do is refused, with the remedy.
    let refused = laptop(&["serve", &demo_model()], &at);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(said(&refused).contains("Set SINEW_API_KEY here"), "{refused:?}");
    let served = laptop(&["serve", &demo_model(), "--ctx", "256"], &[at[0], owner]);
    assert!(said(&served).contains("sinew-demo is ready at http://127.0.0.1:"), "{served:?}");
    // What an API key may do, a program on the node's own machine may do without one.
    let ps = laptop(&["ps"], &at);
    assert!(said(&ps).contains("sinew-demo"), "{ps:?}");
    let run = laptop(&["--url", &node.api, "run", "sinew-demo", "Who are you?"], &[]);
    assert!(run.status.success() && !run.stdout.is_empty(), "{run:?}");
    std::fs::copy(demo_model(), node.dir.path().join("models/held.gguf")).unwrap();
    let key = node.run(&["keys", "create", "laptop"]);
    let launch = ["launch", "claude", "--model", "sinew-demo"];
    let launched = laptop(&launch, &[at[0], ("SINEW_API_KEY", key.trim())]);
    assert!(said(&launched).contains(key.trim()), "{launched:?}");
    let owner = [at[0], owner];
    let refused = laptop(&launch, &owner);
    assert!(said(&refused).contains("no key for a program"), "{refused:?}");
    for (args, what) in [
        (&["list"][..], "held"),
        (&["plan", "sinew-demo"], "studio"),
        (&["preset", "create", "terse", "--from", "sinew-demo"], "terse is sinew-demo"),
        (&["nodes"], "studio"),
        (&["stop", "sinew-demo"], "stopped sinew-demo"),
    ] {
        let output = laptop(args, &owner);
        assert!(output.status.success() && said(&output).contains(what), "{args:?}: {output:?}");
    }
}

#[test]
fn another_machines_node_is_never_taken_for_this_ones() {
    let node = Node::start("studio");
    let token = std::fs::read_to_string(node.dir.path().join("admin.token")).unwrap();
    let there = [("SINEW_HOST", node.api.as_str()), ("SINEW_API_KEY", token.as_str())];
    for args in [&["stop", "--node"][..], &["page"], &["leave"], &["join", "123"]] {
        let output = laptop(args, &there);
        assert!(!output.status.success(), "{args:?}: {output:?}");
    }
    let up = laptop(&["up", "--url", &node.api], &[]);
    assert!(said(&up).contains("this command is about this one"), "{up:?}");
    let nobody = laptop(&["run", "sinew-demo", "hi"], &[("SINEW_HOST", "127.0.0.1:1")]);
    assert!(said(&nobody).contains("the node at http://127.0.0.1:1 does not answer"), "{nobody:?}");
    let wrong = laptop(&["ps", "--url", "ftp://studio"], &[]);
    assert!(said(&wrong).contains("--url ftp://studio: expected a host such as"), "{wrong:?}");
    assert_eq!(node.json(&["nodes"])[0]["state"], "live");
}

/// `openssl req -x509` makes a certificate that says it is an authority, with a common name alone.
#[test]
fn a_node_s_own_certificate_is_trusted_by_whoever_names_its_file() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls");
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (own, key) = (file("authority.pem"), file("key.pem"));
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start_with("studio", dir, "127.0.0.1:0", |command| {
        command.args(["--tls-cert", &own, "--tls-key", &key]);
    });
    let secure = node.api.replace("http:", "https:");
    let port = secure.rsplit_once(':').unwrap().1;
    let ps = |host: &str, trusted: &str| {
        let url = format!("https://{host}:{port}");
        said(&laptop(&["nodes", "--url", &url], &[("SSL_CERT_FILE", trusted)]))
    };
    assert!(ps("localhost", &own).contains("studio"), "{}", ps("localhost", &own));
    // Its name counts, and whose certificate it is.
    assert!(!ps("127.0.0.1", &own).contains("studio"));
    let other = folder.join("../../../../serve/tests/it/tls/cert.pem");
    let other = other.to_str().unwrap();
    assert!(ps("localhost", other).contains("certificate"), "{}", ps("localhost", other));
    assert!(ps("localhost", &key).contains("SSL_CERT_FILE is"), "{}", ps("localhost", &key));
    assert!(node.run(&["status"]).contains(&secure));
    assert!(node.run(&["serve", &demo_model(), "--ctx", "256"]).contains(&secure));
}

/// A proxy of the environment leads to other machines.
#[test]
fn no_proxy_is_asked_for_this_machines_node() {
    let node = Node::start("studio");
    let token = std::fs::read_to_string(node.dir.path().join("admin.token")).unwrap();
    let there = [("SINEW_HOST", node.api.as_str()), ("SINEW_API_KEY", token.as_str())];
    for variable in ["http_proxy", "HTTPS_PROXY", "ALL_PROXY"] {
        let nobody = (variable, "http://127.0.0.1:1");
        let mut here = Command::new(SINEW);
        here.args(["nodes", "--data-dir"]).arg(node.dir.path()).envs([nobody]);
        for nodes in [here.output().unwrap(), laptop(&["nodes"], &[there[0], there[1], nobody])] {
            assert!(said(&nodes).contains("studio"), "{variable}: {nodes:?}");
        }
    }
}
