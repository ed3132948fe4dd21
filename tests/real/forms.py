"""Answers of a demanded form: JSON of a schema, and calls of tools."""

import json

from checks import demand, is_plain, text_of

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "trade": {"type": "string", "enum": ["smith", "baker", "sailor"]},
        "likes": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
    },
    "required": ["name", "age", "trade", "likes"],
    "additionalProperties": False,
}
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float)}


def misfit(value, schema, where="it"):
    """Why a value is not of a schema (of the words used here), or None."""
    if not isinstance(value, TYPES[schema["type"]]) or isinstance(value, bool):
        return f"{where} is {value!r}"
    if value not in schema.get("enum", [value]):
        return f"{where} is {value!r}"
    if isinstance(value, (int, float)):
        fits = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        return None if fits else f"{where} is {value}"
    if isinstance(value, str):
        fits = len(value) <= schema.get("maxLength", len(value))
        return None if fits else f"{where} has {len(value)} characters"
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            return f"{where} has {len(value)} items"
        inner = [misfit(one, schema["items"], f"{where}[{at}]") for at, one in enumerate(value)]
        return next(filter(None, inner), None)
    known = schema["properties"]
    if not set(schema.get("required", [])) <= set(value) <= set(known):
        return f"{where} has {sorted(value)}"
    inner = [misfit(one, known[name], f"{where}.{name}") for name, one in value.items()]
    return next(filter(None, inner), None)


def schemas(served):
    form = {"type": "json_schema",
            "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    people = ["Ann, a baker of 40 who likes bread and music",
              "Bob, a smith of 61 who likes fire", "Cy, a sailor of 23 who likes rum and the sea"]
    found = []
    for person in people:
        ask = [{"role": "user", "content": f"Describe as JSON: {person}."}]
        choice = served.chat(ask, response_format=form, max_tokens=200)["choices"][0]
        demand(choice["finish_reason"] == "stop", f"ends by {choice['finish_reason']}")
        value = json.loads(text_of(choice))
        demand(not misfit(value, PERSON), f"{misfit(value, PERSON)}: {value}")
        found.append(value["age"])
    return f"{len(found)} objects of the schema, ages {found}"


def tool(name, about, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties),
                  "additionalProperties": False}
    return {"type": "function",
            "function": {"name": name, "description": about, "parameters": parameters}}


WORD = {"type": "string", "maxLength": 60}
TOOLS = [
    tool("get_weather", "The weather of a city", city=WORD,
         unit={"type": "string", "enum": ["celsius", "fahrenheit"]}),
    tool("add", "The sum of two whole numbers", a={"type": "integer"}, b={"type": "integer"}),
    tool("read_file", "The text of a file", path=WORD),
]
TASKS = [
    "What is the weather in Rome, in celsius?", "What is 1204 + 377?",
    "What is in the file notes.txt?", "How warm is it in Oslo, in fahrenheit?",
    "Add 15 and 27.", "Read /etc/hosts for me.", "Is it raining in Paris? Use celsius.",
    "Sum 99 and 1.", "Show me README.md.", "Tell me the weather of Tokyo in celsius.",
]
PARAMETERS = {one["function"]["name"]: one["function"]["parameters"] for one in TOOLS}


def call_misfit(call):
    """Why a call is of none of the tools, or None."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if name not in PARAMETERS:
        return f"there is no tool {name}"
    try:
        return misfit(json.loads(arguments), PARAMETERS[name], name)
    except ValueError as error:
        return f"{name} has the arguments {arguments!r}: {error}"


def reply(served, task, choice):
    ask = [{"role": "user", "content": task}]
    found = served.chat(ask, tools=TOOLS, tool_choice=choice, max_tokens=200)["choices"][0]
    message = found["message"]
    return message.get("tool_calls") or [], message.get("content") or "", found["finish_reason"]


def demanded_calls(served):
    names = []
    for task in TASKS:
        calls, text, finish = reply(served, task, "required")
        demand(calls and finish == "tool_calls", f"{task} has {calls} {text!r}, ends by {finish}")
        for call in calls:
            demand(not call_misfit(call), f"{task}: {call_misfit(call)}")
        names.append(calls[0]["function"]["name"])
    right = sum(name == list(PARAMETERS)[at % 3] for at, name in enumerate(names))
    return f"{len(names)} calls of the tools' schemas, {right} of the fitting tool"


def free_calls(served):
    """Each reply is a call that can be made, or text without a trace of the model's own marks."""
    called = 0
    for task in TASKS:
        calls, text, finish = reply(served, task, "auto")
        demand(calls or text, f"{task} has no reply")
        demand(finish == ("tool_calls" if calls else "stop"), f"{task} ends by {finish}")
        for call in calls:
            demand(not call_misfit(call), f"{task}: {call_misfit(call)}")
        demand(is_plain(text) and "tool_call>" not in text, f"{task}: {text!r}")
        called += bool(calls)
    return f"{len(TASKS)} replies, {called} of them calls"
