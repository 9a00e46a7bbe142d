//! Addresses of datagrams. spec: IBA 11.2.2
//!
//! A handle is resolved once, when it is made. Work requests take the way out of it, so that it may
//! be destroyed while they are on theirs.

use std::sync::Arc;

use broker::link::LinkKind;
use engine::Path;
use engine::qp::Addressee;
use wire::{QKey, Qpn};

use crate::address::AddressVector;
use crate::error::{Error, Result};
use crate::protection_domain::{PdInner, ProtectionDomain};

/// Where datagrams go, but for the queue pair at its end.
pub struct AddressHandle {
    path: Path,
    /// It counts as a user of its protection domain.
    _pd: Arc<PdInner>,
}

impl AddressHandle {
    pub(crate) fn new(pd: &ProtectionDomain, address: &AddressVector) -> Result<Self> {
        pd.0.context.check()?;
        if pd.0.context.kind == LinkKind::Siw {
            return Err(Error::Unsupported("an address handle of iWARP"));
        }
        if address.port != 1 {
            return Err(Error::Invalid("the device has port 1 only"));
        }
        Ok(Self {
            path: pd.0.context.path(address)?,
            _pd: Arc::clone(&pd.0),
        })
    }

    /// A queue pair at its end, as work requests name it.
    pub fn addressee(&self, qpn: Qpn, qkey: QKey) -> Addressee {
        Addressee {
            path: self.path,
            qpn,
            qkey,
        }
    }
}
