//! Names of the numbered files of a recording that rotates. Pure, but for [`parts`] and [`next_number`], which list a folder.

use std::path::{Path, PathBuf};

/// Endings before which the number goes.
const SUFFIXES: [&str; 4] = [".jsonl.zst", ".jsonl", ".json", ".zst"];

/// `out.jsonl.zst`, 3 -> `out.000003.jsonl.zst`.
#[must_use]
pub fn numbered(path: &Path, number: u64) -> PathBuf {
    let (stem, suffix) = split(path);
    path.with_file_name(format!("{stem}.{number:06}{suffix}"))
}

/// The files that make up the trace `path`, oldest first: `path` itself when it exists, else its numbered parts,
/// else `path` (so that opening it says what is wrong).
#[must_use]
pub fn parts(path: &Path) -> Vec<PathBuf> {
    if path.exists() {
        return vec![path.to_path_buf()];
    }
    let mut found = numbers(path);
    found.sort_unstable();
    if found.is_empty() {
        return vec![path.to_path_buf()];
    }
    found
        .into_iter()
        .map(|number| numbered(path, number))
        .collect()
}

/// One more than the highest number in use, so that a new recording comes after those that are there.
#[must_use]
pub fn next_number(path: &Path) -> u64 {
    numbers(path)
        .into_iter()
        .max()
        .unwrap_or(0)
        .saturating_add(1)
}

fn numbers(path: &Path) -> Vec<u64> {
    let (stem, suffix) = split(path);
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let digits = name
                .to_str()?
                .strip_prefix(&stem)?
                .strip_prefix('.')?
                .strip_suffix(suffix)?;
            let canonical = digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit());
            if canonical { digits.parse().ok() } else { None }
        })
        .collect()
}

fn split(path: &Path) -> (String, &'static str) {
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    for suffix in SUFFIXES {
        if let Some(stem) = name.strip_suffix(suffix) {
            return (stem.to_owned(), suffix);
        }
    }
    (name, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_goes_before_the_ending() {
        assert_eq!(
            numbered(Path::new("/a/out.jsonl.zst"), 3),
            Path::new("/a/out.000003.jsonl.zst")
        );
        assert_eq!(
            numbered(Path::new("out"), 1_234_567),
            Path::new("out.1234567")
        );
    }

    #[test]
    fn parts_are_in_order_and_nothing_else_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("out.jsonl.zst");
        for name in [
            "out.000010.jsonl.zst",
            "out.000002.jsonl.zst",
            "out.1000000.jsonl.zst",
            "out.2.jsonl.zst",
            "other.000001.jsonl.zst",
            "out.00000x.jsonl.zst",
        ] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(
            parts(&base),
            [
                numbered(&base, 2),
                numbered(&base, 10),
                numbered(&base, 1_000_000)
            ]
        );
        assert_eq!(next_number(&base), 1_000_001);
        std::fs::write(&base, "").unwrap();
        assert_eq!(parts(&base), [base]);
    }
}
