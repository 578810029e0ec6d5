//! Standard output and error: where text goes, whether it may be coloured, how wide it is.
//!
//! Always true: only what was asked for goes to standard output; progress and complaints go to standard error.

use crate::cli::{Color, Common};
use crate::report::escape::escape_lines;
use crate::report::layout::Style;
use anyhow::{Context as _, Result};
use std::io::{IsTerminal as _, Write as _};

/// Columns when standard output is not a terminal.
const WIDTH_WITHOUT_TERMINAL: usize = 80;
/// Wider lines are hard to read.
const WIDTH_MAX: usize = 110;

/// How to print on standard output.
#[must_use]
pub(super) fn style(common: &Common) -> Style {
    let terminal = std::io::stdout().is_terminal();
    let width = terminal_size::terminal_size().map_or(WIDTH_WITHOUT_TERMINAL, |(w, _)| usize::from(w.0));
    Style {
        color: allow_color(common.color, terminal),
        width: if terminal { width.clamp(40, WIDTH_MAX) } else { WIDTH_WITHOUT_TERMINAL },
        verbose: common.verbose,
    }
}

fn allow_color(asked: Color, terminal: bool) -> bool {
    match asked {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
            terminal && !refused && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

/// Writes to standard output.
pub(super) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to standard output")
}

/// Writes a value as one JSON document.
pub(super) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    text.push('\n');
    print(&text)
}

/// One line on standard error, escaped.
pub(super) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", escape_lines(text));
}

/// Log lines (`tracing`) go to standard error: warnings always, everything with `--verbose` or RUST_LOG.
pub(super) fn log_to_stderr(verbose: bool, color: Color) {
    use tracing_subscriber::EnvFilter;
    let default = if verbose { "outlive=debug,warn" } else { "warn" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(allow_color(color, std::io::stderr().is_terminal()))
        .with_target(false)
        .without_time()
        .init();
}

/// The reader of our output has gone away.
#[must_use]
pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|e| e.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
