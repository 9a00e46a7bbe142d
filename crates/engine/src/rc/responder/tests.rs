//! Transcripts: a request goes in, answers, completions and events come out.

mod bench;
mod duplicates;
mod reads_and_atomics;
mod refusals;
mod sends_and_writes;
