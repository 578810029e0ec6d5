//! Lists the scenarios: every folder of tests/scenarios that has a `play.rs` is a module of the program `scenario`, and its data is
//! part of the harness.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or_else(|| io::Error::other("no CARGO_MANIFEST_DIR"))?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("no OUT_DIR"))?);
    let folder = here.join("scenarios");
    let mut names: Vec<String> = fs::read_dir(&folder)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| play(&folder, name).exists())
        .collect();
    names.sort();
    let (mut modules, mut table) = (String::new(), String::new());
    for name in &names {
        let module = name.replace('-', "_");
        modules.push_str(&format!("#[path = {:?}]\nmod {module};\n", play(&folder, name)));
        table.push_str(&format!("    ({name:?}, {module}::play),\n"));
    }
    let text = format!(
        "{modules}\n/// Every play, by the name of its folder.\npub(crate) const PLAYS: &[(&str, crate::stage::Play)] = &[\n{table}];\n"
    );
    fs::write(out.join("plays.rs"), text)?;
    let files: String = names.iter().map(|name| embedded(&folder, name)).collect();
    fs::write(out.join("scenarios.rs"), format!("&[\n{files}]\n"))?;
    println!("cargo::rerun-if-changed={}", folder.display());
    Ok(())
}

fn play(folder: &Path, name: &str) -> PathBuf {
    folder.join(name).join("play.rs")
}

fn embedded(folder: &Path, name: &str) -> String {
    let data = folder.join(name).join("scenario.toml");
    format!("    ({name:?}, include_str!({data:?}), include_str!({:?})),\n", play(folder, name))
}
