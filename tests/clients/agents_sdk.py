"""Frameworks for agents, each with an answer of a schema and a tool that the model has to call."""

import asyncio
from typing import Literal

from agents import Agent as OpenAiAgent
from agents import ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner
from agents import function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from harness import ANSWER, MODEL, QUESTION, URL, main

set_tracing_disabled(True)


class Place(BaseModel):
    at: Literal["Rome", "Oslo"]


def model():
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="any"))


def test_pydantic_ai_answers():
    found = Agent(model(), model_settings={"temperature": 0, "max_tokens": 100}).run_sync(QUESTION)
    assert ANSWER in found.output, found.output
    assert found.usage.output_tokens > 10, found.usage


def test_pydantic_ai_gets_an_object():
    settings = {"temperature": 0, "max_tokens": 200}
    found = Agent(model(), output_type=Place, model_settings=settings).run_sync(QUESTION)
    assert found.output.at in ("Rome", "Oslo"), found.output


async def run(kind):
    """One turn of OpenAI's agents: the tool is called, and its result ends the run."""
    asked = []

    @function_tool
    def weather(at: Literal["Rome", "Oslo"]) -> str:
        """The weather at a place."""
        asked.append(at)
        return "Sunny."

    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0) as client:
        agent = OpenAiAgent(
            name="reporter", instructions="Be kind.", tools=[weather],
            model=kind(model=MODEL, openai_client=client),
            model_settings=ModelSettings(temperature=0, max_tokens=200, tool_choice="required"),
            tool_use_behavior="stop_on_first_tool")
        found = await Runner.run(agent, QUESTION)
    assert asked and found.final_output == "Sunny.", found


def test_openais_agents_call_tools_in_chats():
    asyncio.run(run(OpenAIChatCompletionsModel))


def test_openais_agents_call_tools_in_responses():
    asyncio.run(run(OpenAIResponsesModel))


main(globals())
