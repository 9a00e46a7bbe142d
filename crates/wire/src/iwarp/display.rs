//! A start frame or a segment in one line, as a capture tool would print it.

use core::fmt;

use super::ddp::{Header, Segment};
use super::mpa::{Depth, Kind, StartFrame};
use super::rdmap::{AtomicCode, Body};
use super::terminate::Reading;

impl fmt::Display for StartFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Request => "MPA request",
            Kind::Reply => "MPA reply",
        })?;
        write!(f, " rev={}", self.revision as u8)?;
        for (is_set, text) in [
            (self.wants_crc, " crc"),
            (self.wants_markers, " markers"),
            (self.is_rejected, " rejected"),
        ] {
            if is_set {
                f.write_str(text)?;
            }
        }
        if self.reserved != 0 {
            write!(f, " reserved={:#x}", self.reserved)?;
        }
        if let Some(enhanced) = &self.enhanced {
            write!(f, " ird={} ord={}", enhanced.ird, enhanced.ord)?;
            for (is_set, text) in [
                (enhanced.peer_to_peer, " peer-to-peer"),
                (enhanced.rtr_send, " rtr-send"),
                (enhanced.rtr_write, " rtr-write"),
                (enhanced.rtr_read, " rtr-read"),
            ] {
                if is_set {
                    f.write_str(text)?;
                }
            }
        }
        write!(f, " private={}", self.private_data.len())
    }
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(number) => write!(f, "{number}"),
            None => f.write_str("any"),
        }
    }
}

impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.opcode.info().name)?;
        match &self.header {
            Header::Tagged(tagged) => {
                write!(f, " stag={} to={:#x}", tagged.stag, tagged.offset.0)?;
            }
            Header::Untagged(untagged) => {
                write!(f, " msn={} mo={}", untagged.msn.0, untagged.offset.0)?;
                if self.opcode.invalidates() {
                    write!(f, " invalidates={}", untagged.invalidate)?;
                }
            }
        }
        if !self.header.control().is_last() {
            f.write_str(" more")?;
        }
        self.body.fmt_fields(f)
    }
}

impl Body<'_> {
    fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(bytes) => write!(f, " length={}", bytes.len()),
            Self::ReadRequest(request) => write!(
                f,
                " length={} source={}@{:#x} sink={}@{:#x}",
                request.length,
                request.source,
                request.source_offset.0,
                request.sink,
                request.sink_offset.0
            ),
            Self::Immediate(immediate) => {
                let number = u64::from_be_bytes(immediate.0);
                write!(f, " data={number:#018x}")
            }
            Self::AtomicRequest(request) => {
                let (id, key, at) = (request.id, request.remote, request.remote_offset.0);
                match request.operation {
                    AtomicCode::FetchAdd => write!(f, " add={:#x}", request.data)?,
                    AtomicCode::CompareSwap => {
                        write!(
                            f,
                            " compare={:#x} swap={:#x}",
                            request.compare, request.data
                        )?;
                    }
                    AtomicCode::Unknown(code) => write!(f, " operation={code}")?,
                }
                write!(f, " id={id} remote={key}@{at:#x}")
            }
            Self::AtomicResponse(response) => {
                write!(f, " id={} original={:#x}", response.id, response.original)
            }
            Self::Terminate(terminate, reading) => {
                write!(f, " {}", terminate.code)?;
                if *reading == Reading::Swapped {
                    f.write_str(" (swapped)")?;
                }
                if let Some(opcode) = terminate
                    .header
                    .and_then(|header| header.control().opcode())
                {
                    write!(f, " of {}", opcode.info().name)?;
                }
                Ok(())
            }
        }
    }
}
