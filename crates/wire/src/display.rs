//! One packet, one line, as a capture tool would print it.

use core::fmt;

use crate::opcode::{Operation, PayloadRule};
use crate::roce::aeth::{Aeth, NakCode, Syndrome};
use crate::roce::atomic_eth::AtomicEth;
use crate::roce::packet::{HeaderRepr, Packet};
use crate::roce::reth::Reth;

/// `RC SEND_ONLY qp=0x000012 psn=0x123456 A len=5`
impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.header_repr(), f)?;
        match self.opcode().payload_rule() {
            PayloadRule::None => Ok(()),
            _ => write!(f, " len={}", self.payload().len()),
        }
    }
}

/// The headers of a packet, without the length of its payload.
impl fmt::Display for HeaderRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = &self.bth;
        write!(f, "{} qp={} psn={}", bth.opcode, bth.destination, bth.psn)?;
        let flags = [
            (bth.solicited, "SE"),
            (bth.migrated, "M"),
            (bth.fecn, "FECN"),
            (bth.becn, "BECN"),
            (bth.ack_request, "A"),
        ];
        for (_, name) in flags.into_iter().filter(|&(set, _)| set) {
            write!(f, " {name}")?;
        }
        if bth.pkey != crate::PKey::DEFAULT {
            write!(f, " pkey={}", bth.pkey)?;
        }
        if bth.pad != 0 {
            write!(f, " pad={}", bth.pad)?;
        }
        if let Some(rdeth) = self.rdeth {
            write!(f, " eec=0x{:06x}", rdeth.ee_context())?;
        }
        if let Some(xrceth) = self.xrceth {
            write!(f, " srq=0x{:06x}", xrceth.srq_number())?;
        }
        if let Some(deth) = self.deth {
            write!(f, " qkey={} src_qp={}", deth.qkey, deth.source)?;
        }
        if let Some(feth) = self.feth {
            let (placement, selectivity) = (feth.placement.bits(), feth.selectivity as u8);
            write!(f, " plt={placement:#x} sel={selectivity}")?;
        }
        if let Some(reth) = self.reth {
            write!(f, " {reth}")?;
        }
        if let Some(atomic) = self.atomic_eth {
            let adds = bth.opcode.operation() == Operation::FetchAdd;
            write_atomic(f, &atomic, adds)?;
        }
        if let Some(aeth) = self.aeth {
            write!(f, " {aeth}")?;
        }
        if let Some(answer) = self.atomic_ack {
            write!(f, " original={:#x}", answer.original)?;
        }
        if let Some(immediate) = self.immediate {
            write!(f, " imm=0x{:08x}", u32::from_be_bytes(immediate))?;
        }
        if let Some(key) = self.ieth {
            write!(f, " inv={key}")?;
        }
        Ok(())
    }
}

fn write_atomic(f: &mut fmt::Formatter<'_>, atomic: &AtomicEth, adds: bool) -> fmt::Result {
    let AtomicEth {
        va,
        rkey,
        swap_or_add,
        compare,
    } = atomic;
    write!(f, " va={va:#x} rkey={rkey}")?;
    if adds {
        write!(f, " add={swap_or_add:#x}")
    } else {
        write!(f, " compare={compare:#x} swap={swap_or_add:#x}")
    }
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            va,
            rkey,
            dma_length,
        } = self;
        write!(f, "va={va:#x} rkey={rkey} dma={dma_length}")
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} msn={}", self.syndrome, self.msn)
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack { credits } => match credits.count() {
                None => f.write_str("ack"),
                Some(count) => write!(f, "ack credits={count}"),
            },
            Self::RnrNak { timer } => {
                let hundredths = timer.nanoseconds() / 10_000;
                let (ms, rest) = (hundredths / 100, hundredths % 100);
                write!(f, "rnr-nak wait={ms}.{rest:02}ms")
            }
            Self::Nak(code) => write!(f, "nak={code}"),
            Self::Reserved(reserved) => write!(f, "syndrome={:#04x}", reserved.byte()),
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SequenceError => "sequence-error",
            Self::InvalidRequest => "invalid-request",
            Self::RemoteAccess => "remote-access-error",
            Self::RemoteOperational => "remote-operational-error",
            Self::InvalidRdRequest => "invalid-rd-request",
        })
    }
}
