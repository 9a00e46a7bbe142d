//! A responder with memory, a receive queue and a completion queue, and short ways to ask it
//! things.

use smallvec::smallvec;
use wire::{AtomicEth, Bth, HeaderRepr, MemoryKey, Mtu, Opcode, Packet, Psn, Qpn, Reth, Syndrome};

use crate::access::{Access, PdId, Sge};
use crate::burst::{Burst, PacketOut};
use crate::completion::WorkCompletion;
use crate::event::AsyncEvent;
use crate::host::ReceiveWqe;
use crate::model::{CompletionQueue, ModelHost, ModelMemory, ReceiveQueue};
use crate::outcome::{Counters, Outcome};
use crate::path::PathIndex;
use crate::qp::{Attributes, Capabilities, Common, State};
use crate::rc::responder::{Handled, Responder};
use crate::time::Instant;

pub const PD: PdId = PdId(3);
pub const QPN: Qpn = Qpn::truncated(0x01_0005);
pub const PEER: Qpn = Qpn::truncated(0x02_0006);
/// PSNs in these tests start just before they wrap.
pub const FIRST: Psn = Psn::truncated(0xff_fffe);
/// Address of the region that peers may use.
pub const REMOTE: u64 = 0x7f00_0000_1000;
/// Address of the region that receives point into.
pub const LOCAL: u64 = 0x5500_0000_0000;
pub const MTU: usize = 256;
pub const REGION_LENGTH: usize = 4096;

/// PSN `count` after the first one.
pub fn psn(count: u32) -> Psn {
    FIRST.plus(count)
}

/// `length` bytes that differ from their neighbours.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 256) as u8).collect()
}

pub struct Bench {
    pub responder: Responder,
    pub common: Common<ModelHost>,
    pub memory: ModelMemory,
    /// R_Key of `REMOTE`.
    pub remote: MemoryKey,
    /// L_Key of `LOCAL`.
    pub local: MemoryKey,
}

/// A responder after INIT to RTR, with every right and no receive posted.
pub fn responder_in_rtr() -> Bench {
    let memory = ModelMemory::default();
    let remote_access = Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::MW_BIND;
    let remote = memory.register(PD, REMOTE, vec![0; REGION_LENGTH], remote_access);
    let local = memory.register(PD, LOCAL, vec![0; REGION_LENGTH], Access::LOCAL_WRITE);
    let attributes = Attributes {
        access: remote_access,
        path_mtu: Mtu::B256,
        dest_qpn: PEER,
        min_rnr_timer: 12,
        max_dest_rd_atomic: 2,
        ..Attributes::default()
    };
    let common = Common {
        qpn: QPN,
        state: State::ReadyToReceive,
        attributes,
        capabilities: Capabilities::default(),
        pd: PD,
        signal_all: false,
        path: PathIndex(0),
        send_cq: CompletionQueue::new(16),
        receive_cq: CompletionQueue::new(16),
        receives: ReceiveQueue::new(16),
        events: Vec::new(),
        counters: Counters::default(),
    };
    let mut responder = Responder::new();
    responder.start(FIRST, attributes.max_dest_rd_atomic);
    Bench {
        responder,
        common,
        memory,
        remote,
        local,
    }
}

impl Bench {
    /// Posts a receive of one element: `length` bytes at `offset` of the local region.
    pub fn post(&self, id: u64, offset: u64, length: u32) {
        self.post_sges(id, &[(offset, length)]);
    }

    /// Posts a receive of several elements.
    pub fn post_sges(&self, id: u64, elements: &[(u64, u32)]) {
        let sges = elements
            .iter()
            .map(|&(offset, length)| Sge {
                address: LOCAL + offset,
                length,
                key: self.local,
            })
            .collect();
        self.post_wqe(ReceiveWqe { id, sges });
    }

    /// Posts a receive whose key nobody gave out.
    pub fn post_with_bad_key(&self, id: u64) {
        self.post_wqe(ReceiveWqe {
            id,
            sges: smallvec![Sge {
                address: LOCAL,
                length: 64,
                key: MemoryKey(0xdead_0000),
            }],
        });
    }

    fn post_wqe(&self, wqe: ReceiveWqe) {
        self.common.receives.post(wqe).expect("room");
    }

    /// A packet arrives, with A set on LAST and ONLY as rdma_rxe does it.
    pub fn arrives(&mut self, opcode: Opcode, psn: Psn, payload: &[u8]) -> Handled {
        self.arrives_with(header(opcode, psn), payload)
    }

    /// A packet arrives.
    pub fn arrives_with(&mut self, mut header: HeaderRepr, payload: &[u8]) -> Handled {
        header.bth.pad = Bth::pad_of(payload.len());
        self.arrives_as_is(header, payload)
    }

    /// A packet arrives, with the pad that its header says.
    pub fn arrives_as_is(&mut self, header: HeaderRepr, payload: &[u8]) -> Handled {
        let mut bytes = Vec::new();
        header.emit_packet(payload, &mut bytes);
        let packet = Packet::parse(&bytes).expect("well formed");
        let now = Instant::default();
        self.responder
            .handle_request(&mut self.common, now, &packet, &self.memory)
    }

    /// The first or only packet of a WRITE of `length` bytes to `offset` of the remote region.
    pub fn write(&mut self, opcode: Opcode, psn: Psn, offset: u64, length: u32, payload: &[u8]) {
        let header = self.write_header(opcode, psn, offset, length);
        assert_fine(self.arrives_with(header, payload));
    }

    pub fn write_header(&self, opcode: Opcode, psn: Psn, offset: u64, length: u32) -> HeaderRepr {
        let mut header = header(opcode, psn);
        header.reth = Some(self.reth(offset, length));
        header
    }

    pub fn read_header(&self, psn: Psn, offset: u64, length: u32) -> HeaderRepr {
        self.write_header(Opcode::RC_READ_REQUEST, psn, offset, length)
    }

    /// A READ request arrives.
    pub fn read(&mut self, psn: Psn, offset: u64, length: u32) -> Handled {
        self.arrives_with(self.read_header(psn, offset, length), &[])
    }

    /// A FETCH ADD arrives.
    pub fn fetch_add(&mut self, psn: Psn, offset: u64, add: u64) -> Handled {
        self.arrives_with(
            self.atomic_header(Opcode::RC_FETCH_ADD, psn, offset, add, 0),
            &[],
        )
    }

    pub fn atomic_header(
        &self,
        opcode: Opcode,
        psn: Psn,
        offset: u64,
        swap_or_add: u64,
        compare: u64,
    ) -> HeaderRepr {
        let mut header = header(opcode, psn);
        header.atomic_eth = Some(AtomicEth {
            va: REMOTE + offset,
            rkey: self.remote,
            swap_or_add,
            compare,
        });
        header
    }

    fn reth(&self, offset: u64, length: u32) -> Reth {
        Reth {
            va: REMOTE + offset,
            rkey: self.remote,
            dma_length: length,
        }
    }

    /// Everything that the responder sends now, a line a packet.
    pub fn sends(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while self.responder.has_output() {
            let (lines, fatal) = self.sends_at_most(64);
            assert!(!fatal, "an answer failed after {lines:?}");
            all.extend(lines);
        }
        all
    }

    /// One burst of at most `packets_max`, and whether the queue pair must go to the error state.
    pub fn sends_at_most(&mut self, packets_max: usize) -> (Vec<String>, bool) {
        let mut burst = Burst::with_bound(packets_max);
        let fatal = self.responder.poll_transmit(
            &mut self.common,
            Instant::default(),
            &self.memory,
            &mut burst,
        );
        let lines = burst
            .packets()
            .iter()
            .map(|packet| self.line(&burst, packet))
            .collect();
        (lines, fatal)
    }

    /// `NAME PSN [SYNDROME MSN] [VALUE] [FIRST BYTE xLENGTH]`, the PSN counted from the first one.
    fn line(&self, burst: &Burst, packet: &PacketOut) -> String {
        let mut bytes = burst.header(packet).to_vec();
        let payload: Vec<u8> = burst
            .spans(packet)
            .iter()
            .flat_map(|span| self.memory.gather(span).expect("readable"))
            .collect();
        bytes.extend_from_slice(&payload);
        bytes.resize(packet.sealed_length(), 0);
        let parsed = Packet::parse(&bytes).expect("well formed");
        assert_eq!(parsed.bth().destination, PEER);
        assert_eq!(parsed.bth().psn, packet.origin.psn);
        assert!(packet.origin.is_response);
        let mut line = format!(
            "{} {}",
            parsed.opcode().info().name,
            parsed.bth().psn.distance_from(FIRST)
        );
        if let Some(aeth) = parsed.aeth() {
            let syndrome = match aeth.syndrome {
                Syndrome::ACK => "ack".into(),
                other => format!("{:02x}", other.byte()),
            };
            line += &format!(" {syndrome} msn {}", aeth.msn.get());
        }
        if let Some(atomic) = parsed.atomic_ack() {
            line += &format!(" value {}", atomic.original);
        }
        if let Some(first) = payload.first() {
            line += &format!(" {first:02x} x{}", payload.len());
        }
        line
    }

    /// All completions of receives.
    pub fn completions(&self) -> Vec<WorkCompletion> {
        self.common.receive_cq.drain()
    }

    /// All events since the last call, without that of the first request.
    pub fn events(&mut self) -> Vec<AsyncEvent> {
        let established = AsyncEvent::CommunicationEstablished(self.common.index());
        let mut events = core::mem::take(&mut self.common.events);
        events.retain(|event| *event != established);
        events
    }

    pub fn remote_bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        self.memory.read(self.remote, offset, length)
    }

    pub fn local_bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        self.memory.read(self.local, offset, length)
    }
}

/// A header with A set on LAST and ONLY.
pub fn header(opcode: Opcode, psn: Psn) -> HeaderRepr {
    let mut header = HeaderRepr::new(Bth::new(opcode, QPN, psn));
    header.bth.ack_request = opcode.ends_message();
    header
}

#[track_caller]
pub fn assert_fine(handled: Handled) {
    assert_eq!(handled.outcome, Outcome::Delivered);
    assert!(!handled.fatal);
}

#[track_caller]
pub fn assert_fatal(handled: Handled) {
    assert_eq!(handled.outcome, Outcome::Delivered);
    assert!(handled.fatal);
}
