//! How events change who holds which description.
//!
//! Always true: `Process::files` and `File::holders` say the same; a description that nothing keeps is released at once.

use super::World;
use super::file::{File, Holder, Known, Place, SENT_KEPT, Sent, Slot};
use super::process::Stage;
use crate::event::{BootNs, Dev, Hold, ProcessId, Token, Via};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Lost descriptors remembered.
const DROPPED_KEPT: usize = 1_024;

impl World {
    pub(super) fn hold(&mut self, at: BootNs, hold: &Hold) {
        let process = self.process_mut(at, hold.id);
        process.held = true;
        // A zombie holds nothing: this was seen before its end and comes late. Who opened the file stays true.
        if process.stage() >= Stage::Zombie {
            if let Some(file) = self.files.get_mut(&hold.file) {
                learn(file, at, hold);
                self.tell_books(at, hold);
            }
            self.find_opener(hold.file);
            return;
        }
        if hold.via == Some(Via::Opened) {
            self.retire_reused(hold.since.unwrap_or(at), hold);
        }
        self.retire_strange(at, hold);
        let file = self.files.entry(hold.file).or_insert_with(|| Box::new(new_file(at, hold.file, hold.dev)));
        learn(file, at, hold);
        let from = hold.from.or_else(|| match hold.via {
            Some(Via::ScmRights | Via::InFlight) => file.sent.last().map(|sent| sent.by),
            _ => None,
        });
        if hold.via == Some(Via::ScmRights) && !file.is_held_by_table(hold.id) {
            file.in_transit = file.in_transit.saturating_sub(1);
        }
        let slot = Slot { fd: hold.fd, tid: hold.tid, cloexec: hold.cloexec, changed: at };
        let arrival = Arrival { via: hold.via, from, since: hold.since.or(hold.via.map(|_| at)) };
        put(&mut file.holders, (hold.id, Place::of(hold.via)), slot, arrival);
        self.note_held(hold.id, hold.file);
        self.find_opener(hold.file);
        self.tell_books(at, hold);
    }

    fn tell_books(&mut self, at: BootNs, hold: &Hold) {
        let files = &self.files;
        self.books.holds(at, hold.file, hold.pins, &|token| files.contains_key(&token));
    }

    /// A description keeps its opener's credentials for life: with others it is another one at the same address, whose open was missed.
    fn retire_strange(&mut self, at: BootNs, hold: &Hold) {
        let known = self.files.get(&hold.file).and_then(|file| file.cred);
        if known.zip(hold.cred).is_some_and(|(known, now)| known != now) {
            self.forget_file(at, hold.file);
        }
    }

    /// An open of a token that is already known: the old description must have been released unseen, unless the
    /// scan that found it is no older than the open.
    fn retire_reused(&mut self, opened: BootNs, hold: &Hold) {
        let same = match self.files.get(&hold.file) {
            Some(file) => match file.opened_at {
                Some(known) => known == opened,
                None => file.first_seen >= opened,
            },
            // Released, and perhaps thought to be kept open by another one; or used by somebody who was not seen to hold it.
            None => self.books.first_used(hold.file).is_none_or(|used| used >= opened),
        };
        if !same {
            self.forget_file(opened, hold.file);
            for token in self.books.reuse(hold.file) {
                if let Some(file) = self.files.get_mut(&token) {
                    file.pins = None;
                }
            }
        }
    }

    pub(super) fn drop_slot(&mut self, at: BootNs, id: ProcessId, fd: i32, token: Token) {
        self.remember_drop(at, id, fd, token);
        let Some(file) = self.files.get_mut(&token) else { return };
        let Some((place, _)) = file.slot(id, fd) else { return };
        if let Some(holder) = file.holders.get_mut(&(id, place)) {
            holder.slots.retain(|slot| slot.fd != fd);
            if holder.slots.is_empty() {
                file.holders.remove(&(id, place));
            }
        }
        self.after_loss(at, id, token);
    }

    pub(super) fn sent(&mut self, at: BootNs, by: ProcessId, token: Token, dev: Dev, socket: Option<u64>) {
        self.process_mut(at, by).held = true;
        let file = self.files.entry(token).or_insert_with(|| Box::new(new_file(at, token, dev)));
        self.books.holds(at, token, None, &|_| true);
        if file.sent.len() == SENT_KEPT {
            file.sent.remove(0);
        }
        file.sent.push(Sent { at, by, socket });
        file.in_transit = file.in_transit.saturating_add(1);
    }

    /// fork(2) copies the table: the child holds everything that the parent holds in one.
    pub(super) fn fork_files(&mut self, at: BootNs, parent: ProcessId, child: ProcessId) {
        let Some(held) = self.processes.get(&parent).map(|p| p.files.clone()).filter(|f| !f.is_empty()) else { return };
        let Some(process) = self.processes.get_mut(&child) else { return };
        if process.stage() >= Stage::Zombie {
            return;
        }
        // Events of two CPUs can change places: the child's exec may be here before its fork.
        let execed = process.execed_at.is_some_and(|exec| exec >= at);
        let mut copied = Vec::with_capacity(held.len());
        for token in held {
            let Some(file) = self.files.get_mut(&token) else { continue };
            let Some(holder) = file.holders.get(&(parent, Place::Table)) else { continue };
            let copy = |slot: &Slot| Slot { tid: None, changed: at, ..*slot };
            let mut slots: Vec<Slot> = holder.slots.iter().map(copy).collect();
            if execed {
                slots.retain(|slot| !closes_at_exec(slot, file.opened_cloexec));
            }
            match file.holders.entry((child, Place::Table)) {
                Entry::Vacant(place) if !slots.is_empty() => {
                    place.insert(Holder { via: Some(Via::Fork), from: Some(parent), since: Some(at), slots });
                }
                _ => continue,
            }
            copied.push(token);
        }
        process.held |= !copied.is_empty();
        // The parent's list was sorted, so this one is; what the child already had is rare.
        if process.files.is_empty() {
            process.files = copied;
        } else {
            process.files.extend(copied);
            process.files.sort_unstable();
            process.files.dedup();
        }
    }

    /// exec closes close-on-exec descriptors (`do_close_on_exec`, fs/file.c).
    pub(super) fn exec_files(&mut self, at: BootNs, id: ProcessId) {
        let Some(held) = self.processes.get(&id).map(|p| p.files.clone()) else { return };
        for token in held {
            let Some(file) = self.files.get_mut(&token) else { continue };
            let opened = file.opened_cloexec;
            let Some(holder) = file.holders.get_mut(&(id, Place::Table)) else { continue };
            let mut lost = Vec::new();
            holder.slots.retain(|slot| {
                // A descriptor that changed later belongs to the new program.
                let closes = slot.changed <= at && closes_at_exec(slot, opened);
                if closes {
                    lost.push(slot.fd);
                }
                !closes
            });
            if holder.slots.is_empty() {
                file.holders.remove(&(id, Place::Table));
            }
            for fd in lost {
                self.remember_drop(at, id, fd, token);
            }
            self.after_loss(at, id, token);
        }
    }

    /// The process holds nothing any more.
    pub(super) fn release_all(&mut self, at: BootNs, id: ProcessId) {
        self.has_released(at, id);
        let Some(process) = self.processes.get_mut(&id) else { return };
        for token in std::mem::take(&mut process.files) {
            let Some(file) = self.files.get_mut(&token) else { continue };
            file.holders.remove(&(id, Place::Table));
            if file.is_held_by(id) {
                file.holders.remove(&(id, Place::Socket));
                file.holders.remove(&(id, Place::Ring));
            }
            if file.is_released() {
                self.forget_file(at, token);
            }
        }
    }

    /// A complete scan saw every socket: what was in transit is now either held somewhere or gone.
    pub(super) fn settle_transit(&mut self, at: BootNs, began: BootNs) {
        let mut settled = Vec::new();
        for file in self.files.values_mut() {
            if file.in_transit > 0 && file.sent.last().is_none_or(|sent| sent.at < began) {
                file.in_transit = 0;
                settled.push(file.token);
            }
        }
        for token in settled {
            self.release_if_unheld(at, token);
        }
    }

    /// These credentials are this process's: it opened what carries them.
    pub(super) fn has_cred(&mut self, id: ProcessId, cred: Token) {
        if cred == 0 {
            return;
        }
        if let Some(process) = self.processes.get_mut(&id) {
            process.info.cred = Some(cred);
        }
        self.creds.insert(cred, id);
        for token in self.ownerless.remove(&cred).unwrap_or_default() {
            if let Some(file) = self.files.get_mut(&token)
                && file.opener.is_none()
            {
                file.opener = Some((id, Known::Credentials));
            }
        }
    }

    /// By its credentials, now or when somebody turns up who has them.
    fn find_opener(&mut self, token: Token) {
        let Some(file) = self.files.get_mut(&token).filter(|file| file.opener.is_none()) else { return };
        let Some(cred) = file.cred else { return };
        match self.creds.get(&cred) {
            Some(id) => file.opener = Some((*id, Known::Credentials)),
            None => {
                self.ownerless.entry(cred).or_default().insert(token);
            }
        }
    }

    fn note_held(&mut self, id: ProcessId, token: Token) {
        if let Some(process) = self.processes.get_mut(&id)
            && let Err(place) = process.files.binary_search(&token)
        {
            process.files.insert(place, token);
        }
    }

    fn after_loss(&mut self, at: BootNs, id: ProcessId, token: Token) {
        let still = self.files.get(&token).is_some_and(|file| file.is_held_by(id));
        if let (false, Some(process)) = (still, self.processes.get_mut(&id))
            && let Ok(place) = process.files.binary_search(&token)
        {
            process.files.remove(place);
        }
        self.release_if_unheld(at, token);
    }

    fn release_if_unheld(&mut self, at: BootNs, token: Token) {
        if self.files.get(&token).is_some_and(|file| file.is_released()) {
            self.forget_file(at, token);
        }
    }

    pub(super) fn forget_file(&mut self, at: BootNs, token: Token) {
        let Some(file) = self.files.remove(&token) else { return };
        self.books.release(at, token);
        for (id, _) in file.holders.keys() {
            if let Some(process) = self.processes.get_mut(id) {
                process.files.retain(|held| *held != token);
            }
        }
        if let Some(process) = file.opener.and_then(|(id, _)| self.processes.get_mut(&id)) {
            process.released_at = Some(at);
        }
        if let Some(cred) = file.cred
            && let Some(waiting) = self.ownerless.get_mut(&cred)
        {
            waiting.remove(&token);
            if waiting.is_empty() {
                self.ownerless.remove(&cred);
            }
        }
    }

    fn remember_drop(&mut self, at: BootNs, id: ProcessId, fd: i32, token: Token) {
        if self.dropped.len() == DROPPED_KEPT {
            self.dropped.pop_front();
        }
        self.dropped.push_back((at, id, fd, token));
    }
}

/// What a holding says of the description itself.
fn learn(file: &mut File, at: BootNs, hold: &Hold) {
    let opened = hold.via == Some(Via::Opened);
    file.first_seen = file.first_seen.min(at);
    file.cred = file.cred.or(hold.cred);
    file.opened_cloexec = file.opened_cloexec.or(hold.opened_cloexec);
    file.role = hold.role.or(file.role);
    file.pins = hold.pins.or(file.pins);
    file.bytes = hold.bytes.or(file.bytes);
    if opened {
        file.opened_at = file.opened_at.or(Some(hold.since.unwrap_or(at)));
    }
    let known = hold.opener.or(opened.then_some(hold.id)).map(|id| (id, Known::Seen));
    if !matches!(file.opener, Some((_, Known::Seen))) {
        file.opener = known.or(file.opener);
    }
}

struct Arrival {
    via: Option<Via>,
    from: Option<ProcessId>,
    since: Option<BootNs>,
}

fn put(holders: &mut BTreeMap<(ProcessId, Place), Holder>, key: (ProcessId, Place), slot: Slot, arrival: Arrival) {
    let Arrival { via, from, since } = arrival;
    let holder = holders.entry(key).or_insert_with(|| Holder { via, from, since, slots: Vec::new() });
    // What was seen first says how it came; a later dup or second copy changes nothing. A scan never knows better.
    if holder.via.is_none() && via.is_some() {
        (holder.via, holder.from, holder.since) = (via, from, since);
    }
    match holder.slots.iter_mut().find(|known| known.fd == slot.fd) {
        Some(known) => *known = Slot { cloexec: slot.cloexec.or(known.cloexec), ..slot },
        None => holder.slots.push(slot),
    }
}

fn new_file(at: BootNs, token: Token, dev: Dev) -> File {
    File {
        token,
        dev,
        cred: None,
        opened_cloexec: None,
        opener: None,
        opened_at: None,
        first_seen: at,
        holders: BTreeMap::new(),
        sent: Vec::new(),
        in_transit: 0,
        role: None,
        pins: None,
        bytes: None,
    }
}

fn closes_at_exec(slot: &Slot, opened: Option<bool>) -> bool {
    slot.cloexec.or(opened) == Some(true)
}
