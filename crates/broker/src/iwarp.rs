//! What all connections of a link of type `siw` have in common, as `link add` says it.
//!
//! The defaults are those of the kernel's siw, so that either end may be the kernel's.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The smallest segment: that of the smallest MSS. spec: RFC 5044 4.5
pub const SEGMENT_MIN: u16 = 128;

/// Whether FPDUs carry a CRC. spec: RFC 5044 7.1
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Crc {
    /// Only where the peer asks for it.
    #[default]
    Off,
    /// Asked for by who connects; who listens leaves it to the peer, as siw wants it.
    On,
    /// Without it there is no connection.
    Required,
}

impl Crc {
    /// The word of `link add`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Required => "required",
        }
    }
}

/// Options of a link of type `siw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IwarpOptions {
    /// Whether FPDUs carry a CRC.
    pub crc: Crc,
    /// Whether to receive markers, and to send them to who asks. spec: RFC 5044 4.3
    pub markers: bool,
    /// The revision of MPA that who connects asks for: 1 or 2. spec: RFC 6581 6
    pub mpa: u8,
    /// Whether who connects asks for the peer-to-peer model. spec: RFC 6581 4
    pub peer_to_peer: bool,
    /// Bytes of the largest ULPDU sent; `None` is what fits a TCP segment, the MULPDU.
    pub segment: Option<u16>,
    /// Whether there are atomics and immediate data, which both ends must have been told.
    /// spec: RFC 7306
    pub rfc7306: bool,
}

impl Default for IwarpOptions {
    fn default() -> Self {
        Self {
            crc: Crc::Off,
            markers: false,
            mpa: 2,
            peer_to_peer: false,
            segment: None,
            rfc7306: false,
        }
    }
}

/// An option that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// There is no such option.
    #[error("there is no option {0}; there are {names}", names = NAMES.join(", "))]
    Unknown(String),
    /// It has other values.
    #[error("{name} cannot be {value}: it is {values}")]
    Value {
        /// The option.
        name: &'static str,
        /// What was asked for.
        value: String,
        /// What it can be.
        values: &'static str,
    },
    /// Two that exclude each other.
    #[error("peer_to_peer needs mpa 2")]
    PeerToPeer,
}

/// The options, in the order in which they are shown.
pub const NAMES: [&str; 6] = [
    "crc",
    "markers",
    "mpa",
    "peer_to_peer",
    "segment",
    "rfc7306",
];

const SWITCH: &str = "on or off";

impl IwarpOptions {
    /// Sets the option `name` to what the word `value` says.
    ///
    /// # Errors
    /// [`OptionError`] tells the person what there is.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let known = NAMES.into_iter().find(|known| *known == name);
        let name = known.ok_or_else(|| OptionError::Unknown(name.into()))?;
        let wrong = |values| OptionError::Value {
            name,
            value: value.into(),
            values,
        };
        let switch = || match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(wrong(SWITCH)),
        };
        match name {
            "crc" => {
                self.crc = match value {
                    "off" => Crc::Off,
                    "on" => Crc::On,
                    "required" => Crc::Required,
                    _ => return Err(wrong("off, on or required")),
                }
            }
            "markers" => self.markers = switch()?,
            "mpa" => {
                self.mpa = match value {
                    "1" => 1,
                    "2" => 2,
                    _ => return Err(wrong("1 or 2")),
                }
            }
            "peer_to_peer" => self.peer_to_peer = switch()?,
            "segment" => {
                self.segment = match value {
                    "mulpdu" => None,
                    _ => Some(
                        value
                            .parse()
                            .ok()
                            .filter(|bytes| *bytes >= SEGMENT_MIN)
                            .ok_or_else(|| wrong("mulpdu, or 128 to 65535 bytes"))?,
                    ),
                }
            }
            _ => self.rfc7306 = switch()?,
        }
        Ok(())
    }

    /// Whether all of it can be at once.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn check(&self) -> Result<(), OptionError> {
        if self.peer_to_peer && self.mpa == 1 {
            return Err(OptionError::PeerToPeer);
        }
        let odd = |name, value: u16, values| OptionError::Value {
            name,
            value: value.to_string(),
            values,
        };
        if !matches!(self.mpa, 1 | 2) {
            return Err(odd("mpa", self.mpa.into(), "1 or 2"));
        }
        match self.segment {
            Some(bytes) if bytes < SEGMENT_MIN => {
                Err(odd("segment", bytes, "mulpdu, or 128 to 65535 bytes"))
            }
            _ => Ok(()),
        }
    }

    /// The options by name, as words that [`Self::set`] takes.
    pub fn words(&self) -> [(&'static str, String); NAMES.len()] {
        let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
        let [crc, markers, mpa, peer_to_peer, segment, rfc7306] = NAMES;
        [
            (crc, self.crc.name().into()),
            (markers, switch(self.markers)),
            (mpa, self.mpa.to_string()),
            (peer_to_peer, switch(self.peer_to_peer)),
            (
                segment,
                self.segment
                    .map_or_else(|| "mulpdu".into(), |bytes| bytes.to_string()),
            ),
            (rfc7306, switch(self.rfc7306)),
        ]
    }
}

impl fmt::Display for IwarpOptions {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.words().map(|(name, value)| format!("{name} {value}"));
        to.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_said() {
        let mut options = IwarpOptions::default();
        assert_eq!(
            options.to_string(),
            "crc off markers off mpa 2 peer_to_peer off segment mulpdu rfc7306 off"
        );
        for (name, value) in [
            ("crc", "required"),
            ("markers", "on"),
            ("mpa", "1"),
            ("peer_to_peer", "on"),
            ("segment", "1024"),
            ("rfc7306", "on"),
        ] {
            let before = options;
            options.set(name, value).expect("a value that there is");
            assert_ne!(options, before, "{name}");
            assert!(options.words().contains(&(name, value.into())), "{options}");
        }
        assert_eq!(options.check(), Err(OptionError::PeerToPeer));
        let mut again = IwarpOptions::default();
        for (name, value) in options.words() {
            again.set(name, &value).expect("as it was shown");
        }
        assert_eq!(again, options);
    }

    #[test]
    fn other_words_are_refused_with_those_that_there_are() {
        let mut options = IwarpOptions::default();
        for (name, value, told) in [
            ("crc", "maybe", "off, on or required"),
            ("markers", "1", "on or off"),
            ("mpa", "3", "1 or 2"),
            ("segment", "127", "128"),
            ("segment", "65536", "65535"),
            ("colour", "red", "crc, markers"),
        ] {
            let text = options.set(name, value).expect_err("no such").to_string();
            assert!(text.contains(told), "{text}");
        }
        assert_eq!(options, IwarpOptions::default());
    }
}
