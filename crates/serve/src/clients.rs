//! Settings with which other programs use this cluster. The page and `sinew launch` share them.
//!
//! The settings are data: which file, what changes in it, which command to type. This module writes
//! nothing and does not know where a person's files are.

use serde_json::{Value, json};

/// The cluster, model and key that the settings point to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Scheme, host and port, without a path.
    pub base: String,
    /// The model to request.
    pub model: String,
    pub context_tokens: usize,
    /// The API key for clients on other machines; on this machine any value works.
    pub key: String,
}

/// A program and its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    pub id: &'static str,
    pub title: &'static str,
    pub about: String,
    /// Path below the home folder.
    pub file: Option<&'static str>,
    pub change: Option<Change>,
    /// The shell command to type.
    pub run: Option<String>,
}

/// The change to a file.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Merges these values into the file's JSON; other values stay.
    Merge(Value),
    /// Appends TOML tables to the file; it must have no others of these names.
    Append(String),
    /// Creates the whole file; an existing file is left to the person to edit.
    Create(String),
}

impl Change {
    /// The change as a person would write it.
    pub fn text(&self) -> String {
        match self {
            Self::Merge(value) => format!("{value:#}"),
            Self::Append(text) | Self::Create(text) => text.clone(),
        }
    }
}

/// The programs that `sinew launch` can configure, then plain requests.
pub fn programs(target: &Target) -> Vec<Program> {
    vec![
        claude(target),
        codex(target),
        opencode(target),
        open_webui(target),
        xcode(target),
        continue_dev(target),
        zed(target),
        curl(target),
        python(target),
        javascript(target),
    ]
}

fn claude(target: &Target) -> Program {
    let Target { base, model, key, .. } = target;
    let env = json!({
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        // Otherwise the prompt of each session begins with another line.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    });
    let words = env.as_object().into_iter().flatten();
    let words = words.map(|(name, value)| format!("{name}={}", quoted(value)));
    Program {
        id: "claude",
        title: "Claude Code",
        about: format!(
            "Its first prompt has 15,000 tokens and more: serve a model with a context of at least \
             32,768 tokens ({model} has {}).",
            target.context_tokens
        ),
        file: Some(".claude/settings.json"),
        change: Some(Change::Merge(json!({ "env": env }))),
        run: Some(format!("{} claude", words.collect::<Vec<_>>().join(" "))),
    }
}

fn codex(target: &Target) -> Program {
    let Target { base, model, .. } = target;
    let (model, url) = (quoted_text(model), quoted_text(&format!("{base}/v1")));
    let provider = format!(
        "[model_providers.sinew]\nname = \"Sinew\"\nbase_url = {url}\nwire_api = \"responses\"\n"
    );
    Program {
        id: "codex",
        title: "Codex",
        about: "It speaks OpenAI's responses. These lines add a provider and change nothing else."
            .to_owned(),
        file: Some(".codex/config.toml"),
        change: Some(Change::Append(provider)),
        run: Some(format!("codex -c model_provider=sinew -c model={}", shell(&model))),
    }
}

fn opencode(target: &Target) -> Program {
    let Target { base, model, key, context_tokens } = target;
    let limits = json!({ "context": context_tokens, "output": context_tokens / 2 });
    let models = json!({ model: { "name": model, "limit": limits } });
    Program {
        id: "opencode",
        title: "OpenCode",
        about: "It adds a provider called Sinew; choose its model with /models.".to_owned(),
        file: Some(".config/opencode/opencode.json"),
        change: Some(Change::Merge(json!({
            // OpenCode adds this field if it is missing, and changes made since are not undone.
            "$schema": "https://opencode.ai/config.json",
            "provider": { "sinew": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Sinew",
                "options": { "baseURL": format!("{base}/v1"), "apiKey": key },
                "models": models,
            }},
        }))),
        run: Some(format!("opencode --model {}", shell(&format!("sinew/{model}")))),
    }
}

fn open_webui(target: &Target) -> Program {
    let Target { base, key, .. } = target;
    Program {
        id: "open-webui",
        title: "Open WebUI",
        about: "It finds the models by itself. In a container, this machine is called \
                host.docker.internal, and the node needs sinew up --lan and a key."
            .to_owned(),
        file: None,
        change: None,
        run: Some(format!(
            "OPENAI_API_BASE_URL={base}/v1 OPENAI_API_KEY={key} ENABLE_OLLAMA_API=false \
             open-webui serve"
        )),
    }
}

fn xcode(target: &Target) -> Program {
    let port = target.base.rsplit(':').next().unwrap_or_default();
    Program {
        id: "xcode",
        title: "Xcode",
        about: format!(
            "In Settings, Intelligence, choose Add a Chat Provider. On this machine: Locally \
             Hosted, port {port} ({}). From another one (sinew up --lan): Internet Hosted, this \
             machine's address with port {port}, the key of sinew keys create, and Authorization \
             as its header.",
            target.base
        ),
        file: None,
        change: None,
        run: None,
    }
}

fn continue_dev(target: &Target) -> Program {
    let Target { base, model, key, context_tokens } = target;
    let (model, base, key) =
        (quoted_text(model), quoted_text(&format!("{base}/v1")), quoted_text(key));
    Program {
        id: "continue",
        title: "Continue",
        about: "If the file is there already, add the model to its list.".to_owned(),
        file: Some(".continue/config.yaml"),
        change: Some(Change::Create(format!(
            "name: Sinew\nversion: 0.0.1\nschema: v1\nmodels:\n  - name: Sinew\n    \
             provider: openai\n    model: {model}\n    apiBase: {base}\n    apiKey: {key}\n    \
             roles: [chat, edit, apply]\n    defaultCompletionOptions:\n      \
             contextLength: {context_tokens}\n"
        ))),
        run: None,
    }
}

fn zed(target: &Target) -> Program {
    let Target { base, model, context_tokens, .. } = target;
    let models = json!([{ "name": model, "display_name": model, "max_tokens": context_tokens }]);
    Program {
        id: "zed",
        title: "Zed",
        about: "Zed asks for the key in its panel's settings; on this machine any word does."
            .to_owned(),
        file: Some(".config/zed/settings.json"),
        change: Some(Change::Merge(json!({
            "language_models": { "openai_compatible": { "Sinew": {
                "api_url": format!("{base}/v1"), "available_models": models,
            }}},
        }))),
        run: None,
    }
}

/// Plain requests have no settings file.
fn plain(id: &'static str, title: &'static str, text: String) -> Program {
    let change = Some(Change::Create(text));
    Program { id, title, about: String::new(), file: None, change, run: None }
}

fn curl(target: &Target) -> Program {
    let Target { base, model, key, .. } = target;
    let body = json!({ "model": model, "messages": [{ "role": "user", "content": "Hello" }] });
    let text = format!(
        "curl {base}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n  \
         -H 'Authorization: Bearer {key}' \\\n  -d {}",
        shell(&body.to_string())
    );
    plain("curl", "curl", text)
}

fn python(target: &Target) -> Program {
    let Target { base, model, key, .. } = target;
    let (model, key) = (quoted_text(model), quoted_text(key));
    let text = format!(
        "from openai import OpenAI\n\nclient = OpenAI(base_url=\"{base}/v1\", api_key={key})\n\
         answer = client.chat.completions.create(\n    model={model},\n    \
         messages=[{{\"role\": \"user\", \"content\": \"Hello\"}}],\n)\n\
         print(answer.choices[0].message.content)"
    );
    plain("python", "Python", text)
}

fn javascript(target: &Target) -> Program {
    let Target { base, model, key, .. } = target;
    let (model, key) = (quoted_text(model), quoted_text(key));
    let text = format!(
        "import OpenAI from \"openai\";\n\nconst client = new OpenAI({{ baseURL: \"{base}/v1\", \
         apiKey: {key} }});\nconst answer = await client.chat.completions.create({{\n  \
         model: {model},\n  messages: [{{ role: \"user\", content: \"Hello\" }}],\n}});\n\
         console.log(answer.choices[0].message.content);"
    );
    plain("javascript", "JavaScript", text)
}

/// A quoted string in the common syntax of JSON, TOML, YAML, Python and JavaScript.
fn quoted_text(text: &str) -> String {
    Value::from(text).to_string()
}

/// A value as a shell word.
fn quoted(value: &Value) -> String {
    shell(value.as_str().unwrap_or_default())
}

/// A shell word, quoted only if necessary.
fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(model: &str) -> Target {
        let (base, key) = ("http://127.0.0.1:8750".to_owned(), "none".to_owned());
        Target { base, model: model.to_owned(), context_tokens: 8192, key }
    }

    #[test]
    fn every_program_is_told_the_address_and_no_two_are_one() {
        let programs = programs(&target("org/tiny-q4"));
        for (at, program) in programs.iter().enumerate() {
            assert!(programs[at + 1..].iter().all(|other| other.id != program.id));
            let text = program.change.as_ref().map(Change::text).unwrap_or_default();
            let run = program.run.clone().unwrap_or_default();
            let all = format!("{text}{run}{}", program.about);
            assert!(all.contains("127.0.0.1:8750"), "{}: {all}", program.id);
            assert!(program.file.is_none() || program.change.is_some(), "{}", program.id);
        }
    }

    #[test]
    fn a_models_name_stays_within_its_quotes() {
        let hostile = "a\"b'c$(d)";
        for program in programs(&target(hostile)) {
            let text = program.change.as_ref().map(Change::text).unwrap_or_default();
            assert!(!text.contains("\"a\"b"), "{}: {text}", program.id);
            let run = program.run.unwrap_or_default();
            assert!(!run.contains("b'c$"), "{}: {run}", program.id);
        }
        assert_eq!(shell("it's"), r"'it'\''s'");
        assert_eq!(shell("org/m:q4_0"), "org/m:q4_0");
        assert_eq!(shell(""), "''");
    }
}
