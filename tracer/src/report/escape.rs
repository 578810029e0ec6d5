//! Makes names that other processes chose safe to print on a terminal.
//!
//! Always true: the result has no control character, no bidirectional override and no line break, and is at most
//! the asked length; printable Unicode passes unchanged.

use std::fmt::Write as _;

/// Longest command line that a report shows, in characters.
pub const CMDLINE_MAX: usize = 160;

/// `text` with every character that could move the cursor, recolour or reorder the line written as `\x1b` or
/// `\u{202e}`; cut after `max` characters, and then ends in "...".
#[must_use]
pub fn escape(text: &str, max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max) + 8);
    for (count, c) in text.chars().enumerate() {
        if count >= max {
            out.push_str("...");
            break;
        }
        if is_plain(c) {
            out.push(c);
        } else if (c as u32) < 0x80 {
            let _ = write!(out, "\\x{:02x}", c as u32);
        } else {
            let _ = write!(out, "\\u{{{:x}}}", c as u32);
        }
    }
    out
}

/// Whether a terminal shows this character as one or two cells and nothing else.
fn is_plain(c: char) -> bool {
    !(c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'))
}

/// Escapes a whole report line by line: what is ours (line breaks) stays, everything else is as [`escape`].
#[must_use]
pub fn escape_lines(text: &str) -> String {
    text.split('\n').map(|line| escape(line, usize::MAX)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escape_sequence_in_a_name_cannot_reach_the_terminal() {
        assert_eq!(escape("py\x1b[2Jthon\r\n", 64), "py\\x1b[2Jthon\\x0d\\x0a");
        assert_eq!(escape("\u{9b}31m", 64), "\\u{9b}31m");
    }

    #[test]
    fn a_bidirectional_override_cannot_reorder_the_line() {
        assert_eq!(escape("a\u{202e}b", 64), "a\\u{202e}b");
    }

    #[test]
    fn printable_unicode_passes() {
        assert_eq!(escape("entraînement-日本", 64), "entraînement-日本");
    }

    #[test]
    fn a_long_name_is_cut_and_says_so() {
        assert_eq!(escape("abcdef", 3), "abc...");
        assert_eq!(escape("abc", 3), "abc");
    }
}
