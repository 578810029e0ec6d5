//! `cargo xtask man`: writes man/outlive.1 from the command line's own definition.
//!
//! Always true: the committed page is what the program's `--help` says; `tidy` compares them.

use crate::run::workspace;
use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use std::fs;

/// Where it is.
pub(crate) const PLACE: &str = "man/outlive.1";

/// Writes the page.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn man() -> Result<()> {
    let place = workspace().join(PLACE);
    fs::create_dir_all(place.with_file_name("")).context("cannot create man/")?;
    fs::write(&place, page()?).with_context(|| format!("cannot write {}", place.display()))
}

/// The page as it should be: the program, then each subcommand.
///
/// # Errors
/// None: it is written to memory.
pub(crate) fn page() -> Result<Vec<u8>> {
    let mut command = outlive::cli::Cli::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let man = clap_mangen::Man::new(sub.clone());
        page.extend(format!(".SH \"OUTLIVE {}\"\n", sub.get_name().to_uppercase()).bytes());
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    Ok(page)
}
