//! What a queue pair gives to be sent: ULPDUs, each with its length in front.
//!
//! Payload is named by spans and copied or gathered by the driver, which adds pad, markers and CRC
//! ([`wire::iwarp::Framer`]). The whole burst must leave the program's memory, into the socket or
//! into a buffer of the driver's, before its lock section ends.

use core::ops::Range;

use wire::iwarp::fpdu;

use crate::access::Span;
use crate::qp::send_queue::WqeNumber;

/// Whose ULPDU it is: where to report that it could not be gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Of a work request.
    Request(WqeNumber),
    /// Answers a READ or an atomic of the peer.
    Answer,
    /// Has no memory: RTR message, Terminate.
    Own,
}

/// One ULPDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UlpduOut {
    /// The length field, headers and inline payload: a range of the burst's header bytes.
    pub header: Range<usize>,
    /// A range of the burst's spans, which follow the header.
    pub spans: Range<usize>,
    /// Bytes of the ULPDU, as the length field has it.
    pub length: u16,
    /// Whose it is.
    pub source: Source,
}

/// ULPDUs in the order in which they must leave. Reused, without allocation once warm.
#[derive(Debug)]
pub struct StreamBurst {
    headers: Vec<u8>,
    spans: Vec<Span>,
    ulpdus: Vec<UlpduOut>,
    /// Bytes on the wire, without markers.
    bytes: usize,
    bytes_max: usize,
}

impl StreamBurst {
    /// A burst that is full with `bytes_max` bytes or more.
    pub fn with_bound(bytes_max: usize) -> Self {
        Self {
            headers: Vec::new(),
            spans: Vec::new(),
            ulpdus: Vec::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.headers.clear();
        self.spans.clear();
        self.ulpdus.clear();
        self.bytes = 0;
    }

    /// Whether there is no room for more.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.ulpdus.is_empty()
    }

    /// Bytes on the wire, without markers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The ULPDUs.
    pub fn ulpdus(&self) -> &[UlpduOut] {
        &self.ulpdus
    }

    /// Length field, headers and inline payload.
    pub fn header(&self, ulpdu: &UlpduOut) -> &[u8] {
        &self.headers[ulpdu.header.clone()]
    }

    /// Payload behind the header.
    pub fn spans(&self, ulpdu: &UlpduOut) -> &[Span] {
        &self.spans[ulpdu.spans.clone()]
    }

    /// Appends a ULPDU of `header`, `inline` and `spans`, together at most 65,535 bytes.
    pub(super) fn push(&mut self, source: Source, header: &[u8], inline: &[u8], spans: &[Span]) {
        let in_spans: usize = spans.iter().map(|span| span.length() as usize).sum();
        let length = header.len() + inline.len() + in_spans;
        debug_assert!(length <= fpdu::ULPDU_MAX);
        let (first_byte, first_span) = (self.headers.len(), self.spans.len());
        let length_field = (length as u16).to_be_bytes();
        for bytes in [&length_field[..], header, inline] {
            self.headers.extend_from_slice(bytes);
        }
        self.spans.extend_from_slice(spans);
        self.bytes += fpdu::plain_length(length);
        self.ulpdus.push(UlpduOut {
            header: first_byte..self.headers.len(),
            spans: first_span..self.spans.len(),
            length: length as u16,
            source,
        });
    }
}
