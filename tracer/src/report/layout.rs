//! Small pieces that every text report is made of: sizes, wrapping, colour.
//!
//! Always true: no line is longer than `Style::width` unless a single word is, and without colour the output has no
//! escape sequence.

use std::fmt::Write as _;

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Use ANSI colours.
    pub color: bool,
    /// Columns.
    pub width: usize,
    /// Show everything (all evidence, all descriptors, all zombies).
    pub verbose: bool,
}

impl Default for Style {
    fn default() -> Self {
        Style { color: false, width: 80, verbose: false }
    }
}

/// Colours by meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// The sentence.
    Strong,
    /// Labels, times, secondary text.
    Faint,
    /// Something is held.
    Alarm,
    /// Nothing is wrong.
    Good,
    /// A command to copy.
    Command,
}

impl Style {
    /// `text` in the colour of `paint`, or as it is.
    #[must_use]
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        if !self.color || text.is_empty() {
            return text.to_owned();
        }
        let code = match paint {
            Paint::Strong => "1",
            Paint::Faint => "2",
            Paint::Alarm => "1;31",
            Paint::Good => "32",
            Paint::Command => "36",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// "2.5 GiB", "615 MiB", "4 KiB", "0 B": at most one decimal, none below a gibibyte.
#[must_use]
pub fn size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    match bytes {
        0..KIB => format!("{bytes} B"),
        KIB..MIB => format!("{} KiB", (bytes + KIB / 2) / KIB),
        MIB..GIB => format!("{} MiB", (bytes + MIB / 2) / MIB),
        _ => {
            let tenths = (u128::from(bytes) * 10 + u128::from(GIB / 2)) / u128::from(GIB);
            format!("{}.{} GiB", tenths / 10, tenths % 10)
        }
    }
}

/// "340 ms", "7.5 s", "3 min 20 s", "2 h 5 min", "3 d 4 h".
#[must_use]
pub fn duration(ns: u64) -> String {
    let ms = ns / 1_000_000;
    let s = ms / 1000;
    match s {
        0 if ms == 0 => format!("{:.1} ms", ns as f64 / 1e6),
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", s, ms % 1000 / 100),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// "1 thread", "3 threads", "3 processes".
#[must_use]
pub fn count(n: usize, one: &str) -> String {
    let ending = if n == 1 {
        ""
    } else if one.ends_with('s') {
        "es"
    } else {
        "s"
    };
    format!("{n} {one}{ending}")
}

/// Wraps `text` at `width` columns; the first line starts with `first`, the others with `rest`.
///
/// Widths are counted in characters; existing line breaks are kept.
#[must_use]
pub fn wrap(text: &str, width: usize, first: &str, rest: &str) -> String {
    let mut out = String::new();
    let mut prefix = first;
    for paragraph in text.split('\n') {
        let mut column = 0;
        for word in paragraph.split_whitespace() {
            let length = word.chars().count();
            if column > 0 && prefix.chars().count() + column + 1 + length > width {
                out.push('\n');
                column = 0;
                prefix = rest;
            }
            if column == 0 {
                out.push_str(prefix);
            } else {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += length;
        }
        out.push('\n');
        prefix = rest;
    }
    out
}

/// A bar of `cells` characters: each part gets its share, at least one cell when it is not zero.
#[must_use]
pub fn bar(parts: &[(u64, char)], total: u64, cells: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    for &(amount, glyph) in parts {
        if amount == 0 || total == 0 {
            continue;
        }
        let share = (u128::from(amount) * cells as u128 / u128::from(total)) as usize;
        let share = share.max(1).min(cells - used);
        used += share;
        for _ in 0..share {
            out.push(glyph);
        }
    }
    let _ = write!(out, "{}", "·".repeat(cells - used));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_say_them() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(615 << 20), "615 MiB");
        assert_eq!(size(2574 << 20), "2.5 GiB");
        assert_eq!(size((1 << 30) - 1), "1024 MiB");
        assert_eq!(size(u64::MAX), "17179869184.0 GiB");
    }

    #[test]
    fn durations_read_as_people_say_them() {
        assert_eq!(duration(300_000), "0.3 ms");
        assert_eq!(duration(91_400_000), "91 ms");
        assert_eq!(duration(7_512_000_000), "7.5 s");
        assert_eq!(duration(200_000_000_000), "3 min 20 s");
    }

    #[test]
    fn wrapping_keeps_every_line_within_the_width() {
        let text = "one two three four five six seven eight nine ten";
        let out = wrap(text, 20, "  - ", "    ");
        assert!(out.lines().all(|l| l.chars().count() <= 20), "{out}");
        assert_eq!(out.split_whitespace().filter(|w| *w != "-").collect::<Vec<_>>().join(" "), text);
    }

    #[test]
    fn a_bar_is_always_as_long_as_asked() {
        for parts in [vec![], vec![(1, '#')], vec![(50, '#'), (50, '=')], vec![(1, 'a'), (99, 'b'), (70, 'c')]] {
            assert_eq!(bar(&parts, 100, 10).chars().count(), 10);
        }
    }
}
