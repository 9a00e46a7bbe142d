//! What may be sent and what may be received: the windows of a stream, without a device.
//!
//! Read first: `docs/rsocket` of rdma-core. A stream may send while it has *credits*, which count
//! messages, and a *target*, a piece of the peer's receive buffer that it has not filled yet. The
//! receive buffer is two halves. The peer gets a half as its next target when the program has read
//! as many bytes as that half holds; so it fills the buffer from front to end, again and again, and
//! where its bytes lie follows from how many came.

use wire::rsocket::Target;

/// Control messages in flight at most; receives for so many are posted beyond the credits.
pub const CONTROLS: u32 = 4;

/// The least room in the send buffer for which a writer is woken, as in librdmacm.
const LOW_WATER: usize = 2048;

/// What may be sent.
#[derive(Debug)]
pub struct SendWindow {
    /// Data messages sent.
    sequence: u16,
    /// The sequence at which the credits end.
    allowed: u16,
    /// What is left of the piece that is being filled.
    target: Target,
    /// Work requests that may be posted.
    slots: u32,
    size: usize,
    /// Where the next bytes go in the send buffer.
    head: usize,
    /// Bytes of the send buffer that are in flight.
    used: usize,
}

impl SendWindow {
    /// Of a send buffer of `size` bytes and a send queue for `slots` data messages.
    pub fn new(size: usize, slots: u32, credits: u16, target: Target) -> Self {
        Self {
            sequence: 0,
            allowed: credits,
            target,
            slots,
            size,
            head: 0,
            used: 0,
        }
    }

    /// Whether anything may be sent.
    pub fn is_open(&self) -> bool {
        self.has_room() && self.sequence != self.allowed && self.target.length > 0
    }

    /// Whether a work request that needs no credit may be posted.
    pub fn has_room(&self) -> bool {
        self.slots > 0 && self.size - self.used >= LOW_WATER.min(self.size)
    }

    /// Whether the target is full, and another one is needed.
    pub fn needs_target(&self) -> bool {
        self.target.length == 0
    }

    /// The next target.
    pub fn set_target(&mut self, target: Target) {
        self.target = target;
    }

    /// The peer allows messages up to `sequence`.
    pub fn allow(&mut self, sequence: u16) {
        self.allowed = sequence;
    }

    /// Where in the send buffer the next bytes go, and how many of `wanted` fit in one piece.
    pub fn room(&self, wanted: usize) -> (usize, usize) {
        let free = (self.size - self.used).min(self.size - self.head);
        (self.head, wanted.min(free))
    }

    /// The piece of the peer's memory for the next data message, which has as many of `wanted`
    /// bytes as fit.
    pub fn target(&self, wanted: usize) -> (Target, usize) {
        (self.target, wanted.min(self.target.length as usize))
    }

    /// A data message of `length` bytes goes out.
    pub fn commit_data(&mut self, length: u32) {
        self.sequence = self.sequence.wrapping_add(1);
        self.target.address = self.target.address.wrapping_add(length.into());
        self.target.length = self.target.length.saturating_sub(length);
    }

    /// A message that is no data takes a credit too.
    pub fn commit_message(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// A work request goes out with `buffered` bytes of the send buffer.
    pub fn commit_slot(&mut self, buffered: usize) {
        self.slots -= 1;
        self.used += buffered;
        self.head += buffered;
        if self.head >= self.size {
            self.head = 0;
        }
    }

    /// The oldest such work request is done.
    pub fn complete(&mut self, buffered: usize) {
        self.slots += 1;
        self.used = self.used.saturating_sub(buffered);
    }
}

/// The peer wrote more than it was given room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// What is to be said to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The sequence up to which it may send.
    pub sequence: u16,
    /// Where in the receive buffer its next target begins, if it gets one.
    pub target: Option<usize>,
}

/// What may be received.
#[derive(Debug)]
pub struct ReceiveWindow {
    half: usize,
    /// Bytes that the peer may still write.
    granted: usize,
    /// Where the half is that it gets next.
    next_half: usize,
    /// Bytes free again and not granted.
    freed: usize,
    /// Bytes that the program has not read.
    readable: usize,
    /// Where they begin.
    read_at: usize,
    credits: u16,
    /// Data messages received.
    sequence: u16,
    /// The sequence at which new credits are said.
    announce_at: u16,
}

impl ReceiveWindow {
    /// Of a buffer of two halves, the first of which is the peer's, who may send `credits`
    /// messages.
    pub fn new(half: usize, credits: u16) -> Self {
        Self {
            half,
            granted: half,
            next_half: half,
            freed: half,
            readable: 0,
            read_at: 0,
            credits,
            sequence: 0,
            announce_at: credits / 2,
        }
    }

    /// The peer says that it has written `length` bytes.
    ///
    /// # Errors
    /// It was not given so many.
    pub fn receive(&mut self, length: u32) -> Result<(), Overflow> {
        let length = length as usize;
        if length > self.granted {
            return Err(Overflow);
        }
        self.granted -= length;
        self.readable += length;
        self.receive_message();
        Ok(())
    }

    /// A message came that takes a credit and has no data.
    pub fn receive_message(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Bytes that the program can read.
    pub fn readable(&self) -> usize {
        self.readable
    }

    /// Where the bytes `after` those that are read next lie, and how many of `wanted` lie there in
    /// one piece.
    pub fn piece(&self, after: usize, wanted: usize) -> (usize, usize) {
        let size = 2 * self.half;
        let at = (self.read_at + after) % size.max(1);
        let there = self.readable.saturating_sub(after);
        (at, wanted.min(there).min(size - at))
    }

    /// The program has read so many.
    pub fn consume(&mut self, length: usize) {
        let length = length.min(self.readable);
        self.readable -= length;
        self.freed += length;
        self.read_at = (self.read_at + length) % (2 * self.half).max(1);
    }

    /// Whether there is something to say to the peer.
    pub fn is_due(&self) -> bool {
        // a distance in sequence, which wraps
        let beyond = self.sequence.wrapping_sub(self.announce_at) as i16;
        self.freed >= self.half || beyond >= 0
    }

    /// What to say, which is said then.
    pub fn announce(&mut self) -> Announcement {
        self.announce_at = self.sequence.wrapping_add(self.credits / 2);
        let target = (self.freed >= self.half).then_some(self.next_half);
        if target.is_some() {
            self.freed -= self.half;
            self.granted += self.half;
            self.next_half = self.half - self.next_half;
        }
        Announcement {
            sequence: self.sequence.wrapping_add(self.credits),
            target,
        }
    }
}

#[cfg(test)]
mod tests;
