import json

import ollama

from harness import ANSWER, BLIND, MODEL, PICTURE, QUESTION, SEES, SEES_URL, URL, WEATHER, fails, main

client = ollama.Client(host=URL)
GREEDY = {"temperature": 0}
ASK = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "options": GREEDY}


def test_models_are_listed():
    assert MODEL in [model.model for model in client.list().models]
    (running,) = [model for model in client.ps().models if model.model == MODEL]
    assert running.context_length > 0
    shown = client.show(MODEL)
    assert "completion" in shown.capabilities, shown
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] == running.context_length


def test_a_chat():
    answer = client.chat(**ASK)
    assert ANSWER in answer.message.content, answer
    assert answer.done_reason == "stop" and answer.eval_count > 10 and answer.eval_duration > 0


def test_a_chat_in_pieces():
    parts = list(client.chat(model=f"{MODEL}:latest", messages=ASK["messages"], options=GREEDY, stream=True))
    assert ANSWER in "".join(part.message.content for part in parts)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_a_prompt():
    answer = client.generate(model=MODEL, prompt=QUESTION, options={**GREEDY, "num_predict": 4})
    assert (answer.done_reason, answer.eval_count) == ("length", 4), answer
    parts = client.generate(model=MODEL, prompt=QUESTION, options=GREEDY, stream=True)
    assert ANSWER in "".join(part.response for part in parts)


def test_log_probabilities():
    options = {**GREEDY, "num_predict": 3}
    answer = client.generate(
        model=MODEL, prompt=QUESTION, logprobs=True, top_logprobs=2, options=options
    )
    assert len(answer.logprobs) == 3, answer
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in answer.logprobs)


def test_an_answer_of_a_schema():
    answer = client.chat(**{**ASK, "options": {**GREEDY, "num_predict": 200}}, format=WEATHER)
    assert json.loads(answer.message.content)["at"] in ("Rome", "Oslo"), answer


def test_embeddings():
    answer = client.embed(model=MODEL, input=["A lighthouse.", "A machine."])
    one, other = answer.embeddings
    assert len(one) == len(other) > 1 and one != other, answer
    assert list(client.embeddings(model=MODEL, prompt="A lighthouse.").embedding) == list(one)


def test_a_model_is_loaded_already():
    assert client.generate(model=MODEL).done_reason == "load"
    assert client.pull(MODEL).status == "success"


def test_pictures():
    messages = [{"role": "user", "content": QUESTION, "images": [PICTURE]}]
    error = fails(ollama.ResponseError, lambda: client.chat(model=MODEL, messages=messages))
    assert error.status_code == 400 and BLIND in error.error, error
    sees = ollama.Client(host=SEES_URL)
    options = {**GREEDY, "num_predict": 4}
    answer = sees.chat(model=SEES, messages=messages, options=options)
    without = sees.chat(model=SEES, messages=ASK["messages"], options=options)
    assert answer.prompt_eval_count > without.prompt_eval_count, answer
    sees.generate(model=SEES, prompt=QUESTION, images=[PICTURE], options=options)
    assert "vision" in sees.show(SEES).capabilities


def test_errors_are_plain_texts():
    options = {"num_ctx": 1 << 24}
    refused = [
        (404, MODEL, lambda: client.chat(model="none", messages=ASK["messages"])),
        (400, "num_ctx", lambda: client.chat(**{**ASK, "options": options})),
        (400, "mirostat", lambda: client.chat(**{**ASK, "options": {"mirostat": 1}})),
        (400, "think", lambda: client.chat(**ASK, think=True)),
        (400, "dimensions", lambda: client.embed(model=MODEL, input="x", dimensions=8)),
        (404, "there is no model", lambda: client.pull("no-such-model")),
        (400, "sinew stop", lambda: client.delete(MODEL)),
    ]
    for status, text, act in refused:
        error = fails(ollama.ResponseError, act)
        assert error.status_code == status and text in error.error, (status, error.status_code, error.error)


main(globals())
