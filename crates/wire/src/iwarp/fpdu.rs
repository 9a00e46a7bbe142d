//! FPDUs: the stream after the start frames.
//!
//! Read first: RFC 5044 4. `ULPDU length (2) | ULPDU | pad 0-3 | CRC (4)`. The CRC is always there;
//! where it is not used it is 0 and not looked at. Where a receiver asked for markers, 4 bytes that
//! point back to the length stand at every 512th byte of the stream, wherever that is; lengths are
//! multiples of 4, so a marker never splits a length or a CRC.

use core::ops::Range;

use super::crc::Crc;
use crate::bytes::{header, read_u16};
use crate::error::{Layer, ParseError, Reason};

/// From one marker to the next, in bytes of the stream.
const MARKER_INTERVAL: u64 = 512;
/// Bytes of a marker: 16 reserved bits, then how far back the length stands.
const MARKER_LENGTH: usize = 4;
const MARKER_POINTER: Range<usize> = 2..4;

/// Bytes of the length field.
pub const LENGTH_FIELD: usize = 2;
/// Longest ULPDU.
pub const ULPDU_MAX: usize = u16::MAX as usize;
/// Longest FPDU, with all the markers that can be in it. Who holds this many bytes of a stream
/// holds a whole one.
pub const FPDU_MAX: usize = {
    let plain = LENGTH_FIELD + ULPDU_MAX + 3 + Crc::LENGTH;
    plain + (plain / (MARKER_INTERVAL as usize - MARKER_LENGTH) + 2) * MARKER_LENGTH
};

/// Zero bytes between a ULPDU of `length` bytes and the CRC. The length field counts too.
pub const fn pad(length: usize) -> usize {
    (LENGTH_FIELD + length).wrapping_neg() & 3
}

/// Bytes of an FPDU around a ULPDU of `length` bytes, without markers.
pub const fn plain_length(length: usize) -> usize {
    LENGTH_FIELD + length + pad(length) + Crc::LENGTH
}

/// The longest ULPDU whose FPDU fits a TCP segment of `emss` bytes. spec: RFC 5044 4.5
pub const fn mulpdu(emss: usize, has_markers: bool) -> usize {
    let markers = if has_markers {
        MARKER_LENGTH * emss.div_ceil(MARKER_INTERVAL as usize)
    } else {
        0
    };
    let fitting = emss.saturating_sub(LENGTH_FIELD + Crc::LENGTH + markers + emss % 4);
    if fitting < ULPDU_MAX {
        fitting
    } else {
        ULPDU_MAX
    }
}

/// Makes FPDUs of ULPDUs, in the order of the stream.
#[derive(Clone, Debug)]
pub struct Framer {
    has_crc: bool,
    /// Bytes sent since the start frame, if there are markers.
    markers: Option<u64>,
    scratch: Vec<u8>,
}

impl Framer {
    /// For a stream at its start. Markers are what the peer wants to receive.
    pub const fn new(has_crc: bool, has_markers: bool) -> Self {
        Self {
            has_crc,
            markers: if has_markers { Some(0) } else { None },
            scratch: Vec::new(),
        }
    }

    /// Whether the bytes must be at hand to be framed: a ULPDU that is not, and changes on its way,
    /// would have a wrong CRC.
    pub const fn needs_bytes(&self) -> bool {
        self.has_crc || self.markers.is_some()
    }

    /// What follows a ULPDU of `length` bytes where [`Self::needs_bytes`] is false: so many zeros.
    pub const fn trailer_length(length: usize) -> usize {
        pad(length) + Crc::LENGTH
    }

    /// Finishes the FPDU that begins at `start` of `out`, where the length field and the ULPDU are:
    /// appends pad and CRC, and puts markers in.
    pub fn seal(&mut self, out: &mut Vec<u8>, start: usize) {
        let length = out.len().saturating_sub(start + LENGTH_FIELD);
        out.resize(out.len() + pad(length), 0);
        if let Some(offset) = self.markers {
            self.insert_markers(out, start, offset);
        }
        let crc = if self.has_crc {
            Crc::of(&out[start..]).to_bytes()
        } else {
            [0; Crc::LENGTH]
        };
        out.extend_from_slice(&crc);
        if let Some(offset) = &mut self.markers {
            *offset += (out.len() - start) as u64;
        }
    }

    /// Puts markers into an FPDU without CRC; the one before the CRC too, if it is its turn.
    fn insert_markers(&mut self, out: &mut Vec<u8>, start: usize, begins_at: u64) {
        self.scratch.clear();
        self.scratch.extend_from_slice(&out[start..]);
        out.truncate(start);
        let mut rest = &self.scratch[..];
        let mut length_at = start;
        loop {
            let at = begins_at + (out.len() - start) as u64;
            let mut room = MARKER_INTERVAL - at % MARKER_INTERVAL;
            if room == MARKER_INTERVAL {
                let pointer = pointer(out.len() - length_at);
                if out.len() == start {
                    length_at += MARKER_LENGTH;
                }
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(&pointer.to_be_bytes());
                room -= MARKER_LENGTH as u64;
            }
            if rest.is_empty() {
                return;
            }
            let (piece, after) = rest.split_at(rest.len().min(room as usize));
            out.extend_from_slice(piece);
            rest = after;
        }
    }
}

/// The FPDU at the front of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// What it carries.
    pub ulpdu: &'a [u8],
    /// Bytes of the stream that it takes.
    pub length: usize,
}

/// Takes FPDUs off a stream, in order.
#[derive(Clone, Debug)]
pub struct Deframer {
    has_crc: bool,
    /// Bytes received since the start frame, if there are markers.
    markers: Option<u64>,
    scratch: Vec<u8>,
}

impl Deframer {
    /// For a stream at its start. Markers are what we asked to receive.
    pub const fn new(has_crc: bool, has_markers: bool) -> Self {
        Self {
            has_crc,
            markers: if has_markers { Some(0) } else { None },
            scratch: Vec::new(),
        }
    }

    /// The FPDU at the front of `bytes`, or `None` if more bytes are needed. The caller goes past
    /// `length` bytes before it asks for the next one.
    ///
    /// Errors are final: nobody knows where the next one begins. A wrong CRC has
    /// [`Reason::Checksum`].
    pub fn next<'a>(&'a mut self, bytes: &'a [u8]) -> Result<Option<Fpdu<'a>>, ParseError> {
        match self.markers {
            None => self.next_plain(bytes),
            Some(offset) => self.next_with_markers(bytes, offset),
        }
    }

    fn next_plain<'a>(&self, bytes: &'a [u8]) -> Result<Option<Fpdu<'a>>, ParseError> {
        let Ok(field) = header::<LENGTH_FIELD>(bytes, Layer::Fpdu) else {
            return Ok(None);
        };
        let ulpdu_length = checked_length(field)?;
        let length = plain_length(ulpdu_length);
        let Some(whole) = bytes.get(..length) else {
            return Ok(None);
        };
        self.check_crc(whole)?;
        Ok(Some(Fpdu {
            ulpdu: &whole[LENGTH_FIELD..LENGTH_FIELD + ulpdu_length],
            length,
        }))
    }

    fn next_with_markers<'a>(
        &'a mut self,
        bytes: &'a [u8],
        begins_at: u64,
    ) -> Result<Option<Fpdu<'a>>, ParseError> {
        let length_at = if begins_at.is_multiple_of(MARKER_INTERVAL) {
            MARKER_LENGTH
        } else {
            0
        };
        let Some(field) = bytes.get(length_at..length_at + LENGTH_FIELD) else {
            return Ok(None);
        };
        let ulpdu_length = checked_length(field)?;
        let mut wanted = plain_length(ulpdu_length);
        self.scratch.clear();
        let mut at = 0;
        while wanted > 0 {
            let mut room = MARKER_INTERVAL - (begins_at + at as u64) % MARKER_INTERVAL;
            if room == MARKER_INTERVAL {
                let Some(marker) = bytes.get(at..at + MARKER_LENGTH) else {
                    return Ok(None);
                };
                check_marker(marker, at.saturating_sub(length_at))?;
                at += MARKER_LENGTH;
                room -= MARKER_LENGTH as u64;
            }
            let taken = wanted.min(room as usize);
            let Some(piece) = bytes.get(at..at + taken) else {
                return Ok(None);
            };
            self.scratch.extend_from_slice(piece);
            at += taken;
            wanted -= taken;
        }
        self.check_crc(&bytes[..at])?;
        self.markers = Some(begins_at + at as u64);
        Ok(Some(Fpdu {
            ulpdu: &self.scratch[LENGTH_FIELD..LENGTH_FIELD + ulpdu_length],
            length: at,
        }))
    }

    /// The last 4 bytes are the checksum of those before.
    fn check_crc(&self, whole: &[u8]) -> Result<(), ParseError> {
        let right = match whole.split_last_chunk::<{ Crc::LENGTH }>() {
            Some((covered, crc)) => !self.has_crc || Crc::of(covered).to_bytes() == *crc,
            None => false,
        };
        if right {
            return Ok(());
        }
        Err(ParseError {
            layer: Layer::Fpdu,
            field: "CRC",
            reason: Reason::Checksum,
        })
    }
}

/// A ULPDU has a header: an empty one cannot be.
fn checked_length(field: &[u8]) -> Result<usize, ParseError> {
    match read_u16(field) {
        0 => Err(ParseError::unsupported(Layer::Fpdu, "ULPDU length", 0)),
        length => Ok(length.into()),
    }
}

/// What a marker says that stands `distance` bytes behind the length field. An FPDU that fits a TCP
/// segment has no distance that does not fit; in a longer one the pointer wraps.
const fn pointer(distance: usize) -> u16 {
    distance as u16
}

fn check_marker(marker: &[u8], distance: usize) -> Result<(), ParseError> {
    let found = read_u16(&marker[MARKER_POINTER]);
    if found == pointer(distance) {
        return Ok(());
    }
    let value = found.into();
    Err(ParseError::unsupported(Layer::Fpdu, "marker", value))
}

#[cfg(test)]
mod tests;
