"""The fields that the clients' libraries can send, as JSON: a copy of it stands beside the table of
known fields. With that file as the argument, fails where the two differ.

    target/clients/sdks/bin/python tests/clients/fields.py crates/serve/src/known/clients.json
"""

import json
import sys
from importlib.metadata import version
from typing import Annotated, Union, get_args, get_origin, get_type_hints

import anthropic.types.beta.message_count_tokens_params as beta_count
import anthropic.types.beta.message_create_params as beta
import anthropic.types.message_count_tokens_params as count
import anthropic.types.message_create_params as messages
import ollama
import ollama._types
import openai.types.chat.completion_create_params as chat
import openai.types.completion_create_params as text
import openai.types.embedding_create_params as embeddings
import openai.types.responses.input_token_count_params as response_count
import openai.types.responses.response_create_params as responses
from typing_extensions import NotRequired, Required, is_typeddict

# Their contents are read item by item, elsewhere.
CONTENTS = {"functions", "input", "tool_choice"}
# Of the kinds of tools those that a model can be offered; Anthropic's messages.
READ = {
    "messages": {"BetaAssistantMessageParam", "BetaSystemMessageParam", "BetaUserMessageParam"},
    "tools": {"BetaToolParam", "FunctionToolParam", "ToolParam"},
}


def variants(kind):
    origin = get_origin(kind)
    if origin in (Required, NotRequired, Annotated):
        return variants(get_args(kind)[0])
    if origin is Union:
        return [one for part in get_args(kind) for one in variants(part)]
    return [kind]


def objects(kind):
    """The objects in a field, each with what its path gets."""
    for one in variants(kind):
        if is_typeddict(one):
            yield ".", one
        for part in get_args(one):
            yield from (("[].", item) for item in variants(part) if is_typeddict(item))


def fields(*bodies):
    found = set()
    for body in bodies:
        for name, kind in get_type_hints(body, include_extras=False).items():
            found.add(name)
            nested = objects(kind) if name not in CONTENTS else []
            for step, inner in nested:
                if inner.__name__ in READ.get(name, {inner.__name__}):
                    found.update(name + step + field for field in get_type_hints(inner))
    return sorted(found)


def models(*kinds):
    return sorted({name for kind in kinds for name in kind.model_fields})


def known():
    openai_fields = {
        "Chat": fields(chat.CompletionCreateParamsBase, chat.CompletionCreateParamsStreaming),
        "Text": fields(text.CompletionCreateParamsBase, text.CompletionCreateParamsStreaming),
        "Response": fields(responses.ResponseCreateParamsBase, responses.ResponseCreateParamsStreaming,
                           response_count.InputTokenCountParams),
        "Embeddings": fields(embeddings.EmbeddingCreateParams),
    }
    anthropic_fields = fields(
        messages.MessageCreateParamsStreaming, count.MessageCountTokensParams,
        beta.MessageCreateParamsStreaming, beta_count.MessageCountTokensParams)
    kinds = ollama._types
    return {
        f"openai {version('openai')}": openai_fields,
        f"anthropic {version('anthropic')}": {"Messages": anthropic_fields},
        f"ollama {version('ollama')}": {
            "OllamaChat": models(kinds.ChatRequest),
            "OllamaGenerate": models(kinds.GenerateRequest),
            "OllamaOptions": models(kinds.Options),
            "OllamaEmbed": models(kinds.EmbedRequest, kinds.EmbeddingsRequest),
        },
    }


found = known()
if len(sys.argv) == 1:
    print(json.dumps(found, indent=2))
    sys.exit()
with open(sys.argv[1]) as file:
    kept = json.load(file)
for library, bodies in found.items():
    assert kept.get(library) == bodies, f"{library} has other fields: {json.dumps(bodies, indent=2)}"
