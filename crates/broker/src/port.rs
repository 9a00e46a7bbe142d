//! RDMA port numbers: what programs bind, and why they may not.
//!
//! Read first: IBA A11 (service IDs of the RDMA IP CM service). Port numbers of RDMA have nothing
//! to do with those of TCP and UDP, and each [`PortSpace`] has its own.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
pub use wire::mad::PortSpace;

/// The address that a port is bound at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAddress {
    /// The address; unspecified is all of them.
    pub ip: IpAddr,
    /// The interface of a link-local address, which is one for each; ignored with others.
    pub scope: u32,
    /// All addresses of this family only. Without it the unspecified address of one family also
    /// stands for those of the other.
    pub family_only: bool,
}

impl PortAddress {
    /// One address, or with the unspecified one all of its family.
    pub const fn of(ip: IpAddr) -> Self {
        Self {
            ip,
            scope: 0,
            family_only: true,
        }
    }

    /// Whether it is all addresses.
    pub const fn is_wildcard(&self) -> bool {
        self.ip.is_unspecified()
    }
}

/// A port that a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundPort {
    /// The broker's number of it: several may be bound at one port.
    pub id: u64,
    /// Its number.
    pub port: u16,
}

/// Why a port cannot be bound or listened on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum PortRefusal {
    /// It is bound at the same address.
    #[error("port {port} is in use at this address")]
    InUse {
        /// The port.
        port: u16,
    },
    /// It is bound at all addresses, or at one of all that are wanted.
    #[error("port {port} is in use at an address that this one overlaps with")]
    Overlaps {
        /// The port.
        port: u16,
    },
    /// There are no more.
    #[error("no port is left")]
    NoneLeft,
    /// No interface has the address.
    #[error("{address} is not an address of this host")]
    NotLocal {
        /// The address.
        address: IpAddr,
    },
    /// A link-local address without its interface.
    #[error("{address} needs an interface")]
    NoScope {
        /// The address.
        address: IpAddr,
    },
    /// Root's port.
    #[error("port {port} is for privileged programs")]
    Privileged {
        /// The port.
        port: u16,
    },
    /// The client has no such port.
    #[error("there is no bound port of number {id}")]
    NotBound {
        /// What it was asked for.
        id: u64,
    },
    /// Somebody listens on it already.
    #[error("port {port} is being listened on")]
    Listening {
        /// The port.
        port: u16,
    },
}

impl PortRefusal {
    /// The error number that the kernel gives in this case.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::InUse { .. } => libc::EADDRINUSE,
            Self::Overlaps { .. } | Self::NoneLeft | Self::NotLocal { .. } => libc::EADDRNOTAVAIL,
            Self::NoScope { .. } | Self::NotBound { .. } | Self::Listening { .. } => libc::EINVAL,
            Self::Privileged { .. } => libc::EACCES,
        }
    }
}

/// Port spaces travel as their code.
pub(crate) mod space_code {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use wire::mad::PortSpace;

    pub fn serialize<S: Serializer>(space: &PortSpace, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u16(*space as u16)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PortSpace, D::Error> {
        let code = u16::deserialize(from)?;
        PortSpace::from_code(code).ok_or_else(|| D::Error::custom(format!("port space {code}")))
    }
}
