//! The parameters of sampling, in one table.
//!
//! A row has a parameter's name, type, default and effect, its name and range in each dialect, and
//! what a sampler can use. [`Sampling`], [`SamplingChoice`], [`Preset`](crate::Preset)'s fields,
//! the dialects' fields, `/openapi.json` and what a request tells older nodes follow from the rows.

use serde::{Deserialize, Serialize};

use crate::samplers::{DryBreakers, Sampler};
use crate::token::Token;

/// Far beyond any context.
const TOKENS_MAX: f64 = i32::MAX as f64;

/// Calls a macro with the rows of the table. A preset has its seed between both parts, and its
/// order of fields is signed.
macro_rules! for_parameters {
    ($macro:ident) => {
        $macro! {
            {
                temperature: f32 = 0.0,
                "0 always takes the likeliest token",
                number(0.0, 2.0).of_llama(-1e3, 1e3).in_ollama().at_least_0();
                top_k: u32 = 0,
                "Keep this many of the likeliest tokens; 0 and -1 keep all",
                whole(-1.0, 1e7).in_ollama();
                top_p: f32 = 1.0,
                "Keep the likeliest tokens that together reach this probability; 1 keeps all",
                number(0.0, 1.0).in_ollama().at_least_0();
                min_p: f32 = 0.0,
                "Drop tokens less likely than this fraction of the likeliest one; 0 keeps all",
                number(0.0, 1.0).in_ollama().at_least_0();
            }
            {
                repetition_penalty: f32 = 1.0,
                "Divides positive logits of tokens in the text, and multiplies negative ones; 1 is \
off",
                number(0.01, 10.0).named("repeat_penalty").in_ollama().above_0();
                frequency_penalty: f32 = 0.0,
                "Subtracted from a token's logit for each occurrence in the answer",
                number(-2.0, 2.0).of_llama(-10.0, 10.0).in_ollama();
                presence_penalty: f32 = 0.0,
                "Subtracted once from the logits of all tokens in the answer",
                number(-2.0, 2.0).of_llama(-10.0, 10.0).in_ollama();
                repeat_last_n: i32 = -1,
                "All penalties look at this many last tokens of prompt and answer; 0 is none. At \
-1, repetition_penalty looks at all and the others at the answer",
                whole(-1.0, TOKENS_MAX).in_ollama();
                typical_p: f32 = 1.0,
                "Keep the tokens of most typical surprise that together exceed this probability; 1 \
and 0 keep all",
                number(0.0, 1.0).in_ollama().at_least_0().switch();
                top_n_sigma: f32 = -1.0,
                "Keep the tokens whose logits are within this many standard deviations of the \
highest; 0 and less keep all",
                number(-1e3, 1e3).switch();
                min_keep: u32 = 0,
                "top_p, min_p, typical_p and xtc leave this many tokens at least",
                whole(0.0, TOKENS_MAX).switch();
                xtc_probability: f32 = 0.0,
                "The chance of each token that the likeliest ones above xtc_threshold are dropped, \
but for the last of them; 0 is off",
                number(0.0, 1.0).at_least_0().switch();
                xtc_threshold: f32 = 0.1,
                "See xtc_probability; above 0.5 is off",
                number(0.0, 1.0).at_least_0();
                dynatemp_range: f32 = 0.0,
                "The temperature moves by up to this with the entropy of what is kept; 0 is off",
                number(0.0, 100.0).at_least_0().switch();
                dynatemp_exponent: f32 = 1.0,
                "The power of the normalised entropy that moves the temperature",
                number(0.0, 100.0).at_least_0();
                dry_multiplier: f32 = 0.0,
                "Subtract this, times a power of dry_base, from the logits of tokens that would \
extend a repetition; 0 is off",
                number(0.0, 100.0).at_least_0().switch();
                dry_base: f32 = 1.75,
                "The base of dry_multiplier's power; less than 1 is the default",
                number(0.0, 100.0).at_least_0();
                dry_allowed_length: u32 = 2,
                "Repetitions of fewer tokens are free; each further token raises the power by 1",
                whole(0.0, TOKENS_MAX);
                dry_penalty_last_n: i32 = 64,
                "How many last tokens are searched for repetitions; -1 is all, 0 is off",
                whole(-1.0, TOKENS_MAX);
                mirostat: u32 = 0,
                "2 replaces all samplers but temperature by Mirostat 2.0; 0 is off, and 1 is not \
there",
                whole(0.0, 2.0).in_ollama().switch();
                mirostat_tau: f32 = 5.0,
                "The surprise in bits that Mirostat aims at",
                number(0.0, 100.0).in_ollama().at_least_0();
                mirostat_eta: f32 = 0.1,
                "How fast Mirostat learns",
                number(0.0, 100.0).in_ollama().at_least_0();
            }
        }
    };
}
pub(crate) use for_parameters;

/// A row of the table.
#[derive(Debug)]
pub struct Parameter {
    /// Its name here, in presets and in OpenAI's dialect.
    pub name: &'static str,
    pub effect: &'static str,
    pub fields: ParameterFields,
    /// Its value where nothing is set.
    pub default: f64,
    pub of: fn(&Sampling) -> f64,
    pub chosen: fn(&SamplingChoice) -> Option<f64>,
    /// Sets a value that was read; it saturates at the type's limits.
    pub choose: fn(&mut SamplingChoice, f64),
}

/// How requests have a parameter.
#[derive(Debug, Clone, Copy)]
pub struct ParameterFields {
    /// Its name in llama.cpp and Ollama, if it is another one.
    llama_name: Option<&'static str>,
    pub is_whole: bool,
    /// The least and the largest value.
    pub range: (f64, f64),
    /// The same for llama.cpp's dialect.
    pub llama_range: (f64, f64),
    /// Whether it is one of Ollama's options.
    pub is_ollamas: bool,
    /// Whether false stands for nothing, as clients have it that switch a sampler off.
    pub is_switch: bool,
    usable: Usable,
}

/// The numbers that a sampler can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Usable {
    Any,
    AtLeast0,
    Above0,
}

const fn number(low: f64, high: f64) -> ParameterFields {
    let (range, usable) = ((low, high), Usable::Any);
    let llama_range = range;
    ParameterFields {
        llama_name: None,
        is_whole: false,
        range,
        llama_range,
        is_ollamas: false,
        is_switch: false,
        usable,
    }
}

const fn whole(low: f64, high: f64) -> ParameterFields {
    ParameterFields { is_whole: true, ..number(low, high) }
}

impl ParameterFields {
    const fn named(self, llama_name: &'static str) -> Self {
        Self { llama_name: Some(llama_name), ..self }
    }

    const fn of_llama(self, low: f64, high: f64) -> Self {
        Self { llama_range: (low, high), ..self }
    }

    const fn in_ollama(self) -> Self {
        Self { is_ollamas: true, ..self }
    }

    const fn switch(self) -> Self {
        Self { is_switch: true, ..self }
    }

    const fn at_least_0(self) -> Self {
        Self { usable: Usable::AtLeast0, ..self }
    }

    const fn above_0(self) -> Self {
        Self { usable: Usable::Above0, ..self }
    }
}

impl Parameter {
    /// Its name in llama.cpp's dialect and Ollama's.
    pub fn llama_name(&self) -> &'static str {
        self.fields.llama_name.unwrap_or(self.name)
    }

    /// The numbers that a sampler can use, in words; `None` if `value` is one of them.
    fn expects(&self, value: f64) -> Option<&'static str> {
        let (is_good, expected) = match self.fields.usable {
            Usable::Any => (true, "a number"),
            Usable::AtLeast0 => (value >= 0.0, "a number of at least 0"),
            Usable::Above0 => (value > 0.0, "a number above 0"),
        };
        (!is_good || !value.is_finite()).then_some(expected)
    }
}

macro_rules! sampling {
    ($({$($name:ident: $type:ty = $default:expr, $effect:literal, $fields:expr;)+})+) => {
        /// How the next token is drawn from the logits. First `logit_bias` is added and forbidden
        /// tokens go. Then the samplers apply in their order, see [`Sampler::ORDER`].
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Sampling {
            $($(#[doc = concat!($effect, ".")] pub $name: $type,)+)+
            /// The same seed, prompt and options give the same answer.
            pub seed: u64,
            /// Added to these tokens' logits.
            pub logit_bias: Vec<(Token, f32)>,
            /// The samplers in their order, if it is another one; others are off.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub samplers: Option<Vec<Sampler>>,
            /// Where the repetitions end that `dry_multiplier` weighs.
            #[serde(skip_serializing_if = "DryBreakers::is_empty")]
            pub dry_breakers: DryBreakers,
            /// The most surprise in bits that Mirostat allows the token after those that are
            /// answered; before the first it is twice `mirostat_tau`.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub mirostat_mu: Option<f32>,
        }

        impl Default for Sampling {
            /// Greedy.
            fn default() -> Self {
                Self {
                    $($($name: $default,)+)+
                    seed: 0,
                    logit_bias: Vec::new(),
                    samplers: None,
                    dry_breakers: DryBreakers::default(),
                    mirostat_mu: None,
                }
            }
        }

        /// A client's or a preset's sampling; a field that is `None` takes the model's default.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct SamplingChoice {
            $($(#[doc = concat!($effect, ".")] pub $name: Option<$type>,)+)+
            /// Random if `None`.
            pub seed: Option<u64>,
            pub logit_bias: Vec<(Token, f32)>,
            /// Biases of all tokens of a text.
            pub text_bias: Vec<(String, f32)>,
            pub samplers: Option<Vec<Sampler>>,
            /// Strings that end a repetition.
            pub dry_sequence_breakers: Option<Vec<String>>,
        }

        impl SamplingChoice {
            /// The choice, and `other` where it chooses nothing. Biases are those of the choice.
            pub fn or(self, other: Self) -> Self {
                Self {
                    $($($name: self.$name.or(other.$name),)+)+
                    seed: self.seed.or(other.seed),
                    logit_bias: self.logit_bias,
                    text_bias: self.text_bias,
                    samplers: self.samplers.or(other.samplers),
                    dry_sequence_breakers: self
                        .dry_sequence_breakers
                        .or(other.dry_sequence_breakers),
                }
            }

            /// The choice, and `default` where it chooses nothing, with this seed. Texts of biases
            /// and of breakers are left to whoever has the vocabulary.
            pub fn over(&self, default: &Sampling, seed: u64) -> Sampling {
                Sampling {
                    $($($name: self.$name.unwrap_or(default.$name),)+)+
                    seed,
                    samplers: self.samplers.clone(),
                    ..Sampling::default()
                }
            }
        }

        /// The rows.
        pub const PARAMETERS: &[Parameter] = &[$($(Parameter {
            name: stringify!($name),
            effect: $effect,
            fields: $fields,
            default: { const DEFAULT: $type = $default; DEFAULT as f64 },
            of: |sampling| sampling.$name as f64,
            chosen: |choice| choice.$name.map(|value| value as f64),
            choose: |choice, value| choice.$name = Some(value as $type),
        }),+),+];
    };
}
for_parameters!(sampling);

impl Parameter {
    /// The row with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PARAMETERS.iter().find(|parameter| parameter.name == name)
    }
}

/// A number that no sampler can use.
pub(crate) struct Unusable {
    pub field: &'static str,
    pub value: f32,
    pub expected: &'static str,
}

impl Sampling {
    /// The names of what is set.
    pub(crate) fn set_names(&self) -> Vec<&'static str> {
        let numbers = PARAMETERS.iter().filter(|row| (row.of)(self) != row.default);
        let others = [
            ("seed", self.seed != 0),
            ("logit_bias", !self.logit_bias.is_empty()),
            ("samplers", self.samplers.is_some()),
            ("dry_breakers", !self.dry_breakers.is_empty()),
            ("mirostat_mu", self.mirostat_mu.is_some()),
        ];
        let others = others.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name);
        numbers.map(|row| row.name).chain(others).collect()
    }

    /// Checks that a sampler can use each number.
    pub(crate) fn check(&self) -> Result<(), Unusable> {
        let wrong =
            |field, value: f64, expected| Err(Unusable { field, value: value as f32, expected });
        for row in PARAMETERS {
            let value = (row.of)(self);
            if let Some(expected) = row.expects(value) {
                return wrong(row.name, value, expected);
            }
        }
        if ![0, 2].contains(&self.mirostat) {
            return wrong("mirostat", self.mirostat.into(), "0 or 2");
        }
        let biases = self.logit_bias.iter().map(|(_, bias)| ("logit_bias", *bias));
        let mut more = biases.chain(self.mirostat_mu.map(|mu| ("mirostat_mu", mu)));
        match more.find(|(_, value)| !value.is_finite()) {
            Some((field, value)) => wrong(field, value.into(), "a number"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_agree_with_themselves() {
        for (at, row) in PARAMETERS.iter().enumerate() {
            let ParameterFields { range, llama_range, .. } = row.fields;
            assert!(PARAMETERS[..at].iter().all(|other| other.name != row.name), "{}", row.name);
            for (low, high) in [range, llama_range] {
                assert!((low..=high).contains(&row.default), "{}: {range:?}", row.name);
            }
            assert!(llama_range.0 <= range.0 && llama_range.1 >= range.1, "{}", row.name);
            assert_eq!(row.expects(row.default), None, "{}", row.name);
            assert_eq!((row.of)(&Sampling::default()), row.default, "{}", row.name);
            let mut choice = SamplingChoice::default();
            assert_eq!((row.chosen)(&choice), None);
            let other = if range.1 == row.default { range.0 } else { range.1 };
            (row.choose)(&mut choice, other);
            let set = choice.over(&Sampling::default(), 0);
            let exact = if row.fields.is_whole { other } else { other as f32 as f64 };
            assert_eq!((row.of)(&set), exact, "{}", row.name);
            assert_eq!(set.set_names(), [row.name]);
        }
    }

    #[test]
    fn a_choice_comes_before_another_and_both_before_a_default() {
        let own = SamplingChoice { top_k: Some(3), min_keep: Some(2), ..Default::default() };
        let preset = SamplingChoice { top_k: Some(5), typical_p: Some(0.5), ..Default::default() };
        let model = Sampling { top_p: 0.5, typical_p: 0.25, ..Sampling::default() };
        let found = own.or(preset).over(&model, 7);
        let due = Sampling {
            top_k: 3,
            min_keep: 2,
            typical_p: 0.5,
            top_p: 0.5,
            seed: 7,
            ..Sampling::default()
        };
        assert_eq!(found, due);
    }
}
