//! The broker's side of the credit table: it says what each slot was granted and takes back what
//! the dead had in flight.

use std::os::fd::{AsFd, BorrowedFd};

use io::Descriptor;

use crate::credit::CreditTable;

/// The table and the descriptor that is passed on; programs do without where there is none.
#[derive(Debug)]
pub(super) struct Accounts {
    table: Option<(CreditTable, Descriptor)>,
}

impl Accounts {
    pub(super) fn new() -> Self {
        let table = CreditTable::create()
            .inspect_err(|errno| tracing::warn!(%errno, "there is no credit table"))
            .ok();
        Self { table }
    }

    /// A slot has a new holder, which nothing is in flight from yet; its socket was granted so many
    /// bytes.
    pub(super) fn open(&self, slot: u8, granted: usize) {
        if let Some((table, _)) = &self.table {
            table.reclaim(slot);
            table.grant(slot, granted as u64);
        }
    }

    /// The holder of a slot is gone: what it had in flight is nobody's, and nobody reads what is in
    /// flight towards it.
    pub(super) fn close(&self, slot: u8) {
        if let Some((table, _)) = &self.table {
            table.reclaim(slot);
            table.grant(slot, 0);
        }
    }

    /// What a client maps.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.table.as_ref().map(|(_, file)| file.as_fd())
    }
}
