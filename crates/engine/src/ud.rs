//! Unreliable datagrams: one packet for a message, to whoever the work request names.
//!
//! Read first: IBA 9.8.3 (the service), 10.2.5 (Q_Keys), 11.2.2 (address handles); for the GRH of
//! RoCE A17.4.5.2. A send is complete when its packet has left: nobody says whether it arrived, so
//! nothing is charged to the receiver's buffer either. What bounds a sender is its send queue,
//! which is given back only as fast as the own socket takes packets.

use std::collections::VecDeque;
use std::net::IpAddr;

use wire::ip::{Ipv4, Ipv6, Udp};
use wire::{Bth, Deth, HeaderRepr, Mtu, Opcode, Packet, Psn, QKey};

use crate::access::{Access, AccessError, MemoryRange, Span};
use crate::burst::{Burst, Origin};
use crate::completion::{CompletionOpcode, Overrun, Status, WorkCompletion};
use crate::event::AsyncEvent;
use crate::host::{CompletionSink, Host, Memory, ReceiveSource, ReceiveWqe};
use crate::outcome::{DropReason, Outcome};
use crate::path::PathMeta;
use crate::qp::flush::{self, Cause};
use crate::qp::scatter::{self, scatter};
use crate::qp::send_queue::{SendQueue, SendWqe};
use crate::qp::sge_cursor::SgeCursor;
use crate::qp::{
    Addressee, Capabilities, Common, Operation, PostError, SendFlags, SendRequest, State,
};
use crate::rc::Pause;
use crate::shard::paths::Paths;

/// What stands before the payload in every receive: the GRH, or what stands for it.
pub const GRH_LENGTH: u32 = 40;

/// A Q_Key with this bit in a work request stands for the queue pair's own. spec: IBA 10.2.5
const OWN_QKEY: u32 = 1 << 31;

/// The sending and receiving state of a datagram queue pair.
///
/// Invariant: there is an addressee for every work request in the queue, and at least `leaving`
/// of them.
#[derive(Debug)]
pub struct Ud {
    queue: SendQueue,
    /// Where each work request of the queue goes.
    addressees: VecDeque<Addressee>,
    /// PSN of the next packet.
    next_psn: Psn,
    /// Work requests, from the oldest on, whose packets are in the burst that is being sent.
    leaving: usize,
    /// A work request behind those that are leaving failed like this.
    failed: Option<Status>,
    /// Whether to tell when all that was started before SQD has left.
    notify_drained: bool,
}

impl Ud {
    /// A queue pair in RESET. Its messages fit packets of `port_mtu`.
    pub fn new(capabilities: &Capabilities, port_mtu: Mtu) -> Self {
        let queue = SendQueue::new(
            capabilities.send_wr_max,
            capabilities.send_sge_max,
            capabilities.inline_max,
        );
        Self {
            queue: queue.with_message_max(port_mtu.bytes().into()),
            addressees: VecDeque::new(),
            next_psn: Psn::default(),
            leaving: 0,
            failed: None,
            notify_drained: false,
        }
    }

    /// It can send from now on. spec: IBA 10.3.1 (RTR to RTS)
    pub fn start(&mut self, first_psn: Psn) {
        self.next_psn = first_psn;
    }

    /// Forgets everything, without completions.
    pub fn reset(&mut self) {
        self.queue.clear();
        self.addressees.clear();
        self.leaving = 0;
        self.failed = None;
        self.notify_drained = false;
    }

    /// What was posted and has not left.
    pub fn queue(&self) -> &SendQueue {
        &self.queue
    }

    /// PSN of the packet that is sent next.
    pub fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// Whether all that was started has left.
    pub fn is_drained(&self) -> bool {
        self.leaving == 0
    }

    /// The send queue is to be drained: tells at once if nothing is leaving. spec: IBA 10.3.1 (SQD)
    pub fn drain<H: Host>(&mut self, common: &mut Common<H>, notify: bool) {
        self.notify_drained = notify;
        self.tell_drained(common);
    }

    /// Whether the request could be posted, apart from the room for it.
    pub fn check(&self, request: &SendRequest<'_>) -> Result<Addressee, PostError> {
        // spec: IBA table 38 (operations of each transport)
        if !matches!(
            request.operation,
            Operation::Send | Operation::SendImmediate(_)
        ) {
            return Err(PostError::NotOfTransport);
        }
        self.queue.check(request)?;
        request.to.copied().ok_or(PostError::NoAddressee)
    }

    /// Appends a work request.
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let addressee = self.check(request)?;
        self.queue.push(request)?;
        self.addressees.push_back(addressee);
        Ok(())
    }

    /// Appends at most `quota` packets.
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        common: &mut Common<H>,
        paths: &mut Paths,
        memory: &H::Memory,
        spans: &mut Vec<Span>,
        out: &mut Burst,
        mut quota: u32,
    ) -> Pause {
        while common.state == State::ReadyToSend && self.failed.is_none() {
            let number = self.queue.head().plus(self.leaving);
            let Some(wqe) = self.queue.get(number) else {
                break;
            };
            let Some(addressee) = self.addressees.get(self.leaving) else {
                break;
            };
            if out.is_full() || quota == 0 {
                return Pause::Busy { unused: quota };
            }
            spans.clear();
            if let Err(status) = gather(common, wqe, memory, spans) {
                self.fail_next(common, status);
                break;
            }
            let origin = Origin {
                qp: common.index(),
                psn: self.next_psn,
                is_response: false,
            };
            let mut header = header(common, wqe, addressee, self.next_psn);
            let path = paths.of_datagram(&addressee.path);
            out.push(path, origin, &mut header, &wqe.inline, spans);
            self.next_psn = self.next_psn.plus(1);
            self.leaving += 1;
            common.counters.sent_packets += 1;
            quota -= 1;
        }
        Pause::Idle
    }

    /// Whether packets of it are in the burst that is being sent.
    pub fn is_leaving(&self) -> bool {
        self.leaving > 0
    }

    /// The burst was sent: what was in it is complete.
    pub fn burst_left<H: Host>(&mut self, common: &mut Common<H>) {
        let count = core::mem::take(&mut self.leaving);
        let outcome = self.complete(common, count);
        if outcome.is_ok()
            && let Some(status) = self.failed.take()
        {
            self.fail_oldest(common, status);
        }
        self.tell_drained(common);
    }

    /// The packet with `psn`, which is in the burst, could not be gathered, and none behind it
    /// leaves.
    pub fn transmit_failed<H: Host>(&mut self, common: &mut Common<H>, psn: Psn) {
        let behind = self.next_psn.distance_from(psn);
        let Some(left) = usize::try_from(behind)
            .ok()
            .and_then(|behind| self.leaving.checked_sub(behind))
        else {
            return; // it failed already
        };
        self.leaving = 0;
        self.failed = None;
        if self.complete(common, left).is_ok() {
            self.fail_oldest(common, Status::LocalProtection);
        }
    }

    /// Moves the queue pair to the error state and flushes it; what is leaving has left.
    pub fn fail<H: Host>(&mut self, common: &mut Common<H>, cause: Cause) {
        let count = core::mem::take(&mut self.leaving);
        if self.complete(common, count).is_ok() {
            self.end(common, cause);
        }
    }

    /// Takes a datagram that the state admits. spec: IBA 9.8.3, 9.6.1.4 (Q_Key)
    pub fn handle_packet<H: Host>(
        &mut self,
        common: &mut Common<H>,
        packet: &Packet<'_>,
        meta: &PathMeta,
        memory: &H::Memory,
    ) -> Outcome {
        let Some(deth) = packet.deth().filter(|_| packet.payload_fits(Mtu::B4096)) else {
            return Outcome::Dropped(DropReason::Reserved);
        };
        if deth.qkey != common.attributes.qkey {
            return Outcome::Dropped(DropReason::BadQKey);
        }
        let Some(receive) = common.receives.take() else {
            return Outcome::Dropped(DropReason::NoReceive);
        };
        let length = GRH_LENGTH + packet.payload().len() as u32; // at most a packet
        let opcode = CompletionOpcode::Receive;
        let placed = place(common, &receive, packet, meta, memory);
        let completion = match placed {
            Ok(()) => WorkCompletion {
                immediate: packet.immediate(),
                source_qpn: deth.source,
                ..WorkCompletion::success(receive.id, opcode, length, common.qpn)
            },
            Err(status) => WorkCompletion::error(receive.id, opcode, status, common.qpn),
        };
        let is_solicited = packet.bth().solicited || placed.is_err();
        if common.receive_cq.push(completion, is_solicited).is_err() {
            self.overrun(common);
        } else {
            match placed {
                Ok(()) => common.counters.rdma_receives += 1,
                // a datagram that is too long is its sender's fault: the queue pair stays
                Err(Status::LocalLength) => {}
                Err(_) => self.fail(common, Cause::Fault),
            }
        }
        Outcome::Delivered
    }

    /// Panics if it contradicts itself; for tests.
    pub fn assert_invariants(&self) {
        assert_eq!(self.addressees.len() as u64, self.queue.len());
        assert!(self.leaving <= self.addressees.len());
    }

    /// The work request behind those that are leaving cannot be sent.
    fn fail_next<H: Host>(&mut self, common: &mut Common<H>, status: Status) {
        if self.leaving == 0 {
            self.fail_oldest(common, status);
        } else {
            self.failed = Some(status);
        }
    }

    fn fail_oldest<H: Host>(&mut self, common: &mut Common<H>, status: Status) {
        flush::fail_send(common, &mut self.queue, status);
        self.addressees.clear();
    }

    /// Completes the oldest `count` work requests.
    fn complete<H: Host>(&mut self, common: &mut Common<H>, count: usize) -> Result<(), Overrun> {
        for _ in 0..count {
            self.addressees.pop_front();
            if let Some(wqe) = self.queue.pop()
                && common.complete_send(wqe).is_err()
            {
                self.overrun(common);
                return Err(Overrun);
            }
        }
        Ok(())
    }

    /// A completion was lost. spec: IBA 11.6.3.3
    fn overrun<H: Host>(&mut self, common: &mut Common<H>) {
        common.events.push(AsyncEvent::Fatal(common.index()));
        self.leaving = 0;
        self.end(common, Cause::Fault);
    }

    fn end<H: Host>(&mut self, common: &mut Common<H>, cause: Cause) {
        flush::enter_error(common, &mut self.queue, None, cause);
        self.addressees.clear();
        self.failed = None;
        self.notify_drained = false;
    }

    fn tell_drained<H: Host>(&mut self, common: &mut Common<H>) {
        if self.notify_drained && self.is_drained() && common.state == State::SendQueueDrained {
            self.notify_drained = false;
            let event = AsyncEvent::SendQueueDrained(common.index());
            common.events.push(event);
        }
    }
}

/// Proves the memory of a work request.
fn gather<H: Host>(
    common: &Common<H>,
    wqe: &SendWqe,
    memory: &H::Memory,
    spans: &mut Vec<Span>,
) -> Result<(), Status> {
    SgeCursor::default().advance(&wqe.sges, wqe.length, |piece| {
        let range = MemoryRange {
            address: piece.address,
            length: piece.length.into(),
        };
        let grant = memory.check(piece.key, common.scope(), range, Access::empty());
        let span = grant.ok().and_then(|grant| grant.span(0, piece.length));
        spans.push(span.ok_or(Status::LocalProtection)?);
        Ok(())
    })
}

fn header<H: Host>(
    common: &Common<H>,
    wqe: &SendWqe,
    addressee: &Addressee,
    psn: Psn,
) -> HeaderRepr {
    let (opcode, immediate) = match wqe.operation {
        Operation::SendImmediate(immediate) => {
            (Opcode::UD_SEND_ONLY_WITH_IMMEDIATE, Some(immediate))
        }
        _ => (Opcode::UD_SEND_ONLY, None),
    };
    let mut header = HeaderRepr::new(Bth::new(opcode, addressee.qpn, psn));
    header.bth.solicited = wqe.flags.contains(SendFlags::SOLICITED);
    header.immediate = immediate;
    header.deth = Some(Deth {
        qkey: sent_qkey(addressee.qkey, common.attributes.qkey),
        source: common.qpn,
    });
    header
}

/// The high bit is for privileged keys: only who was given one can send with it.
/// spec: IBA 10.2.5
fn sent_qkey(asked: QKey, own: QKey) -> QKey {
    if asked.0 & OWN_QKEY == 0 { asked } else { own }
}

/// Puts the GRH and the payload into a receive.
fn place<H: Host>(
    common: &Common<H>,
    receive: &ReceiveWqe,
    packet: &Packet<'_>,
    meta: &PathMeta,
    memory: &H::Memory,
) -> Result<(), Status> {
    let payload = packet.payload();
    if scatter::capacity(receive) < u64::from(GRH_LENGTH) + payload.len() as u64 {
        return Err(Status::LocalLength);
    }
    let grh = grh(meta, packet.bytes().len());
    let put = |placed, bytes, is_last| -> Result<(), AccessError> {
        scatter(common, receive.sges.iter(), placed, bytes, is_last, memory)
    };
    put(0, &grh[..], payload.is_empty())
        .and_then(|()| put(GRH_LENGTH, payload, true))
        .map_err(|_| Status::LocalProtection)
}

/// The IP header of a packet with so many bytes of UDP payload, as a receive shows it: over IPv4 in
/// the last 20 of the 40 bytes. It is made again of what the socket tells, with a right checksum,
/// by which programs know it; the identification and the flow label of the packet are not among
/// that. spec: IBA A17.4.5.2
fn grh(meta: &PathMeta, udp_payload: usize) -> [u8; GRH_LENGTH as usize] {
    let length = (Udp::LENGTH + udp_payload) as u16; // a packet
    match (meta.source, meta.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = Ipv4 {
                source,
                destination,
                tos: meta.traffic_class,
                ttl: meta.hop_limit,
                identification: 0,
                dont_fragment: true,
            };
            let mut grh = [0; GRH_LENGTH as usize];
            grh[GRH_LENGTH as usize - Ipv4::LENGTH..].copy_from_slice(&header.to_bytes(length));
            grh
        }
        (source, destination) => Ipv6 {
            source: in_v6(source),
            destination: in_v6(destination),
            traffic_class: meta.traffic_class,
            flow_label: 0,
            hop_limit: meta.hop_limit,
        }
        .to_bytes(length),
    }
}

fn in_v6(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests;
