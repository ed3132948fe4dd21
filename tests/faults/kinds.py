"""Kinds of streams: every dialect, tools, schemas, log-probabilities, several answers at once."""

TOKENS = 120
WORDS = {"type": "string", "maxLength": 400}
SCHEMA = {"type": "object", "properties": {"what": WORDS, "why": WORDS},
          "required": ["what", "why"], "additionalProperties": False}
TOOL = {"name": "look", "description": "Looks something up", "parameters": SCHEMA}
JSON = {"name": "found", "schema": SCHEMA, "strict": True}


def said(number):
    return [{"role": "user", "content": f"Number {number}: tell me all of it."}]


def completion(**more):
    return "/v1/completions", lambda number: {"prompt": f"Number {number}:", **more}


def chat(**more):
    return "/v1/chat/completions", lambda number: {"messages": said(number), **more}


def response(**more):
    body = lambda number: {"input": f"Number {number}", "max_output_tokens": TOKENS, **more}
    return "/v1/responses", body


def message(**more):
    return "/v1/messages", lambda number: {"messages": said(number), **more}


def ollama(path, of):
    """Ollama's fields: options in an object of their own."""
    options = lambda number: {"temperature": 1.0, "seed": number, "num_predict": TOKENS}
    return path, lambda number: {**of(number), "options": options(number)}


KINDS = {
    "completion": completion(),
    "completion, n = 3": completion(n=3),
    "completion, log-probabilities": completion(logprobs=5),
    "completion, greedy with penalties": completion(temperature=0, frequency_penalty=0.5),
    "completion, stops": completion(stop=["e", "qu"]),
    "chat": chat(),
    "chat, n = 3": chat(n=3),
    "chat, log-probabilities": chat(logprobs=True, top_logprobs=3),
    "chat, a schema": chat(response_format={"type": "json_schema", "json_schema": JSON}),
    "chat, a tool": chat(tools=[{"type": "function", "function": TOOL}], tool_choice="required"),
    "responses": response(),
    "responses, a schema": response(text={"format": {"type": "json_schema", **JSON}}),
    "messages": message(),
    "messages, a tool": message(
        tools=[{"name": "look", "input_schema": SCHEMA}], tool_choice={"type": "any"}),
    "ollama, chat": ollama("/api/chat", lambda number: {"messages": said(number)}),
    "ollama, generate": ollama("/api/generate", lambda number: {"prompt": f"Number {number}:"}),
}

# What of an event is the model's. Ids, times and counts differ from one answer to the next.
TOLD = {"content", "text", "thinking", "reasoning", "reasoning_content", "refusal", "arguments",
        "partial_json", "name", "response", "delta", "token", "tokens", "logprob",
        "token_logprobs"}
ENDS = {"finish_reason", "stop_reason", "done_reason"}


def request(kind, number, model):
    """The path and the body of one."""
    path, of = KINDS[kind]
    usual = {
        "/v1/completions": {"temperature": 1.0, "seed": number, "max_tokens": TOKENS},
        "/v1/chat/completions": {"temperature": 1.0, "seed": number, "max_tokens": TOKENS},
        # These two have no seed: two answers are the same only without chance.
        "/v1/messages": {"temperature": 0, "max_tokens": TOKENS},
        "/v1/responses": {"temperature": 0},
    }.get(path, {})
    return path, {"model": model, **usual, **of(number)}


def gather(event, parts, at=""):
    """Adds what an event tells to what came before it, place by place: however tokens were put
    together into events, the whole is the same. Returns whether it told anything."""
    if isinstance(event, list):
        found = [gather(one, parts, f"{at}/{one['index']}" if has_index(one) else at)
                 for one in event]
        return any(found)
    if isinstance(event, dict):
        found = [gather(value, parts, f"{at}/{key}") for key, value in event.items()
                 if key in TOLD or isinstance(value, (dict, list))]
        return any(found)
    if event in (None, "") or at.rsplit("/", 1)[-1] not in TOLD:
        return False
    parts[at] = parts.get(at, "") + (event if isinstance(event, str) else f" {event!r}")
    return True


def has_index(one):
    return isinstance(one, dict) and isinstance(one.get("index"), int)


def end_of(event):
    """Why an answer ended, if this event says that it did."""
    if event.get("type") in ("response.completed", "response.incomplete"):
        return event["type"]
    places = [event, event.get("delta"), *(event.get("choices") or [])]
    reasons = [place.get(key) for place in places if isinstance(place, dict) for key in ENDS]
    return next((reason for reason in reasons if reason), None)
