//! Work requests being written down between `ibv_wr_start` and `ibv_wr_complete`. Each is begun by
//! a builder, which says what to do, and finished by setters, in any order: one says with which
//! data, and for a datagram one says to whom.

use softrdma::{
    Addressee, Capabilities, Operation, Payload, SendFlags, SendList, SendRequest, Sge,
};

use super::convert::{self, Sges};
use crate::errno::Errno;

/// Work requests that are posted together or not at all. A batch that is cleared keeps its memory.
#[derive(Default)]
pub struct Batch {
    finished: SendList,
    /// The one that is not finished.
    begun: Option<Begun>,
    /// Its data, if that is in places.
    sges: Sges,
    /// Its data, if that was copied.
    inline: Vec<u8>,
}

struct Begun {
    id: u64,
    operation: Operation,
    flags: SendFlags,
    data: Data,
    to: To,
}

/// What is known of the data of a work request.
enum Data {
    Missing,
    InPlaces,
    Inline,
}

/// To whom it goes.
enum To {
    /// Where its connection goes.
    Peer,
    Missing,
    Addressee(Addressee),
}

impl Batch {
    /// Begins a work request; one without data is finished at once. EINVAL if the one before it is
    /// not finished; ENOMEM when the batch is as long as the queue.
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
        self.sges.clear();
        let has_no_data = matches!(operation, Operation::LocalInvalidate(_));
        self.begun = Some(Begun {
            id,
            operation,
            flags,
            data: if has_no_data {
                Data::InPlaces
            } else {
                Data::Missing
            },
            to: To::Peer,
        });
        self.conclude();
        Ok(())
    }

    /// The work request just begun is a datagram: it also needs to know to whom it goes.
    pub fn expect_addressee(&mut self) {
        if let Some(begun) = &mut self.begun {
            begun.to = To::Missing;
        }
    }

    /// It goes to this queue pair. EINVAL if no work request waits for that.
    pub fn set_addressee(&mut self, addressee: Addressee) -> Result<(), Errno> {
        match &mut self.begun {
            Some(begun) if matches!(begun.to, To::Missing) => {
                begun.to = To::Addressee(addressee);
                self.conclude();
                Ok(())
            }
            _ => Err(Errno::INVALID),
        }
    }

    /// The data is in these places. EINVAL for more places than the queue pair has, and if no work
    /// request waits for data.
    pub fn set_sges(&mut self, sges: &[Sge], limits: &Capabilities) -> Result<(), Errno> {
        let begun = without_data(&mut self.begun)?;
        if sges.len() > limits.send_sge_max as usize {
            return Err(Errno::INVALID);
        }
        self.sges.extend_from_slice(sges);
        begun.data = Data::InPlaces;
        self.conclude();
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
        let begun = without_data(&mut self.begun)?;
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
        begun.data = Data::Inline;
        self.conclude();
        Ok(())
    }

    /// Finishes the work request if nothing of it is missing.
    fn conclude(&mut self) {
        let Some(begun) = &self.begun else {
            return;
        };
        let payload = match begun.data {
            Data::Missing => return,
            Data::InPlaces => Payload::Sges(&self.sges),
            Data::Inline => Payload::Inline(&self.inline),
        };
        let to = match &begun.to {
            To::Missing => return,
            To::Peer => None,
            To::Addressee(addressee) => Some(addressee),
        };
        self.finished.push(&SendRequest {
            id: begun.id,
            operation: begun.operation,
            flags: begun.flags,
            payload,
            to,
        });
        self.begun = None;
    }

    /// What is to be posted; EINVAL if the last work request is not finished.
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

/// The work request that waits for its data; EINVAL if there is none.
fn without_data(begun: &mut Option<Begun>) -> Result<&mut Begun, Errno> {
    match begun {
        Some(begun) if matches!(begun.data, Data::Missing) => Ok(begun),
        _ => Err(Errno::INVALID),
    }
}

#[cfg(test)]
mod tests {
    use softrdma::{MemoryKey, QKey, Qpn, RemoteMemory};

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
    fn a_datagram_needs_data_and_an_addressee_in_any_order() {
        let to = Addressee {
            path: softrdma::Attributes::default().path,
            qpn: Qpn::truncated(7),
            qkey: QKey(9),
        };
        for address_first in [true, false] {
            let mut batch = begun(Operation::Send);
            batch.expect_addressee();
            if address_first {
                assert_eq!(batch.set_addressee(to), Ok(()));
            }
            assert_eq!(batch.set_sges(&[sge(3)], &LIMITS), Ok(()));
            if !address_first {
                assert!(batch.finish().is_err(), "to whom?");
                assert_eq!(batch.set_sges(&[sge(3)], &LIMITS), Err(Errno::INVALID));
                assert_eq!(batch.set_addressee(to), Ok(()));
            }
            let posted = posted(&batch);
            assert_eq!(posted[0].to, Some(&to));
            assert_eq!(posted[0].payload, Payload::Sges(&[sge(3)]));
            assert_eq!(posted.len(), 1);
        }
        let mut of_connection = begun(Operation::Send);
        assert_eq!(of_connection.set_addressee(to), Err(Errno::INVALID));
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
