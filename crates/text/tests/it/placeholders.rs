//! Pictures' places in prompts, with the tokens of transformers' processors.

use gguf::Directory;
use text::{ChatTemplate, Message, Placed, Placeholder, Prompt, Render, TextError, Tokenizer};

const SECRET: u64 = 0x1234_5678_9abc_def0;

fn tokenizer(name: &str) -> Tokenizer {
    let path = fixtures::path(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Tokenizer::from_gguf(&Directory::parse(&bytes, bytes.len() as u64).unwrap()).unwrap()
}

fn picture(number: usize, before: &str, tokens: Vec<u32>, after: &str) -> Placeholder {
    let name = Placeholder::name(SECRET, number);
    Placeholder { name, before: before.to_owned(), tokens, after: after.to_owned() }
}

/// The prompt of a template that writes the last message's text as it is.
fn prompt(
    tokenizer: &Tokenizer,
    text: &str,
    placeholders: &[Placeholder],
) -> Result<Prompt, TextError> {
    let template = "{{ messages[-1].content }}";
    rendered(template, tokenizer, &[Message::new("user", text)], placeholders)
}

fn rendered(
    template: &str,
    tokenizer: &Tokenizer,
    messages: &[Message],
    placeholders: &[Placeholder],
) -> Result<Prompt, TextError> {
    let template = ChatTemplate::new(template, "", "").unwrap();
    template.prompt(tokenizer, messages, &Render { placeholders, ..Render::default() })
}

/// `the river `, a picture, ` bends twice`: `prompts[0].ids` of the fixtures, and in Kimi's what its
/// processor writes besides.
#[test]
fn tokens_are_those_of_transformers() {
    let qwen: (&[u32], &[u32]) =
        (&[364, 276, 72, 85, 259, 220, 393], &[394, 265, 68, 77, 67, 82, 262, 329, 66, 68]);
    // In this vocabulary the names of the begin and the end are no control tokens.
    let gemma: (&[u32], &[u32]) = (
        &[2, 339, 333, 309, 302, 313, 337, 67, 131, 302, 305, 294, 300, 298, 69],
        &[67, 302, 305, 294, 300, 298, 131, 69, 315, 295, 380, 297, 310, 322, 314, 302, 296, 298],
    );
    let kimi: (&[u32], &[u32]) =
        (&[397, 364, 276, 72, 85, 259, 220, 394], &[395, 265, 68, 77, 67, 82, 262, 329, 66, 68]);
    let vision = ("<|vision_start|>", "<|vision_end|>");
    for (name, (begin, end), (before, after)) in [
        ("qwen3vl", vision, qwen),
        ("qwen35", vision, qwen),
        ("gemma4", ("<|image>", "<image|>"), gemma),
        ("kimi-k25", ("<|media_begin|>", "<|media_end|>"), kimi),
    ] {
        let tokenizer = tokenizer(&format!("sees/{name}-sees.gguf"));
        let rows: Vec<u32> = (1 << 24..).take(12).collect();
        let placeholders = [picture(0, begin, rows.clone(), end)];
        let text = format!("the river {} bends twice", placeholders[0].name);
        let found = prompt(&tokenizer, &text, &placeholders).unwrap();
        assert_eq!(found.tokens, [before, &rows, after].concat(), "{name}");
        assert_eq!(found.placed, [Placed { number: 0, at: before.len() }], "{name}");
        assert_eq!(found.text, "the river  bends twice", "{name}");
    }
}

/// The same text in the fixtures whose vocabulary is bytes.
#[test]
fn tokens_around_pictures_are_the_fixtures() {
    for (name, begin, end) in [
        ("gemma3", "\n\n<start_of_image>", "<end_of_image>\n\n"),
        ("gemma4-e", "<|image>", "<image|>"),
        ("glm4v", "<|begin_of_image|>", "<|end_of_image|>"),
        ("glm4moe", "<|begin_of_image|>", "<|end_of_image|>"),
        ("llama", "", "[IMG_END]"),
        ("llama4", "<|image_start|><|image|>", "<|image_end|>"),
        ("llama4-tiles", "<|image_start|>", "<|image_end|>"),
        ("mistral3", "", "[IMG_END]"),
    ] {
        let tokenizer = tokenizer(&format!("sees/{name}-sees.gguf"));
        let reference = fixtures::about(&format!("sees/{name}-sees"));
        let ids = reference["prompts"][0]["ids"].as_array().unwrap();
        let ids: Vec<u32> = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let row = reference["image_token"].as_u64().unwrap() as u32;
        let at = ids.iter().position(|id| *id == row).unwrap();
        let after = ids.iter().rposition(|id| *id == row).unwrap() + 1;
        let placeholders = [picture(0, begin, ids[at..after].to_vec(), end)];
        let text = format!("the river {} bends twice", placeholders[0].name);
        let found = prompt(&tokenizer, &text, &placeholders).unwrap();
        assert_eq!((found.tokens, found.placed), (ids, vec![Placed { number: 0, at }]), "{name}");
        if name == "mistral3" {
            // Rows of the picture are apart.
            let between = tokenizer.find_token("[IMG_BREAK]").unwrap();
            assert_eq!(placeholders[0].tokens.iter().filter(|id| **id == between).count(), 2);
        }
    }
}

#[test]
fn several_stand_where_the_messages_have_them() {
    let tokenizer = tokenizer("sees/qwen3vl-sees.gguf");
    let [a, b] = [0, 1].map(|number| picture(number, "<|vision_start|>", vec![7_000_000], "x"));
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}";
    let messages = [
        Message::new("user", format!(" {}{}b", b.name, a.name)),
        Message::new("assistant", "<|vision_start|>"),
    ];
    let found = rendered(template, &tokenizer, &messages, &[a.clone(), b.clone()]).unwrap();
    assert_eq!(found.placed.iter().map(|one| one.number).collect::<Vec<_>>(), [1, 0]);
    assert!(found.placed.iter().all(|one| found.tokens[one.at] == 7_000_000), "{found:?}");
    assert_eq!(found.tokens.iter().filter(|token| **token == 393).count(), 2);
    assert_eq!(found.text, "user: b\nassistant: <|vision_start|>\n");
    // A client's text that looks like a name, and is of another request.
    let other = Placeholder::name(SECRET + 1, 0);
    let found = prompt(&tokenizer, &format!("{}{other}", a.name), &[a]).unwrap();
    assert_eq!(found.placed.len(), 1);
}

#[test]
fn a_limit_ends_before_the_tokens_of_more_pictures() {
    let tokenizer = tokenizer("sees/qwen3vl-sees.gguf");
    let many: Vec<Placeholder> =
        (0..8).map(|number| picture(number, "", vec![7_000_000; 1000], "")).collect();
    let text: String = many.iter().map(|one| one.name.as_str()).collect();
    let template = ChatTemplate::new("{{ messages[-1].content }}", "", "").unwrap();
    let render = Render { placeholders: &many, ..Render::default() };
    let messages = [Message::new("user", text)];
    let found = template.prompt_some(&tokenizer, &messages, &render, 1500).unwrap();
    assert_eq!((found.tokens.len(), found.placed.len()), (2000, 2));
}

#[test]
fn what_a_template_drops_or_repeats_is_an_error() {
    let tokenizer = tokenizer("sees/qwen3vl-sees.gguf");
    let one = [picture(0, "", vec![7_000_000], "")];
    let messages = [Message::new("user", format!("a {} b", one[0].name))];
    for (template, wanted) in [
        ("{{ messages[0].role }}", 0),
        ("{{ messages[0].content }}{{ messages[0].content }}", 2),
        ("{{ messages[0].content[:6] }}", 0),
    ] {
        match rendered(template, &tokenizer, &messages, &one) {
            Err(TextError::Placeholder { number: 0, times }) => assert_eq!(times, wanted),
            other => panic!("{template}: {other:?}"),
        }
    }
    let error = TextError::Placeholder { number: 0, times: 2 }.to_string();
    assert!(error.contains("picture 1 of the request") && error.contains("2 times"), "{error}");
}

#[test]
fn an_answer_that_goes_on_keeps_its_pictures() {
    let tokenizer = tokenizer("sees/qwen3vl-sees.gguf");
    let one = [picture(0, "", vec![7_000_000], "")];
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let template = ChatTemplate::new(template, "", "").unwrap();
    let messages = [Message::new("user", one[0].name.clone()), Message::new("assistant", "It is")];
    let render = Render { placeholders: &one, continue_last: true, ..Render::default() };
    let found = template.prompt(&tokenizer, &messages, &render).unwrap();
    assert_eq!((found.text.as_str(), found.placed.len()), ("user: \nassistant: It is", 1));
}
