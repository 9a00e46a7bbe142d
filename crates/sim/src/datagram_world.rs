//! Unreliable datagrams: two hosts with a few queue pairs each, everybody sends to everybody on
//! the other host.
//!
//! The rules, looked at from outside: a receive holds what one send sent, as a whole and behind the
//! IP header, from who is named as its source; no send is received by whom it was not for, or more
//! often than the network brought it; whoever sends completes in the order of posting, each once;
//! a receive completes once. Nothing is promised of order or arrival.

use core::time::Duration;
use std::collections::HashMap;

use engine::access::Access;
use engine::model::{CompletionQueue, ModelCredit, ModelHost, ModelMemory, ReceiveQueue};
use engine::qp::{
    Addressee, AttributeMask, Attributes, Capabilities, Operation, Payload, SendFlags, SendRequest,
    State, Transport,
};
use engine::ud::GRH_LENGTH;
use engine::{
    Burst, Config, Instant, Path, QpIndex, QpOptions, ReceiveWqe, Sge, Shard, Status,
    WorkCompletion,
};
use wire::{Gid, MemoryKey, Mtu, Packet, Psn, QKey, Qpn};

use crate::clock::Agenda;
use crate::ground::PD;
use crate::network::{self, Link, ReceiveBuffer};
use crate::replay::Trace;
use crate::rng::Rng;
use crate::world::Summary;

/// Bytes that name a send, at the front of its payload.
const NAME: usize = 8;
/// The longest message, and the room in front of a receive's neighbour.
const MTU: Mtu = Mtu::B1024;
const SLOT: usize = 2048;
const SENDS_MAX: u64 = 60;

/// Runs one seed to its end. An error says what rule was broken.
pub fn run(seed: u64, trace: Trace) -> Result<Summary, String> {
    let mut world = World::new(Rng::from_seed(seed), trace);
    let mut events = 0;
    while let Some(event) = world.agenda.take() {
        events += 1;
        match event {
            Event::Works { host } => world.work(host)?,
            Event::Arrives { host, bytes } => world.arrive(host, bytes)?,
        }
    }
    world.finish()?;
    Ok(Summary {
        events,
        packets: world.packets,
        completed: world.completed,
        ..Summary::default()
    })
}

enum Event {
    /// The program of a host posts and polls.
    Works { host: usize },
    /// A datagram comes out of the network.
    Arrives { host: usize, bytes: Vec<u8> },
}

struct World {
    rng: Rng,
    trace: Trace,
    agenda: Agenda<Event>,
    hosts: [Host; 2],
    links: [Link; 2],
    /// All sends by their names.
    sends: HashMap<u64, Send>,
    is_v6: bool,
    packets: u64,
    completed: u64,
}

/// A send that was posted.
struct Send {
    from: Qpn,
    to: Qpn,
    payload: Vec<u8>,
    immediate: Option<[u8; 4]>,
    /// Whether it has the right Q_Key.
    is_welcome: bool,
    /// How often it came out of the network and was let into the buffer.
    arrived: usize,
    /// How often it was received or found too long.
    received: usize,
}

struct Host {
    shard: Shard<ModelHost>,
    memory: ModelMemory,
    /// The messages, and the places for what comes.
    region: Region,
    qps: Vec<QueuePair>,
    buffer: ReceiveBuffer,
    burst: Burst,
    left: u64,
}

struct Region {
    key: MemoryKey,
    base: u64,
}

struct QueuePair {
    qpn: Qpn,
    qkey: QKey,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    receives: ReceiveQueue,
    /// Names of posted sends that are not complete, in order.
    posted: Vec<u64>,
    /// Lengths of posted receives by number, which is also their place.
    waiting: HashMap<u64, u32>,
}

impl World {
    fn new(mut rng: Rng, trace: Trace) -> Self {
        let is_v6 = rng.chance(500);
        let plan = "loss=5%,duplicate=5%,reorder=10%,corrupt=2%";
        let plan = plan.parse().expect("a plan"); // ok: a literal, and a test runs it
        let delay = Duration::from_micros(rng.range(1, 50));
        let mut link = || {
            let clean = Link::new(delay, delay, rng.fork());
            if rng.chance(700) {
                clean.with_faults(&plan, Duration::from_millis(1))
            } else {
                clean
            }
        };
        let links = [link(), link()];
        let hosts = [Host::new(&mut rng, 0), Host::new(&mut rng, 1)];
        let mut agenda = Agenda::new();
        for host in 0..2 {
            agenda.after(rng.duration(delay), Event::Works { host });
        }
        Self {
            rng,
            trace,
            agenda,
            hosts,
            links,
            sends: HashMap::new(),
            is_v6,
            packets: 0,
            completed: 0,
        }
    }

    /// The program of a host: posts receives and sends, polls, and comes back later.
    fn work(&mut self, number: usize) -> Result<(), String> {
        for _ in 0..self.rng.below(8) {
            self.hosts[number].post_receive(&mut self.rng);
        }
        for _ in 0..self.rng.below(8) {
            if self.hosts[number].left > 0 {
                self.post(number)?;
            }
        }
        self.turn(number)?;
        self.poll(number)?;
        if self.hosts[number].left > 0 {
            let pause = self.rng.duration(Duration::from_micros(100));
            self.agenda.after(pause, Event::Works { host: number });
        }
        Ok(())
    }

    fn post(&mut self, number: usize) -> Result<(), String> {
        let rng = &mut self.rng;
        let name = self.sends.len() as u64;
        let peers = &self.hosts[1 - number].qps;
        let peer = &peers[rng.below(peers.len() as u64) as usize];
        let is_welcome = !rng.chance(100);
        let qkey = if is_welcome {
            peer.qkey
        } else {
            QKey(peer.qkey.0 ^ 1)
        };
        let path = Path {
            local: network::address(self.is_v6, number).ip(),
            remote: network::address(self.is_v6, 1 - number).ip(),
            ..Attributes::default().path
        };
        let to = Addressee {
            path,
            qpn: peer.qpn,
            qkey,
        };
        let length = NAME + rng.below(u64::from(MTU.bytes()) - NAME as u64 + 1) as usize;
        let mut payload = rng.bytes(length);
        payload[..NAME].copy_from_slice(&name.to_ne_bytes());
        let immediate = rng.chance(300).then_some([1, 2, 3, name as u8]);
        let host = &mut self.hosts[number];
        let place = (name as usize % SENDS_MAX as usize) * SLOT;
        host.memory.write(host.region.key, place, &payload);
        let cut = rng.below(length as u64 + 1) as u32;
        let sge = |from: u32, to: u32| Sge {
            address: host.region.base + place as u64 + u64::from(from),
            length: to - from,
            key: host.region.key,
        };
        let index = rng.below(host.qps.len() as u64) as usize;
        let request = SendRequest {
            id: name,
            operation: immediate.map_or(Operation::Send, Operation::SendImmediate),
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&[sge(0, cut), sge(cut, length as u32)]),
            to: Some(&to),
        };
        let from = host.qps[index].qpn;
        host.shard
            .post_send(QpIndex(from.index()), &request)
            .map_err(|error| format!("post: {error:?}"))?;
        host.left -= 1;
        host.qps[index].posted.push(name);
        let send = Send {
            from,
            to: to.qpn,
            payload,
            immediate,
            is_welcome,
            arrived: 0,
            received: 0,
        };
        self.sends.insert(name, send);
        Ok(())
    }

    fn arrive(&mut self, number: usize, bytes: Vec<u8>) -> Result<(), String> {
        let name = name_of(&bytes);
        let is_right = network::pseudo_header(self.is_v6, 1 - number).verify(&bytes, 0);
        if self.hosts[number].buffer.push(bytes)
            && is_right
            && let Some(send) = name.and_then(|name| self.sends.get_mut(&name))
        {
            send.arrived += 1;
        }
        self.turn(number)?;
        self.poll(number)
    }

    /// Takes what arrived, and sends what is to be sent.
    fn turn(&mut self, number: usize) -> Result<(), String> {
        let now = self.agenda.now();
        let (header, meta) = (
            network::pseudo_header(self.is_v6, 1 - number),
            network::meta(self.is_v6, number),
        );
        let host = &mut self.hosts[number];
        while let Some(bytes) = host.buffer.pop() {
            if !header.verify(&bytes, 0) {
                continue;
            }
            let packet = Packet::parse(&bytes).map_err(|error| format!("{error}"))?;
            let outcome = host
                .shard
                .handle_datagram(now, &packet, &meta, &host.memory);
            self.trace
                .packet(now, number, "<", &packet, || format!("{outcome:?}"));
        }
        loop {
            host.burst.clear();
            host.shard.poll_transmit(now, &host.memory, &mut host.burst);
            host.shard.assert_invariants();
            if host.burst.is_empty() {
                return Ok(());
            }
            for packet in host.burst.packets() {
                let mut bytes = host.burst.header(packet).to_vec();
                for span in host.burst.spans(packet) {
                    let part = host.memory.gather(span);
                    bytes.extend(part.map_err(|error| format!("gather: {error:?}"))?);
                }
                bytes.resize(packet.sealed_length(), 0);
                network::pseudo_header(self.is_v6, number).seal(&mut bytes, 0);
                self.packets += 1;
                let agenda = &mut self.agenda;
                self.links[number].send(now, bytes, |arrival| {
                    let event = Event::Arrives {
                        host: 1 - number,
                        bytes: arrival.bytes,
                    };
                    agenda.at(arrival.at, event);
                });
            }
        }
    }

    fn poll(&mut self, number: usize) -> Result<(), String> {
        for index in 0..self.hosts[number].qps.len() {
            let qp = &mut self.hosts[number].qps[index];
            for completion in qp.send_cq.drain() {
                self.completed += 1;
                let expected = (!qp.posted.is_empty()).then(|| qp.posted.remove(0));
                if expected != Some(completion.id) || completion.status != Status::Success {
                    return Err(format!("{completion:?} instead of send {expected:?}"));
                }
            }
            for completion in self.hosts[number].qps[index].receive_cq.drain() {
                self.completed += 1;
                self.received(number, index, &completion)
                    .map_err(|text| format!("{completion:?}: {text}"))?;
            }
        }
        Ok(())
    }

    fn received(
        &mut self,
        number: usize,
        index: usize,
        completion: &WorkCompletion,
    ) -> Result<(), String> {
        let host = &mut self.hosts[number];
        let room = host.qps[index].waiting.remove(&completion.id);
        let room = room.ok_or("a receive that does not wait")?;
        match completion.status {
            Status::Success => {}
            Status::LocalLength if room < GRH_LENGTH + MTU.bytes() => return Ok(()),
            status => return Err(format!("{status:?} with room for {room} bytes")),
        }
        let place = host.place_of(completion.id);
        let found = host
            .memory
            .read(host.region.key, place, completion.length as usize);
        let (grh, payload) = found
            .split_at_checked(GRH_LENGTH as usize)
            .ok_or("no room for a GRH")?;
        check_grh(grh, self.is_v6, number)?;
        let name = payload.first_chunk().map(|name| u64::from_ne_bytes(*name));
        let send = name.and_then(|name| self.sends.get_mut(&name));
        let send = send.ok_or("nobody sent it")?;
        send.received += 1;
        let told = (completion.source_qpn, completion.qpn, completion.immediate);
        if told != (send.from, send.to, send.immediate) {
            return Err(format!("sent from {} to {}", send.from, send.to));
        }
        if payload != send.payload {
            return Err("other bytes".into());
        }
        if !send.is_welcome {
            return Err("the wrong key let it in".into());
        }
        if send.received > send.arrived {
            return Err(format!("it arrived {} times only", send.arrived));
        }
        Ok(())
    }

    /// Nothing is on its way any more.
    fn finish(&self) -> Result<(), String> {
        for qp in self.hosts.iter().flat_map(|host| &host.qps) {
            if !qp.posted.is_empty() {
                return Err(format!("sends {:?} did not complete", qp.posted));
            }
        }
        Ok(())
    }
}

impl Host {
    /// A host with queue pairs in RTS.
    fn new(rng: &mut Rng, number: usize) -> Self {
        let memory = ModelMemory::default();
        let base = rng.bits() & 0x7fff_ffff_ffff_f000;
        let bytes = vec![0; 2 * SENDS_MAX as usize * SLOT];
        let key = memory.register(PD, base, bytes, Access::LOCAL_WRITE);
        let shard = Shard::new(Config::for_slot(number as u8 + 1), ModelCredit::default());
        let mut host = Self {
            shard,
            memory,
            region: Region { key, base },
            qps: Vec::new(),
            buffer: ReceiveBuffer::with_capacity(1 << rng.range(12, 18)),
            burst: Burst::with_bound(rng.range(1, 16) as usize),
            left: rng.range(1, SENDS_MAX / 2),
        };
        for _ in 0..rng.range(1, 4) {
            let qp = host.create(QKey(rng.bits() as u32 & 0x7fff_ffff));
            host.qps.push(qp);
        }
        host
    }

    fn create(&mut self, qkey: QKey) -> QueuePair {
        let (send_cq, receive_cq) = (CompletionQueue::new(256), CompletionQueue::new(256));
        let receives = ReceiveQueue::new(SENDS_MAX as usize);
        let options = QpOptions {
            transport: Transport::Ud,
            pd: PD,
            capabilities: Capabilities {
                send_wr_max: SENDS_MAX as u32,
                receive_wr_max: SENDS_MAX as u32,
                send_sge_max: 2,
                receive_sge_max: 2,
                inline_max: 0,
            },
            port_mtu: MTU,
            signal_all: false,
            send_cq: send_cq.clone(),
            receive_cq: receive_cq.clone(),
            receives: receives.clone(),
        };
        let qpn = self.shard.create_qp(options).expect("the slot has room"); // ok: it is new
        use AttributeMask as Mask;
        for (state, mask) in [
            (State::Init, Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY),
            (State::ReadyToReceive, Mask::empty()),
            (State::ReadyToSend, Mask::SQ_PSN),
        ] {
            let attributes = Attributes {
                state,
                port: 1,
                qkey,
                sq_psn: Psn::truncated(0xff_fff0),
                ..Attributes::default()
            };
            let index = QpIndex(qpn.index());
            let now = Instant::default();
            self.shard
                .modify_qp(now, index, &attributes, mask | Mask::STATE, &self.memory)
                .expect("RESET to RTS"); // ok: the standard's own way
        }
        QueuePair {
            qpn,
            qkey,
            send_cq,
            receive_cq,
            receives,
            posted: Vec::new(),
            waiting: HashMap::new(),
        }
    }

    /// Posts a receive to some queue pair, now and then a short one.
    fn post_receive(&mut self, rng: &mut Rng) {
        let taken = |id: &u64| self.qps.iter().any(|qp| qp.waiting.contains_key(id));
        let Some(id) = (0..SENDS_MAX).find(|id| !taken(id)) else {
            return;
        };
        let room = if rng.chance(100) {
            rng.below(u64::from(GRH_LENGTH + MTU.bytes())) as u32
        } else {
            GRH_LENGTH + MTU.bytes()
        };
        let cut = rng.below(u64::from(room) + 1) as u32;
        let address = self.region.base + self.place_of(id) as u64;
        let sge = |from: u32, to: u32| Sge {
            address: address + u64::from(from),
            length: to - from,
            key: self.region.key,
        };
        let sges = [sge(0, cut), sge(cut, room)].into_iter().collect();
        let index = rng.below(self.qps.len() as u64) as usize;
        let qp = &mut self.qps[index];
        if qp.receives.post(ReceiveWqe { id, sges }).is_ok() {
            qp.waiting.insert(id, room);
        }
    }

    /// Where a receive puts its message, in the region.
    fn place_of(&self, receive: u64) -> usize {
        (SENDS_MAX as usize + receive as usize) * SLOT
    }
}

/// The name at the front of a packet's payload.
fn name_of(bytes: &[u8]) -> Option<u64> {
    let packet = Packet::parse(bytes).ok()?;
    let name = packet.payload().first_chunk()?;
    Some(u64::from_ne_bytes(*name))
}

/// The addresses that a receive shows are those of the packet.
fn check_grh(grh: &[u8], is_v6: bool, number: usize) -> Result<(), String> {
    let meta = network::meta(is_v6, number);
    let addresses = if is_v6 {
        [&grh[8..24], &grh[24..40]].map(<[u8]>::to_vec)
    } else {
        [&grh[32..36], &grh[36..40]].map(<[u8]>::to_vec)
    };
    let expected = [meta.source, meta.destination].map(|address| {
        let gid = Gid::from_ip(address).0;
        gid[if is_v6 { 0 } else { 12 }..].to_vec()
    });
    if addresses == expected {
        Ok(())
    } else {
        Err(format!("the GRH says {grh:02x?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_seeds() {
        let mut completed = 0;
        for seed in 0..300 {
            let summary = run(seed, Trace::Off).unwrap_or_else(|text| panic!("{seed}: {text}"));
            completed += summary.completed;
        }
        assert!(completed > 3000, "{completed}");
    }
}
