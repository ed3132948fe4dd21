//! Serves all dialects in front of a scripted model that always calls the right tool, for testing
//! agents that no small model can drive: `cargo run -p serve --example agent_double FILE WORD`.
//!
//! If the request offers a known tool, the model calls it to read FILE. Once WORD is in the prompt,
//! it answers with WORD.

#[path = "../tests/it/support/mod.rs"]
mod support;

use std::sync::Arc;

use protocol::FinishReason;
use serve::{ServeConfig, start};
use support::double::{Act, Double, fixture_with_template};
use support::server::ADMIN;

/// Prints the tools and each message with its role.
const TEMPLATE: &str = "{% for t in tools or [] %}[tool {{ t.function.name }}]{% endfor %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

/// Agents send prompts of 20,000 words and more, and this vocabulary is tiny.
const CONTEXT_TOKENS: usize = 1 << 20;

/// Tools that read files, by agent, with their arguments.
const READERS: [(&str, &str); 4] = [
    ("Read", r#"{"file_path": "FILE"}"#),
    ("read", r#"{"filePath": "FILE"}"#),
    ("exec_command", r#"{"cmd": "cat FILE"}"#),
    ("shell", r#"{"command": ["cat", "FILE"]}"#),
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(word)) = (args.next(), args.next()) else {
        return Err("what is needed: FILE WORD".into());
    };
    let double = Arc::new(Double::with_header(fixture_with_template(TEMPLATE), &[]));
    {
        let mut status = double.status.lock().expect("no panic holds it");
        status.instances[0].context_tokens = CONTEXT_TOKENS;
        let mut writer = double.writer.lock().expect("no panic holds it");
        *writer = Some(Box::new(move |prompt| answer(prompt, &file, &word)));
    }
    let config = ServeConfig::new(([127, 0, 0, 1], 0).into(), ADMIN);
    let running = start(double as Arc<dyn serve::Cluster>, config).await?;
    println!("http://{}", running.addr());
    std::future::pending::<()>().await;
    Ok(())
}

fn answer(prompt: &str, file: &str, word: &str) -> Vec<Act> {
    let result = prompt.rsplit_once("<tool>").map(|(_, result)| result);
    let reader = READERS.iter().find(|(name, _)| prompt.contains(&format!("[tool {name}]")));
    let text = match (result, reader) {
        (Some(result), _) if result.contains(word) => format!("The word is {word}."),
        (Some(_), _) => "The file does not have it.".to_owned(),
        (None, Some((name, arguments))) => {
            let arguments = arguments.replace("FILE", file);
            format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {arguments}}}</tool_call>")
        }
        (None, None) => "A file with a word".to_owned(),
    };
    // One text per answer. A run of an agent is short, so the leak is small.
    vec![Act::Say(text.leak()), Act::Done(FinishReason::Stop)]
}
