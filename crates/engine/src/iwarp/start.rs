//! Setting up: request and reply, before the first FPDU.
//!
//! Read first: RFC 5044 7.1, RFC 6581 4 and 9. One struct is one state and owns what only that
//! state knows; going on consumes it. Each takes the bytes of the stream in any pieces, what ends
//! it is a [`StartError`], and the driver closes the connection.
//!
//! | end | states |
//! |---|---|
//! | who connects | [`AwaitingReply`] → [`Agreement`] |
//! | who listens | [`AwaitingRequest`] → [`Asked`], until the program answers → [`Agreement`] |

use wire::ParseError;
use wire::iwarp::{Depth, Enhanced, Kind, Revision, StartFrame, TerminateCode};

use super::options::{
    Agreement, CrcPolicy, DEPTH_MAX, Depths, LinkOptions, REPLY_TIMEOUT, REQUEST_TIMEOUT, Role,
    Rtr, frame,
};
use super::terminate;
use crate::time::Instant;

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The peer says no; its private data may say why.
    Rejected(Vec<u8>),
    /// The peer does not answer.
    TimedOut,
    /// The peer has closed the connection.
    Ended,
    /// What the peer sent is no start frame.
    Invalid(ParseError),
    /// The peer sent something behind its frame, before it may.
    TooEarly,
    /// The reply is of a higher revision than the request, or has a setup that was not asked for.
    NotAsked,
    /// The peer wants markers, and the link has none.
    Markers,
    /// The peer has more READs in flight than we can take.
    TooManyReads,
    /// There is no RTR message that both ends know.
    NoRtr,
    /// Our own private data is too long.
    PrivateData(ParseError),
}

/// What came of bytes, or of time.
#[derive(Debug)]
pub enum Progress<S, T> {
    /// More is needed.
    Waiting(S),
    /// This state is over.
    Done(T),
}

/// Who connects has sent its request.
#[derive(Debug)]
pub struct AwaitingReply {
    link: LinkOptions,
    /// What was sent.
    depths: Depths,
    received: Vec<u8>,
    deadline: Instant,
}

impl AwaitingReply {
    /// Appends the request to `out`. The link's options and what the program wants go into it.
    pub fn start(
        now: Instant,
        link: LinkOptions,
        depths: Depths,
        private_data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Self, StartError> {
        let mut depths = depths.bounded();
        if link.peer_to_peer {
            depths.ord = depths.ord.max(1); // a Read as RTR message needs one
        }
        let mut enhanced = depths.enhanced();
        if link.peer_to_peer {
            enhanced.peer_to_peer = true;
            enhanced.rtr_write = true;
            enhanced.rtr_read = true;
        }
        let request = StartFrame {
            wants_crc: link.crc != CrcPolicy::Off,
            enhanced: Some(enhanced),
            private_data,
            ..frame(Kind::Request, link.revision, &link)
        };
        request.emit_into(out).map_err(StartError::PrivateData)?;
        Ok(Self {
            link,
            depths,
            received: Vec::new(),
            deadline: now.plus(REPLY_TIMEOUT),
        })
    }

    /// The request leaves only now, and the time for the reply begins.
    #[must_use]
    pub fn leaves(self, now: Instant) -> Self {
        Self {
            deadline: now.plus(REPLY_TIMEOUT),
            ..self
        }
    }

    /// How many bytes to give it next at most, so that none are behind the reply: the first FPDUs
    /// of a peer that has not waited for ours are for the stream. Never 0.
    pub fn missing(&self) -> usize {
        StartFrame::missing(&self.received).max(1)
    }

    /// When to call [`Self::handle_timeout`].
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The time is up, or not yet.
    pub fn handle_timeout(self, now: Instant) -> Result<Self, StartError> {
        keep_waiting(now, self.deadline).map(|()| self)
    }

    /// Takes bytes of the stream. Where the peer may be told what is wrong, that is appended to
    /// `out`: it is sent before the connection is closed.
    pub fn handle_bytes(
        mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Progress<Self, Agreement>, StartError> {
        let over = receive(&mut self.received, bytes);
        let Some(reply) = whole_frame(Kind::Reply, &self.received, over)? else {
            return Ok(Progress::Waiting(self));
        };
        let has_crc = self.link.crc != CrcPolicy::Off || reply.wants_crc;
        let agreement = self.agree(&reply).inspect_err(|error| {
            // spec: RFC 6581 8
            let code = match error {
                StartError::TooManyReads => TerminateCode::INSUFFICIENT_IRD,
                StartError::NoRtr => TerminateCode::NO_MATCHING_RTR,
                _ => return,
            };
            terminate::only_fpdu(code, has_crc, reply.wants_markers, out);
        })?;
        Ok(Progress::Done(agreement))
    }

    fn agree(&self, reply: &StartFrame<'_>) -> Result<Agreement, StartError> {
        if reply.is_rejected {
            return Err(StartError::Rejected(reply.private_data.to_vec()));
        }
        if reply.revision > self.link.revision {
            return Err(StartError::NotAsked);
        }
        if reply.wants_markers && !self.link.markers {
            return Err(StartError::Markers);
        }
        let (mut depths, mut replied) = (self.depths, self.depths);
        let mut rtr = None;
        if let Some(offered) = &reply.enhanced {
            // spec: RFC 6581 4.1: who connects takes what the reply says, or ends it
            if let Some(ord) = offered.ord.get() {
                if ord > DEPTH_MAX {
                    return Err(StartError::TooManyReads);
                }
                depths.ird = depths.ird.max(ord);
                replied.ird = ord;
            }
            if let Some(ird) = offered.ird.get() {
                depths.ord = depths.ord.min(ird);
                replied.ord = ird;
            }
            if offered.peer_to_peer && !self.link.peer_to_peer {
                return Err(StartError::NotAsked);
            }
            if self.link.peer_to_peer && offered.peer_to_peer {
                let both = Enhanced {
                    rtr_send: false,
                    ..*offered
                };
                rtr = Some(Rtr::preferred(&both).ok_or(StartError::NoRtr)?);
            }
        }
        Ok(Agreement {
            role: Role::Active,
            revision: reply.revision,
            has_crc: self.link.crc != CrcPolicy::Off || reply.wants_crc,
            sends_markers: reply.wants_markers,
            receives_markers: self.link.markers,
            depths,
            replied,
            rtr,
            private_data: reply.private_data.to_vec(),
        })
    }
}

/// Who listens has a TCP connection and no request yet.
#[derive(Debug)]
pub struct AwaitingRequest {
    link: LinkOptions,
    received: Vec<u8>,
    deadline: Instant,
}

impl AwaitingRequest {
    /// The connection is there.
    pub fn start(now: Instant, link: LinkOptions) -> Self {
        Self {
            link,
            received: Vec::new(),
            deadline: now.plus(REQUEST_TIMEOUT),
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The time is up, or not yet.
    pub fn handle_timeout(self, now: Instant) -> Result<Self, StartError> {
        keep_waiting(now, self.deadline).map(|()| self)
    }

    /// Takes bytes of the stream. A refusal of ours is appended to `out`: it is sent before the
    /// connection is closed.
    pub fn handle_bytes(
        mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Progress<Self, Asked>, StartError> {
        let over = receive(&mut self.received, bytes);
        let Some(request) = whole_frame(Kind::Request, &self.received, over)? else {
            return Ok(Progress::Waiting(self));
        };
        let asked = Asked {
            link: self.link,
            revision: request.revision,
            wants_crc: request.wants_crc,
            wants_markers: request.wants_markers,
            enhanced: request.enhanced,
            private_data: request.private_data.to_vec(),
        };
        if request.wants_markers && !self.link.markers {
            asked.reject(&[], out)?;
            return Err(StartError::Markers);
        }
        Ok(Progress::Done(asked))
    }
}

/// Who listens has a request; the program decides. Nothing may come meanwhile but the end.
#[derive(Debug)]
pub struct Asked {
    link: LinkOptions,
    revision: Revision,
    wants_crc: bool,
    wants_markers: bool,
    enhanced: Option<Enhanced>,
    private_data: Vec<u8>,
}

impl Asked {
    /// What the peer's program says.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// What the peer offers, from our view: how many READs it takes from us, and how many it wants
    /// in flight. Zeros if it does not say, as siw has it.
    pub fn offered(&self) -> Depths {
        let enhanced = self.enhanced.unwrap_or_default();
        let number = |depth: Depth| depth.get().unwrap_or(DEPTH_MAX);
        Depths {
            ird: number(enhanced.ord),
            ord: number(enhanced.ird),
        }
    }

    /// The program accepts: the reply is appended to `out`. The queue pair must be ready to receive
    /// before it is sent.
    pub fn accept(
        &self,
        depths: Depths,
        private_data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Agreement, StartError> {
        let mut depths = depths.bounded();
        let mut rtr = None;
        let mut answer = None;
        if let Some(asked) = &self.enhanced {
            // spec: RFC 6581 4.1: who accepts lowers its own ORD and should raise its IRD
            let ird = asked.ord.get();
            let ord = asked.ird.get();
            depths.ord = depths.ord.min(ord.unwrap_or(DEPTH_MAX));
            depths.ird = depths.ird.max(ird.unwrap_or(0)).min(DEPTH_MAX);
            if asked.peer_to_peer {
                // siw offers a Write where the peer named nothing
                let kind = Rtr::preferred(asked).unwrap_or(Rtr::Write);
                if kind == Rtr::Read {
                    depths.ird = depths.ird.max(1);
                }
                rtr = Some(kind);
            }
            let mut enhanced = depths.enhanced();
            // what is not negotiated in one direction is not negotiated in the answer to it
            if ird.is_none() {
                enhanced.ird = Depth::NOT_NEGOTIATED;
            }
            if ord.is_none() {
                enhanced.ord = Depth::NOT_NEGOTIATED;
            }
            enhanced.peer_to_peer = asked.peer_to_peer;
            if let Some(kind) = rtr {
                kind.mark(&mut enhanced);
            }
            answer = Some(enhanced);
        }
        let has_crc = self.wants_crc || self.link.crc == CrcPolicy::Required;
        let reply = StartFrame {
            wants_crc: has_crc,
            enhanced: answer,
            private_data,
            ..frame(Kind::Reply, self.revision, &self.link)
        };
        reply.emit_into(out).map_err(StartError::PrivateData)?;
        Ok(Agreement {
            role: Role::Passive,
            revision: self.revision,
            has_crc,
            sends_markers: self.wants_markers,
            receives_markers: self.link.markers,
            depths,
            replied: depths,
            rtr,
            private_data: Vec::new(),
        })
    }

    /// The program refuses: the reply is appended to `out`, then the connection is closed.
    pub fn reject(&self, private_data: &[u8], out: &mut Vec<u8>) -> Result<(), StartError> {
        let reply = StartFrame {
            wants_crc: self.wants_crc,
            is_rejected: true,
            // as siw does: what was asked comes back
            enhanced: self.enhanced,
            private_data,
            ..StartFrame::new(Kind::Reply, self.revision)
        };
        reply.emit_into(out).map_err(StartError::PrivateData)
    }
}

fn keep_waiting(now: Instant, deadline: Instant) -> Result<(), StartError> {
    if now < deadline {
        Ok(())
    } else {
        Err(StartError::TimedOut)
    }
}

/// Keeps bytes of a frame, at most the longest one; how many there were behind that.
fn receive(received: &mut Vec<u8>, bytes: &[u8]) -> usize {
    let room = StartFrame::LENGTH_MAX.saturating_sub(received.len());
    let (kept, over) = bytes.split_at(bytes.len().min(room));
    received.extend_from_slice(kept);
    over.len()
}

/// The frame, once it is whole. Nothing may follow it, neither here nor in the `over` bytes behind.
fn whole_frame(
    kind: Kind,
    received: &[u8],
    over: usize,
) -> Result<Option<StartFrame<'_>>, StartError> {
    match StartFrame::parse(kind, received) {
        Ok(None) => Ok(None),
        Ok(Some((_, length))) if received.len() + over > length => Err(StartError::TooEarly),
        Ok(Some((frame, _))) => Ok(Some(frame)),
        Err(error) => Err(StartError::Invalid(error)),
    }
}
