//! The bytes between two hosts, and what happens to them.

use core::fmt;
use std::collections::VecDeque;

use crate::rng::Rng;

/// Something that goes wrong once, in one direction, from a byte on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mischief {
    /// Who sent the bytes.
    pub from: usize,
    /// After how many bytes; of [`Kind::Forge`] after how many FPDUs.
    pub at: u64,
    /// What.
    pub kind: Kind,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A bit is another.
    Flip,
    /// Bytes are left out.
    Leave,
    /// Bytes are put in.
    Insert,
    /// The connection is reset.
    Cut,
    /// The stream ends here, whatever the sender sends.
    End,
    /// Nothing comes any more.
    Silence,
    /// The sender itself sends a wrong header, with a right CRC.
    Forge,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Flip,
        Self::Leave,
        Self::Insert,
        Self::Cut,
        Self::End,
        Self::Silence,
        Self::Forge,
    ];
}

/// What comes out at the other end.
pub(super) enum Carried {
    Bytes(Vec<u8>),
    /// The sender has shut down its half.
    End,
    /// The connection is reset.
    Cut,
}

/// What one host sends to the other.
#[derive(Debug)]
pub(super) struct Wire {
    bytes: VecDeque<u8>,
    /// How many went in.
    written: u64,
    mischief: Option<Mischief>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Nothing is written any more, and the other end does not know yet.
    Ending,
    /// The connection is reset, and the other end does not know yet.
    Cutting,
    /// Nothing comes out any more.
    Done,
}

impl Wire {
    pub fn new(mischief: Option<Mischief>) -> Self {
        Self {
            bytes: VecDeque::new(),
            written: 0,
            mischief: mischief.filter(|mischief| mischief.kind != Kind::Forge),
            state: State::Open,
        }
    }

    /// The host sends.
    pub fn write(&mut self, bytes: &[u8], rng: &mut Rng) {
        for &byte in bytes {
            if self.state != State::Open {
                return;
            }
            let is_due = self.mischief.filter(|mischief| mischief.at == self.written);
            self.written += 1;
            match is_due.map(|mischief| mischief.kind) {
                None | Some(Kind::Forge) => self.bytes.push_back(byte),
                Some(Kind::Flip) => self.bytes.push_back(byte ^ 1 << rng.below(8)),
                Some(Kind::Leave) => {}
                Some(Kind::Insert) => {
                    let count = rng.range(1, 70) as usize;
                    self.bytes.extend(rng.bytes(count));
                    self.bytes.push_back(byte);
                }
                Some(Kind::Cut) => self.state = State::Cutting,
                Some(Kind::End) => self.state = State::Ending,
                Some(Kind::Silence) => self.state = State::Done,
            }
        }
    }

    /// The host shuts down its half.
    pub fn end(&mut self) {
        if self.state == State::Open {
            self.state = State::Ending;
        }
    }

    /// The connection is gone, with what is on its way.
    pub fn cut(&mut self) {
        self.bytes.clear();
        if self.state != State::Done {
            self.state = State::Cutting;
        }
    }

    /// Some of the bytes, or the end.
    pub fn take(&mut self, rng: &mut Rng) -> Option<Carried> {
        if self.bytes.is_empty() {
            let carried = match self.state {
                State::Ending => Carried::End,
                State::Cutting => Carried::Cut,
                State::Open | State::Done => return None,
            };
            self.state = State::Done;
            return Some(carried);
        }
        let most = rng.pick(&[1, 1, 3, 20, 200, 3000, 70_000]);
        let count = rng.range(1, most).min(self.bytes.len() as u64) as usize;
        Some(Carried::Bytes(self.bytes.drain(..count).collect()))
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::End => f.write_str("end"),
            Self::Cut => f.write_str("reset"),
        }
    }
}
