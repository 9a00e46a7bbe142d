//! What leaves: from the engine's bursts to runs that are sealed, pass the tap and are sent.

use std::net::SocketAddr;

use engine::{Burst, Instant, Path, PathMeta};
use io::udp::SendOutcome;
use tap::{DropReason, Verdict};
use wire::icrc::PseudoHeader;
use wire::roce::UDP_PORT;
use wire::{Mad, Psn, Qpn};

use crate::memory::MemoryTable;
use crate::network::{Network, OutgoingRun};
use crate::run::next_run;
use crate::seal::SealFault;
use crate::shard::{Inner, flip};
use crate::steer::Steering;

/// A run that waits: the kernel had no room for it, or a fault plan holds its only packet.
#[derive(Clone, Debug)]
pub(super) struct OwnedRun {
    bytes: Vec<u8>,
    segment_size: usize,
    path: Path,
    dest: wire::Qpn,
}

impl<N: Network> Inner<N> {
    /// Sends until there is nothing more, or the kernel has no room.
    pub fn transmit(&mut self, now: Instant, memory: &MemoryTable) {
        self.streams.transmit(now, memory);
        self.transmit_packets(now, memory);
    }

    /// Seals and sends packets.
    fn transmit_packets(&mut self, now: Instant, memory: &MemoryTable) {
        if !self.retry_blocked() {
            return;
        }
        loop {
            let mut burst = std::mem::take(&mut self.burst);
            burst.clear();
            burst.set_alone(self.tap.has_plan() || !self.without_gso.is_empty());
            self.engine.poll_transmit(now, memory, &mut burst);
            let is_done = burst.is_empty();
            if !is_done {
                self.send_burst(now, &mut burst, memory);
            }
            self.burst = burst;
            if is_done || !self.blocked.is_empty() {
                return;
            }
        }
    }

    /// Sends what the kernel had no room for; whether all of it left.
    fn retry_blocked(&mut self) -> bool {
        while let Some(run) = self.blocked.front() {
            if matches!(
                self.network.transmit(&run.borrow()),
                SendOutcome::WouldBlock
            ) {
                return false;
            }
            self.blocked.pop_front();
        }
        true
    }

    fn send_burst(&mut self, now: Instant, burst: &mut Burst, memory: &MemoryTable) {
        let mut from = 0;
        while from < burst.packets().len() {
            let Some(path) = self.engine.path(burst.packets()[from].path).copied() else {
                debug_assert!(false, "packets of a burst have paths");
                from += 1;
                continue;
            };
            let count = self.run_length(&burst.packets()[from..], &path);
            match self.send_run(now, burst, from..from + count, &path, memory) {
                Ok(()) => from += count,
                Err(RunFault::Gather(at)) => {
                    // its memory is gone: this work request or answer fails, and what the same
                    // side of the queue pair wanted to send behind it must not leave
                    let origin = burst.packets()[at].origin;
                    self.engine.transmit_failed(now, origin, memory);
                    burst.discard(at, |packet| {
                        packet.origin.qp == origin.qp
                            && packet.origin.is_response == origin.is_response
                    });
                }
                Err(RunFault::GsoRefused) => self.without_gso.push(path),
            }
        }
    }

    /// How many packets may share a datagram here.
    fn run_length(&self, packets: &[engine::PacketOut], path: &Path) -> usize {
        // with a fault plan each packet may be damaged or delayed, so each is finished alone
        if self.tap.has_plan() || self.without_gso.contains(path) {
            1
        } else {
            next_run(packets)
        }
    }

    fn send_run(
        &mut self,
        now: Instant,
        burst: &Burst,
        range: std::ops::Range<usize>,
        path: &Path,
        memory: &MemoryTable,
    ) -> Result<(), RunFault> {
        let dest = burst.packets()[range.start].dest;
        let port = match self.network.source_port(path, dest) {
            Ok(port) => port,
            Err(errno) => {
                tracing::warn!(%errno, "no transmit socket");
                self.tap.dropped(DropReason::SendFailed);
                return Ok(());
            }
        };
        let count = range.len();
        let sealed = match self.sealer.seal(burst, range, memory, path, port) {
            Ok(sealed) => sealed,
            Err(SealFault { packet }) => return Err(RunFault::Gather(packet)),
        };
        let run = OutgoingRun {
            bytes: sealed.bytes,
            segment_size: sealed.segment_size,
            path,
            dest,
        };
        if self.tap.has_plan() {
            let verdict = self.tap.outgoing(now.as_nanos(), run.bytes);
            let held = OwnedRun::of(&run);
            self.apply(now, verdict, held);
            return Ok(());
        }
        if !self.blocked.is_empty() {
            self.tap.sent(count);
            self.blocked.push_back(OwnedRun::of(&run));
            return Ok(());
        }
        match leave(&mut self.network, &mut self.steering, now, &run) {
            SendOutcome::Sent => self.tap.sent(count),
            SendOutcome::WouldBlock => {
                self.tap.sent(count);
                self.blocked.push_back(OwnedRun::of(&run));
            }
            SendOutcome::GsoRefused if count > 1 => return Err(RunFault::GsoRefused),
            outcome => {
                tracing::debug!(?outcome, remote = %path.remote, "a run could not leave");
                self.tap.dropped(DropReason::SendFailed);
            }
        }
        Ok(())
    }

    /// Sends a message of connection management from QP 1 to QP 1. One that finds no room is lost:
    /// its sender repeats what is not answered. spec: IBA 13.5
    pub fn send_management(&mut self, now: Instant, path: &Path, mad: &[u8; Mad::LENGTH]) {
        let dest = Qpn::GSI;
        let port = match self.network.source_port(path, dest) {
            Ok(port) => port,
            Err(errno) => {
                tracing::warn!(%errno, "no transmit socket");
                return self.tap.dropped(DropReason::SendFailed);
            }
        };
        let source = SocketAddr::new(path.local, port);
        let Some(header) = PseudoHeader::new(source, SocketAddr::new(path.remote, UDP_PORT)) else {
            return self.tap.dropped(DropReason::SendFailed);
        };
        let psn = Psn::truncated(self.management_psn);
        self.management_psn = self.management_psn.wrapping_add(1);
        let bytes = broker::gsi::emit(mad, psn, &header);
        let run = OwnedRun {
            segment_size: bytes.len(),
            bytes,
            path: *path,
            dest,
        };
        self.ledger.sent_from(path.local);
        if self.tap.has_plan() {
            let verdict = self.tap.outgoing(now.as_nanos(), &run.bytes);
            self.apply(now, verdict, run);
        } else {
            self.send_alone(now, &run);
        }
    }

    /// Does with a single finished packet what the fault plan says.
    fn apply(&mut self, now: Instant, verdict: Verdict, mut run: OwnedRun) {
        match verdict {
            Verdict::Pass => self.send_alone(now, &run),
            Verdict::Drop => {}
            Verdict::Duplicate => {
                self.send_alone(now, &run);
                self.send_alone(now, &run);
            }
            Verdict::Corrupt { bit } => {
                flip(&mut run.bytes, bit);
                self.send_alone(now, &run);
            }
            Verdict::Delay { until_ns } => {
                if self
                    .delayed
                    .push(until_ns.max(now.as_nanos()), run)
                    .is_err()
                {
                    self.tap.dropped(DropReason::FaultInjected);
                }
            }
        }
    }

    /// Sends packets whose time has come.
    pub fn release_delayed(&mut self, now: Instant) {
        while let Some(run) = self.delayed.pop_due(now.as_nanos()) {
            self.send_alone(now, &run);
        }
    }

    /// Sends a packet that left its run. One that finds no room is lost: there are faults anyway.
    fn send_alone(&mut self, now: Instant, run: &OwnedRun) {
        match leave(&mut self.network, &mut self.steering, now, &run.borrow()) {
            SendOutcome::Sent => self.tap.sent(1),
            _ => self.tap.dropped(DropReason::SendFailed),
        }
    }
}

/// Gives a run to the kernel. On `lo` it knows no way to groups of IPv6; there a packet to one is
/// passed on to every process of this host, and each looks whether it is attached.
fn leave<N: Network>(
    network: &mut N,
    steering: &mut Option<Steering>,
    now: Instant,
    run: &OutgoingRun<'_>,
) -> SendOutcome {
    let path = run.path;
    let outcome = network.transmit(run);
    let is_group_on_lo = path.remote.is_multicast() && path.local.is_loopback();
    let (SendOutcome::Unreachable(_), true, Some(steering)) = (outcome, is_group_on_lo, steering)
    else {
        return outcome;
    };
    let meta = PathMeta {
        source: path.local,
        destination: path.remote,
        interface: path.interface,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
    };
    for packet in run.bytes.chunks(run.segment_size.max(1)) {
        if !steering.pass_to_all(&meta, packet, now.as_nanos()) {
            return outcome;
        }
    }
    SendOutcome::Sent
}

/// Why a run did not leave as it was cut.
enum RunFault {
    /// The packet with this index in the burst could not be gathered.
    Gather(usize),
    /// The kernel does not segment on this route.
    GsoRefused,
}

impl OwnedRun {
    fn of(run: &OutgoingRun<'_>) -> Self {
        Self {
            bytes: run.bytes.to_vec(),
            segment_size: run.segment_size,
            path: *run.path,
            dest: run.dest,
        }
    }

    fn borrow(&self) -> OutgoingRun<'_> {
        OutgoingRun {
            bytes: &self.bytes,
            segment_size: self.segment_size,
            path: &self.path,
            dest: self.dest,
        }
    }
}
