//! `sinew run --image` against a real node.

use crate::common::{Node, fixture};

#[test]
fn a_text_model_says_that_it_reads_text_only() {
    let node = Node::start("a");
    node.run(&["serve", &fixture("models/qwen3.gguf")]);
    let picture = fixture("vision/image-64x48.png");
    let why = node.refused(&["run", "qwen3", "--image", &picture, "What is this?"]);
    assert!(why.contains("qwen3 reads text only") && why.contains("mmproj"), "{why}");
    let named = format!("Describe {picture}, please.");
    let why = node.refused(&["run", "qwen3", &named]);
    assert!(why.contains("1 picture: image-64x48.png") && why.contains("text only"), "{why}");
    for (file, word) in [("models/qwen3.json", "no PNG, JPEG"), ("none.png", "none.png")] {
        let why = node.refused(&["run", "qwen3", "--image", &fixture(file), "What is this?"]);
        assert!(why.contains(word), "{why}");
    }
}
