//! The tool call forms of model families: data, no code.
//!
//! Source: the families' published chat templates, which show earlier calls to the model.

/// A form of blocks of calls.
#[derive(Debug)]
pub(super) struct Form {
    /// Parts of a template that reveal the form; any one is enough.
    pub(super) signs: &'static [&'static str],
    /// The opening and closing marks of a block. Either can be absent.
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    /// The start of a call, for models that omit the opening mark.
    pub(super) lead: &'static str,
    /// The possible syntaxes of calls in a block.
    pub(super) bodies: &'static [Body],
    /// The syntax of a required call.
    pub(super) style: CallStyle,
}

/// The syntax of the calls in a block.
#[derive(Debug, Clone, Copy)]
pub(super) enum Body {
    /// Objects with a name and arguments, or lists of them.
    Json,
    /// A tag with the name, and one for each argument.
    Tagged(&'static Tags),
    /// A name, then the arguments as JSON.
    Named(&'static Named),
    /// Python's calls, one after the other or in a list.
    Python,
    /// `call:NAME{...}` (Gemma 4).
    Gemma,
    /// An element for each argument, nested for its parts, with this mark before each tag
    /// (MiniMax-M3).
    Elements(&'static str),
}

/// The marks of tagged calls.
#[derive(Debug)]
pub(super) struct Tags {
    /// Before and after the name. With an empty mark after it, a name is a word.
    pub(super) open: &'static str,
    pub(super) name_end: &'static str,
    /// Ends the call; if empty, the block's end does.
    pub(super) close: &'static str,
    /// Before and after a field's name, before its value if there is a mark, and after it.
    pub(super) field: &'static str,
    pub(super) key_end: &'static str,
    pub(super) value: &'static str,
    pub(super) field_close: &'static str,
    /// Ends a value when a grammar constrained the reply.
    pub(super) exact_close: &'static str,
    /// End the attributes after the name, and after a key; a key's attribute can mark the value as
    /// a string.
    pub(super) name_attributes: &'static str,
    pub(super) attributes: &'static str,
    /// Before and after all arguments as one object, which some calls have instead of fields.
    pub(super) object: [&'static str; 2],
    /// The line breaks next to a value's marks that do not belong to it.
    pub(super) breaks: Breaks,
}

/// The line breaks around a value that belong to its marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Breaks {
    None,
    /// One on each side, if all values of a call have both.
    Pair,
    /// One on each side.
    Each,
}

/// The marks of calls with JSON only for the arguments.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) open: &'static str,
    /// Between the call's id and the name, if the id is first.
    pub(super) name: &'static str,
    /// Between the name and the call's id.
    pub(super) id: &'static str,
    /// Before the arguments.
    pub(super) arguments: &'static str,
    pub(super) close: &'static str,
    /// The name is the middle of an id: `functions.NAME:0`.
    pub(super) in_id: bool,
}

/// The syntax of required calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum CallStyle {
    /// `{"name": ..., "arguments": ...}` in a block (Hermes, Qwen).
    #[default]
    Json,
    /// `{"name": ..., "parameters": ...}` as the whole reply (Llama 3).
    Bare,
    /// A list of objects in a block (Mistral), or `NAME[ARGS]{...}` since Small 3.2 (and
    /// functionary 3.2, with other marks).
    List,
    MistralArgs,
    DeepSeek,
    /// Arguments in a fence, before V3.1.
    DeepSeekFenced,
    Kimi,
    Solar,
    /// `<function=NAME>` and `<parameter=KEY>` (Qwen 3 Coder).
    Tagged,
    /// The same with the marks of the form's tags (MiniMax-M2).
    Invoke,
    /// `<arg_key>` and `<arg_value>` (GLM 4.5).
    Glm,
    /// `[NAME(KEY=VALUE)]` (LFM2, Olmo 3).
    Python,
    Harmony,
}

const FUNCTION: Tags = Tags {
    open: "<function=",
    name_end: ">",
    close: "</function>",
    field: "<parameter=",
    key_end: ">",
    value: "",
    field_close: "</parameter>",
    exact_close: "\n</parameter>\n",
    name_attributes: "",
    attributes: "",
    object: ["", ""],
    breaks: Breaks::Each,
};

/// The same, with values directly next to their marks (Seed-OSS).
const SEED: Tags = Tags { exact_close: "</parameter>\n", breaks: Breaks::Pair, ..FUNCTION };

const INVOKE: Tags = Tags {
    open: "<invoke name=\"",
    name_end: "\">",
    close: "</invoke>",
    field: "<parameter name=\"",
    key_end: "\">",
    value: "",
    field_close: "</parameter>",
    exact_close: "</parameter>\n",
    name_attributes: "",
    attributes: "",
    object: ["", ""],
    breaks: Breaks::Pair,
};

const ATEM: Tags = Tags {
    open: "<atem:invoke name=\"",
    close: "</atem:invoke>",
    field: "<atem:parameter name=\"",
    field_close: "</atem:parameter>",
    exact_close: "</atem:parameter>\n",
    ..INVOKE
};

const DSML: Tags = Tags {
    open: "<｜DSML｜invoke name=\"",
    close: "</｜DSML｜invoke>",
    field: "<｜DSML｜parameter name=\"",
    key_end: "\"",
    field_close: "</｜DSML｜parameter>",
    exact_close: "</｜DSML｜parameter>\n",
    attributes: ">",
    breaks: Breaks::None,
    ..INVOKE
};

const PARAM: Tags = Tags {
    open: "<function name=\"",
    close: "</function>",
    field: "<param name=\"",
    field_close: "</param>",
    exact_close: "</param>\n",
    ..INVOKE
};

const GLM: Tags = Tags {
    open: "",
    name_end: "",
    close: "",
    field: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    field_close: "</arg_value>",
    exact_close: "</arg_value>\n",
    name_attributes: "",
    attributes: "",
    object: ["", ""],
    breaks: Breaks::None,
};

const HUNYUAN: Tags = Tags {
    open: "<tool_call:opensource>",
    name_end: "<tool_sep:opensource>",
    close: "</tool_call:opensource>",
    field: "<arg_key:opensource>",
    key_end: "</arg_key:opensource>",
    value: "<arg_value:opensource>",
    field_close: "</arg_value:opensource>",
    exact_close: "</arg_value:opensource>\n",
    name_attributes: "",
    attributes: "",
    object: ["", ""],
    breaks: Breaks::None,
};

const KIMI_3: Tags = Tags {
    open: "<|open|>call tool=\"",
    name_end: "\"",
    close: "<|close|>call<|sep|>",
    field: "<|open|>argument key=\"",
    key_end: "\"",
    value: "",
    field_close: "<|close|>argument<|sep|>",
    exact_close: "<|close|>argument<|sep|>",
    name_attributes: "<|sep|>",
    attributes: "<|sep|>",
    object: ["<|open|>json", "<|close|>json<|sep|>"],
    breaks: Breaks::None,
};

const DEEPSEEK: Named = Named {
    open: "<｜tool▁call▁begin｜>",
    name: "",
    id: "",
    arguments: "<｜tool▁sep｜>",
    close: "<｜tool▁call▁end｜>",
    in_id: false,
};

const KIMI: Named = Named {
    open: "<|tool_call_begin|>",
    name: "",
    id: "",
    arguments: "<|tool_call_argument_begin|>",
    close: "<|tool_call_end|>",
    in_id: true,
};

const PLAIN: Named = Named { open: "", name: "", id: "", arguments: "\n", close: "", in_id: false };

const MISTRAL: Named = Named { id: "[CALL_ID]", arguments: "[ARGS]", ..PLAIN };

const SOLAR: Named = Named {
    open: "<|tool_call:begin|>",
    name: "<|tool_call:name|>",
    arguments: "<|tool_call:args|>",
    close: "<|tool_call:end|>",
    ..PLAIN
};

const fn form(open: &'static str, close: &'static str, style: CallStyle) -> Form {
    Form { signs: &[], open, close, lead: "", bodies: &[Body::Json], style }
}

/// The most common form, the default of a template without calls.
pub(super) const HERMES: Form = Form {
    signs: &["<tool_call>"],
    lead: "<function=",
    bodies: &[Body::Json, Body::Tagged(&FUNCTION), Body::Tagged(&GLM), Body::Python],
    ..form("<tool_call>", "</tool_call>", CallStyle::Json)
};

/// MiniMax-M3's token before each tag.
const MINIMAX_3: &str = "]<]minimax[>[";

/// All forms.
pub(super) const FORMS: &[Form] = &[
    // MiniMax-M3, with marks that contain those of the most common form.
    Form {
        signs: &[MINIMAX_3],
        bodies: &[Body::Elements(MINIMAX_3), Body::Json],
        ..form("]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>", CallStyle::Json)
    },
    HERMES,
    Form {
        signs: &["<minimax:tool_call>"],
        lead: "<invoke name=\"",
        bodies: &[Body::Tagged(&INVOKE)],
        ..form("<minimax:tool_call>", "</minimax:tool_call>", CallStyle::Invoke)
    },
    Form {
        signs: &["<seed:tool_call>"],
        lead: "<function=",
        bodies: &[Body::Tagged(&SEED)],
        ..form("<seed:tool_call>", "</seed:tool_call>", CallStyle::Invoke)
    },
    Form {
        signs: &["<｜tool▁calls▁begin｜>"],
        lead: "<｜tool▁call▁begin｜>",
        bodies: &[Body::Named(&DEEPSEEK)],
        ..form("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", CallStyle::DeepSeek)
    },
    Form {
        signs: &["<|tool_calls_section_begin|>"],
        lead: "<|tool_call_begin|>",
        bodies: &[Body::Named(&KIMI)],
        ..form("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", CallStyle::Kimi)
    },
    // The same as some checkpoints write it.
    Form {
        signs: &["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"],
        lead: "<|tool_call_begin|>",
        bodies: &[Body::Named(&KIMI)],
        ..form("<|tool_call_section_begin|>", "<|tool_call_section_end|>", CallStyle::Kimi)
    },
    Form {
        signs: &["[TOOL_CALLS]"],
        bodies: &[Body::Json, Body::Named(&MISTRAL)],
        ..form("[TOOL_CALLS]", "", CallStyle::List)
    },
    Form {
        signs: &["<|python_tag|>"],
        lead: "<function=",
        bodies: &[Body::Json, Body::Python, Body::Tagged(&FUNCTION)],
        ..form("<|python_tag|>", "", CallStyle::Bare)
    },
    // LFM2's template shows only the tools, and LFM2.5's has no marks.
    Form {
        signs: &["<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["],
        bodies: &[Body::Python, Body::Json],
        ..form("<|tool_call_start|>", "<|tool_call_end|>", CallStyle::Python)
    },
    Form {
        signs: &["<function_calls>"],
        bodies: &[Body::Python, Body::Json],
        ..form("<function_calls>", "</function_calls>", CallStyle::Python)
    },
    // Granite 3.3, without a closing mark, and Phi 4 mini.
    Form { signs: &["<|tool_call|>"], ..form("<|tool_call|>", "<|/tool_call|>", CallStyle::List) },
    // Nemotron Nano 2; MiniMax-M1 and Apriel; Command R7B; Apertus.
    Form { signs: &["<TOOLCALL>"], ..form("<TOOLCALL>", "</TOOLCALL>", CallStyle::List) },
    Form { signs: &["<tool_calls>"], ..form("<tool_calls>", "</tool_calls>", CallStyle::List) },
    Form {
        signs: &["<|START_ACTION|>"],
        ..form("<|START_ACTION|>", "<|END_ACTION|>", CallStyle::List)
    },
    Form {
        signs: &["<|tools_prefix|>"],
        ..form("<|tools_prefix|>", "<|tools_suffix|>", CallStyle::List)
    },
    Form {
        signs: &["<|tool_call>"],
        bodies: &[Body::Gemma, Body::Json],
        ..form("<|tool_call>", "<tool_call|>", CallStyle::Json)
    },
    Form {
        signs: &["<atem:function_calls>"],
        lead: "<atem:invoke name=\"",
        bodies: &[Body::Tagged(&ATEM)],
        ..form("<atem:function_calls>", "</atem:function_calls>", CallStyle::Invoke)
    },
    // DeepSeek V3.2 and V4, with templates that compose the marks from parts.
    Form {
        signs: &["｜DSML｜"],
        lead: "<｜DSML｜invoke name=\"",
        bodies: &[Body::Tagged(&DSML), Body::Json],
        ..form("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", CallStyle::Json)
    },
    Form {
        signs: &["｜DSML｜"],
        bodies: &[Body::Tagged(&DSML), Body::Json],
        ..form("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", CallStyle::Json)
    },
    // Hunyuan 3.
    Form {
        signs: &["<tool_calls:opensource>"],
        lead: "<tool_call:opensource>",
        bodies: &[Body::Tagged(&HUNYUAN), Body::Json],
        ..form("<tool_calls:opensource>", "</tool_calls:opensource>", CallStyle::Json)
    },
    // Kimi K3.
    Form {
        signs: &["<|open|>tools<|sep|>"],
        lead: "<|open|>call tool=\"",
        bodies: &[Body::Tagged(&KIMI_3), Body::Json],
        ..form("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", CallStyle::Json)
    },
    // Solar Open.
    Form {
        signs: &["<|tool_call:begin|>"],
        lead: "<|tool_call:begin|>",
        bodies: &[Body::Named(&SOLAR)],
        ..form("<|tool_calls|>", "<|calls|>", CallStyle::Solar)
    },
    // functionary 3.2; each message starts with its recipient.
    Form {
        signs: &[">>>all"],
        bodies: &[Body::Named(&PLAIN)],
        ..form(">>>", "", CallStyle::MistralArgs)
    },
    // firefunction 2.
    Form { signs: &["functools["], ..form("functools", "", CallStyle::List) },
    // GigaChat 3.1.
    Form { signs: &["<|function_call|>"], ..form("<|function_call|>", "", CallStyle::Json) },
    // MiniCPM 5 and functionary 3.1, without marks around their calls.
    Form {
        signs: &["<function name="],
        lead: "<function name=\"",
        bodies: &[Body::Tagged(&PARAM)],
        ..form("", "", CallStyle::Invoke)
    },
    Form {
        signs: &["<function="],
        lead: "<function=",
        bodies: &[Body::Tagged(&FUNCTION)],
        ..form("", "", CallStyle::Tagged)
    },
];

impl Form {
    /// The marks that can start a block.
    pub(super) fn starts(&self) -> impl Iterator<Item = &'static str> {
        [self.open, self.lead].into_iter().filter(|mark| !mark.is_empty())
    }

    /// The marks of tagged calls.
    pub(super) fn tags(&self) -> Option<&'static Tags> {
        self.bodies.iter().find_map(|body| match body {
            Body::Tagged(tags) => Some(*tags),
            _ => None,
        })
    }

    /// The marks of calls with JSON only for the arguments.
    pub(super) fn named(&self) -> Option<&'static Named> {
        self.bodies.iter().find_map(|body| match body {
            Body::Named(named) => Some(*named),
            _ => None,
        })
    }

    /// All marks that may be control tokens.
    pub(super) fn marks(&self) -> Vec<&'static str> {
        let mut marks = vec![self.open, self.close, self.lead];
        for body in self.bodies {
            match body {
                Body::Named(named) => {
                    marks.extend([named.open, named.name, named.id, named.arguments, named.close]);
                }
                Body::Tagged(tags) => marks.extend([
                    tags.open,
                    tags.close,
                    tags.field,
                    tags.key_end,
                    tags.value,
                    tags.field_close,
                ]),
                Body::Gemma => marks.push("<|\"|>"),
                Body::Elements(before) => marks.push(before),
                Body::Json | Body::Python => {}
            }
        }
        marks
    }
}
