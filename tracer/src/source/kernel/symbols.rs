//! The kernel's functions that kprobes can be attached to, and whether NVIDIA's driver is loaded.
//!
//! Always true: a function is found by its name in the source, also when the compiler has put a suffix behind it (`.constprop.0`,
//! `.isra.0`, `.llvm.12`), but not a part of it (`.cold`, `.part.0`); of the driver's modules' functions only theirs.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::hooks;
use crate::event::Dev;

/// The driver's modules that are hooked.
const MODULES: [&str; 2] = ["nvidia", "nvidia_uvm"];

/// Functions of interest that the kernel has now.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// The name in the source, and what the kernel calls it.
    found: HashMap<&'static str, String>,
    driver: bool,
}

impl Symbols {
    /// Reads /proc/kallsyms. Where that cannot be read there are none.
    pub(super) fn read() -> Symbols {
        match fs::File::open("/proc/kallsyms") {
            Ok(file) => Symbols::from(BufReader::with_capacity(1 << 16, file), is_loaded()),
            Err(_) => Symbols::default(),
        }
    }

    fn from(mut text: impl BufRead, driver: bool) -> Symbols {
        let wanted: HashMap<&str, (&'static str, bool)> = hooks::GROUPS.iter()
            .flat_map(|group| group.driver.iter().flat_map(|spec| spec.functions()).map(|name| (*name, (*name, group.of_driver))))
            .collect();
        let mut symbols = Symbols { found: HashMap::new(), driver };
        let mut line = Vec::new();
        // "ffffffffc0a01000 t nvidia_close.constprop.0\t[nvidia]"
        while text.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            if let Ok(text) = std::str::from_utf8(&line) {
                symbols.consider(text.trim_end(), &wanted);
            }
            line.clear();
        }
        symbols
    }

    fn consider(&mut self, line: &str, wanted: &HashMap<&str, (&'static str, bool)>) {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (Some(kind), Some(symbol)) = (words.next(), words.next()) else { return };
        let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']'));
        let (name, suffix) = symbol.split_once('.').unwrap_or((symbol, ""));
        let Some((name, of_driver)) = wanted.get(name) else { return };
        let is_part = suffix.split('.').any(|part| part == "cold" || part == "part");
        let is_theirs = module.is_some_and(|module| MODULES.contains(&module));
        if !matches!(kind, "t" | "T") || is_part || is_theirs != *of_driver {
            return;
        }
        // The function itself before a copy of it with fewer arguments.
        let known = self.found.entry(name).or_insert_with(|| symbol.to_owned());
        if suffix.is_empty() {
            symbol.clone_into(known);
        }
    }

    /// What the kernel calls the first of these functions that it has.
    pub(super) fn first_of<'a>(&'a self, names: &[&'a str]) -> Option<&'a str> {
        names.iter().find_map(|name| self.found.get(name)).map(String::as_str)
    }

    /// The driver was loaded when they were read.
    pub(super) fn has_driver(&self) -> bool {
        self.driver
    }
}

/// One loading of the driver's modules: another one when one of them was loaded or unloaded since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Loading([Option<u64>; MODULES.len()]);

impl Loading {
    /// The one of now. A module's folder in sysfs is made when it is loaded, and never has an earlier one's number.
    pub(super) fn now() -> Loading {
        Loading(MODULES.map(|name| fs::metadata(Path::new("/sys/module").join(name)).ok().map(|folder| folder.ino())))
    }

    /// The driver is loaded.
    pub(super) fn is_loaded(self) -> bool {
        self.0.first().is_some_and(Option::is_some)
    }
}

fn is_loaded() -> bool {
    Loading::now().is_loaded()
}

/// The kernel has kprobes, for us.
pub(super) fn has_kprobes() -> bool {
    Path::new("/sys/bus/event_source/devices/kprobe").exists()
}

/// Does NVIDIA's driver have this device number? (/proc/devices; where that cannot be read, its own major number.)
pub(super) fn is_of_driver(dev: Dev) -> bool {
    const NVIDIA_MAJOR: u32 = 195;
    let text = fs::read_to_string("/proc/devices").unwrap_or_default();
    let listed = |line: &str| {
        line.trim().split_once(' ').is_some_and(|(number, name)| number.parse() == Ok(dev.major()) && name.starts_with("nvidia"))
    };
    let known = text.lines().take_while(|line| *line != "Block devices:").any(listed);
    known || dev.major() == NVIDIA_MAJOR && !text.contains(&format!("{NVIDIA_MAJOR} "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_their_name_in_the_source() {
        let text = "ffffffff81000000 T release_task\nffffffff81000010 t __receive_fd.part.0\nffffffff81000020 T receive_fd\n\
            0000000000000000 t nvidia_close.constprop.0\t[nvidia]\n0000000000000000 t nvidia_close.cold\t[nvidia]\n\
            0000000000000000 t nvidia_open\t[impostor]\n0000000000000000 t uvm_release_entry.isra.0\t[nvidia_uvm]\n\
            0000000000000000 t uvm_release_entry\t[nvidia_uvm]\n0000000000000000 d uvm_open_entry\t[nvidia_uvm]\ngarbage\n";
        let symbols = Symbols::from(text.as_bytes(), true);
        assert_eq!(symbols.first_of(&["release_task"]), Some("release_task"));
        assert_eq!(symbols.first_of(&["__receive_fd", "receive_fd"]), Some("receive_fd"), "a part of a function is not it");
        assert_eq!(symbols.first_of(&["nvidia_close", "nvidia_frontend_close"]), Some("nvidia_close.constprop.0"));
        assert_eq!(symbols.first_of(&["uvm_release_entry"]), Some("uvm_release_entry"));
        assert_eq!(symbols.first_of(&["nvidia_open"]), None, "another module's");
        assert_eq!(symbols.first_of(&["uvm_open_entry"]), None, "not a function");
    }

    #[test]
    fn nobody_elses_devices_are_the_drivers() {
        assert!(!is_of_driver(Dev::new(1, 3)));
    }
}
