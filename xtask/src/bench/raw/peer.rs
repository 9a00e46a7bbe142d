//! The receiving process: takes packets, verifies and places them if asked to, acknowledges.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use io::poll::{Events, Interest, Poller, Trigger};
use io::udp::{Family, RECEIVE_BUFFER, ReceiveSocket, Received, SendOutcome, SendSocket, Transmit};
use serde::{Deserialize, Serialize};
use wire::roce::icrc::PseudoHeader;

use super::open_group;
use super::plan::{ACK, ACK_TAKEN, Exchange, FLUSH, HEADER, Plan, REGION, STOP, TRAILER};
use crate::bench::machine::Pinned;
use crate::bench::second_process::tell;

/// A sender that is silent for so long is gone.
const SILENCE_NS: u64 = 10_000_000_000;

#[derive(clap::Args)]
pub struct Arguments {
    /// What is measured, as JSON
    plan: String,
    /// Port that acknowledgements go to
    reply_to: u16,
    /// Processor to stay on
    #[arg(long)]
    processor: Option<usize>,
}

/// First line of the peer's output: where it is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    pub port: u16,
    pub granted_receive_buffer: usize,
}

/// Last line of the peer's output: what it saw.
#[derive(Debug, Serialize, Deserialize)]
pub struct Seen {
    /// Packets that were too short or whose ICRC was wrong.
    pub damaged: u64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let plan: Plan = serde_json::from_str(&arguments.plan).context("the plan")?;
    let _pinned = arguments.processor.map(Pinned::to).transpose()?;
    let (group, port) = open_group(plan.sockets)?;
    let granted_receive_buffer = group.granted_receive_buffer();
    let mut peer = Peer {
        port,
        socket: group.receiver(plan.slot().into())?,
        reply: SendSocket::open(Family::Ipv4)?,
        to: Transmit::to(SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.reply_to))),
        ack_every: plan.ack_every(granted_receive_buffer) as u64,
        pseudo_header: None,
        region: vec![0; if plan.copy { REGION } else { 0 }],
        cursor: 0,
        taken: 0,
        acknowledged: 0,
        damaged: 0,
        plan,
    };
    tell(&Ready {
        port,
        granted_receive_buffer,
    })?;
    peer.serve()?;
    tell(&Seen {
        damaged: peer.damaged,
    })
}

struct Peer {
    plan: Plan,
    port: u16,
    socket: ReceiveSocket,
    reply: SendSocket,
    to: Transmit,
    ack_every: u64,
    /// Of the source seen last.
    pseudo_header: Option<(SocketAddr, PseudoHeader)>,
    region: Vec<u8>,
    cursor: usize,
    /// Payload bytes taken, and how many of them the sender knows of.
    taken: u64,
    acknowledged: u64,
    damaged: u64,
}

impl Peer {
    /// Until the sender says stop.
    fn serve(&mut self) -> Result<()> {
        let mut buffer = vec![0; RECEIVE_BUFFER];
        let mut sleeper = match self.plan.exchange {
            Exchange::PingPong { blocking: true } => Some(Sleeper::new(&self.socket)?),
            _ => None,
        };
        let mut silent_since = None;
        loop {
            let Some(received) = self.socket.receive(&mut buffer)? else {
                let now = io::clock::now_ns();
                let since = *silent_since.get_or_insert(now);
                ensure!(now - since < SILENCE_NS, "the sender is silent");
                if let Some(sleeper) = &mut sleeper {
                    sleeper.sleep()?;
                }
                continue;
            };
            silent_since = None;
            match received.length {
                STOP => return Ok(()),
                FLUSH => self.acknowledge()?,
                _ => self.take(&received, &buffer)?,
            }
        }
    }

    /// Each packet's checksum comes before its copy, which then finds it in the cache.
    fn take(&mut self, received: &Received, buffer: &[u8]) -> Result<()> {
        let pseudo_header = if self.plan.checksum {
            self.pseudo_header(received)
        } else {
            None
        };
        for (index, packet) in received.segments(buffer).enumerate() {
            let end = packet.len().saturating_sub(TRAILER);
            let Some(payload) = packet.get(HEADER..end) else {
                self.damaged += 1;
                continue;
            };
            // At most 128 segments, which the sender's kernel numbers from 0.
            if pseudo_header.is_some_and(|header| !header.verify(packet, index as u16)) {
                self.damaged += 1;
            }
            if self.plan.copy {
                self.place(payload);
            }
            self.taken += payload.len() as u64;
        }
        let every = match self.plan.exchange {
            Exchange::Stream => self.ack_every,
            Exchange::PingPong { .. } => 1,
        };
        if self.taken - self.acknowledged >= every {
            self.acknowledge()
        } else {
            Ok(())
        }
    }

    /// The part of the checksum that all packets of a source share, computed once for each.
    fn pseudo_header(&mut self, received: &Received) -> Option<PseudoHeader> {
        match self.pseudo_header {
            Some((source, known)) if source == received.source => Some(known),
            _ => {
                let destination = SocketAddr::new(received.destination, self.port);
                let new = PseudoHeader::new(received.source, destination)?;
                self.pseudo_header = Some((received.source, new));
                Some(new)
            }
        }
    }

    /// Copies to the region, which is filled again and again.
    fn place(&mut self, payload: &[u8]) {
        if self.cursor + payload.len() > self.region.len() {
            self.cursor = 0;
        }
        if let Some(place) = self
            .region
            .get_mut(self.cursor..self.cursor + payload.len())
        {
            place.copy_from_slice(payload);
            self.cursor += payload.len();
        }
    }

    fn acknowledge(&mut self) -> Result<()> {
        let mut ack = [0; ACK];
        ack[ACK_TAKEN].copy_from_slice(&self.taken.to_ne_bytes());
        loop {
            match self.reply.send(&self.to, &[IoSlice::new(&ack)]) {
                SendOutcome::Sent => break,
                SendOutcome::WouldBlock => std::hint::spin_loop(),
                other => bail!("sending an acknowledgement: {other:?}"),
            }
        }
        self.acknowledged = self.taken;
        Ok(())
    }
}

/// Sleeps in epoll until a socket has something.
pub struct Sleeper {
    poller: Poller,
    events: Events,
}

impl Sleeper {
    pub fn new(socket: &ReceiveSocket) -> Result<Self> {
        let poller = Poller::new()?;
        poller.add(socket, 0, Interest::READ, Trigger::Level)?;
        Ok(Self {
            poller,
            events: Events::with_capacity(1),
        })
    }

    /// Ends now and then without a reason, so that the caller can look at the clock.
    pub fn sleep(&mut self) -> Result<()> {
        const LONGEST_NS: u64 = 100_000_000;
        self.poller.wait(&mut self.events, Some(LONGEST_NS))?;
        Ok(())
    }
}
