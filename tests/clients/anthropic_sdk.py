import base64
from typing import Literal

import anthropic

from harness import ANSWER, BLIND, MODEL, PICTURE, QUESTION, SEES, SEES_URL, URL, WEATHER, fails, main

client = anthropic.Anthropic(base_url=URL, api_key="any", max_retries=0)
ASK = {
    "model": MODEL, "max_tokens": 100, "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": QUESTION}],
}
TOOL = {"name": "weather", "description": "The weather at a place", "input_schema": WEATHER}


def prompt_tokens(message):
    """The tokens of the prompt, also those that were in the cache."""
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_models_are_listed():
    found = [model.id for model in client.models.list()]
    assert MODEL in found, found
    assert client.models.retrieve(MODEL).display_name == MODEL


def test_an_answer():
    message = client.messages.create(**ASK, system="Be kind.")
    assert ANSWER in message.content[0].text, message
    assert message.stop_reason == "end_turn" and message.usage.output_tokens > 10, message
    assert message._request_id.startswith("req_")


def test_a_stream():
    with client.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert ANSWER in text and final.content[0].text == text
    assert final.stop_reason == "end_turn" and final.usage.output_tokens > 10, final


def test_limits_and_stops():
    short = client.messages.create(**{**ASK, "max_tokens": 3})
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 3), short
    stopped = client.messages.create(**ASK, stop_sequences=["computer"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "computer"), stopped
    assert not stopped.content[0].text.endswith("computer")


def test_tokens_are_counted():
    count = client.messages.count_tokens(model=MODEL, messages=ASK["messages"])
    assert count.input_tokens == prompt_tokens(client.messages.create(**ASK))


def test_a_forced_call_and_its_result():
    ask = {**ASK, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}}
    with client.messages.stream(**{**ask, "max_tokens": 200}) as stream:
        message = stream.get_final_message()
    call = message.content[-1]
    assert (message.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather"), message
    assert call.input["at"] in ("Rome", "Oslo"), call
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}
    turns = [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    client.messages.create(**{**ASK, "messages": ASK["messages"] + turns}, tools=[TOOL])


def test_the_runner_of_tools_sends_the_whole_conversation():
    """It begins with a thread, which is kept by the server, and goes on without one."""
    asked = []

    @anthropic.beta_tool
    def weather(at: Literal["Rome", "Oslo"]) -> str:
        """The weather at a place."""
        asked.append(at)
        return "Sunny."

    choice = {"type": "tool", "name": "weather"}
    runner = client.beta.messages.tool_runner(
        **{**ASK, "max_tokens": 200}, tools=[weather], tool_choice=choice, max_iterations=2)
    first, second = list(runner)
    assert asked and asked[0] in ("Rome", "Oslo"), asked
    assert prompt_tokens(second) > prompt_tokens(first) + 10, (first.usage, second.usage)


def test_what_the_server_would_keep_is_refused():
    error = fails(anthropic.BadRequestError, lambda: client.beta.messages.create(
        **ASK, thread={"type": "create"}))
    assert error.error_code == "thread_unsupported_request", error.body
    assert error.details.unsupported == ["thread"], error.details
    error = fails(anthropic.BadRequestError, lambda: client.beta.messages.create(
        **ASK, compaction={"type": "summarize"}))
    assert error.message and "compaction" in error.message, error


def test_an_answer_of_a_schema():
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
              "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = client.messages.create(**{**ASK, "max_tokens": 300}, output_config=config)
    import json

    assert json.loads(message.content[0].text)["n"] in (1, 2), message


def test_pictures():
    with open(PICTURE, "rb") as file:
        data = base64.b64encode(file.read()).decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    shown = [{"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}]
    ask = {**ASK, "messages": shown, "max_tokens": 4}
    error = fails(anthropic.BadRequestError, lambda: client.messages.create(**ask))
    assert BLIND in error.message, error
    sees = anthropic.Anthropic(base_url=SEES_URL, api_key="any", max_retries=0)
    message = sees.messages.create(**{**ask, "model": SEES})
    count = sees.messages.count_tokens(model=SEES, messages=shown)
    without = sees.messages.count_tokens(model=SEES, messages=ASK["messages"])
    assert prompt_tokens(message) == count.input_tokens > without.input_tokens, message


def test_errors_are_typed():
    unknown = fails(anthropic.NotFoundError, lambda: client.messages.create(**{**ASK, "model": "none"}))
    assert MODEL in unknown.message and unknown.request_id.startswith("req_"), unknown
    long = [{"role": "user", "content": "word " * 5000}]
    error = fails(anthropic.BadRequestError, lambda: client.messages.create(**{**ASK, "messages": long}))
    assert "prompt is too long" in error.message, error
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?"}}
    shown = [{"role": "user", "content": [image]}]
    error = fails(anthropic.BadRequestError, lambda: client.messages.create(**{**ASK, "messages": shown}))
    assert "messages[0].content[0]" in error.message, error


main(globals())
