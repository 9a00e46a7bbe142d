//! From a packet into the elements of a receive.

use crate::access::{Access, AccessError, MemoryRange, Sge};
use crate::host::{Host, Memory, ReceiveWqe};
use crate::qp::Common;

/// Bytes that a receive has room for.
pub fn capacity(receive: &ReceiveWqe) -> u64 {
    receive.sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Copies `bytes` into the elements of a receive, `placed` bytes from their start. Only what is
/// touched is checked; what does not fit is left out. spec: IBA 9.7.4
pub fn scatter<'a, H: Host>(
    common: &Common<H>,
    sges: impl Iterator<Item = &'a Sge>,
    placed: u32,
    mut bytes: &[u8],
    is_last: bool,
    memory: &H::Memory,
) -> Result<(), AccessError> {
    let mut skip = placed;
    for sge in sges {
        if bytes.is_empty() {
            break;
        }
        if skip >= sge.length {
            skip -= sge.length;
            continue;
        }
        let room = (sge.length - skip) as usize;
        let (here, rest) = bytes.split_at(room.min(bytes.len()));
        let range = MemoryRange {
            address: sge
                .address
                .checked_add(skip.into())
                .ok_or(AccessError::OutOfBounds)?,
            length: here.len() as u64,
        };
        let grant = memory.check(sge.key, common.scope(), range, Access::LOCAL_WRITE)?;
        memory.place(&grant, 0, here, is_last && rest.is_empty())?;
        bytes = rest;
        skip = 0;
    }
    Ok(())
}
