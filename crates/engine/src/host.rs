//! What queue pairs share and the engine does not own: memory, receive queues, completion queues.
//!
//! Two real implementations exist: the device in a process, and [`model`](crate::model) for
//! transcripts and simulation. ("Port" is taken: IB port, UDP port.)

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;
use wire::MemoryKey;

use crate::access::{Access, AccessError, AtomicOperation, Grant, MemoryRange, Scope, Sge};
use crate::completion::{Overrun, WorkCompletion};
use crate::path::Path;

/// The bundle of types that a [`Shard`](crate::Shard) is generic over.
pub trait Host {
    /// Registered memory, shared by all shards.
    type Memory: Memory;
    /// A receive queue or shared receive queue, held by handle.
    type Receives: ReceiveSource;
    /// A completion queue, held by handle.
    type Completions: CompletionSink;
    /// What is known of receive buffers, held by the shard.
    type Credit: Credit;
}

/// Registered memory. All of it belongs to a program that may change or unmap it at any time.
pub trait Memory {
    /// Checks key, scope, bounds and rights. `need` is empty for reading on behalf of the own
    /// program. A range of zero bytes still needs a valid key; callers skip the check where the
    /// standard says that the key of an empty range is not looked at.
    fn check(
        &self,
        key: MemoryKey,
        scope: Scope,
        range: MemoryRange,
        need: Access,
    ) -> Result<Grant, AccessError>;

    /// Copies `bytes` to `offset` in the granted range, after comparing the generation again.
    /// With `is_last` (the end of a message) the final bytes, at most 8, are stored after a
    /// release fence: a program that polls the last byte sees all before it.
    fn place(
        &self,
        grant: &Grant,
        offset: u32,
        bytes: &[u8],
        is_last: bool,
    ) -> Result<(), AccessError>;

    /// Does `operation` on the 8 granted bytes and gives the value before it.
    fn atomic(&self, grant: &Grant, operation: AtomicOperation) -> Result<u64, AccessError>;

    /// Makes `key` unusable, for SEND with Invalidate and LOCAL_INV. Only windows of type 2 and
    /// fast-registered regions can be invalidated: anything else is `NotPermitted`.
    fn invalidate(&self, key: MemoryKey, scope: Scope) -> Result<(), AccessError>;
}

/// A receive work request; owned by the responder until its completion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveWqe {
    /// The program's number.
    pub id: u64,
    /// Where the message goes, in order.
    pub sges: SmallVec<[Sge; 4]>,
}

/// A receive queue. Interior mutability: several queue pairs may share one.
pub trait ReceiveSource {
    /// The oldest work request, if any.
    fn take(&self) -> Option<ReceiveWqe>;

    /// Whether several queue pairs share it: then it is not flushed with one of them.
    fn is_shared(&self) -> bool;
}

/// A completion queue. Interior mutability: several queue pairs share one.
pub trait CompletionSink {
    /// Appends a completion. `solicited` is true for receives of packets with the SE bit and for
    /// every error: it wakes a program that asked for solicited completions only.
    fn push(&self, completion: WorkCompletion, solicited: bool) -> Result<(), Overrun>;
}

/// How full receive buffers are that several processes send to. Senders on one host tell each other
/// what they have in flight; towards other hosts a sender learns from losses alone.
pub trait Credit {
    /// Whether the receive buffers at the end of `path` are known here, each by its slot.
    fn reaches(&self, path: &Path) -> bool;

    /// Bytes of truesize that this shard may have in flight towards the buffer of `slot` now. The
    /// window's own bound applies as well, and one packet may always be in flight.
    fn allowance(&self, slot: u8) -> u64;

    /// Tells the others how many bytes of truesize are in flight from here towards that buffer.
    fn note(&self, slot: u8, in_flight: u64);
}

/// Queues are held by handle: `Arc` in the device, `Rc` in the model.
macro_rules! through_handles {
    ($($handle:ident),*) => { $(
        impl<T: ReceiveSource + ?Sized> ReceiveSource for $handle<T> {
            fn take(&self) -> Option<ReceiveWqe> {
                (**self).take()
            }

            fn is_shared(&self) -> bool {
                (**self).is_shared()
            }
        }

        impl<T: CompletionSink + ?Sized> CompletionSink for $handle<T> {
            fn push(&self, completion: WorkCompletion, solicited: bool) -> Result<(), Overrun> {
                (**self).push(completion, solicited)
            }
        }
    )* };
}
through_handles!(Arc, Rc);
