//! Memory of a program that its peer writes directly, at an offset of its owner's choice.
//!
//! Each side keeps a table that the other fills, an *iomap*: offset, address, length and key of
//! what it may write. New entries of the peer's table wait until there is room to send them, with
//! the next call that sends.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use softrdma::{MemoryRegion, Operation, ProgramBytes, ProtectionDomain};
use wire::rsocket::{Mapping, Target};

use crate::credit::SendWindow;
use crate::endpoint::{Endpoint, lock, remote};
use crate::error::{Error, Result};
use crate::stream::{Mode, Stream};

/// The longest WRITE of a long one: while it goes out, the next one is copied.
const STEP: usize = 64 << 10;

/// What a stream has mapped.
#[derive(Default)]
pub(crate) struct Iomap {
    has_waiting: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    mapped: Vec<Mapped>,
    waiting: VecDeque<(u16, Mapping)>,
}

struct Mapped {
    region: MemoryRegion,
    /// Its place in the peer's iomap, if the peer may write it.
    index: Option<u16>,
}

impl Iomap {
    /// Tells the peer of what was mapped since.
    pub(crate) fn send_waiting(&self, endpoint: &Endpoint) -> Result<()> {
        if !self.has_waiting.load(Ordering::Acquire) {
            return Ok(());
        }
        let _turn = lock(&endpoint.sending);
        let mut inner = lock(&self.inner);
        while let Some((index, mapping)) = inner.waiting.front() {
            endpoint.send_mapping(*index, *mapping)?;
            inner.waiting.pop_front();
        }
        self.has_waiting.store(false, Ordering::Release);
        Ok(())
    }
}

impl Stream {
    /// What memory has to be registered in to be mapped.
    ///
    /// # Errors
    /// [`Error::NotConnected`]
    pub fn domain(&self) -> Result<ProtectionDomain> {
        let endpoint = self.endpoint.get().ok_or(Error::NotConnected)?;
        Ok(endpoint.domain.clone())
    }

    /// Maps memory at `offset`. With `is_for_peer` the peer may write it, as soon as it has been
    /// told, with the next call that sends.
    ///
    /// # Errors
    /// [`Error::Failed`] with `ENOMEM` if the peer's iomap is full.
    pub fn map(&self, region: MemoryRegion, offset: u64, is_for_peer: bool) -> Result<()> {
        let endpoint = self.endpoint.get().ok_or(Error::NotConnected)?;
        let mut inner = lock(&self.iomap.inner);
        let index = if is_for_peer {
            let is_free =
                |index: &u16| inner.mapped.iter().all(|other| other.index != Some(*index));
            let free = (0..endpoint.peer_mappings()).find(is_free);
            Some(free.ok_or(Error::Failed(libc::ENOMEM))?)
        } else {
            None
        };
        if let Some(index) = index {
            let target = Target {
                address: region.iova(),
                key: region.key(),
                length: u32::try_from(region.length())
                    .map_err(|_| Error::Invalid("a mapping has less than 4 GiB"))?,
            };
            inner.waiting.push_back((index, Mapping { offset, target }));
            self.iomap.has_waiting.store(true, Ordering::Release);
        }
        inner.mapped.push(Mapped { region, index });
        Ok(())
    }

    /// Ends a mapping of exactly this memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none.
    pub fn unmap(&self, address: u64, length: u64) -> Result<()> {
        let mut inner = lock(&self.iomap.inner);
        let at = inner
            .mapped
            .iter()
            .position(|mapped| mapped.region.iova() == address && mapped.region.length() == length)
            .ok_or(Error::Invalid("nothing is mapped there"))?;
        let gone = inner.mapped.swap_remove(at);
        inner
            .waiting
            .retain(|(index, _)| gone.index != Some(*index));
        drop(inner);
        drop(gone);
        Ok(())
    }

    /// Writes to memory that the peer has mapped; how many bytes, fewer where the mapping ends.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::NotConnected`], [`Error::Reset`].
    pub fn write_mapped(&self, from: ProgramBytes<'_>, offset: u64, mode: Mode) -> Result<usize> {
        let endpoint = self.endpoint()?;
        self.attempt(mode, || {
            self.iomap.send_waiting(endpoint)?;
            endpoint.write_mapped(from, offset)
        })
    }
}

impl Endpoint {
    fn write_mapped(&self, from: ProgramBytes<'_>, offset: u64) -> Result<usize> {
        let _turn = lock(&self.sending);
        let mut done = 0;
        while done < from.length() {
            let at = offset.wrapping_add(done as u64);
            let step = self.find_mapping(at).and_then(|mapping| {
                let Some(Mapping { offset, target }) = mapping else {
                    return Ok(0);
                };
                let inside = at - offset;
                let room = u64::from(target.length) - inside;
                let length = room.min(STEP as u64) as usize;
                self.prepare(&mut self.flow(), SendWindow::has_room)?;
                let operation = |_| Operation::Write(remote(&target, inside));
                self.post_copied(from.part(done, length), operation, |_, _| ())
            });
            match step {
                Ok(0) => break,
                Ok(length) => done += length,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// The mapping of the peer that has this offset.
    fn find_mapping(&self, offset: u64) -> Result<Option<Mapping>> {
        for index in 0..self.mappings() {
            let mapping = self.mapping(index)?;
            let inside = offset.wrapping_sub(mapping.offset);
            if offset >= mapping.offset && inside < u64::from(mapping.target.length) {
                return Ok(Some(mapping));
            }
        }
        Ok(None)
    }
}
