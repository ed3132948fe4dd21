//! Grammars of llama.cpp: every text of one is allowed, and nothing else.

use crate::support::Model;
use protocol::Grammar;
use text::Gbnf;

impl Model {
    fn gbnf(&self, source: &str) -> Grammar {
        let gbnf = Gbnf::convert(source, &self.tokenizer);
        match gbnf.unwrap_or_else(|error| panic!("{source}: {error}")) {
            Gbnf::Regex(regex) => Grammar::Regex(regex),
            Gbnf::Lark(lark) => Grammar::Lark(lark),
        }
    }

    /// A random text of up to `most` tokens, and whether it is complete.
    fn text_of(&self, source: &str, seed: u64, most: usize) -> (String, bool) {
        let (mut constraint, mut rng) =
            (self.compile(&self.gbnf(source)), fastrand::Rng::with_seed(seed));
        let mut bytes = Vec::new();
        for _ in 0..most {
            let allowed = self.allowed(&mut constraint);
            let token = allowed[rng.usize(..allowed.len())];
            if token == self.end() {
                return (String::from_utf8(bytes).unwrap(), true);
            }
            constraint.take(token).unwrap();
            bytes.extend_from_slice(self.tokenizer.token_bytes(token));
        }
        (String::from_utf8_lossy(&bytes).into_owned(), false)
    }
}

#[test]
fn answers_are_texts_of_the_grammar() {
    // The digits before a "7" could as well be taken with it.
    let nested = "root ::= list\nlist ::= \"[\" ( item (\",\" item){0,2} )? \"]\"\n\
                  item ::= digits \"7\" | list\ndigits ::= [0-9]{1,3}";
    let mut whole = 0;
    for model in Model::all() {
        for seed in 0..20 {
            let (text, is_whole) = model.text_of(nested, seed, 60);
            let mut numbers: Vec<&str> = text.split(['[', ']', ',']).collect();
            numbers.retain(|number| !number.is_empty());
            if is_whole {
                let is_number =
                    |number: &&str| number.ends_with('7') && (2..=4).contains(&number.len());
                assert!(numbers.iter().all(is_number), "{text}");
                assert_eq!(text.matches('[').count(), text.matches(']').count(), "{text}");
                whole += usize::from(!numbers.is_empty());
            }
            let (text, is_whole) = model.text_of("root ::= (\"yes\" | \"no\") \".\"{2}", seed, 9);
            assert!(is_whole && ["yes..", "no.."].contains(&text.as_str()), "{text}");
        }
    }
    assert!(whole > 5, "{whole}");
}

#[test]
fn every_text_of_a_grammar_is_allowed_and_no_other() {
    // The word may end where the text after it begins as the word could go on.
    let recursive = "root ::= word \"bc\" root | \"!\"\nword ::= [a-z]+";
    let empty = "root ::= \"(\" root \")\" | ";
    let regular = "root ::= [a-z]+ \"bc\" [^\\n]? | \"\\u00e9\"";
    // Its tokenizer adds no space in front of a text.
    let model = Model::all().next().unwrap();
    for (source, text, is_allowed) in [
        (recursive, "!", true),
        (recursive, "abc!", true),
        (recursive, "abcbcbc!", true),
        (recursive, "bcbc!", true),
        (recursive, "bc!", false),
        (recursive, "abcc!", false),
        (recursive, "abc", false),
        (empty, "", true),
        (empty, "((()))", true),
        (empty, "(()", false),
        (regular, "abcbc", true),
        (regular, "abcx", true),
        (regular, "abc\n", false),
        (regular, "é", true),
        (regular, "bc", false),
    ] {
        assert_eq!(model.allows(&model.gbnf(source), text), is_allowed, "{source}: {text:?}");
    }
}
