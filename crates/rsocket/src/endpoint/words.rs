//! The word that tells what a message was: immediate data, or a message of its own.
//!
//! iWARP has no immediate data, unless both ends were told of RFC 7306, which nobody can see. So a
//! WRITE with a word becomes two work requests there, and a word without a WRITE one, in the way of
//! librdmacm: 4 bytes in the byte order of who sends them, which can only be that of both.

use softrdma::{
    Operation, Payload, ProtectionDomain, Region, SendFlags, SendRequest, WorkCompletion,
};

use super::{Access, Endpoint, number};
use crate::error::Result;

/// Bytes of a word.
const LENGTH: usize = 4;

/// What words are received into: `None` is immediate data.
pub struct Words(Option<Region>);

impl Words {
    /// Of immediate data.
    pub const IMMEDIATE: Self = Self(None);

    /// Of messages, with room for so many at once.
    pub fn in_messages(domain: &ProtectionDomain, count: u32) -> Result<Self> {
        let bytes = vec![0; count as usize * LENGTH];
        Ok(Self(Some(domain.register(bytes, Access::LOCAL_WRITE)?)))
    }
}

impl Endpoint {
    /// Gives the queue pair a receive. `place` tells receives apart.
    pub(super) fn post_receive(&self, place: u32) -> Result<()> {
        let id = number::RECEIVE | u64::from(place);
        match &self.words.0 {
            None => self.pair.post_receive(id, &[])?,
            Some(words) => {
                let at = place as usize * LENGTH;
                let sge = words.slice(at..at + LENGTH)?;
                self.pair.post_receive(id, &[sge])?;
            }
        }
        Ok(())
    }

    /// The word of a message that has arrived, as immediate data has it.
    pub(super) fn word(&self, completion: &WorkCompletion) -> Option<[u8; LENGTH]> {
        let Some(words) = &self.words.0 else {
            return completion.immediate;
        };
        let mut word = [0; LENGTH];
        let at = completion.id as u32 as usize * LENGTH;
        let is_whole = completion.length as usize == LENGTH;
        let is_here = is_whole && words.copy_out(at, &mut word).is_ok();
        is_here.then(|| u32::from_ne_bytes(word).to_be_bytes())
    }

    /// Queues what is to be sent. Where it becomes two work requests the second has no part in the
    /// accounts.
    pub(super) fn post(&self, operation: Operation, id: u64, payload: Payload<'_>) -> Result<()> {
        let Operation::WriteImmediate(to, immediate) = operation else {
            return self.queue(operation, id, payload);
        };
        if self.words.0.is_none() {
            return self.queue(operation, id, payload);
        }
        let word = u32::from_be_bytes(immediate).to_ne_bytes();
        let word = Payload::Inline(&word);
        if matches!(payload, Payload::Inline([])) {
            return self.queue(Operation::Send, id, word);
        }
        self.queue(Operation::Write(to), id, payload)?;
        self.queue(Operation::Send, number::WORD, word)
    }

    fn queue(&self, operation: Operation, id: u64, payload: Payload<'_>) -> Result<()> {
        Ok(self.pair.queue_send(&SendRequest {
            id,
            operation,
            flags: SendFlags::SIGNALED,
            payload,
            to: None,
        })?)
    }
}
