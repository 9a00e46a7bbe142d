//! CNP, the congestion notification packet: 16 reserved bytes after a BTH with BECN set.
//!
//! Read first: IBA A17.9. It tells the sender of data that a switch marked them. It has no PSN of
//! its own, is never acknowledged and never resent.

use crate::field::{Psn, Qpn};
use crate::opcode::Opcode;
use crate::roce::bth::Bth;
use crate::roce::packet::HeaderRepr;

/// Reserved bytes after the BTH: written as 0, ignored when read.
pub const RESERVED_LENGTH: usize = 16;

/// The notification to `destination`, the queue pair that sent the marked data. spec: IBA A17.9
pub fn notification(destination: Qpn) -> HeaderRepr {
    let mut bth = Bth::new(Opcode::CNP, destination, Psn::default());
    bth.becn = true;
    HeaderRepr::new(bth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_bth_with_becn_and_zeros() {
        let mut bytes = Vec::new();
        notification(Qpn::truncated(0x11)).emit_into(&mut bytes);
        let mut expected = vec![0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0x11, 0, 0, 0, 0];
        expected.resize(Bth::LENGTH + RESERVED_LENGTH, 0);
        assert_eq!(bytes, expected);
    }
}
