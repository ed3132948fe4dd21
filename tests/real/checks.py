"""What a served model says, beside llama.cpp and beside itself on other nodes.

Each check returns its figures, or raises.
"""

import greedy

# A comparison with llama.cpp that finds less says little: the logits of a quantised model differ by
# some tenths, and few tokens are nearly tied.
EQUAL_SHARE_MIN = 0.9
ERROR_MAX = 0.4
CONTROL = ("<|", "|>", "<start_of_turn>", "<end_of_turn>", "<eos>", "</s>")


class Wrong(Exception):
    """A check failed."""


def demand(good, why):
    if not good:
        raise Wrong(why)


def is_plain(text):
    return not any(mark in text for mark in CONTROL)


def answers(served, reference):
    """The choice for each case of the reference, and the embeddings: all splits repeat them."""
    choices = []
    for case in reference["cases"]:
        if "prompt" in case:
            answer = served.complete(case["prompt"], max_tokens=len(case["steps"]), logprobs=5)
        else:
            answer = served.chat(case["messages"], max_tokens=len(case["steps"]), logprobs=True,
                                 top_logprobs=5)
        used = answer["usage"]["prompt_tokens"]
        demand(used == len(case["tokens"]),
               f"{case.get('prompt', case.get('rendered'))!r} has {used} tokens, and "
               f"{len(case['tokens'])} for llama.cpp")
        choices.append(answer["choices"][0])
    return {"choices": choices, "embeddings": served.embed(
        [one["text"] for one in reference["embeddings"]])}


def beside_llama_cpp(served, reference, ours):
    def resume(case, step):
        return served.complete(case["tokens"] + case["answer"][:step], logprobs=5,
                               max_tokens=len(case["steps"]) - step)["choices"][0]

    found = greedy.compare(reference["cases"], ours["choices"], resume)
    tokens = sum(len(case["steps"]) for case in reference["cases"])
    texts = len(reference["cases"]) - len({part.case for part in found.parts})
    figures = (f"{found.equal_tokens} of {tokens} tokens equal, {texts} of "
               f"{len(reference['cases'])} texts to their end; error {found.error:.3f}, "
               f"near ties {sorted(round(part.gap, 3) for part in found.parts)}")
    demand(not found.wrong(), f"no near tie at {found.wrong()}: {figures}")
    demand(found.equal_tokens >= EQUAL_SHARE_MIN * tokens, f"too few: {figures}")
    demand(found.error <= ERROR_MAX, f"too far off: {figures}")
    return figures


def embeddings(reference, ours):
    """Directions beside llama.cpp's, and what is alike is near."""
    def product(a, b):
        return sum(x * y for x, y in zip(a, b))

    least = 1.0
    for one, vector in zip(reference["embeddings"], ours["embeddings"], strict=True):
        demand(abs(product(vector, vector) - 1) < 1e-3, f"{one['text']} is not of length one")
        ours_head, theirs = vector[:len(one["head"])], one["head"]
        norms = (product(ours_head, ours_head) * product(theirs, theirs)) ** 0.5
        least = min(least, product(ours_head, theirs) / norms)
    demand(least > 0.98, f"cosine to llama.cpp's {least:.4f}")
    first, alike, *others = ours["embeddings"]
    near, far = product(first, alike), max(product(first, other) for other in others)
    demand(near > far, f"two cats are less alike ({near:.3f}) than a cat and {far:.3f}")
    return f"cosine to llama.cpp's at least {least:.4f}; alike {near:.3f}, else {far:.3f}"


def same(first, ours):
    """Bits of one node: texts, log-probabilities, vectors."""
    for at, (one, other) in enumerate(zip(first["choices"], ours["choices"], strict=True)):
        demand(one == other, f"answer {at} differs: {text_of(one)!r} and {text_of(other)!r}")
    demand(first["embeddings"] == ours["embeddings"], "embeddings differ")
    return f"{len(first['choices'])} answers with log-probabilities and " \
           f"{len(first['embeddings'])} vectors, to the last bit"


def text_of(choice):
    return choice["text"] if "text" in choice else choice["message"]["content"]


def templates(served, reference, ours):
    """A chat's answer is that to the tokens which Jinja's own rendering makes."""
    chats = [(case, choice) for case, choice in zip(reference["cases"], ours["choices"])
             if "messages" in case]
    demand(chats, "the reference has no chats")
    for case, choice in chats:
        raw = served.complete(case["tokens"], max_tokens=len(case["steps"]))["choices"][0]
        demand(text_of(raw) == text_of(choice),
               f"{case['messages'][-1]['content']!r}: {text_of(choice)!r}, and to the rendered "
               f"tokens {text_of(raw)!r}")
        counted = served.post("/v1/responses/input_tokens", input=case["messages"])["input_tokens"]
        demand(counted == len(case["tokens"]), f"{counted} tokens, not {len(case['tokens'])}")
    return f"{len(chats)} chats as Jinja renders them"


def stops(served):
    """Answers end by themselves, without a control token in the text; and at a stop string."""
    questions = ["What is 2+2?", "Say hello.", "Write one sentence about the sea."]
    lengths = []
    for question in questions:
        answer = served.chat([{"role": "user", "content": question}], max_tokens=300)
        choice = answer["choices"][0]
        text = text_of(choice)
        demand(choice["finish_reason"] == "stop", f"{question} ends by {choice['finish_reason']}")
        demand(text.strip() and is_plain(text), f"{question} has the answer {text!r}")
        lengths.append(answer["usage"]["completion_tokens"])
        word = text.split()[1]
        cut = served.chat([{"role": "user", "content": question}], max_tokens=300, stop=[word])
        demand(text_of(cut["choices"][0]) == text[:text.index(word)], f"not cut before {word!r}")
    return f"{len(questions)} answers of {lengths} tokens, and cut at a word"
