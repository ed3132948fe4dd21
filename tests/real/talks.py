"""Conversations, several users at once, and lost nodes in the middle of an answer."""

from checks import demand, is_plain, text_of
from cluster import kill, until

PAGE_TOKENS = 64
QUESTIONS = [
    "Hello! I am planning a trip to Italy.", "Which city should I see first?",
    "What can I eat there?", "How many days do I need?", "And after that?",
    "Should I take a train or a car?", "What will it cost?", "Which month is best?",
    "Does it rain then?", "What clothes do I need?", "Tell me one word in Italian.",
    "What does it mean?", "Is the water safe?", "Which museum is famous?",
    "When does it open?", "What about children?", "Can I swim somewhere?",
    "Which book should I read?", "Who wrote it?", "Thank you. Sum up the trip.",
]
FRESH_EVERY = 5


def turns(served, fresh_nodes):
    """Twenty turns: what was read is not read again, and what is said is what a node says that
    reads all of it for the first time. `fresh_nodes` serves the model without any history."""
    messages, before, read, history = [], 0, 0, []
    for at, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": question})
        answer = served.chat(messages, max_tokens=24)
        usage, text = answer["usage"], text_of(answer["choices"][0])
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        demand(cached > before - PAGE_TOKENS,
               f"turn {at + 1}: {cached} tokens cached, and {before} were read")
        demand(is_plain(text), f"turn {at + 1}: {text!r}")
        read += usage["prompt_tokens"] - cached
        before = usage["prompt_tokens"]
        history.append((list(messages), text))
        messages.append({"role": "assistant", "content": text})
    for whole, text in history[FRESH_EVERY - 1::FRESH_EVERY]:
        with fresh_nodes() as fresh:
            answer = fresh.chat(whole, max_tokens=24)
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            demand(cached == 0, f"the fresh node had {cached} tokens cached")
            demand(text_of(answer["choices"][0]) == text,
                   f"turn {(len(whole) + 1) // 2}: {text!r}, and of a fresh node "
                   f"{text_of(answer['choices'][0])!r}")
    return f"{len(history)} turns to {before} tokens, {read} read; " \
           f"{len(history) // FRESH_EVERY} as a fresh node's"


def users(served):
    """Four at once, then each alone."""
    prompts = ["Letter from Anna:", "Recipe for bread:", "Log of the ship:", "Rules of chess:"]

    def stream(prompt):
        return served.stream("/v1/completions", prompt=prompt, max_tokens=64, ignore_eos=True)

    together = [stream(prompt) for prompt in prompts]
    for one in together:
        one.join(120)
    begun = max(one.times[0] for one in together)
    demand(begun < min(one.times[-1] for one in together), "they did not run at the same time")
    for prompt, one in zip(prompts, together):
        outcome = one.outcome(ended(stream(prompt)))
        demand(outcome == "right", f"{prompt} is {outcome}")
    return f"{len(prompts)} answers of 64 tokens at once, as one by one"


def ended(stream):
    stream.join(120)
    demand(not (stream.is_alive() or stream.error or stream.cut), f"no answer: {stream.error}")
    return stream


def kills(served, victim, tokens=200):
    """Kills a worker, then a whole node, in mid-answer. `victim` is not the one that is asked."""
    body = {"prompt": "The history of the city began", "temperature": 1.0, "seed": 7,
            "max_tokens": tokens, "ignore_eos": True}
    whole = ended(served.stream("/v1/completions", **body))

    def struck(strike):
        stream = served.stream("/v1/completions", **body)
        stream.wait_for_tokens(20)
        heard = len(stream.times)
        strike()
        outcome = stream.outcome(whole)
        demand(outcome == "right", f"after {heard} tokens: {outcome} {stream.error or ''}")
        demand(heard < len(whole.times), "it had ended before")
        return f"{stream.longest_gap():.1f} s"

    def pid():
        return next(rank["pid"] for rank in served.instance()["ranks"]
                    if rank["node_name"] == victim.name)

    worker = struck(lambda: kill(pid()))
    until("it to be ready", 60, lambda: served.instance()["state"]["state"] == "ready")
    node = struck(victim.kill)
    return f"{tokens} tokens as undisturbed; pause after a worker's death {worker}, a node's {node}"
