//! The file behind each name: the same name finds it again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::common::{SINEW, demo_model};
use super::{REPO, World, another_model, lines};

const FILE: &str = "demo-Q4_K_M.gguf";

/// The demo's bytes with the name of an unknown architecture.
fn odd_model() -> Vec<u8> {
    let mut bytes = fs::read(demo_model()).unwrap();
    let directory = gguf::Directory::parse(&bytes, bytes.len() as u64).unwrap();
    let architecture = directory.str("general.architecture").unwrap().to_owned();
    let at = bytes.windows(architecture.len()).position(|it| it == architecture.as_bytes());
    let at = at.unwrap();
    bytes[at] = b'X';
    bytes
}

fn names(world: &World) -> Vec<String> {
    let list: Value = serde_json::from_str(&world.stdout(&["list", "--json"])).unwrap();
    let list = list.as_array().unwrap().iter();
    list.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_a_name_fetched_the_same_name_serves() {
    let world = World::new();
    world.hub.tag(REPO, "v1");
    let bytes = fs::read(demo_model()).unwrap();
    world.hub.add("org/Dynamic", "d-UD-Q4_K_XL.gguf", bytes);
    let node = world.node("a");
    let address = format!("{}/{REPO}/resolve/main/{FILE}?download=true", world.hub.endpoint());
    for (name, served) in [
        (format!("{REPO}:{FILE}"), format!("{REPO}:{FILE}")),
        (format!("{REPO}:q4_k"), format!("{REPO}:q4_k")),
        (format!("{REPO}@v1"), format!("{REPO}@v1")),
        (format!("{REPO}@v1:{FILE}"), format!("{REPO}@v1:{FILE}")),
        (format!("hf.co/{REPO}:Q4_K_M"), format!("hf.co/{REPO}:Q4_K_M")),
        ("org/Dynamic:Q4_K_XL".to_owned(), "org/Dynamic:Q4_K_XL".to_owned()),
        (address, "demo-Q4_K_M".to_owned()),
    ] {
        let ready = node.run(&["serve", &name]);
        assert!(ready.contains(&served), "{name}: {ready}");
        assert!(node.chat(&served, "Hello", 2)["choices"][0].is_object(), "{name}");
        let sent = world.hub.bytes_sent();
        node.run(&["pull", &name]);
        let shown = node.json(&["show", &name]);
        assert!(shown["cannot_run"].is_null(), "{name}: {shown}");
        node.run(&["stop", &served]);
        node.run(&["serve", &name]);
        assert_eq!(world.hub.bytes_sent(), sent, "{name} is fetched once");
        node.run(&["stop", &served]);
        node.run(&["rm", &name]);
        assert_eq!(node.json(&["list"]), json!([]), "{name}");
    }
    // The same without a node.
    for name in [format!("{REPO}@v1:{FILE}"), format!("{REPO}:{FILE}")] {
        world.stdout(&["pull", &name]);
        let sent = world.hub.bytes_sent();
        world.stdout(&["run", &name, "Hello", "--max-tokens", "2"]);
        assert_eq!(world.hub.bytes_sent(), sent, "{name} is fetched once");
    }
}

#[test]
fn a_file_name_means_that_file() {
    let world = World::new();
    let other = world.home.path().join("other.gguf");
    another_model(&other);
    let other = fs::read(other).unwrap();
    world.hub.add(REPO, "draft/demo-Q4_K_M.gguf", other.clone());
    let draft = format!("{REPO}:draft/demo-Q4_K_M.gguf");
    let path = |name: &str| {
        let told = world.stdout(&["pull", name, "--json"]);
        let last: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
        PathBuf::from(last["path"].as_str().unwrap())
    };
    assert_eq!(fs::read(path(&draft)).unwrap(), other);
    assert_eq!(names(&world), [draft.as_str()]);
    // The drafter by itself is not the file behind its repository or its label.
    for name in [REPO.to_owned(), format!("{REPO}:Q4_K_M"), format!("{REPO}:{FILE}")] {
        assert_eq!(fs::read(path(&name)).unwrap(), fs::read(demo_model()).unwrap(), "{name}");
    }
    assert_eq!(fs::read(path(&draft)).unwrap(), other);
    let refused = world.refused(&["pull", &format!("{REPO}:other-Q4_K_M.gguf")]);
    assert!(refused.contains(&format!("it has Q4_K_M, draft/{FILE}")), "{refused}");
    world.stdout(&["rm", &draft]);
    assert_eq!(names(&world), [format!("{REPO}:Q4_K_M")]);
}

#[test]
fn a_model_that_cannot_be_run_is_refused_before_it_is_fetched() {
    let world = World::new();
    let odd = odd_model();
    world.hub.add("org/Odd", "odd-Q4_K_M.gguf", odd);
    let refused = world.refused(&["pull", "org/Odd"]);
    assert!(refused.contains("cannot be run by this version"), "{refused}");
    let sent = world.hub.bytes_sent();
    assert!(sent < world.size || world.size <= 1 << 20, "{sent} of {}", world.size);
    assert!(names(&world).is_empty() && !world.stdout(&["list"]).contains("not whole"));
    let node = world.node("a");
    let told = lines(&node, "/api/pull", &json!({ "model": "org/Odd" }));
    let error = told.last().unwrap()["error"].to_string();
    assert!(error.contains("cannot be run by this version"), "{error}");
}

#[test]
fn a_short_name_passes_by_what_only_ollama_runs() {
    let world = World::new();
    let models = world.home.path().join(".ollama/models");
    let digest = "a".repeat(64);
    let manifest = models.join("manifests/registry.ollama.ai/library/llama3.2/latest");
    fs::create_dir_all(manifest.parent().unwrap()).unwrap();
    fs::create_dir_all(models.join("blobs")).unwrap();
    fs::write(models.join(format!("blobs/sha256-{digest}")), odd_model()).unwrap();
    let layer = json!({
        "mediaType": "application/vnd.ollama.image.model",
        "digest": format!("sha256:{digest}"),
    });
    fs::write(manifest, json!({ "layers": [layer] }).to_string()).unwrap();
    let refused = world.refused(&["show", "llama3.2"]);
    assert!(refused.contains("Ollama's file of that name is passed by"), "{refused}");
    let demo = fs::read(demo_model()).unwrap();
    world.hub.add("bartowski/Llama-3.2-3B-Instruct-GGUF", "l-Q4_K_M.gguf", demo);
    let run = world.sinew(&["run", "llama3.2", "Hello", "--max-tokens", "2"]);
    let told = String::from_utf8(run.stderr).unwrap();
    assert!(run.status.success() && told.contains("is passed by"), "{told}");
    let node = world.node("a");
    node.run(&["serve", "llama3.2"]);
    assert!(node.chat("llama3.2", "Hello", 2)["choices"][0].is_object());
}

#[test]
fn a_damaged_file_is_fetched_again_when_asked() {
    let world = World::new();
    world.stdout(&["pull", REPO]);
    let node = world.node("a");
    node.run(&["pull", REPO]);
    let right = fs::read(demo_model()).unwrap();
    let place = |dir: &Path| dir.join("models").join(REPO).join(FILE);
    for damage in [right[..right.len() / 2].to_vec(), vec![0; right.len()]] {
        let (here, there) = (place(&world.data_dir()), place(node.dir.path()));
        for path in [&here, &there] {
            fs::write(path, &damage).unwrap();
        }
        world.stdout(&["pull", REPO]);
        node.run(&["pull", REPO]);
        for path in [here, there] {
            assert_eq!(fs::read(path).unwrap(), right, "{} bytes of it", damage.len());
        }
    }
}

#[test]
fn a_newer_version_is_fetched_when_it_is_asked_for() {
    let world = World::new();
    world.stdout(&["pull", REPO]);
    let node = world.node("a");
    node.run(&["pull", REPO]);
    let place = |dir: &Path| dir.join("models").join(REPO).join(FILE);
    let (here, there) = (place(&world.data_dir()), place(node.dir.path()));
    let newer = world.home.path().join("newer.gguf");
    another_model(&newer);
    let newer = fs::read(newer).unwrap();
    world.hub.add(REPO, FILE, newer.clone());
    for (asked, is_newer) in [(&["pull", REPO][..], false), (&["pull", "--update", REPO], true)] {
        world.stdout(asked);
        node.run(asked);
        for path in [&here, &there] {
            assert_eq!(fs::read(path).unwrap() == newer, is_newer, "{asked:?}");
        }
    }
    let before = fs::metadata(&there).unwrap().modified().unwrap();
    node.run(&["pull", "--update", REPO]);
    assert_eq!(fs::metadata(&there).unwrap().modified().unwrap(), before, "the same is kept");
}

#[test]
fn relative_folders_and_long_names() {
    let world = World::new();
    let long = format!("org/{}-GGUF", "long-".repeat(18));
    world.hub.add(&long, FILE, fs::read(demo_model()).unwrap());
    let relative = |args: &[&str]| {
        let mut command = Command::new(SINEW);
        command.args(args).args(["--data-dir", "here"]).stdin(Stdio::null());
        let output = world.isolate(&mut command).current_dir(world.home.path()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    };
    let name = format!("{long}:{FILE}");
    relative(&["run", &name, "Hello", "--max-tokens", "2"]);
    assert!(relative(&["list"]).contains("1 models"));
    assert!(relative(&["rm", &name]).contains("are free again"));
    let node = world.node("a");
    node.run(&["serve", &long, "--on-request"]);
    assert!(node.chat(&long, "Hello", 2)["choices"][0].is_object());
}

#[test]
fn incomplete_sets_are_listed_and_named() {
    let world = World::new();
    let folder = world.data_dir().join("models/org/Big");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("big-Q8_0-00002-of-00002.gguf"), "GGUF").unwrap();
    let listed = world.stdout(&["list"]);
    assert!(listed.contains("not whole: org/Big:Q8_0, 1 of 2 files are in "), "{listed}");
    assert!(listed.contains("missing: big-Q8_0-00001-of-00002.gguf"), "{listed}");
    let shown = world.refused(&["show", "org/Big"]);
    assert!(shown.contains("1 of 2 files"), "{shown}");
}
