//! QP 1, the general services interface: what its datagrams look like, and what became of those
//! that reached this host.
//!
//! Read first: IBA 13.4, 13.5. All processes of a host share QP 1; its packets arrive at the
//! broker, which passes each on to the slot that is to have it. What a process sends from QP 1 it
//! sends itself, with [`emit`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wire::{
    Mad, Opcode, PKey, Packet, Psn, Qpn,
    icrc::PseudoHeader,
    mad::{GSI_QKEY, packet_headers},
};

/// A packet to QP 1 with `mad`, sealed for the addresses of `header` and IPv4 identification 0.
pub fn emit(mad: &[u8; Mad::LENGTH], psn: Psn, header: &PseudoHeader) -> Vec<u8> {
    let mut packet = Vec::new();
    packet_headers(psn).emit_packet(mad, &mut packet);
    header.seal(&mut packet, 0);
    packet
}

/// The message in a packet that is right for QP 1. The ICRC is for the caller, who knows the
/// addresses.
pub fn mad_of(packet: &Packet<'_>) -> Result<Mad, DropReason> {
    if packet.bth().destination != Qpn::GSI {
        return Err(DropReason::WrongQp);
    }
    if packet.opcode() != Opcode::UD_SEND_ONLY {
        return Err(DropReason::WrongOpcode);
    }
    if !packet.bth().pkey.matches(PKey::DEFAULT) {
        return Err(DropReason::BadPKey);
    }
    if packet.deth().is_none_or(|deth| deth.qkey != GSI_QKEY) {
        return Err(DropReason::BadQKey);
    }
    Mad::parse(packet.payload()).map_err(|_| DropReason::NoConnectionManagement)
}

/// Why a packet that reached QP 1 went nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DropReason {
    /// No packet at all.
    Malformed,
    /// Damaged on the way, or not from whom it says.
    BadIcrc,
    /// For a slot that is not the broker's, or QP 0, which RoCE does not have.
    WrongQp,
    /// To an address that no link has.
    WrongAddress,
    /// No datagram.
    WrongOpcode,
    /// Of another partition.
    BadPKey,
    /// Not the key of QP 1.
    BadQKey,
    /// A management datagram of another class, version or method, or a message without meaning.
    NoConnectionManagement,
    /// For a communication ID that nobody here has.
    UnknownId,
    /// Whoever is to have it does not read what waits already.
    QueueFull,
    /// More than the broker answers in a second.
    TooManyAnswers,
    /// The kernel did not take the answer.
    NotSent,
}

impl DropReason {
    /// A few words for a list.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::BadIcrc => "bad ICRC",
            Self::WrongQp => "wrong QP",
            Self::WrongAddress => "wrong address",
            Self::WrongOpcode => "wrong opcode",
            Self::BadPKey => "bad P_Key",
            Self::BadQKey => "bad Q_Key",
            Self::NoConnectionManagement => "no connection management",
            Self::UnknownId => "unknown communication ID",
            Self::QueueFull => "queue full",
            Self::TooManyAnswers => "too many answers",
            Self::NotSent => "not sent",
        }
    }
}

/// What became of the packets that reached QP 1 since the broker started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Passed on to a slot.
    pub passed: u64,
    /// Answered by the broker, since there was nobody to have them.
    pub answered: u64,
    /// Neither, by reason.
    pub dropped: BTreeMap<DropReason, u64>,
    /// Lost in the kernel because the broker's receive buffer was full.
    pub overflowed: u64,
}

impl Counters {
    /// All drops of the broker together.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use wire::{
        Deth, HeaderRepr,
        mad::{Dreq, TransactionId},
    };

    use super::*;

    fn mad() -> Mad {
        Mad {
            transaction: TransactionId(7),
            modifier: 0,
            message: Dreq::default().into(),
        }
    }

    #[test]
    fn what_is_emitted_is_right_for_qp_1() {
        let header = PseudoHeader::new(
            "10.0.0.1:49152".parse().expect("a literal"),
            "10.0.0.2:4791".parse().expect("a literal"),
        )
        .expect("one family");
        let bytes = emit(&mad().to_bytes(), Psn::truncated(5), &header);
        // spec-test: IBA 13.4.3, A17.3: 12 + 8 + 256 + 4
        assert_eq!(bytes.len(), 280);
        assert!(header.verify(&bytes, 0));
        let packet = Packet::parse(&bytes).expect("a packet");
        assert_eq!(mad_of(&packet), Ok(mad()));
    }

    #[test]
    fn what_is_not_for_qp_1_is_told_apart() {
        let right = packet_headers(Psn::truncated(0));
        let verdict = |headers: HeaderRepr, payload: &[u8]| {
            let mut bytes = Vec::new();
            headers.emit_packet(payload, &mut bytes);
            let packet = Packet::parse(&bytes).expect("a packet");
            mad_of(&packet).map(|_| ())
        };
        let payload = mad().to_bytes();
        assert_eq!(verdict(right, &payload), Ok(()));
        let mut other = right;
        other.bth.destination = Qpn::truncated(0);
        assert_eq!(verdict(other, &payload), Err(DropReason::WrongQp));
        let mut other = right;
        other.bth.opcode = Opcode::UD_SEND_ONLY_WITH_IMMEDIATE;
        other.immediate = Some([0; 4]);
        assert_eq!(verdict(other, &payload), Err(DropReason::WrongOpcode));
        let mut other = right;
        other.bth.pkey = PKey(0x8001);
        assert_eq!(verdict(other, &payload), Err(DropReason::BadPKey));
        let mut other = right;
        other.deth = Some(Deth::default());
        assert_eq!(verdict(other, &payload), Err(DropReason::BadQKey));
        let not_cm = Err(DropReason::NoConnectionManagement);
        assert_eq!(verdict(right, &payload[..252]), not_cm);
        let mut performance = payload;
        performance[1] = 0x04;
        assert_eq!(verdict(right, &performance), not_cm);
    }
}
