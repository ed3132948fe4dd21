//! Tables for people: columns as wide as their widest cell.

pub use hub::size as bytes;

/// Prints rows under a heading.
pub fn print<const N: usize>(heading: [&str; N], rows: &[[String; N]]) {
    say!("{}", render(heading, rows).trim_end());
}

fn render<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heading.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{:width$}", tame(cell)));
        format!("{}\n", cells.collect::<Vec<_>>().join("   ").trim_end())
    };
    let mut text = line(heading);
    for row in rows {
        text.push_str(&line(std::array::from_fn(|at| row[at].as_str())));
    }
    text
}

/// Text of others', such as a file's name, without what a terminal would obey.
pub fn tame(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["a".to_owned(), "1".to_owned()], ["longer".to_owned(), "2".to_owned()]];
        assert_eq!(render(["NAME", "N"], &rows), "NAME     N\na        1\nlonger   2\n");
    }

    #[test]
    fn names_of_others_do_not_reach_the_terminal_raw() {
        let rows = [["a\u{1b}[31m\u{7}b".to_owned()]];
        assert_eq!(render(["NAME"], &rows), "NAME\na\u{fffd}[31m\u{fffd}b\n");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(40 << 30), "40.0 GiB");
    }
}
