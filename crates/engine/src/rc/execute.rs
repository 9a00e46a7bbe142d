//! What the responder does once a request passed the checks.
//!
//! Sections to read first: IBA 9.7.4, 9.5 (visibility), 9.4.5 (atomics). The one idea: the order is
//! always payload, invalidation, completion, then the acknowledgement; a READ only queues its
//! answer.

use wire::{AtomicEth, Operation, Packet, Syndrome};

use crate::access::{AtomicOperation, Grant};
use crate::completion::{CompletionOpcode, WorkCompletion};
use crate::host::{CompletionSink, Host, Memory};
use crate::qp::Common;
use crate::qp::scatter::scatter;
use crate::rc::answers::{Answer, ReadAnswer};
use crate::rc::refusal::Refusal;
use crate::rc::resources::{Resource, Source};
use crate::rc::responder::{Admitted, Message, Responder, Target};

impl Responder {
    /// Executes a request with the expected PSN and answers it.
    pub(super) fn execute<H: Host>(
        &mut self,
        common: &mut Common<H>,
        packet: &Packet<'_>,
        admitted: Admitted,
        memory: &H::Memory,
    ) -> Result<(), Refusal> {
        match admitted {
            Admitted::Send { placed } => self.execute_send(common, packet, placed, memory),
            Admitted::Write(target) => self.execute_write(common, packet, target, memory),
            Admitted::Read(source) => {
                self.execute_read(common, packet, source);
                Ok(())
            }
            Admitted::Atomic(grant, request) => self.execute_atomic(packet, grant, request, memory),
        }
    }

    fn execute_send<H: Host>(
        &mut self,
        common: &mut Common<H>,
        packet: &Packet<'_>,
        placed: u32,
        memory: &H::Memory,
    ) -> Result<(), Refusal> {
        let payload = packet.payload();
        let is_last = packet.opcode().ends_message();
        let sges = self.receive.iter().flat_map(|receive| &receive.sges);
        scatter(common, sges, placed, payload, is_last, memory)
            .map_err(|_| Refusal::LocalProtection)?;
        let placed = placed + payload.len() as u32; // at most 2^31: check_length
        if is_last {
            if let Some(key) = packet.ieth() {
                memory
                    .invalidate(key, common.scope())
                    .map_err(|_| Refusal::CannotInvalidate)?;
            }
            self.complete(common, packet, CompletionOpcode::Receive, placed)?;
            self.message = Message::Between;
        } else {
            self.message = Message::Send { placed };
        }
        self.advance(common, packet, is_last);
        Ok(())
    }

    fn execute_write<H: Host>(
        &mut self,
        common: &mut Common<H>,
        packet: &Packet<'_>,
        target: Target,
        memory: &H::Memory,
    ) -> Result<(), Refusal> {
        let payload = packet.payload();
        let is_last = packet.opcode().ends_message();
        if let Some(grant) = &target.grant {
            memory
                .place(grant, target.placed, payload, is_last)
                .map_err(|_| Refusal::RemoteAccess)?;
        }
        if is_last {
            if self.receive.is_some() {
                let opcode = CompletionOpcode::ReceiveRdmaWithImmediate;
                self.complete(common, packet, opcode, target.length)?;
            }
            self.message = Message::Between;
        } else {
            self.message = Message::Write(Target {
                placed: target.placed + payload.len() as u32,
                ..target
            });
        }
        self.advance(common, packet, is_last);
        Ok(())
    }

    /// Takes all PSNs of the responses at once; `poll_transmit` makes them. spec: IBA 9.7.5, C9-148
    fn execute_read<H: Host>(&mut self, common: &Common<H>, packet: &Packet<'_>, source: Source) {
        let first = packet.bth().psn;
        self.expected = first.plus(source.packets(common.mtu()));
        self.msn = self.msn.next();
        self.remember(Resource::Read { first, source });
        let answer = ReadAnswer::new(first, source, self.msn);
        self.answers.push(Answer::Read(answer));
    }

    fn execute_atomic<M: Memory>(
        &mut self,
        packet: &Packet<'_>,
        grant: Grant,
        request: AtomicEth,
        memory: &M,
    ) -> Result<(), Refusal> {
        let operation = match packet.opcode().operation() {
            Operation::CompareSwap => AtomicOperation::CompareSwap {
                compare: request.compare,
                swap: request.swap_or_add,
            },
            _ => AtomicOperation::FetchAdd {
                add: request.swap_or_add,
            },
        };
        let original = memory
            .atomic(&grant, operation)
            .map_err(|_| Refusal::RemoteAccess)?;
        let psn = packet.bth().psn;
        self.expected = psn.plus(1);
        self.msn = self.msn.next();
        self.remember(Resource::Atomic {
            psn,
            opcode: packet.opcode(),
            request,
            original,
        });
        self.answers.push(Answer::Atomic {
            psn,
            original,
            msn: self.msn,
            is_duplicate: false,
        });
        Ok(())
    }

    /// Completes the receive in hand.
    fn complete<H: Host>(
        &mut self,
        common: &mut Common<H>,
        packet: &Packet<'_>,
        opcode: CompletionOpcode,
        length: u32,
    ) -> Result<(), Refusal> {
        let Some(receive) = self.receive.take() else {
            return Ok(()); // a message without receive has no completion
        };
        let mut completion = WorkCompletion::success(receive.id, opcode, length, common.qpn);
        completion.immediate = packet.immediate();
        completion.invalidated = packet.ieth();
        common.counters.rdma_receives += 1;
        common
            .receive_cq
            .push(completion, packet.bth().solicited)
            .map_err(|_| Refusal::Overrun)
    }

    /// Goes past an executed packet of a SEND or WRITE, and acknowledges it if it asks for that.
    fn advance<H: Host>(&mut self, common: &mut Common<H>, packet: &Packet<'_>, is_last: bool) {
        self.expected = packet.bth().psn.plus(1);
        if is_last {
            self.msn = self.msn.next();
        }
        if packet.bth().ack_request {
            self.acknowledge(common, packet.bth().psn, Syndrome::ACK);
        }
    }

    /// Keeps what a duplicate would need. What has to go for it had its answer, or is answered a
    /// second time, which nobody can wait for any more.
    fn remember(&mut self, resource: Resource) {
        if let Some(evicted) = self.resources.save(resource) {
            self.answers.forget(evicted.psn());
        }
    }
}
