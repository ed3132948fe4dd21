//! Thoughts mean the same under every template: on, off, each effort, and thoughts sent back.

use serde_json::json;
use text::{ChatTemplate, Effort, Message, Render, Thinking, ToolCall, Unmet, Wish};

const TURNS: &str = "{%- for m in messages -%}[{{ m.role }}]{{ m.content }}\n{% endfor -%}";

fn template(rest: &str) -> ChatTemplate {
    ChatTemplate::new(&format!("{TURNS}{rest}"), "<s>", "</s>").unwrap()
}

/// What is set for a request, or why nothing can be.
fn settled(template: &ChatTemplate, wish: Option<Wish>, effort: Option<Effort>) -> String {
    match template.thinking(Thinking { wish, effort }) {
        Ok(settings) if settings.shown().is_empty() => "-".to_owned(),
        Ok(settings) => settings.shown().join(" "),
        Err(Unmet::NeverThinks | Unmet::AlwaysThinks) => "refused".to_owned(),
    }
}

/// On, off and adaptive, then the efforts from none to the highest.
fn row(template: &ChatTemplate) -> String {
    let wishes = [Wish::On, Wish::Off, Wish::Adaptive].map(Some);
    let wishes = wishes.map(|wish| settled(template, wish, None));
    let efforts = Effort::ALL.map(|effort| settled(template, None, Some(effort)));
    format!("{} | {}", wishes.join(", "), efforts.join(", "))
}

#[test]
fn a_switch_is_found_whatever_it_is_called() {
    let cases = [
        ("enable_thinking", "true", "false", "{% if enable_thinking %}<think>{% endif %}"),
        ("thinking", "true", "false", "{% if not thinking %}<think></think>{% endif %}"),
        ("skip_thinking", "false", "true", "{% if skip_thinking %}<think></think>{% endif %}"),
        (
            "thinking_mode",
            "enabled",
            "disabled",
            "{% if thinking_mode == 'disabled' %}<think></think>{% endif %}",
        ),
        (
            "thinking_mode",
            "thinking",
            "chat",
            "{% if thinking_mode == 'chat' %}</think>{% endif %}",
        ),
        (
            "reasoning_mode",
            "on",
            "off",
            "{% if reasoning_mode is defined and reasoning_mode not in ['on', 'off'] %}{{ raise_exception('no') }}{% endif %}\
             {{ reasoning_mode }}",
        ),
        (
            "reasoning",
            "true",
            "false",
            "{% if reasoning is not defined or reasoning %}<think>{% endif %}",
        ),
        ("thinking_budget", "-1", "0", "{% if thinking_budget == 0 %}<think></think>{% endif %}"),
        // Only beside tools, and only with a system message.
        ("thinking", "true", "false", "{% if tools and thinking %}<think>{% endif %}"),
        (
            "enable_thinking",
            "true",
            "false",
            "{% if messages[0].role == 'system' and enable_thinking %}<think>{% endif %}",
        ),
    ];
    for (name, on, off, rest) in cases {
        let template = template(rest);
        let found =
            [Wish::On, Wish::Off, Wish::Quiet].map(|wish| settled(&template, Some(wish), None));
        let off = format!("{name}={off}");
        assert_eq!(found, [format!("{name}={on}"), off.clone(), off], "{rest}");
    }
}

#[test]
fn words_of_a_system_message_are_a_switch() {
    let template = ChatTemplate::new(
        "{%- set ns = namespace(on=true) -%}\
         {%- for m in messages if '/no_think' in m.content -%}{% set ns.on = false %}{% endfor -%}\
         {%- for m in messages -%}[{{ m.role }}]{{ m.content.replace('/no_think', '').replace('/think', '').strip() }}\n\
         {% endfor -%}<think>{% if not ns.on %}</think>{% endif %}",
        "",
        "",
    )
    .unwrap();
    assert_eq!(row(&template).split(" | ").next(), Some("/think, /no_think, -"));
    let messages = [Message::new("system", "Be kind."), Message::new("user", "hi")];
    let thinking = template.thinking(Thinking { wish: Some(Wish::Off), effort: None }).unwrap();
    let prompt = template.render(&messages, &Render { thinking, ..Render::default() }).unwrap();
    assert_eq!(prompt, "[system]Be kind.\n[user]hi\n<think></think>");
}

#[test]
fn the_nearest_effort_that_a_template_takes_is_used() {
    let raising = |words: &str| {
        format!(
            "{{% if reasoning_effort is defined and reasoning_effort not in {words} %}}\
             {{{{ raise_exception('effort') }}}}{{% endif %}}<think>"
        )
    };
    let cases = [
        (
            raising("['low', 'medium', 'xhigh']"),
            ["low", "low", "medium", "xhigh", "xhigh", "xhigh"],
        ),
        (raising("['low', 'high']"), ["low", "low", "high", "high", "high", "high"]),
        (raising("['high', 'max']"), ["high", "high", "high", "high", "max", "max"]),
        // Any other word stands for the usual effort.
        (
            "{% if reasoning_effort == 'max' %}Much.{% endif %}<think>".to_owned(),
            ["high", "high", "high", "high", "max", "max"],
        ),
        (
            "{% if reasoning_effort == 'high' %}More.{% elif reasoning_effort == 'max' %}Much.\
             {% endif %}<think>"
                .to_owned(),
            ["medium", "medium", "medium", "high", "max", "max"],
        ),
        // The word is written as it is.
        (
            "Reasoning: {{ reasoning_effort or 'medium' }}<think>".to_owned(),
            ["low", "low", "medium", "high", "high", "high"],
        ),
    ];
    for (rest, wanted) in cases {
        let template = template(&rest);
        let found = Effort::ALL.map(|effort| settled(&template, None, Some(effort)));
        let wanted = wanted.map(|word| format!("reasoning_effort={word}"));
        assert_eq!(found[1..], wanted, "{rest}");
        assert_eq!(found[0], "refused", "{rest}");
    }
    let other = template("Strength: {{ reasoning_strength or 'high' }}<think>");
    assert_eq!(settled(&other, Some(Wish::On), Some(Effort::Max)), "reasoning_strength=high");
}

#[test]
fn an_effort_may_be_the_only_switch() {
    let hunyuan = template(
        "{% set effort = reasoning_effort or 'no_think' %}\
         {% if effort not in ['no_think', 'low', 'high'] %}{{ raise_exception(effort) }}{% endif %}\
         {{ effort }}<think>{% if effort == 'no_think' %}</think>{% endif %}",
    );
    let [low, high, none] =
        ["low", "high", "no_think"].map(|word| format!("reasoning_effort={word}"));
    let wanted =
        format!("{high}, {none}, - | {none}, {low}, {low}, {high}, {high}, {high}, {high}");
    assert_eq!(row(&hunyuan), wanted);
    // Two efforts leave no room for thoughts.
    let solar = template(
        "{% if reasoning_effort in ['low', 'minimal'] %}<think></think>{% else %}<think>{% endif %}",
    );
    assert_eq!(settled(&solar, Some(Wish::Off), None), "reasoning_effort=minimal");
    assert_eq!(settled(&solar, None, Some(Effort::Medium)), "reasoning_effort=high");
}

#[test]
fn what_a_template_cannot_do_is_refused() {
    let plain = template("[assistant]");
    assert_eq!(row(&plain), "refused, -, - | -, -, -, -, -, -, -");
    let always = template("<think>");
    assert_eq!(row(&always), "-, refused, - | refused, -, -, -, -, -, -");
    assert_eq!(settled(&always, Some(Wish::Quiet), None), "-");
    let never = template("<think></think>");
    assert_eq!(row(&never), "refused, -, - | -, -, -, -, -, -, -");
    let switched = template("<think>{% if not enable_thinking %}</think>{% endif %}");
    let (on, off) = ("enable_thinking=true", "enable_thinking=false");
    assert_eq!(
        row(&switched),
        format!("{on}, {off}, - | {off}, {on}, {on}, {on}, {on}, {on}, {on}")
    );
    let adaptive = template(
        "{% if thinking_mode == 'enabled' %}<think>{% elif thinking_mode == 'adaptive' %}?\
         {% elif thinking_mode == 'disabled' %}</think>{% endif %}",
    );
    assert_eq!(
        settled(&adaptive, Some(Wish::Adaptive), Some(Effort::High)),
        "thinking_mode=adaptive"
    );
    assert_eq!(settled(&adaptive, None, Some(Effort::High)), "thinking_mode=enabled");
}

#[test]
fn what_a_request_sets_itself_stays() {
    let template = template("<think>{% if not enable_thinking %}</think>{% endif %}{{ x }}");
    let thinking = template.thinking(Thinking { wish: Some(Wish::Off), effort: None }).unwrap();
    let extra = json!({"enable_thinking": true, "x": 1});
    let render = Render { thinking, extra: extra.as_object(), ..Render::default() };
    let prompt = template.render(&[Message::new("user", "hi")], &render).unwrap();
    assert_eq!(prompt, "[user]hi\n<think>1");
}

fn thoughtful(message: Message) -> Message {
    Message { reasoning: Some("a thought".to_owned()), ..message }
}

fn call() -> Message {
    let (id, name) = ("call00000".to_owned(), "look".to_owned());
    let call = ToolCall { id, name, arguments: json!({"at": 1}) };
    Message { tool_calls: vec![call], ..Message::new("assistant", "") }
}

/// Whether thoughts sent back reach the prompt: those of an earlier turn, those beside a call whose
/// result comes next.
fn shown(template: &ChatTemplate) -> String {
    let tools = [json!({"type": "function", "function": {"name": "look", "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}}}})];
    let (user, said) = (Message::new("user", "one"), Message::new("assistant", "two"));
    let again = Message::new("user", "three");
    let result = Message { tool_call_id: Some("call00000".into()), ..Message::new("tool", "four") };
    let on = Thinking { wish: Some(Wish::On), effort: None };
    let thinking = template.thinking(on).unwrap_or_default();
    let shows = |messages: &[Message], tools: &[serde_json::Value]| {
        let thinking = thinking.clone();
        let render = Render { add_generation_prompt: true, tools, thinking, ..Render::default() };
        match template.render(messages, &render) {
            Ok(prompt) => {
                if prompt.contains("a thought") {
                    "shown"
                } else {
                    "left out"
                }
            }
            Err(_) => "refused",
        }
    };
    let past = shows(&[user.clone(), thoughtful(said), again], &[]);
    format!("{past}, {}", shows(&[user, thoughtful(call()), result], &tools))
}

#[test]
fn thoughts_stand_where_a_template_reads_them() {
    let calls = "{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}";
    let turns = |said: &str| {
        let source = format!(
            "{{{{ tools }}}}{{% for m in messages %}}[{{{{ m.role }}}}]{said}{calls}\n{{% endfor %}}<think></think>"
        );
        ChatTemplate::new(&source, "", "").unwrap()
    };
    for field in ["reasoning_content", "reasoning", "thinking", "thought"] {
        let template = turns(&format!("{{{{ m.{field} }}}}{{{{ m.content }}}}"));
        assert_eq!(shown(&template), "shown, shown", "{field}");
    }
    // Parts of the content, as in Ministral's template.
    let parts = turns(
        "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}\
         {% if part.type == 'thinking' %}[THINK]{{ part.thinking }}[/THINK]\
         {% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}",
    );
    assert_eq!(shown(&parts), "shown, shown");
    let turn = [Message::new("user", "one"), thoughtful(Message::new("assistant", "two"))];
    let prompt = parts.render(&turn, &Render::default()).unwrap();
    assert!(prompt.contains("[assistant][THINK]a thought[/THINK]two"), "{prompt}");
    // Text of which earlier turns lose the thoughts.
    let text = turns(
        "{% set text = m.content %}{% if m.role == 'assistant' and messages | length - loop.index > 1 %}\
         {% set text = text.split('</think>')[-1] %}{% endif %}{{ text }}",
    );
    assert_eq!(shown(&text), "shown, shown");
    assert_eq!(shown(&turns("{{ m.content }}")), "left out, left out");
    // A template that refuses an assistant without thoughts.
    let strict = turns(
        "{% if m.role == 'assistant' and m.reasoning is not defined %}{{ raise_exception('think') }}\
         {% endif %}{{ m.reasoning }}{{ m.content }}",
    );
    let turn = [Message::new("user", "one"), Message::new("assistant", "two")];
    assert!(strict.render(&turn, &Render::default()).unwrap().contains("[assistant]two"));
}

/// What each published template is expected to do, a line each.
const EXPECTED: &str = include_str!("thinking.txt");

/// The table holds for the templates in the folder that `SINEW_TEMPLATES` names: those of llama.cpp.
#[test]
fn the_published_templates_do_what_is_expected() {
    let rows = EXPECTED.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let rows: Vec<(&str, &str)> = rows.map(|line| line.split_once(" | ").unwrap()).collect();
    assert!(rows.len() > 60, "{}", rows.len());
    let Some(folder) = std::env::var_os("SINEW_TEMPLATES") else { return };
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|one| one.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "jinja"));
    files.sort();
    assert!(!files.is_empty());
    let mut wrong = Vec::new();
    for path in files {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let found = format!("{} | {}", row(&template), shown(&template));
        let wanted = rows.iter().find(|(file, _)| *file == name).map(|(_, row)| *row);
        if wanted != Some(found.as_str()) {
            wrong.push(format!("{name} | {found}"));
        }
    }
    assert!(wrong.is_empty(), "these differ from the table:\n{}", wrong.join("\n"));
}
