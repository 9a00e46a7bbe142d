//! Control messages: what travels beside a datagram's bytes (`cmsg(3)`), written and read as bytes.
//!
//! Layout of each: length of header and data (`size_t`), level and type (`int`), data; the next one
//! starts at a multiple of the word size.

use std::mem::size_of;

const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 2 * size_of::<i32>();

/// Control messages being put together for one send.
///
/// The kernel wants the buffer aligned to a word.
#[repr(align(8))]
pub(crate) struct Writer<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Writer<N> {
    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }

    /// Appends one message. `N` is chosen by the caller for all it may push; a message that does
    /// not fit is a bug of the caller and is refused.
    #[must_use]
    pub(crate) fn push(&mut self, level: i32, kind: i32, data: &[u8]) -> bool {
        let end = self.length + HEADER + data.len();
        let next = end.next_multiple_of(WORD);
        let Some(slot) = self.bytes.get_mut(self.length..next) else {
            return false;
        };
        slot[..WORD].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        slot[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        slot[WORD + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        slot[HEADER..HEADER + data.len()].copy_from_slice(data);
        self.length = next;
        true
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A buffer for control messages of one receive, aligned as the kernel wants it.
#[repr(align(8))]
pub(crate) struct Buffer<const N: usize>(pub(crate) [u8; N]);

/// One received control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) level: i32,
    pub(crate) kind: i32,
    pub(crate) data: &'a [u8],
}

impl Message<'_> {
    /// The data as a C `int`, or a single byte (`IP_TOS` comes as one).
    pub(crate) fn int(&self) -> Option<i32> {
        match self.data {
            [byte] => Some(i32::from(*byte)),
            data => data.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)),
        }
    }
}

/// Walks over received control messages; stops at the first malformed one.
pub(crate) fn iterate(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = usize::from_ne_bytes(*bytes.first_chunk::<WORD>()?);
        let message = bytes.get(..length)?;
        let level = i32::from_ne_bytes(*message.get(WORD..)?.first_chunk()?);
        let kind = i32::from_ne_bytes(*message.get(WORD + 4..)?.first_chunk()?);
        let data = message.get(HEADER..)?;
        bytes = bytes
            .get(length.checked_next_multiple_of(WORD)?..)
            .unwrap_or_default();
        Some(Message { level, kind, data })
    })
}

/// Room that a message with `data` bytes takes.
pub(crate) const fn space(data: usize) -> usize {
    HEADER + data.next_multiple_of(WORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_messages_are_read_back() {
        let mut writer = Writer::<{ space(2) + space(12) + space(4) }>::new();
        assert!(writer.push(17, 103, &4096u16.to_ne_bytes()));
        assert!(writer.push(0, 8, &[7; 12]));
        assert!(writer.push(1, 1, &(-5i32).to_ne_bytes()));
        assert!(!writer.push(1, 1, &[]), "the room was for three");
        let read: Vec<_> = iterate(writer.as_bytes()).collect();
        assert_eq!(read.len(), 3);
        assert_eq!(
            read[0],
            Message {
                level: 17,
                kind: 103,
                data: &4096u16.to_ne_bytes()
            }
        );
        assert_eq!(
            read[1],
            Message {
                level: 0,
                kind: 8,
                data: &[7; 12]
            }
        );
        assert_eq!(read[2].int(), Some(-5));
    }

    #[test]
    fn malformed_lengths_end_the_walk() {
        let mut writer = Writer::<64>::new();
        assert!(writer.push(1, 2, &[9; 4]));
        for length in [0usize, 1, HEADER - 1, 1000, usize::MAX] {
            let mut bytes = writer.as_bytes().to_vec();
            bytes[..WORD].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(iterate(&bytes).count(), 0, "length {length}");
        }
        for cut in 0..HEADER + 4 {
            assert_eq!(
                iterate(&writer.as_bytes()[..cut]).count(),
                0,
                "cut at {cut}"
            );
        }
    }
}
