//! The frame around a packet: Ethernet, IPv4 or IPv6, UDP. For captures and tests; a UDP socket writes
//! these headers itself.
//!
//! Read first: IBA A17.3 (which values RoCEv2 wants), RFC 791, RFC 8200, RFC 768.
