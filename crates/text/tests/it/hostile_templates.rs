//! Hostile templates: always an error or a short text, never a crash.

use text::{ChatTemplate, Message, Render, TextError};

fn prompt(template: &str) -> Result<String, TextError> {
    let messages = [Message::new("user", "Hi"), Message::new("assistant", "Hello!")];
    let render = Render { add_generation_prompt: true, ..Render::default() };
    ChatTemplate::new(template, "<s>", "</s>")?.render(&messages, &render)
}

/// A template that would double its content eighty times.
fn doubling(step: &str) -> String {
    let start = "{% set ns = namespace(s='x', t='x') %}";
    format!("{start}{{% for i in range(80) %}}{step}{{% endfor %}}")
}

#[test]
fn hostile_templates_end_with_an_error() {
    let nested = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
    let cases = [
        (nested.to_owned(), "was stopped after"),
        ("{% for a in range(1000000000) %}{% endfor %}".to_owned(), "failed"),
        ("{{ range(1000000000)|list|length }}".to_owned(), "failed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned(), "nest deeper"),
        ("{{ 'x' * 1000000000 }}".to_owned(), "bytes of text"),
        (doubling("{% set ns.s = ns.s ~ ns.s %}"), "bytes of text"),
        (doubling("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"), "bytes of text"),
        (doubling("{% set ns.s = ns.s|replace('x', 'xx') %}"), "bytes of text"),
        (doubling("{% set ns.s = [ns.s, ns.s]|join %}"), "bytes of text"),
        (doubling("{% set ns.s = [ns.s, ns.s] %}") + "{{ ns.s }}", "was stopped"),
        (doubling("{% set ns.s = [ns.s, ns.s] %}") + "{{ ns.s|tojson }}", "was stopped"),
        (doubling("{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}")
            + "{{ ns.s == ns.t }}", "was stopped"),
        (doubling("{% set ns.s = ns.s|list + ns.s|list %}"), "was stopped"),
        ("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".to_owned(), "cannot be kept"),
        ("{% set ns = namespace(l=1) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"
            .to_owned(), "nest deeper"),
        ("{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('x') }}".to_owned(), "bytes of text"),
        ("{{ '\\n' * 1000000|indent(1000000) }}".to_owned(), "failed"),
        ("{{ ('\\n' * 10000000)|indent(1000000) }}".to_owned(), "bytes of text"),
        ("{{ '%s' * 9 % 1 }}".to_owned(), "too few values"),
        ("{{ '%' % 1 }}".to_owned(), "unknown %"),
        ("{{ '{' .format(1) }}".to_owned(), "single brace"),
        ("{{ (-9223372036854775807 - 1) // -1 }}".to_owned(), "64 bits"),
        ("{{ 9223372036854775807 + 1 }}".to_owned(), "64 bits"),
        ("{{ 'é'[0:1:0] }}".to_owned(), "step 0"),
        ("{{ strftime_now('%Y' * 100000000) }}".to_owned(), "bytes of text"),
        ("{{ messages.append(1) }}".to_owned(), "cannot be changed"),
        ("{% set l = [1] %}{% for a in range(99999) %}{% do l.extend(l) %}{% endfor %}".to_owned(),
            "was stopped"),
        ("{% set l = [1] %}{% for a in range(99999) %}{% do l.append(l) %}{% endfor %}".to_owned(),
            "nest deeper"),
        ("{{ ''.__class__.__mro__ }}".to_owned(), "failed"),
        ("{{ messages.__class__.__init__.__globals__ }}".to_owned(), "failed"),
        ("{% include '/etc/passwd' %}".to_owned(), "not valid Jinja"),
        ("{% import 'os' as os %}{{ os }}".to_owned(), "not valid Jinja"),
        ("{% extends '/etc/passwd' %}".to_owned(), "not valid Jinja"),
        ("{{ 1 // 0 }}".to_owned(), "failed"),
        ("{{ messages[0].content.no_such_method() }}".to_owned(), "failed"),
        ("{% if %}".to_owned(), "not valid Jinja"),
        ("{{ ".to_owned(), "not valid Jinja"),
        ("(".repeat(1 << 19), "bytes"),
        (format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000)), "not valid Jinja"),
        ("{{ raise_exception('no <b>way</b>') }}".to_owned(), "refuses these messages: no <b>way"),
        (
            "{% for a in range(99999) %}{{ messages[0].content * 9999 }}{% endfor %}".to_owned(),
            "bytes of text",
        ),
    ];
    for (template, expected) in cases {
        let shown: String = template.chars().take(60).collect();
        match prompt(&template) {
            Ok(text) => panic!("{shown} gave {} bytes", text.len()),
            Err(error) => {
                assert!(error.to_string().contains(expected), "{shown}: {error}");
            }
        }
    }
}

/// Templates of maximum length, nested as deep as the language allows.
#[test]
fn deep_templates_end_with_an_error() {
    // About as much as a tag may have in one sign or word each, and as much as a template.
    [8000, 16 << 10, (1 << 17) - 40].into_iter().for_each(deep_templates_end);
}

fn deep_templates_end(bytes: usize) {
    let filled = |start: &str, part: &str, end: &str| {
        start.to_owned() + &part.repeat((bytes - start.len() - end.len()) / part.len()) + end
    };
    let templates = [
        filled("{{ 1", "+1", " }}"),
        filled("{{ 1", "|d", " }}"),
        filled("{{ messages", ".x", " }}"),
        filled("{{ messages", "[0]", " }}"),
        filled("{{ f", "()", " }}"),
        filled("{{ ", "-", "1 }}"),
        filled("{{ ", "not ", "1 }}"),
        filled("{{ ", "(", "1 }}"),
        filled("{{ ", "[", "1 }}"),
        filled("{{ ", "1 if 0 else ", "1 }}"),
        filled("{{ 1", "**1", " }}"),
        filled("{{ 1", " is none", " }}"),
        filled("{{ 1", "<1", " }}"),
        filled("{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
        filled("", "{% if 1 %}", ""),
        filled("", "{% for x in 'x' %}", ""),
        filled("{% set ", "x,", "y = 1 %}"),
        filled("{% set ", "(", "y = 1 %}"),
    ];
    for template in templates {
        // Some of these are flat and may succeed; only the return counts.
        let result = prompt(&template);
        let shown = &template[..40];
        match result {
            Ok(text) => assert!(text.len() < 100, "{shown} gave {} bytes", text.len()),
            Err(TextError::TemplateSyntax { .. } | TextError::TemplateFailed { .. }) => {}
            Err(other) => panic!("{shown}: {other}"),
        }
    }
}

/// Repeated scans of a long text cost steps, in every operation.
#[test]
fn long_texts_are_not_looked_at_for_nothing() {
    let setup = "{% set s = '9' * 10000000 %}{% set l = range(90000)|list %}\
        {% set c = 'x' * 100000 ~ '9' %}{% set ns = namespace(l=[]) %}";
    let key = "k".repeat(100_000);
    let looks = [
        "{% if s|length %}{% endif %}",
        "{% if s|int %}{% endif %}",
        "{% if s|float(0) %}{% endif %}",
        "{% if s|abs %}{% endif %}",
        "{% if s|round %}{% endif %}",
        "{% if s is lower %}{% endif %}",
        "{% if s is startingwith(s) %}{% endif %}",
        "{% if s.startswith(l) %}{% endif %}",
        "{% if 'x'.startswith(l) %}{% endif %}",
        "{% if {s: 1}[s] %}{% endif %}",
        "{% if s.strip(c) %}{% endif %}",
        "{% set x = '' % l %}",
        "{% set ns.l = ns.l + ['KEY'] %}",
        "{% set ns.l = ns.l + [dict(KEY=1)] %}",
        "{{ '%1000000d' % 1 }}",
        "{{ '{:1000000}'.format(1) }}",
        "{{ 'x'.center(1000000) }}",
    ];
    for look in looks {
        let look = look.replace("KEY", &key);
        let template = format!("{setup}{{% for a in range(99999) %}}{look}{{% endfor %}}");
        let error = prompt(&template).expect_err(&look[..look.len().min(60)]);
        assert!(error.to_string().contains("was stopped"), "{error}");
    }
    for wide in ["{{ '{:99999999999}'.format(1) }}", "{{ '%99999999999d' % 1 }}"] {
        assert!(prompt(wide).is_err());
    }
    assert!(prompt("{{ '%.99999f' % 1 }}").is_err());
    assert!(prompt("{{ [1]|slice(99999999999)|list }}").is_err());
    assert!(prompt("{{ [1]|batch(99999999999, 0)|list }}").is_err());
}
