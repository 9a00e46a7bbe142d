//! Receive buffers of the model.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::host::Credit;
use crate::path::Path;

/// What the senders of one host know of its receive buffers; a clone is another handle. By default
/// nothing: every destination is on another host.
#[derive(Clone, Debug, Default)]
pub struct ModelCredit {
    known: Option<Rc<RefCell<Known>>>,
}

#[derive(Debug, Default)]
struct Known {
    allowances: HashMap<u8, u64>,
    in_flight: HashMap<u8, u64>,
}

impl ModelCredit {
    /// A host all of whose buffers are known; nothing may be in flight yet.
    pub fn known() -> Self {
        Self {
            known: Some(Rc::default()),
        }
    }

    /// From now on a shard may have so many bytes in flight towards `slot`.
    pub fn allow(&self, slot: u8, bytes: u64) {
        if let Some(known) = &self.known {
            known.borrow_mut().allowances.insert(slot, bytes);
        }
    }

    /// What the shard last noted for `slot`.
    pub fn noted(&self, slot: u8) -> u64 {
        let noted = |known: &Rc<RefCell<Known>>| known.borrow().in_flight.get(&slot).copied();
        self.known.as_ref().and_then(noted).unwrap_or(0)
    }
}

impl Credit for ModelCredit {
    fn reaches(&self, _path: &Path) -> bool {
        self.known.is_some()
    }

    fn allowance(&self, slot: u8) -> u64 {
        let allowed = |known: &Rc<RefCell<Known>>| known.borrow().allowances.get(&slot).copied();
        // of the own buffer nothing is known either
        self.known.as_ref().and_then(allowed).unwrap_or(u64::MAX)
    }

    fn note(&self, slot: u8, in_flight: u64) {
        if let Some(known) = &self.known {
            known.borrow_mut().in_flight.insert(slot, in_flight);
        }
    }
}
