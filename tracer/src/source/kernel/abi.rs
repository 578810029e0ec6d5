//! Which row of the driver's ABI table applies: chosen by the version of the loaded driver.
//!
//! Always true: a version that the table does not have gets the nearest branch, and a limit that says so; private data of files
//! are read only while the real driver is loaded.

use outlive_ebpf::abi::{self, Abi, BRANCHES};

/// The layout for the driver of this version, and what is uncertain about it.
#[must_use]
pub fn of_driver(version: Option<&str>) -> (Abi, Option<(String, String)>) {
    let Some(version) = version else {
        // No driver: nobody can ask it for anything, so any row does.
        return (BRANCHES[BRANCHES.len() - 1].abi, None);
    };
    let (row, exact) = abi::for_driver(version);
    let limit = (!exact).then(|| {
        let missing = format!("the request layouts of NVIDIA driver {version}; those of branch {} are used", row.branch);
        (missing, "the sizes of allocations, imports and exports, if the driver changed their layouts".to_owned())
    });
    (Abi { private_data: 1, ..row.abi }, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_version_says_which_branch_stands_in() {
        assert!(of_driver(Some("580.159.04")).1.is_none());
        let (_, limit) = of_driver(Some("610.10"));
        assert!(limit.unwrap().0.contains("branch 595"));
        assert_eq!(of_driver(None).0.private_data, 0);
        assert_eq!(of_driver(Some("535.1")).0.private_control, 88);
    }
}
