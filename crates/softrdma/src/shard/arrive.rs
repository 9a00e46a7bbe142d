//! What arrived: from datagrams to packets that are right and ours. spec: IBA 9.6.1, A17.3

use engine::{Instant, PathMeta};
use tap::{DropReason, Verdict};
use wire::{Packet, Qpn};

use crate::gsi::Inbox;
use crate::memory::MemoryTable;
use crate::network::Network;
use crate::shard::{DATAGRAMS_PER_SECTION, Inner, Server, flip};
use crate::steer::Steering;

/// Bytes of a datagram that belongs to no stream.
const SMALL_DATAGRAM: usize = 2048;
/// One in so many sections of a program that polls looks for packets that others passed on, which
/// are rare. The thread, which such a packet wakes, looks at once.
const STEERED_EVERY: u32 = 16;

/// A packet that arrived and waits.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    bytes: Vec<u8>,
    meta: PathMeta,
    source_port: u16,
}

impl<N: Network> Inner<N> {
    /// Takes what arrived, a bounded number of datagrams, until it is enough after a small one.
    /// Returns the number of packets.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        memory: &MemoryTable,
        server: Server<'_>,
    ) -> usize {
        let is_turn = self.sections.wrapping_add(1).is_multiple_of(STEERED_EVERY);
        if self.has_only_streams() && !is_turn {
            // messages of connection management at most, and the thread hears of them
            self.sections = self.sections.wrapping_add(1);
            return self.take_delayed_arrivals(now, memory);
        }
        let mut packets = 0;
        for _ in 0..DATAGRAMS_PER_SECTION {
            match self.network.receive(&mut self.receive) {
                Ok(true) => {}
                Ok(false) => break,
                Err(errno) => {
                    tracing::warn!(%errno, "the receive socket failed");
                    break;
                }
            }
            let receive = std::mem::take(&mut self.receive.bytes);
            let segment_size = self.receive.segment_size.max(1);
            for bytes in receive[..self.receive.length].chunks(segment_size) {
                packets += 1;
                self.arrive(now, bytes, memory);
            }
            self.receive.bytes = receive;
            // who waits for an answer need not wait for a look that finds nothing
            if self.receive.length <= SMALL_DATAGRAM && server.has_enough() {
                break;
            }
        }
        if self.dropped_seen != self.network.dropped() {
            self.dropped_seen = self.network.dropped();
            self.engine.receive_buffer_overflowed();
        }
        packets += self.take_delayed_arrivals(now, memory);
        self.sections = self.sections.wrapping_add(1);
        if self.sections.is_multiple_of(STEERED_EVERY) {
            let steered = self.receive_steered(now, memory);
            packets += steered;
            if steered > 0 {
                // who sends one often sends many
                self.look_for_steered();
            }
        }
        packets
    }

    /// The next section looks for packets that others passed on.
    pub(super) fn look_for_steered(&mut self) {
        self.sections = STEERED_EVERY.wrapping_sub(1);
    }

    /// Packets that arrived at another process of this host and were passed on.
    fn receive_steered(&mut self, now: Instant, memory: &MemoryTable) -> usize {
        let mut packets = 0;
        while let Some(packet) = self.steering.as_mut().and_then(Steering::receive) {
            packets += 1;
            if let Ok(parsed) = Packet::parse(&packet.bytes) {
                // verified by who passed it on, with its original addresses
                if Inbox::is_for(&parsed) {
                    self.take_message(&parsed, &packet.meta);
                } else {
                    self.hand_in(now, &parsed, &packet.meta, memory);
                }
            }
            if packets == DATAGRAMS_PER_SECTION {
                break;
            }
        }
        packets
    }

    fn take_message(&mut self, packet: &Packet<'_>, meta: &PathMeta) {
        match self.gsi.put(packet, meta) {
            Ok(()) => {
                self.ledger.received_at(meta.destination);
                self.tap.received();
            }
            Err(reason) => self.tap.dropped(reason),
        }
    }

    /// What the fault plan makes of a packet that arrived.
    fn arrive(&mut self, now: Instant, bytes: &[u8], memory: &MemoryTable) {
        let meta = self.receive.meta;
        let port = self.receive.source_port;
        match self.tap.incoming(now.as_nanos(), bytes) {
            Verdict::Pass => self.check(now, bytes, &meta, port, memory),
            Verdict::Drop => {}
            Verdict::Duplicate => {
                self.check(now, bytes, &meta, port, memory);
                self.check(now, bytes, &meta, port, memory);
            }
            Verdict::Corrupt { bit } => {
                let mut damaged = bytes.to_vec();
                flip(&mut damaged, bit);
                self.check(now, &damaged, &meta, port, memory);
            }
            Verdict::Delay { until_ns } => {
                let arrival = Arrival {
                    bytes: bytes.to_vec(),
                    meta,
                    source_port: port,
                };
                if self.delayed_arrivals.push(until_ns, arrival).is_err() {
                    self.tap.dropped(DropReason::FaultInjected);
                }
            }
        }
    }

    /// Packets whose arrival was delayed until now.
    fn take_delayed_arrivals(&mut self, now: Instant, memory: &MemoryTable) -> usize {
        let mut packets = 0;
        while let Some(arrival) = self.delayed_arrivals.pop_due(now.as_nanos()) {
            packets += 1;
            self.check(
                now,
                &arrival.bytes,
                &arrival.meta,
                arrival.source_port,
                memory,
            );
        }
        packets
    }

    /// From bytes to a packet that is ours. spec: IBA 9.6.1, A17.3
    fn check(
        &mut self,
        now: Instant,
        bytes: &[u8],
        meta: &PathMeta,
        port: u16,
        memory: &MemoryTable,
    ) {
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.tap.dropped(DropReason::from(error)),
        };
        if !self.sealer.verify(meta, port, bytes) {
            return self.tap.dropped(DropReason::BadIcrc);
        }
        let destination = packet.bth().destination;
        // every socket that joined a group has its own copy of what is sent to it
        let is_of_group = destination == Qpn::MULTICAST || meta.destination.is_multicast();
        if destination.slot() != self.slot && !is_of_group {
            let slot = destination.slot();
            let passed = self
                .steering
                .as_mut()
                .is_some_and(|steering| steering.pass_on(slot, meta, bytes, now.as_nanos()));
            return self.tap.foreign(passed);
        }
        self.hand_in(now, &packet, meta, memory);
    }

    fn hand_in(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        meta: &PathMeta,
        memory: &MemoryTable,
    ) {
        match self.engine.handle_datagram(now, packet, meta, memory) {
            engine::Outcome::Delivered => self.tap.received(),
            engine::Outcome::Foreign => self.tap.dropped(DropReason::ForeignSlot),
            engine::Outcome::Dropped(reason) => self.tap.dropped(drop_reason(reason)),
        }
    }
}

fn drop_reason(reason: engine::DropReason) -> DropReason {
    match reason {
        engine::DropReason::UnknownQp => DropReason::UnknownQp,
        engine::DropReason::WrongTransport => DropReason::WrongTransport,
        engine::DropReason::WrongState => DropReason::WrongState,
        engine::DropReason::WrongAddress => DropReason::WrongAddress,
        engine::DropReason::BadPKey => DropReason::BadPKey,
        engine::DropReason::BadQKey => DropReason::BadQKey,
        engine::DropReason::NoReceive => DropReason::NoReceive,
        engine::DropReason::StaleResponse => DropReason::StaleResponse,
        engine::DropReason::ResponseGap => DropReason::ResponseGap,
        engine::DropReason::OutOfSequence => DropReason::OutOfSequence,
        engine::DropReason::UnknownDuplicate => DropReason::UnknownDuplicate,
        engine::DropReason::Reserved => DropReason::Reserved,
    }
}
