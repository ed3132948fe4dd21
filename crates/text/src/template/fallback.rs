//! Templates for files without one, chosen by the control tokens of the vocabulary.

use crate::Tokenizer;

const CHATML: &str = "\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

const LLAMA3: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' -}}
{{ message.content|trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif -%}";

const GEMMA: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- set role = 'model' if message.role == 'assistant' else 'user' -%}
{{ '<start_of_turn>' + role + '\\n' + message.content|trim + '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}";

const MISTRAL: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{ ' ' + message.content|trim + eos_token }}
{%- else -%}
{{ '[INST] ' + message.content + ' [/INST]' }}
{%- endif -%}
{%- endfor -%}";

const PLAIN: &str = "\
{%- for message in messages -%}
{{ message.role|capitalize + ': ' + message.content + '\\n\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}";

/// The best guess for a vocabulary: the first with its tokens present, else plain dialogue.
pub(super) fn template(tokenizer: &Tokenizer) -> &'static str {
    let choices = [
        ("<|im_start|>", CHATML),
        ("<|start_header_id|>", LLAMA3),
        ("<start_of_turn>", GEMMA),
        ("[INST]", MISTRAL),
    ];
    let has = |text: &str| tokenizer.find_token(text).is_some();
    choices.into_iter().find(|(token, _)| has(token)).map_or(PLAIN, |(_, template)| template)
}
