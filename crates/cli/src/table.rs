//! Tables for users: columns as wide as their widest cell.

use std::io::IsTerminal;

pub use hub::size as bytes;

use crate::width;

/// Between columns.
const GAP: usize = 3;

/// Prints rows under a heading.
pub fn print<const N: usize>(heading: [&str; N], rows: &[[String; N]]) {
    let room = if std::io::stdout().is_terminal() { width::columns() } else { usize::MAX };
    say!("{}", render(heading, rows, room).trim_end());
}

fn render<const N: usize>(heading: [&str; N], rows: &[[String; N]], room: usize) -> String {
    let cells = rows.iter().map(|row| std::array::from_fn(|at| row[at].as_str()));
    let all: Vec<[&str; N]> = std::iter::once(heading).chain(cells).collect();
    let longest = |at: usize, len: fn(&str) -> usize| all.iter().map(|row| len(row[at])).max();
    let mut widths: [usize; N] = std::array::from_fn(|at| longest(at, chars).unwrap_or(0));
    let least: [usize; N] = std::array::from_fn(|at| longest(at, longest_word).unwrap_or(0));
    let is_wide = |widths: &[usize; N], gap| widths.iter().sum::<usize>() + gap * (N - 1) > room;
    let gap = if is_wide(&widths, GAP) { GAP - 1 } else { GAP };
    // Text that is too wide continues below, in its own column.
    while is_wide(&widths, gap) {
        let can_give = (0..N).filter(|at| widths[*at] > least[*at]);
        let Some(at) = can_give.max_by_key(|at| widths[*at]) else { break };
        widths[at] -= 1;
    }
    all.into_iter().map(|row| lines(row, widths, gap)).collect()
}

/// The lines of a row, as many as its highest cell has.
fn lines<const N: usize>(row: [&str; N], widths: [usize; N], gap: usize) -> String {
    let folded: [Vec<String>; N] = std::array::from_fn(|at| {
        let cell = one_line(row[at]);
        let folded = if is_figure(&cell) { cell } else { width::fold(&cell, widths[at]) };
        folded.split('\n').map(str::to_owned).collect()
    });
    let height = folded.iter().map(Vec::len).max().unwrap_or(0);
    let line = |number: usize| {
        let cells = folded.iter().zip(widths).map(|(cell, width)| {
            let text = cell.get(number).map_or("", String::as_str);
            format!("{text:width$}")
        });
        format!("{}\n", cells.collect::<Vec<_>>().join(&" ".repeat(gap)).trim_end())
    };
    (0..height).map(line).collect()
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

/// A number stays with its unit.
fn is_figure(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit())
}

fn longest_word(text: &str) -> usize {
    if is_figure(text) {
        return chars(text);
    }
    text.split(' ').map(chars).max().unwrap_or(0)
}

/// Foreign text without characters that control a terminal: control characters, and marks that
/// change the direction.
pub fn tame(text: &str) -> String {
    let turns = |c| {
        matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
            || matches!(c, '\u{2066}'..='\u{2069}')
    };
    let obeyed = |c: char| (c.is_control() && c != '\n') || turns(c);
    text.chars().map(|c| if obeyed(c) { '\u{fffd}' } else { c }).collect()
}

/// The same for a name or a path, in which a second line could mislead.
pub fn one_line(text: &str) -> String {
    tame(text).replace('\n', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["a".to_owned(), "1".to_owned()], ["longer".to_owned(), "2".to_owned()]];
        assert_eq!(render(["NAME", "N"], &rows, 80), "NAME     N\na        1\nlonger   2\n");
    }

    #[test]
    fn what_is_too_wide_goes_on_below_in_its_column() {
        let rows = [["desk (this one)".to_owned(), "0123456789".to_owned(), "7 B".to_owned()]];
        let text = render(["NAME", "ID", "N"], &rows, 27);
        assert_eq!(text, "NAME        ID          N\ndesk (this  0123456789  7 B\none)\n");
    }

    #[test]
    fn names_of_others_do_not_reach_the_terminal_raw() {
        let rows = [["a\u{1b}[31m\u{7}b".to_owned()], ["c\nerror: d\u{202e}".to_owned()]];
        let shown = "NAME\na\u{fffd}[31m\u{fffd}b\nc\u{fffd}error: d\u{fffd}\n";
        assert_eq!(render(["NAME"], &rows, 80), shown);
        assert_eq!(tame("two\nlines\r"), "two\nlines\u{fffd}");
        for turn in "\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}".chars() {
            assert_eq!(tame(&format!("a{turn}b")), "a\u{fffd}b", "{turn:?}");
        }
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(40 << 30), "40.0 GiB");
    }
}
