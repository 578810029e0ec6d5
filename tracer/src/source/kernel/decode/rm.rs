//! Requests to the driver: a record to [`Rm`]. Pure.
//!
//! Always true: what a number means is [`outlive_ebpf::ioctl::op`]; a number that is not known is no event.

use std::mem::offset_of;

use outlive_ebpf::ioctl::{NO_DEVICE, missed, op};
use outlive_ebpf::record;

use super::{Record, Tokens};
use crate::event::rm::{ExportKind, Missed, Op, Rm};
use crate::event::Dev;

pub(super) fn granted(record: Record<'_>, tokens: Tokens) -> Option<Rm> {
    let file = tokens.of(get!(record, u64, Rm, file));
    Some(Rm { id: record.who(), file, dev: Dev(get!(record, u32, Rm, dev)), op: operation(record, tokens)? })
}

fn operation(record: Record<'_>, tokens: Tokens) -> Option<Op> {
    let client = get!(record, u32, Rm, client);
    let parent = get!(record, u32, Rm, parent);
    let object = get!(record, u32, Rm, object);
    let class = get!(record, u32, Rm, class);
    let detail = get!(record, u32, Rm, detail);
    let (bytes, base) = (get!(record, u64, Rm, bytes), get!(record, u64, Rm, base));
    let other = tokens.of(get!(record, u64, Rm, other));
    Some(match get!(record, u32, Rm, op) {
        op::CLIENT => Op::Client { client },
        op::KNOWN => Op::Known { client },
        op::OBJECT => Op::Object { client, parent, object, class, device: Some(detail).filter(|device| *device != NO_DEVICE) },
        op::MEMORY => Op::Memory { client, parent, object, class, bytes },
        op::FREE => Op::Free { client, object },
        op::DUP => Op::Dup {
            client,
            parent,
            object,
            from_client: get!(record, u32, Rm, from_client),
            from_object: get!(record, u32, Rm, from_object),
        },
        op::SHARE => Op::Share { client, object, with: u16::try_from(detail).ok()? },
        op::REGISTER => Op::Register { control: other },
        op::EXPORT => Op::Export { client, object, to: other, kind: ExportKind::Fd },
        op::EXPORT_DMA_BUF => Op::Export { client, object, to: other, kind: ExportKind::DmaBuf },
        op::IMPORT => Op::Import { client, parent, object, from: other },
        op::SPACE => Op::Space { flags: bytes },
        op::SPACE_MM => Op::SpaceMm { space: other },
        op::SPACE_GPU => Op::SpaceGpu { uuid: (bytes.swap_bytes(), base.swap_bytes()) },
        op::MAP => Op::Map { client, object, base, length: bytes },
        op::UNMAP => Op::Unmap { base, length: bytes },
        op::GPU => Op::Gpu { gpu_id: object, device: detail },
        op::MISSED => Op::Missed { why: why(detail)? },
        _ => return None,
    })
}

fn why(number: u32) -> Option<Missed> {
    Some(match number {
        missed::UNREADABLE => Missed::Unreadable,
        missed::CHANGED => Missed::Changed,
        missed::UNKNOWN => Missed::UnknownLayout,
        missed::COMPAT => Missed::Compat,
        missed::TOO_MANY => Missed::TooMany,
        missed::NO_FILE => Missed::NoFile,
        missed::TOO_LONG => Missed::TooLong,
        _ => return None,
    })
}
