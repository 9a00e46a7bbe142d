//! Reliable connections. Sections to read first: IBA 9.7.

mod answers;
mod execute;
mod refusal;
mod resources;
pub mod responder;
