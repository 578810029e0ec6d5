//! The key of the tokens that stand for kernel addresses: one per boot, so that a live look and a recording of the same boot
//! call the same description by the same token.
//!
//! Always true: readable by root only, in a folder that a reboot empties; never in a trace file. A file of another owner or mode is
//! not trusted, and then there is no key.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Where it is kept: tmpfs on every distribution with /run.
const PLACE: &str = "/run/outlive.key";

/// The key, made at the first use in a boot; `None` when it can be neither read nor made.
pub(super) fn of_this_boot() -> Option<u64> {
    of(Path::new(PLACE))
}

fn of(place: &Path) -> Option<u64> {
    read(place).or_else(|| make(place)).or_else(|| read(place))
}

fn read(place: &Path) -> Option<u64> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(place).ok()?;
    let about = file.metadata().ok()?;
    if about.uid() != 0 || about.mode() & 0o077 != 0 || about.len() != 8 {
        tracing::warn!("{} is not a key that only root can read; recordings and looks cannot be compared", place.display());
        return None;
    }
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

/// Writes a new key beside its place and links it there, so that nobody ever reads half of one.
fn make(place: &Path) -> Option<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom").ok()?.read_exact(&mut bytes).ok()?;
    let beside = place.with_extension(format!("new.{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&beside).ok()?;
    let linked = file.write_all(&bytes).and_then(|()| std::fs::hard_link(&beside, place));
    let _ = std::fs::remove_file(&beside);
    linked.ok().map(|()| u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_use_reads_the_key_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("key");
        let first = of(&place);
        // Only root's own file is trusted.
        if std::fs::metadata(folder.path()).unwrap().uid() != 0 {
            return;
        }
        assert!(first.is_some());
        assert_eq!(of(&place), first);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("key");
        std::fs::write(&place, 7_u64.to_ne_bytes()).unwrap();
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(of(&place), None);
    }
}
