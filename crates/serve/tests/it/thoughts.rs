//! Thinking and efforts mean the same in every dialect, and what cannot be done is refused by name;
//! so is what would have to be kept between requests.

use std::sync::Arc;

use crate::support::client::{Reply, chat_body, post};
use crate::support::double::{Act, Double, fixture_with_template};
use crate::support::server::Server;
use protocol::FinishReason;
use serde_json::{Value, json};

/// Its switch is a word, and it takes two efforts.
const MODES: &str = "{% if effort is defined and effort not in ['low', 'high'] %}\
    {{ raise_exception('effort') }}{% endif %}\
    {% for message in messages %}{{ message.content }}{% endfor %}\
    mode={{ thinking_mode if thinking_mode in ['enabled', 'disabled', 'adaptive'] }} \
    effort={{ effort }}. {% if thinking_mode == 'disabled' %}<think></think>{% endif %}";
const NEVER: &str = "{% for message in messages %}{{ message.content }}{% endfor %}";
const ALWAYS: &str = "{% for message in messages %}{{ message.content }}{% endfor %}<think>";

fn server(template: &str) -> (Arc<Double>, Server) {
    let script = [Act::Say("Yes."), Act::Done(FinishReason::Stop)];
    let double = Arc::new(Double::with_header(fixture_with_template(template), &script));
    let server = Server::start(&double);
    (double, server)
}

fn ask(server: &Server, path: &str, extra: &Value) -> Reply {
    let mut body = chat_body(json!({"input": "Hello"}));
    body["max_tokens"] = json!(8);
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    post(server.addr, path, &[], &body)
}

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/chat";

#[test]
fn every_dialect_sets_the_templates_own_switch_and_effort() {
    let (double, server) = server(MODES);
    let thinking = |kind: &str| json!({"thinking": {"type": kind}});
    for (path, extra, wanted) in [
        (CHAT, json!({"enable_thinking": false}), "mode=disabled effort=."),
        (CHAT, json!({"reasoning_effort": "none"}), "mode=disabled effort=."),
        (CHAT, json!({"reasoning_effort": "medium"}), "mode=enabled effort=high."),
        (CHAT, thinking("disabled"), "mode=disabled effort=."),
        (CHAT, thinking("auto"), "mode=adaptive effort=."),
        (CHAT, json!({"chat_template_kwargs": {"enable_thinking": true}}), "mode=enabled effort=."),
        (
            CHAT,
            json!({"chat_template_kwargs": {"thinking": false, "effort": "low"}}),
            "mode=disabled effort=low.",
        ),
        (
            CHAT,
            json!({"chat_template_kwargs": {"reasoning_effort": "max"}}),
            "mode=enabled effort=high.",
        ),
        (RESPONSES, json!({"reasoning": {"effort": "minimal"}}), "mode=enabled effort=low."),
        (RESPONSES, json!({"reasoning": {"effort": "none"}}), "mode=disabled effort=."),
        (MESSAGES, json!({}), "mode=disabled effort=."),
        (MESSAGES, thinking("disabled"), "mode=disabled effort=."),
        (MESSAGES, thinking("enabled"), "mode=enabled effort=."),
        (
            MESSAGES,
            json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}),
            "mode=adaptive effort=high.",
        ),
        (OLLAMA, json!({"think": false, "stream": false}), "mode=disabled effort=."),
        (OLLAMA, json!({"think": "low", "stream": false}), "mode=enabled effort=low."),
    ] {
        let reply = ask(&server, path, &extra);
        assert_eq!(reply.status, 200, "{path} {extra}: {reply:?}");
        let prompt = double.last_prompt();
        assert!(prompt.contains(wanted), "{path} {extra}: {prompt}");
    }
}

/// Each of these is refused under a template by its field's name.
fn refused(template: &str, cases: &[(&str, Value, &str)]) {
    let (_double, server) = server(template);
    for (path, extra, field) in cases {
        let reply = ask(&server, path, extra);
        let named = format!("{field}: the model");
        assert!(reply.status == 400 && reply.body.contains(&named), "{extra}: {reply:?}");
    }
    // Efforts are wishes, and Anthropic's requests without the field ask for nothing.
    for (path, extra) in [
        (CHAT, json!({"reasoning_effort": "high"})),
        (RESPONSES, json!({"reasoning": {"effort": "medium"}})),
        (MESSAGES, json!({"output_config": {"effort": "high"}})),
    ] {
        let reply = ask(&server, path, &extra);
        assert_eq!(reply.status, 200, "{path} {extra}: {reply:?}");
    }
}

#[test]
fn what_a_template_cannot_do_is_refused_by_name() {
    let kwargs = json!({"chat_template_kwargs": {"enable_thinking": true}});
    let thinking = |kind: &str| json!({"thinking": {"type": kind}});
    refused(
        NEVER,
        &[
            (CHAT, json!({"enable_thinking": true}), "enable_thinking"),
            (CHAT, kwargs, "chat_template_kwargs.enable_thinking"),
            (MESSAGES, thinking("enabled"), "thinking"),
            (OLLAMA, json!({"think": "low"}), "think"),
        ],
    );
    refused(
        ALWAYS,
        &[
            (CHAT, json!({"reasoning_effort": "none"}), "reasoning_effort"),
            (CHAT, thinking("disabled"), "thinking.type"),
            (RESPONSES, json!({"reasoning": {"effort": "none"}}), "reasoning.effort"),
            (MESSAGES, thinking("disabled"), "thinking"),
            (OLLAMA, json!({"think": false}), "think"),
        ],
    );
}

#[test]
fn a_thread_is_refused_in_the_form_at_which_clients_go_on() {
    let (double, server) = server(NEVER);
    let next = json!({"type": "continue", "previous_message_id": "msg_1"});
    for (path, stream) in
        [(MESSAGES, false), (MESSAGES, true), ("/v1/messages/count_tokens", false)]
    {
        for thread in [json!({"type": "create"}), next.clone()] {
            let extra =
                json!({"thread": thread, "stream": stream, "compaction": {"type": "summarize"}});
            let reply = ask(&server, path, &extra);
            let error = &reply.json()["error"];
            let details =
                json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
            assert_eq!((reply.status, &error["details"]), (400, &details), "{extra}");
            assert_eq!(error["type"], "invalid_request_error");
        }
    }
    let reply =
        ask(&server, MESSAGES, &json!({"compaction": {"type": "summarize"}, "thread": null}));
    assert!(reply.status == 400 && reply.body.contains("compaction: "), "{reply:?}");
    assert!(reply.json()["error"]["details"].is_null(), "{reply:?}");
    assert!(double.asked.lock().unwrap().is_empty());
}
