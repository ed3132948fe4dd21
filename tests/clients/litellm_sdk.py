import litellm

from harness import MODEL, QUESTION, URL, fails, main

litellm.suppress_debug_info = True
litellm.num_retries = 0
ASK = [{"role": "user", "content": QUESTION}]
ABOUT = "Sinew"
# How litellm names each dialect, with the address that it wants.
DIALECTS = {
    f"openai/{MODEL}": f"{URL}/v1",
    f"anthropic/{MODEL}": URL,
    f"ollama_chat/{MODEL}": URL,
    f"ollama/{MODEL}": URL,
}


def ask(model, **extra):
    return litellm.completion(
        model=model, api_base=DIALECTS[model], api_key="any", messages=ASK, max_tokens=100, **extra
    )


def is_about(model, text):
    # Its older way to ask Ollama writes a template of its own around the question, which the model
    # has never seen.
    return ABOUT in text or model.startswith("ollama/") and len(text) > 10


def test_an_answer_in_each_dialect():
    for model in DIALECTS:
        answer = ask(model)
        assert is_about(model, answer.choices[0].message.content), (model, answer)
        assert answer.usage.completion_tokens > 10, (model, answer)


def test_a_stream_in_each_dialect():
    for model in DIALECTS:
        chunks = list(ask(model, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert is_about(model, text), (model, text)


def test_errors_are_typed():
    DIALECTS["anthropic/none"] = URL
    fails(litellm.NotFoundError, lambda: ask("anthropic/none"))


main(globals())
