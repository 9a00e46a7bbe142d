//! The sending process, which is also the one that measures.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use io::clock::now_ns;
use io::udp::{Family, Group, RECEIVE_BUFFER, ReceiveSocket, SendOutcome, SendSocket, Transmit};
use wire::roce::icrc::PseudoHeader;

use super::open_group;
use super::peer::{Ready, Seen, Sleeper};
use super::plan::{
    ACK, ACK_TAKEN, Exchange, FLUSH, HEADER, Plan, REGION, STEERING_BYTE, STOP, TRAILER,
};
use crate::bench::figures::{Figures, quantile};
use crate::bench::second_process::SecondProcess;

/// No acknowledgement for so long: what is in flight is given up. Long, because a peer that waits
/// for its processor on a busy machine has lost nothing.
const GIVE_UP_NS: u64 = 2_000_000_000;

/// Round trips that are not counted: caches and clocks settle.
const WARM_UP: usize = 1000;

/// Runs one row once, with a peer process of its own.
pub fn measure(plan: &Plan, seconds: f64, peer_processor: Option<usize>) -> Result<Figures> {
    let (_group, mut sender) = Sender::start(plan, peer_processor)?;
    let duration_ns = (seconds * 1e9) as u64;
    let figures = match plan.exchange {
        Exchange::Stream => sender.stream(duration_ns)?,
        Exchange::PingPong { blocking } => sender.ping_pong(duration_ns, blocking)?,
    };
    sender.stop()?;
    Ok(figures)
}

struct Sender {
    plan: Plan,
    peer: Peer,
    socket: SendSocket,
    transmit: Transmit,
    acks: ReceiveSocket,
    buffer: Vec<u8>,
    pseudo_header: PseudoHeader,
    granted: usize,
    /// Packets one behind the other, as they are sent.
    run: Vec<u8>,
    region: Vec<u8>,
    cursor: usize,
    /// Payload bytes: sent, known to have arrived, given up.
    sent: u64,
    taken: u64,
    given_up: u64,
}

impl Sender {
    /// The group must be kept as long as the sender.
    fn start(plan: &Plan, peer_processor: Option<usize>) -> Result<(Group, Self)> {
        let (group, reply_port) = open_group(1)?;
        let (peer, ready) = Peer::start(plan, reply_port, peer_processor)?;
        let socket = SendSocket::open(Family::Ipv4)?;
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, ready.port));
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, socket.local_port()));
        let packet = packet(plan);
        let sender = Self {
            peer,
            transmit: Transmit {
                segment_size: (plan.segments > 1).then_some(packet.len() as u16),
                ..Transmit::to(to)
            },
            socket,
            acks: group.receiver(0)?,
            buffer: vec![0; RECEIVE_BUFFER],
            pseudo_header: PseudoHeader::new(from, to).context("both are IPv4")?,
            granted: ready.granted_receive_buffer,
            run: packet.repeat(plan.segments),
            region: (0..REGION).map(|index| (index / 7) as u8).collect(),
            cursor: 0,
            sent: 0,
            taken: 0,
            given_up: 0,
            plan: plan.clone(),
        };
        Ok((group, sender))
    }

    fn stream(&mut self, duration_ns: u64) -> Result<Figures> {
        let window = self.plan.window(self.granted) as u64;
        let of_a_send = self.plan.payload_of_a_send() as u64;
        let start = now_ns();
        let deadline = start + duration_ns;
        while now_ns() < deadline {
            while self.in_flight() + of_a_send > window {
                self.await_ack()?;
            }
            self.build_run();
            self.send_run()?;
            self.sent += of_a_send;
        }
        while self.in_flight() > 0 {
            self.control(FLUSH)?;
            self.await_ack()?;
        }
        let elapsed_ns = (now_ns() - start) as f64;
        let packets = self.taken as f64 / self.plan.payload as f64;
        Ok(Figures::Packets {
            gbit_per_s: self.taken as f64 * 8.0 / elapsed_ns,
            mega_packets_per_s: packets * 1e3 / elapsed_ns,
            lost_bytes: self.sent.saturating_sub(self.taken),
        })
    }

    fn ping_pong(&mut self, duration_ns: u64, blocking: bool) -> Result<Figures> {
        let mut sleeper = if blocking {
            Some(Sleeper::new(&self.acks)?)
        } else {
            None
        };
        let mut round_trips_ns = Vec::new();
        let deadline = now_ns() + duration_ns;
        for count in 0.. {
            let start = now_ns();
            // A short measurement of a slow machine still gets some round trips after the first
            // ones.
            if start >= deadline && count > WARM_UP + 100 {
                break;
            }
            self.send_run()?;
            while !self.read_ack()? {
                ensure!(now_ns() - start < GIVE_UP_NS, "a reply was lost");
                if let Some(sleeper) = &mut sleeper {
                    sleeper.sleep()?;
                }
            }
            if count >= WARM_UP {
                round_trips_ns.push(now_ns() - start);
            }
        }
        round_trips_ns.sort_unstable();
        // Half of it, in µs.
        let at = |part| Some(quantile(&round_trips_ns, part)? as f64 / 2000.0);
        let (p50_us, p99_us) = at(0.5).zip(at(0.99)).context("no round trip")?;
        Ok(Figures::Latency { p50_us, p99_us })
    }

    /// Ends the peer and believes the figures only if what it saw was whole.
    fn stop(&mut self) -> Result<()> {
        let seen = self
            .peer
            .stop(&self.socket, &self.transmit, self.plan.slot())?;
        ensure!(
            seen.damaged == 0,
            "{} packets arrived with a wrong ICRC",
            seen.damaged
        );
        Ok(())
    }

    fn in_flight(&self) -> u64 {
        // An acknowledgement may come for what was given up.
        self.sent.saturating_sub(self.given_up + self.taken)
    }

    /// What a device does for each packet, as far as the plan asks for it.
    fn build_run(&mut self) {
        let payload = self.plan.payload;
        for (index, packet) in self.run.chunks_exact_mut(self.plan.packet()).enumerate() {
            if self.plan.copy {
                if self.cursor + payload > self.region.len() {
                    self.cursor = 0;
                }
                let from = &self.region[self.cursor..self.cursor + payload];
                packet[HEADER..HEADER + payload].copy_from_slice(from);
                self.cursor += payload;
            }
            if self.plan.checksum {
                // At most 128 segments, which the kernel numbers from 0.
                self.pseudo_header.seal(packet, index as u16);
            }
        }
    }

    fn send_run(&self) -> Result<()> {
        send(&self.socket, &self.transmit, &self.run)
    }

    /// A datagram whose length is its meaning.
    fn control(&self, length: usize) -> Result<()> {
        control(&self.socket, &self.transmit, self.plan.slot(), length)
    }

    /// Waits for an acknowledgement; gives up what is in flight when none comes.
    fn await_ack(&mut self) -> Result<()> {
        let start = now_ns();
        while !self.read_ack()? {
            if now_ns() - start > GIVE_UP_NS {
                self.given_up += self.in_flight();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes one acknowledgement if there is one.
    fn read_ack(&mut self) -> Result<bool> {
        let Some(received) = self.acks.receive(&mut self.buffer)? else {
            return Ok(false);
        };
        let Some(ack) = self.buffer[..received.length].first_chunk::<ACK>() else {
            return Ok(false);
        };
        if let Some(taken) = ack[ACK_TAKEN].first_chunk() {
            self.taken = self.taken.max(u64::from_ne_bytes(*taken));
        }
        Ok(true)
    }
}

/// A packet like those of an RDMA WRITE in the middle of its message.
fn packet(plan: &Plan) -> Vec<u8> {
    let mut packet = vec![0xa5; plan.packet()];
    let bth = [0x07, 0, 0xff, 0xff, 0, plan.slot(), 0, 17, 0, 0, 0, 0];
    packet[..HEADER].copy_from_slice(&bth);
    packet[HEADER + plan.payload..].copy_from_slice(&[0; TRAILER]);
    packet
}

fn send(socket: &SendSocket, transmit: &Transmit, bytes: &[u8]) -> Result<()> {
    loop {
        match socket.send(transmit, &[IoSlice::new(bytes)]) {
            SendOutcome::Sent => return Ok(()),
            SendOutcome::WouldBlock => std::hint::spin_loop(),
            SendOutcome::GsoRefused => bail!("this kernel does not segment UDP"),
            other => bail!("sending: {other:?}"),
        }
    }
}

fn control(socket: &SendSocket, transmit: &Transmit, slot: u8, length: usize) -> Result<()> {
    let mut bytes = vec![0; length];
    bytes[STEERING_BYTE as usize] = slot;
    send(
        socket,
        &Transmit {
            segment_size: None,
            ..*transmit
        },
        &bytes,
    )
}

/// The other process.
struct Peer {
    process: SecondProcess,
}

impl Peer {
    fn start(plan: &Plan, reply_port: u16, processor: Option<usize>) -> Result<(Self, Ready)> {
        let arguments = [
            "raw-peer".to_string(),
            serde_json::to_string(plan)?,
            reply_port.to_string(),
        ];
        let mut process = SecondProcess::start(&arguments, processor)?;
        let ready = process.line()?;
        Ok((Self { process }, ready))
    }

    fn stop(&mut self, socket: &SendSocket, transmit: &Transmit, slot: u8) -> Result<Seen> {
        control(socket, transmit, slot, STOP)?;
        let seen = self.process.line()?;
        self.process.wait()?;
        Ok(seen)
    }
}
