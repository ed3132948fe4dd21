//! The width of the terminal, and text folded to it: words stay whole, and continuation lines are
//! indented below their text. Output to other places stays as it is.

use std::sync::OnceLock;

/// Assumed if the width is unknown.
const USUAL: usize = 80;
/// Below this, text would be a column of single words.
const LEAST: usize = 40;

/// Columns of this program's terminal, at the first call.
pub fn columns() -> usize {
    static COLUMNS: OnceLock<usize> = OnceLock::new();
    *COLUMNS.get_or_init(columns_now)
}

/// Columns of the terminal.
pub fn columns_now() -> usize {
    told().filter(|columns| *columns > 0).unwrap_or(USUAL).max(LEAST)
}

/// By `stty`, which every Unix has.
#[cfg(unix)]
fn told() -> Option<usize> {
    let tty = std::fs::File::open("/dev/tty").ok()?;
    let told = std::process::Command::new("stty").arg("size").stdin(tty).output().ok()?;
    String::from_utf8_lossy(&told.stdout).split_whitespace().nth(1)?.parse().ok()
}

#[cfg(windows)]
fn told() -> Option<usize> {
    win32::console::size().map(|(columns, _)| columns)
}

/// The text in lines of at most `width` characters, as far as words allow.
pub fn fold(text: &str, width: usize) -> String {
    text.split('\n').map(|line| fold_line(line, width)).collect::<Vec<_>>().join("\n")
}

fn fold_line(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let indent = indent(line, width);
    let begin = line.char_indices().nth(indent).map_or(line.len(), |(at, _)| at);
    let (mut text, mut at) = (line[..begin].to_owned(), indent);
    for word in line[begin..].split(' ') {
        let len = word.chars().count();
        let is_first = at == indent;
        if !is_first && at + 1 + len > width {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            at = indent;
        } else if !is_first {
            text.push(' ');
            at += 1;
        }
        text.push_str(word);
        at += len;
    }
    text
}

/// Where the text of a line begins, after its name or mark.
fn indent(line: &str, width: usize) -> usize {
    let chars: Vec<char> = line.chars().collect();
    let begins = |at: usize| chars[at] != ' ' && (at == 0 || chars[at - 1] == ' ');
    let behind_gap = |at: &usize| *at < 2 || chars[at - 2] == ' ';
    let starts = (0..chars.len().min(width / 2)).filter(|at| begins(*at)).filter(behind_gap);
    let at = starts.max().unwrap_or(0);
    if chars[at..].starts_with(&['-', '>', ' ']) { at + 3 } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_whole_and_stand_below_their_text() {
        let cases = [
            ("short", "short"),
            ("one two three four five six", "one two three four\nfive six"),
            ("+ disk   all is well with it", "+ disk   all is well\n         with it"),
            ("     -> sudo ip link set eth0", "     -> sudo ip link\n        set eth0"),
            ("  ab   one two three four", "  ab   one two three\n       four"),
            ("a-word-that-is-longer-than-a-line b", "a-word-that-is-longer-than-a-line\nb"),
            ("one\ntwo three four five six", "one\ntwo three four five\nsix"),
        ];
        for (text, wanted) in cases {
            assert_eq!(fold(text, 20), wanted, "{text:?}");
        }
    }
}
