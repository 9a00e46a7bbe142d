//! What was wrong with bytes that should have been a packet: layer, field, reason.

use core::fmt;

/// Why bytes were refused. Says where, so that a drop can be counted and explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The header in which it was found.
    pub layer: Layer,
    /// The field of that header, in the words of the standard.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: Reason,
}

/// The headers, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant is the name of a header")]
pub enum Layer {
    Ethernet,
    Ipv4,
    Ipv6,
    Udp,
    Bth,
    Rdeth,
    Xrceth,
    Deth,
    Feth,
    Reth,
    AtomicEth,
    Aeth,
    AtomicAckEth,
    Immediate,
    Ieth,
    Cnp,
    Payload,
    Icrc,
    Mad,
    Cma,
    Mpa,
    Fpdu,
    Ddp,
    Rdmap,
    Terminate,
    Rsocket,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Fewer bytes than the field or header needs.
    TooShort {
        /// Bytes needed.
        needed: u32,
        /// Bytes found.
        found: u32,
    },
    /// More bytes than the header allows.
    TooLong {
        /// Bytes allowed.
        allowed: u32,
        /// Bytes found.
        found: u32,
    },
    /// A value that the standard does not define, or that is not ours to read.
    Unsupported {
        /// The value of the field.
        value: u32,
    },
    /// A checksum that does not match the bytes.
    Checksum,
}

impl ParseError {
    /// `field` of `layer` needs `needed` bytes and has `found`.
    #[cold]
    pub(crate) fn too_short(
        layer: Layer,
        field: &'static str,
        needed: usize,
        found: usize,
    ) -> Self {
        let reason = Reason::TooShort {
            needed: needed as u32,
            found: found as u32,
        };
        Self {
            layer,
            field,
            reason,
        }
    }

    /// `field` of `layer` may have `allowed` bytes and has `found`.
    #[cold]
    pub(crate) fn too_long(
        layer: Layer,
        field: &'static str,
        allowed: usize,
        found: usize,
    ) -> Self {
        let reason = Reason::TooLong {
            allowed: allowed as u32,
            found: found as u32,
        };
        Self {
            layer,
            field,
            reason,
        }
    }

    /// `field` of `layer` has a value that nobody defined.
    #[cold]
    pub(crate) fn unsupported(layer: Layer, field: &'static str, value: u32) -> Self {
        Self {
            layer,
            field,
            reason: Reason::Unsupported { value },
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Udp => "UDP",
            Self::Bth => "BTH",
            Self::Rdeth => "RDETH",
            Self::Xrceth => "XRCETH",
            Self::Deth => "DETH",
            Self::Feth => "FETH",
            Self::Reth => "RETH",
            Self::AtomicEth => "AtomicETH",
            Self::Aeth => "AETH",
            Self::AtomicAckEth => "AtomicAckETH",
            Self::Immediate => "ImmDt",
            Self::Ieth => "IETH",
            Self::Cnp => "CNP",
            Self::Payload => "payload",
            Self::Icrc => "ICRC",
            Self::Mad => "MAD",
            Self::Cma => "CMA header",
            Self::Mpa => "MPA",
            Self::Fpdu => "FPDU",
            Self::Ddp => "DDP",
            Self::Rdmap => "RDMAP",
            Self::Terminate => "Terminate",
            Self::Rsocket => "rsocket",
        })
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.layer, self.field)?;
        match self.reason {
            Reason::TooShort { needed, found } => {
                write!(f, "too short: {found} bytes where {needed} are needed")
            }
            Reason::TooLong { allowed, found } => {
                write!(f, "too long: {found} bytes where {allowed} are allowed")
            }
            Reason::Unsupported { value } => write!(f, "unsupported value {value:#x}"),
            Reason::Checksum => f.write_str("does not match the bytes"),
        }
    }
}

impl std::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_layer_field_and_reason() {
        let short = ParseError::too_short(Layer::Reth, "header", 16, 3);
        assert_eq!(
            short.to_string(),
            "RETH header: too short: 3 bytes where 16 are needed"
        );
        let unknown = ParseError::unsupported(Layer::Bth, "opcode", 0xff);
        assert_eq!(unknown.to_string(), "BTH opcode: unsupported value 0xff");
    }
}
