//! What a link and a program want of a connection, and what both ends agreed on.

use core::time::Duration;

use wire::iwarp::{Depth, Enhanced, Kind, Revision, StartFrame};

/// Most READs and atomics outstanding in one direction; what siw has.
pub const DEPTH_MAX: u16 = 128;

/// How long who connects waits for the reply, and who accepted waits for the RTR message.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long who listens waits for the request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the rest of a connection may take that is being closed.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether FPDUs have CRCs. They have if either end wants it. spec: RFC 5044 7.1
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrcPolicy {
    /// Only if the peer wants.
    #[default]
    Off,
    /// Asks for it; as listener leaves it to who connects, since siw takes no other answer.
    On,
    /// Always: a peer that takes no such answer is no peer.
    Required,
}

/// What all connections of a link have in common; the defaults are those of siw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// Whether FPDUs have CRCs.
    pub crc: CrcPolicy,
    /// Whether we receive markers, and send them to who wants them. Without, who wants markers is
    /// refused.
    pub markers: bool,
    /// The revision that we ask for.
    pub revision: Revision,
    /// Whether to ask for the peer-to-peer model: an RTR message lets the other end send first.
    pub peer_to_peer: bool,
    /// Whether to send and take atomics and immediate data. The peer must have been told the same:
    /// nothing on the wire says so, and one that was not ends the connection. spec: RFC 7306
    pub extensions: bool,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            crc: CrcPolicy::Off,
            markers: false,
            revision: Revision::Two,
            peer_to_peer: false,
            extensions: false,
        }
    }
}

/// READs and atomics outstanding, from one end's view. spec: RFC 6581 9
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// That we take as responder.
    pub ird: u16,
    /// That we have in flight.
    pub ord: u16,
}

impl Depths {
    /// Within what is possible.
    pub(super) fn bounded(self) -> Self {
        Self {
            ird: self.ird.min(DEPTH_MAX),
            ord: self.ord.min(DEPTH_MAX),
        }
    }

    /// As a start frame says it, without flags.
    pub(super) fn enhanced(self) -> Enhanced {
        Enhanced {
            ird: Depth::saturating(self.ird),
            ord: Depth::saturating(self.ord),
            ..Enhanced::default()
        }
    }
}

/// The message that lets the passive end send, in the peer-to-peer model. spec: RFC 6581 4
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// A Send of no bytes. We take it and never send it.
    Send,
    /// An RDMA Write of no bytes.
    Write,
    /// An RDMA Read of no bytes.
    Read,
}

impl Rtr {
    /// The one to use of those in a frame, in siw's order of preference.
    pub(super) fn preferred(offered: &Enhanced) -> Option<Self> {
        let kinds = [
            (offered.rtr_write, Self::Write),
            (offered.rtr_read, Self::Read),
            (offered.rtr_send, Self::Send),
        ];
        let found = kinds.into_iter().find(|(is_offered, _)| *is_offered);
        found.map(|(_, kind)| kind)
    }

    /// Sets the flag of this kind.
    pub(super) fn mark(self, enhanced: &mut Enhanced) {
        match self {
            Self::Send => enhanced.rtr_send = true,
            Self::Write => enhanced.rtr_write = true,
            Self::Read => enhanced.rtr_read = true,
        }
    }
}

/// Who opened the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We did, and send the first FPDU.
    Active,
    /// The peer did: we send nothing before its first FPDU. spec: RFC 5044 7.1
    Passive,
}

/// What both ends agreed on: all that the stream of FPDUs needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Who opened the connection.
    pub role: Role,
    /// The revision of the reply.
    pub revision: Revision,
    /// Whether FPDUs have CRCs.
    pub has_crc: bool,
    /// Whether we send markers.
    pub sends_markers: bool,
    /// Whether we receive markers.
    pub receives_markers: bool,
    /// READs and atomics.
    pub depths: Depths,
    /// What the reply says of them, from our view: what the peer has in flight, and what it takes.
    /// It may be more than `depths`.
    pub replied: Depths,
    /// The message that opens the passive end, if it is the peer-to-peer model.
    pub rtr: Option<Rtr>,
    /// Of who connects: the private data of the reply.
    pub private_data: Vec<u8>,
}

/// The frame that a link's options make.
pub(super) fn frame(kind: Kind, revision: Revision, link: &LinkOptions) -> StartFrame<'static> {
    StartFrame {
        wants_markers: link.markers,
        ..StartFrame::new(kind, revision)
    }
}
