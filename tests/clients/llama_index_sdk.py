from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike

from harness import ANSWER, MODEL, QUESTION, URL, main

OPENAI = OpenAILike(
    model=MODEL, api_base=f"{URL}/v1", api_key="any", is_chat_model=True,
    is_function_calling_model=True, max_retries=0,
)
# Its class for Anthropic's dialect refuses the names of all other models by itself.
DIALECTS = [OPENAI, Ollama(model=MODEL, base_url=URL)]
ASKED = [ChatMessage(role="user", content=QUESTION)]


def weather(celsius: bool) -> str:
    """The weather here."""
    return "Sunny."


def test_an_answer_in_each_dialect():
    for model in DIALECTS:
        answer = model.chat(ASKED)
        assert ANSWER in answer.message.content, answer


def test_a_stream_in_each_dialect():
    for model in DIALECTS:
        pieces = [chunk.delta for chunk in model.stream_chat(ASKED)]
        assert ANSWER in "".join(pieces) and len(pieces) > 5, pieces


def test_a_forced_call_of_a_function():
    tool = FunctionTool.from_defaults(weather)
    answer = OPENAI.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
    (call,) = OPENAI.get_tool_calls_from_response(answer)
    assert call.tool_name == "weather" and isinstance(call.tool_kwargs["celsius"], bool), call


def test_a_completion():
    assert len(OPENAI.complete(QUESTION).text) > 0


main(globals())
