//! The buffer that all streams of a shard are read into, one after the other.
//!
//! What is left of an FPDU stays there as long as the same stream is read again, which is what
//! happens where there is one.

use engine::QpIndex;
use wire::iwarp::fpdu::FPDU_MAX;

use crate::iwarp::outgoing::BURST_BYTES;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    /// From the first stream on: room for what is left of an FPDU, and for what is read at once.
    bytes: Box<[u8]>,
    /// What was read and not used up: the first `length` bytes.
    length: usize,
    /// Whose it is.
    owner: Option<QpIndex>,
}

impl ReadBuffer {
    /// Whose bytes are in it, if that is another one.
    pub fn is_in_the_way(&self, of: QpIndex) -> Option<QpIndex> {
        self.owner.filter(|owner| *owner != of && self.length > 0)
    }

    /// Takes out what is left.
    pub fn save(&mut self, into: &mut Vec<u8>) {
        into.clear();
        into.extend_from_slice(&self.bytes[..self.length]);
        self.length = 0;
    }

    /// Makes ready to read behind `unread`, or behind what is in it of the same stream.
    pub fn load(&mut self, of: QpIndex, unread: &mut Vec<u8>) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; FPDU_MAX + BURST_BYTES].into_boxed_slice();
        }
        if self.owner != Some(of) || !unread.is_empty() {
            debug_assert!(unread.len() < FPDU_MAX);
            self.length = unread.len().min(FPDU_MAX);
            self.bytes[..self.length].copy_from_slice(&unread[..self.length]);
            // an idle stream has no memory
            *unread = Vec::new();
            self.owner = Some(of);
        }
    }

    /// Forgets what is left of this one.
    pub fn forget(&mut self, of: QpIndex) {
        if self.owner == Some(of) {
            self.owner = None;
            self.length = 0;
        }
    }

    /// Where to read to.
    pub fn room(&mut self) -> &mut [u8] {
        let end = self.bytes.len().min(self.length + BURST_BYTES);
        &mut self.bytes[self.length..end]
    }

    /// So many bytes were read; whether that was all the room.
    pub fn fill(&mut self, count: usize) -> bool {
        let room = self.room().len();
        self.length += count.min(room);
        count >= room
    }

    /// What is to be looked at.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// So many bytes were used up.
    pub fn consume(&mut self, count: usize) {
        let count = count.min(self.length);
        self.bytes.copy_within(count..self.length, 0);
        self.length -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: QpIndex = QpIndex(1);
    const B: QpIndex = QpIndex(2);

    fn read(buffer: &mut ReadBuffer, bytes: &[u8]) {
        buffer.room()[..bytes.len()].copy_from_slice(bytes);
        assert!(!buffer.fill(bytes.len()));
    }

    #[test]
    fn what_is_left_stays_and_makes_room_for_another() {
        let mut buffer = ReadBuffer::default();
        let (mut of_a, mut of_b) = (Vec::new(), b"be".to_vec());
        buffer.load(A, &mut of_a);
        read(&mut buffer, b"abcdef");
        buffer.consume(4);
        buffer.load(A, &mut of_a);
        read(&mut buffer, b"gh");
        assert_eq!(buffer.filled(), b"efgh");
        assert_eq!(buffer.is_in_the_way(A), None);
        assert_eq!(buffer.is_in_the_way(B), Some(A));
        buffer.save(&mut of_a);
        buffer.load(B, &mut of_b);
        read(&mut buffer, b"e");
        assert_eq!(buffer.filled(), b"bee");
        buffer.consume(3);
        assert_eq!(buffer.is_in_the_way(A), None, "nothing is left of it");
        buffer.load(A, &mut of_a);
        assert_eq!(buffer.filled(), b"efgh");
        buffer.forget(A);
        buffer.load(A, &mut of_a);
        assert_eq!(buffer.filled(), b"");
    }

    #[test]
    fn there_is_room_for_a_whole_read_behind_any_rest() {
        let mut buffer = ReadBuffer::default();
        let mut unread = vec![0; FPDU_MAX - 1];
        buffer.load(A, &mut unread);
        assert_eq!(buffer.room().len(), BURST_BYTES);
        assert!(buffer.fill(BURST_BYTES));
        buffer.consume(usize::MAX);
        assert_eq!(buffer.filled(), b"");
    }
}
