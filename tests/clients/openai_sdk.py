import openai

from harness import ANSWER, MODEL, QUESTION, URL, fails, main

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0)
ASK = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}


def test_models_are_listed():
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def test_an_answer():
    answer = client.chat.completions.create(**ASK)
    assert ANSWER in answer.choices[0].message.content, answer
    assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens > 10


def test_a_stream():
    chunks = list(
        client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    )
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert ANSWER in "".join(deltas) and chunks[-1].usage.completion_tokens > 10


def test_errors_are_typed():
    def ask(**change):
        return lambda: client.chat.completions.create(**{**ASK, **change})

    assert MODEL in fails(openai.NotFoundError, ask(model="none")).message
    long = [{"role": "user", "content": "word " * 5000}]
    assert fails(openai.BadRequestError, ask(messages=long)).code == "context_length_exceeded"
    assert fails(openai.BadRequestError, ask(temperature=-1)).param == "temperature"


main(globals())
