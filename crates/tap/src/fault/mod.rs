//! Faults from a seed: what a plan may say, how it is written, and how it decides.
//!
//! A plan is the value of `SOFTRDMA_FAULTS`, for example
//! `loss=2%,reorder=5%,duplicate=1%,corrupt=1%,delay=200us..2ms,seed=42`.
//!
//! | key | value | what happens |
//! |---|---|---|
//! | `loss` | probability | the packet is lost |
//! | `duplicate` | probability | it goes on twice |
//! | `corrupt` | probability | one bit that the ICRC covers is inverted |
//! | `reorder` | probability | it is held for a while, so that later ones overtake it |
//! | `hold` | time or range | how long `reorder` holds; 100us..1ms if not given |
//! | `delay` | time or range | packets that meet no other fault wait so long; their order is kept |
//! | `direction` | `tx`, `rx`, `both` | packets that leave (if not given), arrive, or either |
//! | `seed` | number | the same seed decides the same; 1 if not given |
//!
//! A probability is a percentage (`2%`, `0.5%`) or a fraction of one (`0.02`); a time has a unit
//! (`ns`, `us`, `ms`, `s`). A packet meets at most one of the first four, so together they are at
//! most 100 %.

mod parse;
mod plan;
mod rule;

pub use parse::{PlanError, Problem};
pub use plan::{FaultPlan, Injector};
pub use rule::{Direction, Probability, Span};
