//! How the connections of a link are, and what they are asked for.

use std::net::SocketAddr;

use broker::iwarp::Crc;
use broker::link::LinkInfo;
use engine::iwarp::{CrcPolicy, Depths, LinkOptions, StartError};
use wire::iwarp::{Revision, fpdu};

/// How the connections of a link are; the default is that of siw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What is said in the start frames.
    pub options: LinkOptions,
    /// How long a ULPDU becomes.
    pub segment: Segment,
}

/// The longest ULPDU that is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segment {
    /// As long as fits a TCP segment. spec: RFC 5044 4.5
    #[default]
    Mulpdu,
    /// So many bytes, however TCP cuts them.
    Bytes(u16),
}

/// No ULPDU is cut shorter. spec: RFC 5044 4.5
const ULPDU_MIN: usize = 128;

impl Settings {
    /// Those of a link.
    pub(crate) fn of(link: &LinkInfo) -> Self {
        let own = link.iwarp.unwrap_or_default();
        Self {
            options: LinkOptions {
                crc: match own.crc {
                    Crc::Off => CrcPolicy::Off,
                    Crc::On => CrcPolicy::On,
                    Crc::Required => CrcPolicy::Required,
                },
                markers: own.markers,
                revision: if own.mpa == 1 {
                    Revision::One
                } else {
                    Revision::Two
                },
                peer_to_peer: own.peer_to_peer,
                extensions: own.rfc7306,
            },
            segment: own.segment.map_or(Segment::Mulpdu, Segment::Bytes),
        }
    }

    /// The longest ULPDU on a connection with TCP segments of this size.
    pub(super) fn ulpdu_max(&self, segment_size: usize, has_markers: bool) -> usize {
        let most = match self.segment {
            Segment::Mulpdu => fpdu::mulpdu(segment_size, has_markers),
            Segment::Bytes(bytes) => bytes.into(),
        };
        most.clamp(ULPDU_MIN, fpdu::ULPDU_MAX)
    }
}

/// Whom to ask for a connection, and what to say.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The own end; port 0 is any port.
    pub local: Option<SocketAddr>,
    /// The peer.
    pub remote: SocketAddr,
    /// For the peer's program.
    pub private_data: &'a [u8],
    /// READs and atomics.
    pub depths: Depths,
}

/// What siw's error number of a connection that did not come about is.
pub const fn errno(error: &StartError) -> i32 {
    match error {
        StartError::Rejected(_)
        | StartError::Ended
        | StartError::NotAsked
        | StartError::Markers => libc::ECONNRESET,
        StartError::TimedOut => libc::ETIMEDOUT,
        StartError::Invalid(_)
        | StartError::TooEarly
        | StartError::TooManyReads
        | StartError::NoRtr => libc::EPROTO,
        StartError::PrivateData(_) => libc::EINVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ulpdus_fit_what_carries_them() {
        let settings = Settings::default();
        assert_eq!(settings.ulpdu_max(1460, false), 1454);
        assert_eq!(settings.ulpdu_max(1460, true), 1442);
        assert_eq!(settings.ulpdu_max(0, false), ULPDU_MIN);
        let long = Settings {
            segment: Segment::Bytes(u16::MAX),
            ..settings
        };
        assert_eq!(long.ulpdu_max(536, false), fpdu::ULPDU_MAX);
    }
}
