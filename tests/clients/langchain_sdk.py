from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

from harness import ANSWER, MODEL, QUESTION, URL, main

DIALECTS = [
    ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="any", max_retries=0),
    ChatAnthropic(
        model_name=MODEL, base_url=URL, api_key="any", max_retries=0, max_tokens_to_sample=200,
        timeout=None, stop=None,
    ),
    ChatOllama(model=MODEL, base_url=URL),
]


@tool
def weather(celsius: bool) -> str:
    """The weather here."""
    return "Sunny."


def test_an_answer_in_each_dialect():
    for model in DIALECTS:
        answer = model.invoke(QUESTION)
        assert ANSWER in answer.text, answer
        assert answer.usage_metadata["output_tokens"] > 10, answer


def test_a_stream_in_each_dialect():
    for model in DIALECTS:
        assert ANSWER in "".join(chunk.text for chunk in model.stream(QUESTION)), model


def test_a_forced_call():
    model = DIALECTS[1].bind_tools([weather], tool_choice="weather")
    (call,) = model.invoke(QUESTION).tool_calls
    assert call["name"] == "weather" and isinstance(call["args"]["celsius"], bool), call


main(globals())
