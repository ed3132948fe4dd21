//! Programs without a settings file that another program may write: they take variables, or what a
//! person types in their settings.

use serve::clients::{Program, Target};

pub fn programs(target: &Target) -> Vec<Program> {
    vec![cursor(target), cline(target), aider(target), goose(target)]
}

fn cursor(target: &Target) -> Program {
    let Target { base, model, .. } = target;
    by_hand(
        "cursor",
        "Cursor",
        format!(
            "Cursor's own servers call the model, so they must reach the node: {base} on this \
             machine is not enough. Give the node a public HTTPS address (a proxy or a tunnel in \
             front of it, with a key of sinew keys create). Then in Cursor Settings, Models: add \
             the model {model}, turn Override OpenAI Base URL on with https://YOUR-ADDRESS/v1, and \
             give the key as the OpenAI API Key."
        ),
    )
}

fn cline(target: &Target) -> Program {
    let Target { base, model, key, context_tokens } = target;
    by_hand(
        "cline",
        "Cline in VS Code",
        format!(
            "In Cline's settings (the gear) choose: API Provider OpenAI Compatible; Base URL \
             {base}/v1; API Key {key}; Model ID {model}; and in the model's configuration a \
             context window of {context_tokens}."
        ),
    )
}

fn aider(target: &Target) -> Program {
    let Target { base, model, key, .. } = target;
    let about = "The prefix openai/ says which dialect the model speaks.".to_owned();
    let model = shell(&format!("openai/{model}"));
    let run = format!("OPENAI_API_BASE={base}/v1 OPENAI_API_KEY={key} aider --model {model}");
    Program { run: Some(run), ..by_hand("aider", "Aider", about) }
}

fn goose(target: &Target) -> Program {
    let Target { base, model, key, .. } = target;
    let about = "Goose adds /v1/chat/completions to the host by itself.".to_owned();
    let run = format!(
        "GOOSE_PROVIDER=openai OPENAI_HOST={base} OPENAI_API_KEY={key} GOOSE_MODEL={} \
         goose session",
        shell(model)
    );
    Program { run: Some(run), ..by_hand("goose", "Goose", about) }
}

fn by_hand(id: &'static str, title: &'static str, about: String) -> Program {
    Program { id, title, about, file: None, change: None, run: None }
}

/// A model's name as a word of a shell.
fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_the_address_and_a_name_stays_one_word() {
        let base = "http://127.0.0.1:8750".to_owned();
        let (model, key) = ("it's $(mine)".to_owned(), "none".to_owned());
        let target = Target { base, model, context_tokens: 8192, key };
        for program in programs(&target) {
            let run = program.run.unwrap_or_default();
            assert!(format!("{run}{}", program.about).contains("127.0.0.1:8750"), "{}", program.id);
            assert!(run.is_empty() || run.contains(r"it'\''s $(mine)'"), "{run}");
        }
    }
}
