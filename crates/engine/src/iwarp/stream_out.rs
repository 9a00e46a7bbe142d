//! What leaves next: a Terminate, the RTR message, answers and requests in turn.

use wire::iwarp::{MessageOffset, Msn, Opcode, Tagged, TaggedOffset, Untagged};

use super::burst::{Source, StreamBurst};
use super::options::Rtr;
use super::queue_pair::{Opening, Phase, QueuePair};
use super::requester::{RTR_STAG, Step};
use super::terminate;
use crate::host::Host;
use crate::time::Instant;

impl<H: Host> QueuePair<H> {
    /// Appends ULPDUs to `out` until it is full or there is nothing to send now. Once all of them
    /// have left the program's memory: [`Self::burst_left`].
    pub fn poll_transmit(&mut self, now: Instant, memory: &H::Memory, out: &mut StreamBurst) {
        self.send_rtr(out);
        self.remind(out);
        // a peer that asks without end does not keep our own requests waiting, nor the reverse
        let mut answers_first = true;
        while !out.is_full() && self.may_send() {
            match self.send_one(now, memory, answers_first, out) {
                Step::Done => answers_first = !answers_first,
                Step::Idle => break,
            }
        }
        if let Phase::Streaming(stream) = &mut self.phase
            && !out.is_empty()
        {
            let sent = self.common.counters.sent_packets;
            stream.reminder.spoke(now, sent);
        }
        // the last one, also where the bound is reached
        if let Phase::Terminating { terminate, .. } = &self.phase {
            out.push(Source::Own, &terminate::ulpdu(terminate), &[], &[]);
            self.common.counters.sent_packets += 1;
            self.common.counters.iwarp.sent_terminates += 1;
            self.linger(now);
        }
    }

    fn may_send(&self) -> bool {
        matches!(&self.phase, Phase::Streaming(stream) if stream.opening == Opening::Open)
    }

    /// A segment of the message that was begun; between messages of an answer or of a request.
    fn send_one(
        &mut self,
        now: Instant,
        memory: &H::Memory,
        answers_first: bool,
        out: &mut StreamBurst,
    ) -> Step {
        let sources = if self.requester.is_amid_message() {
            [Turn::Request, Turn::Request]
        } else if self.responder.answers.is_amid_answer() {
            [Turn::Answer, Turn::Answer]
        } else if answers_first {
            [Turn::Answer, Turn::Request]
        } else {
            [Turn::Request, Turn::Answer]
        };
        for source in sources {
            let step = match source {
                Turn::Answer => self.send_answer(now, memory, out),
                Turn::Request => self.send_request(now, memory, out),
            };
            if step == Step::Done {
                return step;
            }
        }
        Step::Idle
    }

    fn send_answer(&mut self, now: Instant, memory: &H::Memory, out: &mut StreamBurst) -> Step {
        let answers = &mut self.responder.answers;
        match answers.step(&mut self.common, memory, out) {
            Ok(step) => step,
            Err((refusal, terminate)) => {
                self.refuse(now, refusal, terminate);
                Step::Idle
            }
        }
    }

    fn send_request(&mut self, now: Instant, memory: &H::Memory, out: &mut StreamBurst) -> Step {
        let Phase::Streaming(stream) = &self.phase else {
            return Step::Idle;
        };
        let end = stream.closing.map(|closing| closing.end);
        match self.requester.step(&mut self.common, memory, end, out) {
            Ok(step) => step,
            Err(cause) => {
                self.fail(now, cause);
                Step::Idle
            }
        }
    }

    /// The message that lets the peer send. spec: RFC 6581 4
    fn send_rtr(&mut self, out: &mut StreamBurst) {
        let Phase::Streaming(stream) = &mut self.phase else {
            return;
        };
        let Opening::Sends(rtr) = stream.opening else {
            return;
        };
        stream.opening = Opening::Open;
        match rtr {
            Rtr::Read => self.requester.push_rtr_read(out),
            Rtr::Write => push_empty_write(out),
            Rtr::Send => {
                let offset = MessageOffset::default();
                let header = Untagged::new(Opcode::Send, true, Msn::FIRST, offset);
                out.push(Source::Own, &header.to_bytes(), &[], &[]);
            }
        }
        self.common.counters.sent_packets += 1;
    }

    /// A word to a peer that has not spoken, between two messages.
    fn remind(&mut self, out: &mut StreamBurst) {
        if let Phase::Streaming(stream) = &mut self.phase
            && stream.reminder.take()
            && stream.opening == Opening::Open
            && !self.requester.is_amid_message()
        {
            push_empty_write(out);
            self.common.counters.sent_packets += 1;
        }
    }
}

/// An RDMA Write of no bytes, which changes nothing anywhere. spec: RFC 5040 5
fn push_empty_write(out: &mut StreamBurst) {
    let header = Tagged::new(Opcode::Write, true, RTR_STAG, TaggedOffset::default());
    out.push(Source::Own, &header.to_bytes(), &[], &[]);
}

/// Whose segment is next.
#[derive(Clone, Copy)]
enum Turn {
    Answer,
    Request,
}
