//! An address as a QR code in the terminal, for the camera of a phone.

use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};

/// Black on white, whatever the terminal's colours are. `None` if the text is too long for one.
pub fn code(text: &str) -> Option<String> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L).ok()?;
    let drawn = code.render::<Dense1x2>().quiet_zone(true).build();
    Some(drawn.lines().map(|line| format!("\x1b[30;107m{line}\x1b[0m\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_a_square_with_a_finder_in_its_corner() {
        let drawn = code("http://192.168.178.20:8750/#pair=123456").unwrap();
        let lines: Vec<&str> = drawn.lines().collect();
        let plain = |line: &str| line.replace("\x1b[30;107m", "").replace("\x1b[0m", "");
        // Version 3 has 29 modules, with 4 of quiet zone on each side; two lie in one line.
        assert_eq!(lines.len(), 37_usize.div_ceil(2));
        assert!(lines.iter().all(|line| plain(line).chars().count() == 37), "{drawn}");
        assert_eq!(plain(lines[2]).chars().skip(4).take(8).collect::<String>(), "█▀▀▀▀▀█ ");
        assert!(code(&"a".repeat(4000)).is_none());
    }
}
