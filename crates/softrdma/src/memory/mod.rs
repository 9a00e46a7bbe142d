//! Registered memory: keys, the table behind them, and access that no program can turn into a
//! crash of itself.
//!
//! | file | what |
//! |---|---|
//! | `table.rs` | keys and [`MemoryTable`], which the engine asks |
//! | `owned.rs` | memory that belongs to its registration |
//! | `program_bytes.rs` | memory that a program gives for one call |
//! | `region.rs` | one entry of the table: what is registered, read without a lock |
//! | `mapping.rs` | whether a range is mapped, without touching it |
//! | `copy.rs` | the leaf routines that touch program memory, and the way through the kernel |
//! | `fault.rs` | the signal handler that ends a faulting copy |
//!
//! Sections to read first: IBA 10.6 (memory management).

mod copy;
mod fault;
mod mapping;
mod owned;
mod program_bytes;
mod region;
mod table;

pub(crate) use copy::ProgramMemory;
pub use owned::OwnedRegion;
pub use program_bytes::{ProgramBytes, ProgramBytesMut};
pub use region::RegisterError;
pub use table::{Listed, MemoryTable, REGIONS_MAX, Registration};

#[cfg(test)]
pub(crate) mod tests;
