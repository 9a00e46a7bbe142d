//! The engine's view of the broker's credit table. Read first: `docs/decisions/0005-credit.md`.

pub use broker::credit::CreditTable;
use engine::{Credit, Path};

use crate::network::is_own_address;

/// In flight towards a buffer of this host when nobody tells how much it holds: what the kernel's
/// default takes, and enough for full speed with large packets.
const UNKNOWN: u64 = 128 << 10;

/// One slot's part in the table.
#[derive(Debug)]
pub struct SlotCredit {
    slot: u8,
    /// `None` from a broker without one.
    table: Option<CreditTable>,
    /// Whether the slots of this host are those of the own broker.
    is_real: bool,
}

impl SlotCredit {
    /// For the sender with this slot.
    pub fn new(slot: u8, table: Option<CreditTable>) -> Self {
        Self {
            slot,
            table,
            is_real: true,
        }
    }

    /// For a simulated network: every destination is on another host.
    pub fn elsewhere() -> Self {
        Self {
            slot: 0,
            table: None,
            is_real: false,
        }
    }
}

impl Credit for SlotCredit {
    fn reaches(&self, path: &Path) -> bool {
        self.is_real && is_own_address(path)
    }

    fn allowance(&self, slot: u8) -> u64 {
        match &self.table {
            Some(table) => table.look(slot, self.slot).allowance(),
            None => UNKNOWN,
        }
    }

    fn note(&self, slot: u8, in_flight: u64) {
        if let Some(table) = &self.table {
            table.note(slot, self.slot, in_flight);
        }
    }
}
