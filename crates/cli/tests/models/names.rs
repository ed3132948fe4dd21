//! Which file a name means, and that it is found again by the same name.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::common::demo_model;
use super::{REPO, World, another_model};

const FILE: &str = "demo-Q4_K_M.gguf";

fn names(world: &World) -> Vec<String> {
    let list: Value = serde_json::from_str(&world.stdout(&["list", "--json"])).unwrap();
    let list = list.as_array().unwrap().iter();
    list.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
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
    // The drafter alone is not what its repository or its label means.
    for name in [REPO.to_owned(), format!("{REPO}:Q4_K_M"), format!("{REPO}:{FILE}")] {
        assert_eq!(fs::read(path(&name)).unwrap(), fs::read(demo_model()).unwrap(), "{name}");
    }
    assert_eq!(fs::read(path(&draft)).unwrap(), other);
    let refused = world.refused(&["pull", &format!("{REPO}:other-Q4_K_M.gguf")]);
    assert!(refused.contains(&format!("it has Q4_K_M, draft/{FILE}")), "{refused}");
    world.stdout(&["rm", &draft]);
    assert_eq!(names(&world), [format!("{REPO}:Q4_K_M")]);
}
