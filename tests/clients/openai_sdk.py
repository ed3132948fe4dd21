"""What OpenAI's own Python client gets from a node with the demo model."""

import base64
import json
from typing import Literal

import openai
from pydantic import BaseModel

from harness import ANSWER, BLIND, MODEL, PICTURE, QUESTION, SEES, SEES_URL, URL, WEATHER, fails, main

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0)
ASK = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}


class City(BaseModel):
    name: Literal["Rome", "Oslo"]
    big: bool


def chat(**extra):
    return client.chat.completions.create(
        **{"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 24, **extra}
    )


def refused(param, call, **extra):
    error = fails(openai.BadRequestError, lambda: call(**extra))
    assert error.param == param, f"{error.param} is named instead of {param}"
    assert param.split("[")[0] in error.message, error.message
    return error


def test_models_are_listed_and_found():
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL
    error = fails(openai.NotFoundError, lambda: client.models.retrieve(MODEL[:-1]))
    assert error.code == "model_not_found" and MODEL in error.message, error


def test_chats_have_text_and_usage():
    answer = chat()
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content, answer
    assert choice.finish_reason in ("stop", "length"), choice
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert usage.prompt_tokens_details.cached_tokens is not None
    assert usage.completion_tokens_details.reasoning_tokens is not None
    assert chat().choices[0].message.content == choice.message.content, "greedy is repeatable"


def test_streams_are_the_same_text():
    whole = chat().choices[0].message.content
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole, (text, whole)
    assert chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices
    with client.chat.completions.stream(model=MODEL, messages=ASK, temperature=0) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content.startswith(whole) and ANSWER in str(final)


def test_sampling_is_honoured():
    # The demo model is sure of what it says: all of its tokens have to be in play.
    wild = {"temperature": 2, "top_p": 1, "extra_body": {"top_k": -1, "min_p": 0}}
    one, same, other = (chat(**wild, seed=seed).choices[0].message.content for seed in (1, 1, 2))
    assert one == same and one != other, (one, same, other)
    several = chat(**wild, n=3, seed=3).choices
    assert [choice.index for choice in several] == [0, 1, 2]
    assert len({choice.message.content for choice in several}) > 1
    word = chat().choices[0].message.content.split()[1]
    cut = chat(stop=[word]).choices[0]
    assert word not in cut.message.content and cut.finish_reason == "stop"
    assert chat(max_tokens=3).usage.completion_tokens == 3
    assert chat(max_tokens=3).choices[0].finish_reason == "length"
    long = chat(max_tokens=60, extra_body={"ignore_eos": True})
    assert long.usage.completion_tokens == 60, long.usage


def test_log_probabilities_belong_to_the_text():
    choice = chat(logprobs=True, top_logprobs=3).choices[0]
    tokens = choice.logprobs.content
    assert "".join(bytes(t.bytes).decode("utf-8", "replace") for t in tokens).strip() == (
        choice.message.content.strip()
    )
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob >= token.logprob - 1e-6
    first = tokens[0].top_logprobs[0]
    assert first.token == tokens[0].token, "greedy takes the likeliest"


def test_biases_and_penalties_change_the_text():
    plain = chat().choices[0].message.content
    banned = client.completions.create(
        model=MODEL, prompt="Sinew is", max_tokens=1, temperature=0, logprobs=1
    ).choices[0]
    assert banned.logprobs.tokens, banned
    assert chat(frequency_penalty=2, presence_penalty=2, max_tokens=60).choices[0].message.content
    biased = chat(logit_bias={"1000": 100}, max_tokens=4).choices[0].message.content
    assert biased != plain[: len(biased)], (biased, plain)


def test_answers_keep_to_a_form():
    answer = chat(response_format={"type": "json_object"}, max_tokens=200)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    found = json.loads(chat(response_format=form, max_tokens=60).choices[0].message.content)
    assert isinstance(found["ok"], bool), found
    word = chat(extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert word.choices[0].message.content in ("yes", "no"), word
    digits = chat(extra_body={"structured_outputs": {"regex": "[0-9]{4}"}})
    assert digits.choices[0].message.content.isdigit(), digits
    lark = chat(extra_body={"structured_outputs": {"grammar": 'start: "left" | "right"'}})
    assert lark.choices[0].message.content in ("left", "right"), lark


def test_parsed_answers_are_objects():
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=City, max_tokens=100, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, City), answer


def test_a_demanded_call_comes_whole_and_streamed():
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        call = chat(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, max_tokens=80)
        assert call.choices[0].finish_reason == "tool_calls", call
        function = call.choices[0].message.tool_calls[0].function
        assert function.name == "weather", function
        assert json.loads(function.arguments)["at"] in ("Rome", "Oslo"), function
    with client.chat.completions.stream(
        model=MODEL, messages=ASK, tools=[TOOL], tool_choice="required", temperature=0,
        parallel_tool_calls=False, max_tokens=80,
    ) as stream:
        final = stream.get_final_completion().choices[0]
    call = final.message.tool_calls[0]
    assert call.id and json.loads(call.function.arguments)["at"] in ("Rome", "Oslo"), final
    back = ASK + [
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump(include={"id", "type", "function"})]},
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    assert chat(messages=back, tools=[TOOL]).choices[0].message.content is not None


def test_completions_go_on_with_text():
    def complete(**extra):
        return client.completions.create(
            **{"model": MODEL, "prompt": "Sinew is", "temperature": 0, "max_tokens": 12, **extra}
        )

    one = complete()
    assert one.choices[0].text and one.usage.completion_tokens > 0, one
    text = "".join(c.choices[0].text for c in complete(stream=True) if c.choices)
    assert text == one.choices[0].text, (text, one)
    assert complete(echo=True).choices[0].text == "Sinew is" + one.choices[0].text
    two = complete(prompt=["Sinew is", "Once upon"], n=2)
    assert [c.index for c in two.choices] == [0, 1, 2, 3]
    lists = complete(logprobs=2).choices[0].logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.text_offset), lists
    refused("suffix", complete, suffix="x")
    refused("best_of", complete, best_of=4)


def test_what_cannot_be_is_refused_by_name():
    refused("temperature", chat, temperature=3)
    refused("n", chat, n=1000)
    refused("store", chat, store=True)
    refused("modalities", chat, modalities=["text", "audio"])
    refused("guided_regex", chat, extra_body={"guided_regex": "a"})
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]
    refused("messages[0].content[0]", chat, messages=image)
    long = [{"role": "user", "content": "word " * 50_000}]
    error = fails(openai.BadRequestError, lambda: chat(messages=long))
    assert (error.code, error.param) == ("context_length_exceeded", "messages"), error


def respond(**extra):
    return client.responses.create(
        **{"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 24, **extra}
    )


def test_pictures():
    with open(PICTURE, "rb") as file:
        url = "data:image/png;base64," + base64.b64encode(file.read()).decode()
    image = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    shown = [{"role": "user", "content": [{"type": "text", "text": QUESTION}, image]}]
    error = fails(openai.BadRequestError, lambda: chat(messages=shown))
    assert BLIND in error.message, error
    sees = openai.OpenAI(base_url=f"{SEES_URL}/v1", api_key="any", max_retries=0)
    assert "image" in sees.models.retrieve(SEES).architecture["input_modalities"]
    answer, without = (
        sees.chat.completions.create(model=SEES, max_tokens=4, messages=one) for one in (shown, ASK)
    )
    assert answer.usage.prompt_tokens > without.usage.prompt_tokens, answer
    part = {"type": "input_image", "image_url": url, "detail": "auto"}
    response = sees.responses.create(
        model=SEES, input=[{"role": "user", "content": [part]}], max_output_tokens=4, store=False
    )
    assert response.usage.output_tokens > 0, response


def test_responses_have_text_and_usage():
    answer = respond(instructions="Be brief.")
    assert answer.output_text and answer.status in ("completed", "incomplete"), answer
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    cut = respond(max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    counted = client.responses.input_tokens.count(model=MODEL, input=QUESTION)
    assert counted.input_tokens == respond().usage.input_tokens


def test_response_streams_are_the_same_text():
    whole = respond().output_text
    events = list(respond(stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole == events[-1].response.output_text, (text, whole)
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        final = stream.get_final_response()
    assert final.output_text.startswith(whole) and ANSWER in final.output_text


def test_responses_call_tools_and_take_their_results():
    tool = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    ask = {"tools": [tool, {"type": "web_search"}], "max_output_tokens": 80}
    answer = respond(**ask, tool_choice="required", parallel_tool_calls=False)
    call = next(item for item in answer.output if item.type == "function_call")
    assert call.name == "weather" and json.loads(call.arguments)["at"] in ("Rome", "Oslo"), call
    back = [
        {"role": "user", "content": QUESTION},
        *[item.model_dump(exclude_none=True) for item in answer.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    assert respond(**ask, input=back).output_text


def test_responses_keep_to_a_form():
    answer = client.responses.parse(
        model=MODEL, input=QUESTION, text_format=City, temperature=0, max_output_tokens=100
    )
    assert isinstance(answer.output_parsed, City), answer


def test_responses_refuse_what_is_kept():
    refused("previous_response_id", respond, previous_response_id="resp_1")
    refused("store", respond, store=True)
    refused("background", respond, background=True)
    error = fails(openai.NotFoundError, lambda: client.responses.retrieve("resp_1"))
    assert error.code == "response_not_found", error


main(globals())
