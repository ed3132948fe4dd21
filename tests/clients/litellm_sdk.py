import litellm

from harness import MODEL, QUESTION, URL, fails, main

litellm.suppress_debug_info = True
litellm.num_retries = 0
ASK = [{"role": "user", "content": QUESTION}]
# Its older way to ask Ollama writes a template of its own around the question: the model then
# speaks of the command.
ABOUT = "sinew"
# How litellm names each dialect, with the address that it wants.
DIALECTS = {
    f"openai/{MODEL}": f"{URL}/v1",
    f"anthropic/{MODEL}": URL,
    f"ollama_chat/{MODEL}": URL,
    f"ollama/{MODEL}": URL,
}


def ask(model, **extra):
    return litellm.completion(
        model=model, api_base=DIALECTS[model], api_key="any", messages=ASK, max_tokens=100,
        temperature=0, **extra
    )


def test_an_answer_in_each_dialect():
    for model in DIALECTS:
        answer = ask(model)
        assert ABOUT in answer.choices[0].message.content.lower(), (model, answer)
        assert answer.usage.completion_tokens > 10, (model, answer)


def test_a_stream_in_each_dialect():
    for model in DIALECTS:
        chunks = list(ask(model, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert ABOUT in text.lower(), (model, text)


def test_errors_are_typed():
    DIALECTS["anthropic/none"] = URL
    fails(litellm.NotFoundError, lambda: ask("anthropic/none"))


main(globals())
