//! The values of connection management: identifiers, service IDs, reasons.
//!
//! Read first: IBA 12.6 (messages), A11 (service IDs of the RDMA IP CM service).

use core::fmt;

use crate::mad::layout::{Bits, field_as};

macro_rules! identifiers {
    ($( $(#[$about:meta])* $name:ident($number:ty), $format:literal; )+) => { $(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $number);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }

        field_as! { [] $name as $number, $name, |id| id.0; }
    )+ };
}

identifiers! {
    /// A communication ID: which connection of its chooser. On our hosts the top 8 bits are the
    /// slot of the process. In SIDR messages the request ID, which plays the same part.
    CommId(u32), "0x{:08x}";
    /// GUID of a channel adapter; on RoCE made of the interface's MAC.
    Guid(u64), "0x{:016x}";
    /// Chosen by who starts an exchange and echoed by every answer in it. spec: IBA 13.4.6.4
    TransactionId(u64), "0x{:016x}";
    /// Who is asked for at the other end: what a port is to a socket.
    ServiceId(u64), "0x{:016x}";
}

impl CommId {
    /// The ID of slot `slot` and `rest`, of which the low 24 bits count.
    pub const fn from_parts(slot: u8, rest: u32) -> Self {
        Self((slot as u32) << 24 | rest & 0x00ff_ffff)
    }

    /// The top 8 bits: on our hosts, who gets the answer.
    pub const fn slot(self) -> u8 {
        (self.0 >> 24) as u8
    }
}

/// The port spaces of `rdma_cm`; their ports have nothing to do with each other. The values are
/// those of `enum rdma_port_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// Datagrams on IPoIB's queue pairs.
    IpOverIb = 0x0002,
    /// Connected queue pairs.
    Tcp = 0x0106,
    /// Datagram queue pairs.
    Udp = 0x0111,
    /// Any queue pair, named by service IDs.
    Ib = 0x013f,
}

impl PortSpace {
    /// The port space with the value of `enum rdma_port_space`, if it is one.
    pub const fn from_code(code: u16) -> Option<Self> {
        match code {
            0x0002 => Some(Self::IpOverIb),
            0x0106 => Some(Self::Tcp),
            0x0111 => Some(Self::Udp),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }
}

impl ServiceId {
    /// The service of `port` in a port space. spec: IBA A11
    pub const fn new(space: PortSpace, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// The port space, if this is a service ID of `rdma_cm`.
    pub fn port_space(self) -> Option<PortSpace> {
        u16::try_from(self.0 >> 16)
            .ok()
            .and_then(PortSpace::from_code)
    }

    /// The port, which means something in a port space only.
    pub const fn port(self) -> u16 {
        self.0 as u16
    }
}

/// An enum over a number of which not all values have a name; those stay numbers.
macro_rules! open_enum {
    (
        $(#[$about:meta])*
        pub enum $name:ident($number:ty, $inner:ty) {
            $( $(#[$doc:meta])* $variant:ident = $code:literal, $text:literal; )+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $(#[$doc])* $variant, )+
            /// A value without a name. [`Self::from_code`] makes it of such values only.
            Unknown($number),
        }

        impl $name {
            /// All that have a name.
            pub const ALL: &[Self] = &[$( Self::$variant ),+];

            /// The meaning of a value.
            pub const fn from_code(code: $number) -> Self {
                match code {
                    $( $code => Self::$variant, )+
                    _ => Self::Unknown(code),
                }
            }

            /// The value on the wire.
            pub const fn code(self) -> $number {
                match self {
                    $( Self::$variant => $code, )+
                    Self::Unknown(code) => code,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $( Self::$variant => f.write_str($text), )+
                    Self::Unknown(code) => write!(f, "unknown-{code}"),
                }
            }
        }

        field_as! { [] $name as $inner, |code| Self::from_code(code), |value| value.code(); }
    };
}

open_enum! {
    /// Why a connection was refused or ended before it was one. spec: IBA 12.6.7.2
    pub enum RejectReason(u16, u16) {
        /// No queue pair to be had.
        NoQueuePair = 1, "no-qp";
        /// No end-to-end context to be had.
        NoEec = 2, "no-eec";
        /// Something else is not to be had.
        NoResources = 3, "no-resources";
        /// The sender has given up waiting.
        Timeout = 4, "timeout";
        /// The request is not supported.
        Unsupported = 5, "unsupported-request";
        /// A communication ID that is not known.
        InvalidCommId = 6, "invalid-comm-id";
        /// Communication IDs that do not belong together.
        InvalidCommInstance = 7, "invalid-comm-instance";
        /// Nobody listens.
        InvalidServiceId = 8, "invalid-service-id";
        /// Not with this transport.
        InvalidTransport = 9, "invalid-transport";
        /// The queue pair or ID is of a connection that the other side has forgotten.
        StaleConnection = 10, "stale-connection";
        /// No such reliable datagram channel.
        NoRdc = 11, "no-rdc";
        /// The primary path's GID is not the receiver's.
        PrimaryGid = 12, "primary-gid";
        /// The same of its LID.
        PrimaryLid = 13, "primary-lid";
        /// Service level of the primary path.
        PrimarySl = 14, "primary-sl";
        /// Traffic class of the primary path.
        PrimaryTrafficClass = 15, "primary-traffic-class";
        /// Hop limit of the primary path.
        PrimaryHopLimit = 16, "primary-hop-limit";
        /// Rate of the primary path.
        PrimaryRate = 17, "primary-rate";
        /// The alternate path's GID is not the receiver's.
        AlternateGid = 18, "alternate-gid";
        /// The same of its LID.
        AlternateLid = 19, "alternate-lid";
        /// Service level of the alternate path.
        AlternateSl = 20, "alternate-sl";
        /// Traffic class of the alternate path.
        AlternateTrafficClass = 21, "alternate-traffic-class";
        /// Hop limit of the alternate path.
        AlternateHopLimit = 22, "alternate-hop-limit";
        /// Rate of the alternate path.
        AlternateRate = 23, "alternate-rate";
        /// Ask another port and another manager.
        PortAndCmRedirect = 24, "port-and-cm-redirect";
        /// Ask another port.
        PortRedirect = 25, "port-redirect";
        /// The path MTU is more than the receiver can do.
        InvalidMtu = 26, "invalid-mtu";
        /// More READs and atomics than the receiver will hold.
        InsufficientResources = 27, "insufficient-responder-resources";
        /// The program said no.
        Consumer = 28, "consumer";
        /// The RNR retry count is not supported.
        RnrRetryCount = 29, "rnr-retry-count";
        /// The communication ID is in use.
        DuplicateCommId = 30, "duplicate-comm-id";
        /// Another version of the management class.
        ClassVersion = 31, "class-version";
        /// Flow label of the primary path.
        PrimaryFlowLabel = 32, "primary-flow-label";
        /// Flow label of the alternate path.
        AlternateFlowLabel = 33, "alternate-flow-label";
        /// An enhancement that the vendor does not support.
        VendorOption = 35, "vendor-option";
    }
}

open_enum! {
    /// How a service ID was resolved. spec: IBA 12.11.2
    pub enum SidrStatus(u8, u8) {
        /// The queue pair and its key follow.
        Valid = 0, "valid";
        /// Nobody listens.
        Unsupported = 1, "unsupported-service-id";
        /// The program said no.
        Rejected = 2, "rejected";
        /// No queue pair to be had.
        NoQueuePair = 3, "no-qp";
        /// Ask elsewhere.
        Redirect = 4, "redirect";
        /// Another version.
        Version = 5, "version";
    }
}

open_enum! {
    /// What became of an alternate path. spec: IBA 12.8.2
    pub enum ApStatus(u8, u8) {
        /// It was loaded.
        Loaded = 0, "loaded";
        /// No such connection.
        InvalidCommId = 1, "invalid-comm-id";
        /// There are no alternate paths here.
        Unsupported = 2, "unsupported";
        /// The program said no.
        Rejected = 3, "rejected";
        /// Ask elsewhere.
        Redirect = 4, "redirect";
        /// It is the path in use.
        IsCurrent = 5, "is-current";
        /// Not this connection's queue pair.
        InvalidQpn = 6, "invalid-qpn";
        /// LID of the path.
        InvalidLid = 7, "invalid-lid";
        /// GID of the path.
        InvalidGid = 8, "invalid-gid";
        /// Flow label of the path.
        InvalidFlowLabel = 9, "invalid-flow-label";
        /// Traffic class of the path.
        InvalidTrafficClass = 10, "invalid-traffic-class";
        /// Hop limit of the path.
        InvalidHopLimit = 11, "invalid-hop-limit";
        /// Rate of the path.
        InvalidRate = 12, "invalid-rate";
        /// Service level of the path.
        InvalidSl = 13, "invalid-sl";
    }
}

/// Which message an MRA or REJ answers: 2 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answered {
    /// The request.
    Req = 0,
    /// The reply.
    Rep = 1,
    /// In an MRA a LAP; in a REJ no message in particular.
    Other = 2,
    /// Not defined.
    Reserved = 3,
}

/// The transport service of a connection: 2 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportService {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram.
    Rd = 2,
    /// The extended transport type tells, for XRC.
    Extended = 3,
}

field_as! {
    [] Answered as Bits<2>,
        |bits| [Self::Req, Self::Rep, Self::Other, Self::Reserved][bits.get() as usize],
        |&answered| Bits::truncated(answered as u32);
    [] TransportService as Bits<2>,
        |bits| [Self::Rc, Self::Uc, Self::Rd, Self::Extended][bits.get() as usize],
        |&service| Bits::truncated(service as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_id_is_port_space_and_port() {
        let service = ServiceId::new(PortSpace::Tcp, 7471);
        assert_eq!(service, ServiceId(0x0000_0000_0106_1d2f));
        assert_eq!(service.port_space(), Some(PortSpace::Tcp));
        assert_eq!(service.port(), 7471);
        assert_eq!(ServiceId(0x1_0000_0106_1d2f).port_space(), None);
        for space in [PortSpace::IpOverIb, PortSpace::Udp, PortSpace::Ib] {
            assert_eq!(ServiceId::new(space, 1).port_space(), Some(space));
        }
    }

    #[test]
    fn every_code_survives() {
        for code in 0..=u16::MAX {
            assert_eq!(RejectReason::from_code(code).code(), code);
        }
        for code in 0..=u8::MAX {
            assert_eq!(SidrStatus::from_code(code).code(), code);
            assert_eq!(ApStatus::from_code(code).code(), code);
        }
        assert_eq!(RejectReason::ALL.len(), 34);
        assert_eq!(RejectReason::from_code(28), RejectReason::Consumer);
        assert_eq!(RejectReason::from_code(34), RejectReason::Unknown(34));
        assert_eq!(RejectReason::from_code(34).to_string(), "unknown-34");
    }

    #[test]
    fn a_communication_id_begins_with_the_slot() {
        let id = CommId::from_parts(0xab, 0xff12_3456);
        assert_eq!(id, CommId(0xab12_3456));
        assert_eq!(id.slot(), 0xab);
    }
}
