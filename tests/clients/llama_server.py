"""Requests as clients of llama-server send them, and the fields of its answers that they read.

Of what llama-server's own tests check, this is the part that does not depend on a model's words.
"""

import concurrent.futures
import json
import time
import urllib.error
import urllib.request

from harness import MODEL, QUESTION, URL, main

MESSAGES = [{"role": "user", "content": QUESTION}]
# Samplers that are switched off, as front ends send them with every request.
NEUTRAL = {"mirostat": 0, "typical_p": 1, "dry_multiplier": 0, "xtc_probability": 0, "min_keep": 0}


def ask(method, path, body=None):
    """The status and the JSON of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{URL}{path}", data, {"Content-Type": "application/json"})
    request.get_method = lambda: method
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def post(path, body):
    status, answer = ask("POST", path, body)
    assert status == 200, (status, answer)
    return answer


def events(path, body):
    """The data of an answer's events."""
    data = json.dumps(body | {"stream": True}).encode()
    request = urllib.request.Request(f"{URL}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        for line in reply:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield json.loads(line[6:])


def tokens_of(text, **more):
    return post("/tokenize", {"content": text} | more)["tokens"]


def test_a_completion():
    answer = post("/completion", {"prompt": "The", "n_predict": 8, "ignore_eos": True} | NEUTRAL)
    assert answer["timings"]["predicted_n"] == answer["tokens_predicted"] == 8
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == answer["tokens_evaluated"]
    assert answer["stop_type"] == "limit" and answer["truncated"] is False
    assert isinstance(answer["has_new_line"], bool) and answer["tokens"] == []
    assert answer["generation_settings"]["n_predict"] == 8
    assert all(one["bias"] is None for one in answer["generation_settings"]["logit_bias"])


def test_a_stream_says_what_an_answer_says():
    body = {"prompt": "The", "n_predict": 8, "temperature": 0, "return_tokens": True}
    whole = post("/completion", body)
    pieces = list(events("/completion", body))
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert sum((piece["tokens"] for piece in pieces[:-1]), []) == whole["tokens"]
    assert [piece["stop"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_the_same_seed_says_the_same():
    ask_with = lambda seed: post("/completion", {"prompt": "The", "n_predict": 16, "seed": seed,
                                                 "temperature": 1.5})["content"]
    assert ask_with(42) == ask_with(42)
    assert len({ask_with(seed) for seed in range(6)}) > 1


def test_prompts_of_every_form():
    text, tokens = "The cat", tokens_of("The cat", add_special=True)
    greedy = {"n_predict": 4, "temperature": 0}
    forms = [text, tokens, {"prompt_string": text}]
    answers = post("/completion", {"prompt": forms} | greedy)
    assert len({answer["content"] for answer in answers}) == 1 and len(answers) == 3
    assert isinstance(post("/completion", {"prompt": [1, 2, text, 3]} | greedy)["content"], str)


def test_probabilities():
    body = {"prompt": "The", "n_predict": 5, "n_probs": 10, "temperature": 0, "ignore_eos": True}
    told = post("/completion", body)["completion_probabilities"]
    assert len(told) == 5
    for token in told:
        assert len(token["top_logprobs"]) == 10
        for one in [token, *token["top_logprobs"]]:
            assert one["logprob"] <= 0 and bytes(one["bytes"]) and one["id"] >= 0, one


def test_chosen_fields():
    fields = ["content", "generation_settings/n_predict", "prompt"]
    answer = post("/completion", {"prompt": "The", "n_predict": 2, "response_fields": fields})
    assert sorted(answer) == sorted(fields) and answer["generation_settings/n_predict"] == 2


def test_biases():
    usual = post("/completion", {"prompt": "The", "n_predict": 1, "temperature": 0,
                                 "return_tokens": True})
    token = usual["tokens"][0]
    for biases in [[[token, False]], {str(token): -100}, [[usual["content"], False]]]:
        other = post("/completion", {"prompt": "The", "n_predict": 1, "temperature": 0,
                                     "logit_bias": biases, "return_tokens": True})
        assert other["tokens"] != usual["tokens"], biases


def test_grammars():
    cases = [
        ("root ::= \"a\"{5,5}", "aaaaa"),
        ("root ::= pair{2}\npair ::= \"x\" [1-1] # a comment", "x1x1"),
        ("root ::= nest\nnest ::= \"(\" (\")\" | \"[\" \"]\" \")\")", None),
    ]
    for grammar, answer in cases:
        for path, body in [("/completion", {"prompt": "The"}),
                           ("/v1/completions", {"prompt": "The", "model": MODEL})]:
            told = post(path, body | {"grammar": grammar, "max_tokens": 16})
            text = told["content"] if path == "/completion" else told["choices"][0]["text"]
            assert text == answer or answer is None and text in ("()", "([])"), text
    status, told = ask("POST", "/completion", {"prompt": "The", "grammar": "root ::= (\"a\""})
    assert status == 400 and "line 1" in told["error"]["message"], told
    answer = post("/completion", {"prompt": "The", "json_schema": {"const": "42"}})
    assert json.loads(answer["content"]) == "42"
    chat = {"model": MODEL, "messages": MESSAGES, "max_tokens": 16}
    for form in [{"json_schema": {"const": "42"}},
                 {"response_format": {"type": "json_object", "schema": {"const": "42"}}}]:
        content = post("/chat/completions", chat | form)["choices"][0]["message"]["content"]
        assert json.loads(content) == "42"


def test_tokens():
    text = "What is the capital of France?"
    tokens = tokens_of(text)
    assert post("/detokenize", {"tokens": tokens})["content"].strip() == text
    pieces = tokens_of(text, with_pieces=True)
    assert [piece["id"] for piece in pieces] == tokens and all(piece["piece"] for piece in pieces)


def test_templates_and_properties():
    prompt = post("/apply-template", {"messages": MESSAGES})["prompt"]
    assert QUESTION in prompt and len(prompt) > len(QUESTION)
    status, props = ask("GET", "/props")
    assert status == 200 and props["model_path"].endswith(".gguf") and props["total_slots"] >= 1
    assert props["default_generation_settings"]["n_ctx"] > 0
    status, slots = ask("GET", "/slots")
    assert status == 200 and slots[0]["n_ctx"] == props["default_generation_settings"]["n_ctx"]


def test_progress_and_timings_in_a_chat():
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "timings_per_token": True,
            "return_progress": True}
    chunks = list(events("/chat/completions", body))
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert progress[0]["processed"] == progress[0]["cache"]
    assert progress[-1]["processed"] == progress[-1]["total"] > 0
    timed = [chunk for chunk in chunks if "timings" in chunk]
    assert len(timed) > 1 and timed[-1]["timings"]["predicted_n"] <= 8


def test_wrong_requests():
    cases = [
        ("/completion", {"prompt": []}),
        ("/completion", {"prompt": "The", "mirostat": 1}),
        ("/completion", {"prompt": {"prompt_string": "The", "multimodal_data": ["AAAA"]}}),
        ("/chat/completions", {"model": MODEL, "messages": [{"role": "king", "content": "a"}]}),
        ("/chat/completions", {"model": MODEL, "messages": [{}]}),
        ("/infill", {"input_prefix": "a"}),
    ]
    for path, body in cases:
        status, answer = ask("POST", path, body)
        assert status == 400 and answer["error"]["message"], (path, body, status, answer)
    status, answer = ask("POST", "/completion", {"prompt": "word " * 20000})
    assert status == 400 and answer["error"]["type"] == "exceed_context_size_error"
    assert answer["error"]["n_prompt_tokens"] > answer["error"]["n_ctx"] > 0


def test_many_at_once_and_one_that_leaves():
    body = {"prompt": "The", "n_predict": 32, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for answer in pool.map(lambda _: post("/completion", body), range(8)):
            assert answer["tokens_predicted"] == 32
    stream = events("/completion", body | {"n_predict": -1})
    next(stream)
    stream.close()
    for _ in range(100):
        if not any(slot["is_processing"] for slot in ask("GET", "/slots")[1]):
            return
        time.sleep(0.1)
    raise AssertionError("a request goes on without its client")


main(globals())
