//! Chat templates: small ones of our own that use the Jinja features of the published families.

use serde_json::{Value, json};
use text::{ChatTemplate, Message, Render, TextError, Thinking, ToolCall, Wish};

/// 2026-11-20 19:00:00 UTC.
const NOW_UNIX_S: i64 = 1_795_201_200;

fn prompt(template: &str, messages: &[Message], render: &Render) -> Result<String, TextError> {
    ChatTemplate::new(template, "<s>", "</s>")?.render(messages, render)
}

fn ask() -> Render<'static> {
    Render { add_generation_prompt: true, now_unix_s: NOW_UNIX_S, ..Render::default() }
}

fn weather_tool() -> Value {
    json!({
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather's state & more",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    })
}

fn weather_call() -> Message {
    let arguments = json!({"city": "Köln", "days": 2});
    let call = ToolCall { id: "call_1".into(), name: "weather".into(), arguments };
    Message { tool_calls: vec![call], ..Message::new("assistant", "") }
}

fn conversation() -> Vec<Message> {
    vec![
        Message::new("system", " Be brief. "),
        Message::new("user", "Hi"),
        Message::new("assistant", "Hello!"),
        Message::new("user", "How are you?"),
    ]
}

/// The features of Llama 3.x: block trimming, `strftime_now`, `tojson(indent=4)`, a system message
/// taken from a slice of the messages.
#[test]
fn llama3_with_tools_and_date() {
    let template = r#"{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;
    let mut messages = conversation();
    messages.push(weather_call());
    let answer = Message { tool_call_id: Some("call_1".into()), ..Message::new("tool", "rain") };
    messages.push(answer);
    let tools = [weather_tool()];
    let found = prompt(template, &messages, &Render { tools: &tools, ..ask() }).unwrap();
    let expected = "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 20 Nov 2026\n\n\
        {\n    \"type\": \"function\",\n    \"function\": {\n        \"name\": \"weather\",\n        \
        \"description\": \"The weather's state & more\",\n        \"parameters\": {\n            \
        \"type\": \"object\",\n            \"properties\": {\n                \"city\": {\n                    \
        \"type\": \"string\"\n                }\n            }\n        }\n    }\n}\n\nBe brief.<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nHow are you?<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"weather\", \"parameters\": \
        {\"city\": \"Köln\", \"days\": 2}}<|eot_id|>\
        <|start_header_id|>ipython<|end_header_id|>\n\n\"rain\"<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\n";
    assert_eq!(found, expected);
}

/// The features of Qwen 3: a namespace, messages walked backwards, Python's string methods,
/// reasoning kept for the last turn only, `enable_thinking`.
#[test]
fn qwen3_with_thinking() {
    let template = r#"{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- set content = message.content %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"#;
    let messages = [
        Message::new("user", "1"),
        Message::new("assistant", "<think>\nold\n</think>\n\nA"),
        Message::new("user", "2"),
        Message { reasoning: Some("new".into()), ..weather_call() },
    ];
    let found = prompt(template, &messages, &Render::default()).unwrap();
    let expected = "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n\
        <|im_start|>user\n2<|im_end|>\n<|im_start|>assistant\n<think>\nnew\n</think>\n\n<tool_call>\n\
        {\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\", \"days\": 2}}\n</tool_call><|im_end|>\n";
    assert_eq!(found, expected);

    let qwen = ChatTemplate::new(template, "<s>", "</s>").unwrap();
    for (wish, end) in [
        (None, "<|im_start|>assistant\n"),
        (Some(Wish::On), "<|im_start|>assistant\n"),
        (Some(Wish::Off), "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    ] {
        let thinking = qwen.thinking(Thinking { wish, effort: None }).unwrap();
        let render = Render { thinking, ..ask() };
        assert!(qwen.render(&messages[..1], &render).unwrap().ends_with(end));
    }
}

/// The features of Mistral and Gemma: roles must alternate, no system role, `loop.index0 % 2`.
#[test]
fn alternating_roles() {
    let template = r"{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}
";
    let messages = conversation();
    let found = prompt(template, &messages[1..], &ask()).unwrap();
    let expected = "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n\
        <start_of_turn>user\nHow are you?<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(found, expected);

    // Refused messages appear in the nearest form: the system text before the user's, and an empty
    // user turn before the assistant's.
    let rest = expected.strip_prefix("<s><start_of_turn>user\nHi").unwrap();
    let found = prompt(template, &messages, &ask()).unwrap();
    assert_eq!(found, format!("<s><start_of_turn>user\nBe brief. \n\nHi{rest}"));
    let found = prompt(template, &messages[2..], &ask()).unwrap();
    assert_eq!(found, format!("<s><start_of_turn>user\n{rest}"));
}

/// The features of DeepSeek: a namespace with strings, arguments appended as text.
#[test]
fn arguments_as_text() {
    let template = r"{% set ns = namespace(is_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- for tool in message['tool_calls'] %}{{ '<call>' + tool['type'] + '|' + tool['function']['name'] + '
```json
' + tool['function']['arguments'] + '
```' + '</call>' }}{%- endfor %}{%- endif %}{%- endfor %}";
    let messages = [Message::new("system", "S"), weather_call()];
    let expected =
        "<s>S<call>function|weather\n```json\n{\"city\":\"Köln\",\"days\":2}\n```</call>";
    assert_eq!(prompt(template, &messages, &ask()).unwrap(), expected);
}

/// The features of gpt-oss: macros that call each other, recursion over a schema, set blocks,
/// keyword arguments, `dictsort`, loops over `items`, extra variables.
#[test]
fn macros_and_schemas() {
    let template = r#"
{%- macro type_of(spec, depth=0) -%}
    {%- if spec.type == "array" -%}
        {{- type_of(spec["items"], depth=depth+1) }}[]
    {%- elif spec.type == "object" -%}
        {{- "{" }}{%- for key, value in spec.properties.items() -%}
            {{- key }}: {{ type_of(value) }}{% if not loop.last %}, {% endif -%}
        {%- endfor -%}{{- "}" }}
    {%- elif spec.enum is defined -%}
        {{- '"' + spec.enum|join('" | "') + '"' -}}
    {%- else -%}
        {{- spec.type -}}
    {%- endif -%}
{%- endmacro -%}
{%- set effort = reasoning_effort|default("medium") -%}
{%- set date %}{{ strftime_now("%Y-%m-%d") }}{% endset -%}
Date: {{ date }}, effort: {{ effort }}
{% for tool in tools -%}
    {%- set f = tool.function -%}
    type {{ f.name }} = (_: {{ type_of(f.parameters) }}) => any;
{% endfor -%}
{%- for key, value in extra|dictsort %}{{ key }}={{ value }};{% endfor -%}
"#;
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {
        "type": "object",
        "properties": {
            "zeta": {"type": "array", "items": {"type": "string"}},
            "alpha": {"enum": ["x", "y"]},
        },
    }}});
    let extra = json!({"reasoning_effort": "high", "extra": {"b": true, "a": 1}});
    let tools = [tool];
    let render = Render { tools: &tools, extra: extra.as_object(), ..ask() };
    let expected = "Date: 2026-11-20, effort: high\n\
        type f = (_: {zeta: string[], alpha: \"x\" | \"y\"}) => any;\na=1;b=True;";
    assert_eq!(prompt(template, &[], &render).unwrap(), expected);
}

/// Features of Jinja and Python in published templates, one each.
#[test]
fn features() {
    let cases = [
        ("{{ messages|map(attribute='role')|join(',') }}", "system,user,assistant,user"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "2"),
        ("{{ (messages|last).content }}", "How are you?"),
        ("{{ messages[-1]['content'][:3] }}", "How"),
        ("{{ messages[1].content.upper() }} {{ 'ab'.title() }}", "HI Ab"),
        ("{{ 'a,b'.split(',')|join('+') }} {{ ' x '.strip() }}", "a+b x"),
        ("{{ 'x' if messages[9] is defined else 'y' }}", "y"),
        ("{{ messages[0].get('name', 'nobody') }}", "nobody"),
        ("{{ 'system' in messages[0].values() }}", "True"),
        ("{{ none }} {{ true }} {{ 1.0 }} {{ 7 // 2 }} {{ 2 ** 3 }}", "None True 1.0 3 8"),
        ("{{ ['a', 1, none, true, {'k': \"it's\"}] }}", "['a', 1, None, True, {'k': \"it's\"}]"),
        ("{{ '%s=%d' % ('a', 3) }}", "a=3"),
        (
            "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 'abcdef'[-2:] }} {{ 'abc'[::-1] }}",
            "-4 2 3.5 ef cba",
        ),
        (
            "{{ [1, 2] + [3] }} {{ 'a,b'.split(',', 1)[-1] }} {{ 'x'.join(['1', '2']) }}",
            "[1, 2, 3] b 1x2",
        ),
        (
            "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.first and loop.last }}{% endfor %}",
            "a1True",
        ),
        // Integers are separate keys.
        (
            "{% set m = {512: 1, 0: 2, 'a': 3} %}{{ m[512] }}{{ m[0] }}{{ m['512'] }}{{ m.a }}",
            "123",
        ),
        ("{{ {9: 1, 10: 2}|dictsort }} {{ 9 in {9: 1} }}", "[[9, 1], [10, 2]] True"),
        ("{% for k in {512: 1} %}{{ k + 1 }}{% endfor %}{{ {1: 2}.get(1) }}", "5132"),
        ("{{ {1: 'a'}|tojson }} {{ {1: 'a'} }}", "{\"1\": \"a\"} {1: 'a'}"),
        // Arguments of filters are honoured.
        ("{{ {'b': 1, 'A': 2}|dictsort(by='value', reverse=true) }}", "[['A', 2], ['b', 1]]"),
        ("{{ ['b', 'A', 'a']|sort(case_sensitive=true)|join }}", "Aab"),
        (
            "{{ [{'a': 2}, {'a': 1}]|sum(attribute='a') }} {{ 'x'|int(7) }} {{ 'ff'|int(0, 16) }}",
            "3 7 255",
        ),
        (
            "{{ 1.25|round(1, 'ceil') }} {{ 'x'|float(0.5) }} {{ ['a', 'A']|unique|join }}",
            "1.3 0.5 a",
        ),
        // Floats in Python's notation.
        (
            "{{ 1e16 }} {{ 0.00001 }} {{ 1.5e300 }} {{ 100000.0 }} {{ 1e22|tojson }}",
            "1e+16 1e-05 1.5e+300 100000.0 1e+22",
        ),
        // Macros see the scope of their definition.
        ("{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "12"),
        (
            "{% macro a(x) %}{% macro b() %}{{ x }}{% endmacro %}{{ b() }}{% endmacro %}{{ a(3) }}",
            "3",
        ),
        (
            "{% for i in [3] %}{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(i) }}{% endfor %}",
            "3210",
        ),
        ("{% set y = 1 %}{% macro m() %}{{ y }}{% endmacro %}{% set y = 2 %}{{ m() }}", "2"),
        ("{% for x in [] %}{% else %}none{% endfor %}{{ x is defined }}", "noneFalse"),
        ("{% set x = 1 %}{% for i in [1, 2] %}{% set x = i %}{% endfor %}{{ x }}", "1"),
        (
            "{% with a = 1 %}{{ a }}{% endwith %}{% filter upper %}b{% endfilter %}{{ a is defined }}",
            "1BFalse",
        ),
        ("{{ [{'a': {'b': 2}}, {'a': {'b': 1}}]|map(attribute='a.b')|sort|join }}", "12"),
        (
            "{{ messages|rejectattr('role', 'in', ['user', 'system'])|map(attribute='content')|first }}",
            "Hello!",
        ),
        (
            "{{ ['B', 'a', 'B']|unique|sort|list }} {{ [1, 2]|sum }} {{ '3'|int + 1 }}",
            "['a', 'B'] 3 4",
        ),
        ("{{ none|default('x', true) }}{{ undefined_thing|default('y') }}{{ 0 or 'z' }}", "xyz"),
        (
            "{{ 1 < 2 < 3 }} {{ 'b' > 'a' }} {{ 'x' not in 'abc' }} {{ 1 == 1.0 }} {{ '1' == 1 }}",
            "True True True True False",
        ),
        (
            "{{ loop is defined }}{% for m in messages %}{{ loop.previtem.role if loop.previtem }}{% endfor %}",
            "Falsesystemuserassistant",
        ),
        ("{{ 'a' ~ 1 ~ true ~ none }}", "a1TrueNone"),
        ("{{ {'b': 1, 'a': [1, 2]}|tojson }}", "{\"b\": 1, \"a\": [1, 2]}"),
        (
            "{{ {'b': 1, 'a': 'é'}|tojson(sort_keys=true, ensure_ascii=true) }}",
            "{\"a\": \"\\u00e9\", \"b\": 1}",
        ),
        ("{{ {'a': [1]}|tojson(separators=(',', ':')) }}", "{\"a\":[1]}"),
        ("{{ '<a & b>'|tojson }} {{ '<' }}", "\"<a & b>\" <"),
        (
            "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        (
            "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% endfor %}",
            "1Hi2How are you?",
        ),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{%- set x = [] %}{% set x = x + ['a'] %}{{ x|length }}", "1"),
        ("{% if tools %}t{% else %}n{% endif %}{% if tools is none %}none{% endif %}", "nnone"),
        ("a\n{% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
        ("{{ 'a\\nb'|indent(2) }} {{ 'Ab'|lower }} {{ 'ab'|replace('b', 'c') }}", "a\n  b ab ac"),
        ("{{ ['b', 'a']|sort|first }}{{ [3, 1]|max }}{{ 'abc'|reverse }}", "a3cba"),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ 'x: {}'.format(3) }}", "x: 3"),
        (
            "{% macro f(y) %}{{ caller(y) }}{% endmacro %}{% call(x) f(1) %}{{ x }}{% endcall %}",
            "1",
        ),
    ];
    let mut failed = Vec::new();
    for (template, expected) in cases {
        match prompt(template, &conversation(), &ask()) {
            Ok(found) if found == expected => {}
            other => failed.push(format!("{template}\n   {other:?}, not {expected:?}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_request_cannot_replace_the_messages() {
    let extra = json!({"messages": [], "bos_token": "X", "__now_unix_s": 0, "eos_token": "X"});
    let render = Render { extra: extra.as_object(), ..ask() };
    let template = "{{ messages|length }}{{ bos_token }}{{ eos_token }}{{ strftime_now('%Y') }}";
    assert_eq!(prompt(template, &conversation(), &render).unwrap(), "4<s></s>2026");

    let many = (0..65).map(|at| (at.to_string(), json!(1))).collect();
    let render = Render { extra: Some(&many), ..ask() };
    assert!(matches!(prompt("", &[], &render), Err(TextError::RequestTooLarge { .. })));
}

/// The guesses for files without a template, by the control tokens of the vocabulary.
#[test]
fn fallbacks() {
    let cases = [
        (&["<|im_start|>"][..], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (
            &["<|start_header_id|>"],
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (&["<start_of_turn>"], "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"),
        (&["[INST]"], "[INST] Hi [/INST]"),
        (&["x"], "User: Hi\n\nAssistant:"),
    ];
    for (tokens, expected) in cases {
        let mut writer = gguf::Writer::new();
        writer
            .set("tokenizer.ggml.model", gguf::Value::String("llama".into()))
            .set_strings("tokenizer.ggml.tokens", tokens);
        let mut bytes = Vec::new();
        writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
        let gguf = gguf::Directory::parse(&bytes, bytes.len() as u64).unwrap();
        let tokenizer = text::Tokenizer::from_gguf(&gguf).unwrap();
        let template = ChatTemplate::from_gguf(&gguf, &tokenizer);
        assert!(template.is_fallback());
        let messages = [Message::new("user", "Hi")];
        assert_eq!(template.render(&messages, &ask()).unwrap(), expected);
    }
}

/// Kimi K2 keeps the ids of calls in a list, and removes one for each result.
#[test]
fn lists_change_in_their_place() {
    let cases = [
        (
            "{% set l = [1] %}{% for x in [2, 3] %}{% set _ = l.append(x) %}{% endfor %}{{ l }}",
            "[1, 2, 3]",
        ),
        ("{% set n = namespace(l=[1, 2, 3]) %}{{ n.l.pop(0) }}{{ n.l.pop() }}{{ n.l }}", "13[2]"),
        ("{% set l = [1] %}{% do l.extend([2]) %}{% do l.insert(0, 3) %}{{ l }}", "[3, 1, 2]"),
        ("{% set l = [] %}{% do l.append(l) %}{% do l.append(l) %}{{ l }}", "[[], [[]]]"),
    ];
    for (template, expected) in cases {
        assert_eq!(prompt(template, &[], &ask()).unwrap(), expected, "{template}");
    }
    let empty = prompt("{% set l = [] %}{{ l.pop() }}", &[], &ask());
    assert!(matches!(empty, Err(TextError::TemplateFailed { .. })));
}
