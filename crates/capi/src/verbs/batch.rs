//! Work requests being written down between `ibv_wr_start` and `ibv_wr_complete`. Each is begun by
//! a builder, which says what to do, and finished by a setter, which says with which data.

use softrdma::{Capabilities, Operation, Payload, SendFlags, SendList, SendRequest, Sge};

use super::convert;
use crate::errno::Errno;

/// Work requests that are posted together or not at all. A batch that is cleared keeps its memory.
#[derive(Default)]
pub struct Batch {
    finished: SendList,
    /// The one that waits for its data.
    begun: Option<Begun>,
    /// For gathering inline data.
    inline: Vec<u8>,
}

struct Begun {
    id: u64,
    operation: Operation,
    flags: SendFlags,
}

impl Batch {
    /// Begins a work request; one without data is finished at once. EINVAL if the one before it got
    /// no data; ENOMEM when the batch is as long as the queue.
    pub fn begin(
        &mut self,
        id: u64,
        operation: Operation,
        flags: SendFlags,
        limits: &Capabilities,
    ) -> Result<(), Errno> {
        if self.begun.is_some() {
            return Err(Errno::INVALID);
        }
        if self.finished.len() >= limits.send_wr_max as usize {
            return Err(Errno(libc::ENOMEM));
        }
        let begun = Begun {
            id,
            operation,
            flags,
        };
        if matches!(operation, Operation::LocalInvalidate(_)) {
            self.finished.push(&begun.with(Payload::Sges(&[])));
        } else {
            self.begun = Some(begun);
        }
        Ok(())
    }

    /// The data is in these places. EINVAL for more places than the queue pair has, and if no work
    /// request waits for data.
    pub fn set_sges(&mut self, sges: &[Sge], limits: &Capabilities) -> Result<(), Errno> {
        let begun = self.begun.take().ok_or(Errno::INVALID)?;
        if sges.len() > limits.send_sge_max as usize {
            return Err(Errno::INVALID);
        }
        self.finished.push(&begun.with(Payload::Sges(sges)));
        Ok(())
    }

    /// The data is what `copy` puts out of these places (address and length) into the bytes that it
    /// is given. EINVAL for more than the queue pair takes, for operations that bring data back,
    /// and if no work request waits for data.
    pub fn set_inline(
        &mut self,
        places: impl Iterator<Item = (u64, usize)>,
        limits: &Capabilities,
        copy: impl Fn(u64, &mut [u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let begun = self.begun.take().ok_or(Errno::INVALID)?;
        if !convert::carries_inline(&begun.operation) {
            return Err(Errno::INVALID);
        }
        self.inline.clear();
        for (address, length) in places {
            let start = self.inline.len();
            if length > limits.inline_max as usize - start {
                return Err(Errno::INVALID);
            }
            self.inline.resize(start + length, 0);
            copy(address, &mut self.inline[start..])?;
        }
        self.finished
            .push(&begun.with(Payload::Inline(&self.inline)));
        Ok(())
    }

    /// What is to be posted; EINVAL if the last work request got no data.
    pub fn finish(&self) -> Result<&SendList, Errno> {
        match self.begun {
            None => Ok(&self.finished),
            Some(_) => Err(Errno::INVALID),
        }
    }

    /// Forgets all of it.
    pub fn clear(&mut self) {
        self.finished.clear();
        self.begun = None;
    }
}

impl Begun {
    fn with<'a>(&self, payload: Payload<'a>) -> SendRequest<'a> {
        SendRequest {
            id: self.id,
            operation: self.operation,
            flags: self.flags,
            payload,
            to: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use softrdma::{MemoryKey, RemoteMemory};

    use super::*;

    const LIMITS: Capabilities = Capabilities {
        send_wr_max: 3,
        receive_wr_max: 0,
        send_sge_max: 2,
        receive_sge_max: 0,
        inline_max: 8,
    };
    const NO_FLAGS: SendFlags = SendFlags::empty();
    const READ: Operation = Operation::Read(RemoteMemory {
        address: 0,
        key: MemoryKey(1),
    });

    fn sge(length: u32) -> Sge {
        Sge {
            address: 64,
            length,
            key: MemoryKey(7),
        }
    }

    /// Fills with the lowest byte of the address; address 0 is not mapped.
    fn copy(address: u64, into: &mut [u8]) -> Result<(), Errno> {
        into.fill(address as u8);
        if address == 0 {
            Err(Errno(libc::EFAULT))
        } else {
            Ok(())
        }
    }

    fn posted(batch: &Batch) -> Vec<SendRequest<'_>> {
        batch.finish().expect("all have data").requests().collect()
    }

    fn begun(operation: Operation) -> Batch {
        let mut batch = Batch::default();
        batch
            .begin(1, operation, NO_FLAGS, &LIMITS)
            .expect("the first");
        batch
    }

    #[test]
    fn each_request_keeps_its_own_number_flags_and_data() {
        let mut batch = Batch::default();
        let invalidate = Operation::LocalInvalidate(MemoryKey(9));
        for _ in 0..2 {
            batch.clear();
            batch
                .begin(1, Operation::Send, SendFlags::SIGNALED, &LIMITS)
                .expect("the first");
            batch.set_sges(&[sge(3), sge(5)], &LIMITS).expect("two fit");
            batch
                .begin(2, invalidate, SendFlags::FENCE, &LIMITS)
                .expect("the second, without data");
            batch
                .begin(3, Operation::SendImmediate([1, 2, 3, 4]), NO_FLAGS, &LIMITS)
                .expect("the third");
            let places = [(5, 3), (6, 0), (7, 5)];
            batch
                .set_inline(places.into_iter(), &LIMITS, copy)
                .expect("eight bytes fit");
            let request = |id, operation, flags, payload| SendRequest {
                id,
                operation,
                flags,
                payload,
                to: None,
            };
            let bytes = [5, 5, 5, 7, 7, 7, 7, 7];
            assert_eq!(
                posted(&batch),
                [
                    request(
                        1,
                        Operation::Send,
                        SendFlags::SIGNALED,
                        Payload::Sges(&[sge(3), sge(5)])
                    ),
                    request(2, invalidate, SendFlags::FENCE, Payload::Sges(&[])),
                    request(
                        3,
                        Operation::SendImmediate([1, 2, 3, 4]),
                        NO_FLAGS,
                        Payload::Inline(&bytes)
                    ),
                ]
            );
        }
    }

    #[test]
    fn data_comes_exactly_once() {
        let mut batch = Batch::default();
        assert_eq!(batch.set_sges(&[sge(1)], &LIMITS), Err(Errno::INVALID));

        let mut batch = begun(Operation::Send);
        assert!(batch.finish().is_err(), "no data at the end");
        assert_eq!(
            batch.begin(2, Operation::Send, NO_FLAGS, &LIMITS),
            Err(Errno::INVALID)
        );

        let mut batch = begun(Operation::Send);
        assert_eq!(batch.set_sges(&[], &LIMITS), Ok(()));
        assert_eq!(batch.set_sges(&[], &LIMITS), Err(Errno::INVALID));
        let places = [(1, 1)];
        assert_eq!(
            batch.set_inline(places.into_iter(), &LIMITS, copy),
            Err(Errno::INVALID)
        );

        let mut batch = begun(Operation::LocalInvalidate(MemoryKey(9)));
        assert_eq!(batch.set_sges(&[], &LIMITS), Err(Errno::INVALID));
    }

    #[test]
    fn bounds_of_the_queue_pair() {
        let mut batch = begun(Operation::Send);
        assert_eq!(batch.set_sges(&[sge(1); 3], &LIMITS), Err(Errno::INVALID));

        let inline = |operation, places: &[(u64, usize)]| {
            begun(operation).set_inline(places.iter().copied(), &LIMITS, copy)
        };
        assert_eq!(inline(Operation::Send, &[(1, 8)]), Ok(()));
        assert_eq!(inline(Operation::Send, &[]), Ok(()));
        assert_eq!(inline(Operation::Send, &[(1, 9)]), Err(Errno::INVALID));
        assert_eq!(
            inline(Operation::Send, &[(1, 8), (1, 1)]),
            Err(Errno::INVALID)
        );
        assert_eq!(
            inline(Operation::Send, &[(1, 8), (1, usize::MAX)]),
            Err(Errno::INVALID)
        );
        assert_eq!(inline(READ, &[(1, 1)]), Err(Errno::INVALID));
        assert_eq!(
            inline(Operation::Send, &[(0, 1)]),
            Err(Errno(libc::EFAULT)),
            "memory that is not mapped"
        );
    }

    #[test]
    fn a_batch_is_no_longer_than_the_queue() {
        let mut batch = Batch::default();
        for id in 0..3 {
            batch
                .begin(id, Operation::Send, NO_FLAGS, &LIMITS)
                .expect("there is room");
            batch.set_sges(&[], &LIMITS).expect("no data is data");
        }
        assert_eq!(
            batch.begin(3, Operation::Send, NO_FLAGS, &LIMITS),
            Err(Errno(libc::ENOMEM))
        );
        batch.clear();
        assert_eq!(posted(&batch), []);
        assert_eq!(batch.begin(3, Operation::Send, NO_FLAGS, &LIMITS), Ok(()));
    }
}
