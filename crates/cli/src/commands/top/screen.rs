//! A terminal to draw on: its size, its keys, and lines of coloured text.
//!
//! It uses the sequences of ECMA-48 that every terminal supports. The terminal is restored at the
//! end, also after a panic.

use std::io::{self, Write};

use super::terminal::Terminal;

/// The alternate screen, which preserves the former content; no cursor; no wrapping of long lines.
const BEGIN: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const END: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Assumed if the size is unknown.
const SIZE_USUAL: (usize, usize) = (24, 80);

/// Style of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Bold,
    Dim,
    Accent,
    Good,
    Warning,
    Error,
}

impl Style {
    fn code(self, colours: bool) -> &'static str {
        match (self, colours) {
            (Self::Plain, _) | (Self::Accent | Self::Good | Self::Warning, false) => "",
            (Self::Bold, _) | (Self::Error, false) => "\x1b[1m",
            (Self::Dim, _) => "\x1b[2m",
            (Self::Accent, true) => "\x1b[36m",
            (Self::Good, true) => "\x1b[32m",
            (Self::Warning, true) => "\x1b[33m",
            (Self::Error, true) => "\x1b[1;31m",
        }
    }
}

/// One line: pieces of text that do not move the cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line(Vec<(Style, String)>);

impl Line {
    pub fn new(style: Style, text: impl AsRef<str>) -> Self {
        Self::default().with(style, text)
    }

    /// Control characters are removed: names come from other nodes.
    pub fn with(mut self, style: Style, text: impl AsRef<str>) -> Self {
        self.0.push((style, plain(text.as_ref())));
        self
    }

    /// Its plain text.
    #[cfg(test)]
    pub fn text(&self) -> String {
        self.0.iter().map(|(_, piece)| piece.as_str()).collect()
    }

    /// The line with escape sequences, cut at `width` characters.
    fn written(&self, width: usize, colours: bool) -> String {
        let (mut text, mut room) = (String::new(), width);
        for (style, piece) in &self.0 {
            let shown: String = piece.chars().take(room).collect();
            room -= shown.chars().count();
            let code = style.code(colours);
            text.push_str(code);
            text.push_str(&shown);
            if !code.is_empty() {
                text.push_str("\x1b[0m");
            }
        }
        text
    }
}

/// Text that cannot control a terminal.
pub fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Quit,
    Up,
    Down,
}

/// The terminal; dropping it restores the former mode.
pub struct Screen {
    terminal: Terminal,
    colours: bool,
}

impl Screen {
    /// # Errors
    /// Those of [`Terminal::open`].
    pub fn open() -> io::Result<Self> {
        let terminal = Terminal::open()?;
        let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let screen = Self { terminal, colours };
        print(BEGIN)?;
        Ok(screen)
    }

    /// Rows and columns.
    pub fn size(&self) -> (usize, usize) {
        let told = self.terminal.size().filter(|(rows, columns)| *rows > 0 && *columns > 0);
        told.unwrap_or(SIZE_USUAL)
    }

    /// Replaces the screen's content; lines below the last row are cut off.
    pub fn show(&self, lines: &[Line], (rows, columns): (usize, usize)) -> io::Result<()> {
        let mut text = String::from("\x1b[H");
        for (row, line) in lines.iter().take(rows).enumerate() {
            text.push_str(if row > 0 { "\r\n" } else { "" });
            text.push_str(&line.written(columns, self.colours));
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        print(&text)
    }

    /// Waits a tenth of a second for keys.
    pub fn keys(&self) -> io::Result<Vec<Key>> {
        let mut pressed = [0; 64];
        let length = self.terminal.read(&mut pressed)?;
        Ok(keys(&pressed[..length]))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // An error means that the terminal is gone.
        let _ = print(END);
    }
}

fn keys(mut pressed: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let [first, rest @ ..] = pressed {
        let (key, after) = match (first, rest) {
            (0x1b, [b'[' | b'O', b'A', after @ ..]) => (Some(Key::Up), after),
            (0x1b, [b'[' | b'O', b'B', after @ ..]) => (Some(Key::Down), after),
            // Other sequences are ignored.
            (0x1b, [b'[' | b'O', _, after @ ..]) => (None, after),
            (b'q' | 0x1b | 0x03, after) => (Some(Key::Quit), after),
            (b'k', after) => (Some(Key::Up), after),
            (b'j', after) => (Some(Key::Down), after),
            (_, after) => (None, after),
        };
        keys.extend(key);
        pressed = after;
    }
    keys
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_coloured_and_cannot_move_the_cursor() {
        let line = Line::new(Style::Bold, "a\x1b[2Jb").with(Style::Good, "cdef");
        assert_eq!(line.written(80, true), "\x1b[1ma[2Jb\x1b[0m\x1b[32mcdef\x1b[0m");
        assert_eq!(line.written(80, false), "\x1b[1ma[2Jb\x1b[0mcdef");
        assert_eq!(line.written(6, false), "\x1b[1ma[2Jb\x1b[0mc");
    }

    #[test]
    fn keys_are_told_apart_from_sequences() {
        for (pressed, expected) in [
            (&b"q"[..], &[Key::Quit][..]),
            (b"\x1b", &[Key::Quit]),
            (b"\x03", &[Key::Quit]),
            (b"\x1b[A\x1b[Bjk", &[Key::Up, Key::Down, Key::Down, Key::Up]),
            (b"\x1b[Cx", &[]),
            (b"", &[]),
        ] {
            assert_eq!(keys(pressed), expected, "{pressed:?}");
        }
    }
}
