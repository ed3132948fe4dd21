//! Explains invalid arguments: for numbers, the standard library reports only that a digit is
//! invalid.

use std::io::{self, Write};

use crate::output;

/// Error texts, and their meaning for the user.
const PLAIN: [(&str, &str); 6] = [
    ("invalid digit found in string", "expected a whole number, such as 4"),
    ("cannot parse integer from empty string", "expected a whole number, such as 4"),
    ("number too large to fit in target type", "that is more than there can be"),
    ("number too small to fit in target type", "that is less than there can be"),
    ("invalid float literal", "expected a number, such as 0.5"),
    ("cannot parse float from empty string", "expected a number, such as 0.5"),
];

/// Prints a command line's error, or the requested help.
pub fn print(error: &clap::Error) -> io::Result<()> {
    let styled = error.render();
    match error.use_stderr() {
        true => {
            let is_terminal = output::obeys(&io::stderr());
            let text = if is_terminal { styled.ansi().to_string() } else { styled.to_string() };
            write!(io::stderr(), "{}", in_words(text))
        }
        false => error.print(),
    }
}

fn in_words(mut text: String) -> String {
    for (found, plain) in PLAIN {
        text = text.replace(&format!(": {found}"), &format!(": {plain}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_asked_for_in_words() {
        let said = "invalid value 'a' for '--ctx <N>': invalid digit found in string".to_owned();
        let plain = "invalid value 'a' for '--ctx <N>': expected a whole number, such as 4";
        assert_eq!(in_words(said), plain);
        assert_eq!("1e".parse::<f64>().unwrap_err().to_string(), PLAIN[4].0);
        assert_eq!("x".parse::<u8>().unwrap_err().to_string(), PLAIN[0].0);
        assert_eq!("".parse::<u8>().unwrap_err().to_string(), PLAIN[1].0);
        assert_eq!("999".parse::<u8>().unwrap_err().to_string(), PLAIN[2].0);
    }
}
