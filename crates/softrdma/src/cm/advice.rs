//! What the person in front of a program is told when a connection does not come about.
//!
//! The program gets an event with a number, and most programs print no more than that. So the first
//! trouble of each kind is told in words, with what can be done; later ones of the same process are
//! not, as a program may try again and again.

use core::fmt::Display;
use core::time::Duration;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

use engine::Instant;
use io::netlink::Hop;

use super::Inner;
use super::record::State;
use crate::error::Error;
use crate::process::report;

/// What can be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Lack {
    Way = 1,
    Address = 2,
    Listener = 4,
    Answer = 8,
    Neighbour = 16,
    TcpPort = 32,
}

/// Which of them were told.
struct Told(AtomicU8);

/// Those of the process.
static TOLD: Told = Told(AtomicU8::new(0));

impl Told {
    /// Whether this is the first of its kind.
    fn is_first(&self, lack: Lack) -> bool {
        let bit = lack as u8;
        self.0.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
}

fn tell_once(lack: Lack, text: impl FnOnce() -> String) {
    if TOLD.is_first(lack) {
        report(&text());
    }
}

/// No route leads to `to`, or no link has the source address of it.
pub(super) fn no_way(to: IpAddr, reason: impl Display) {
    tell_once(Lack::Way, || {
        format!(
            "no RDMA device leads to {to} ({reason}): `ip route get {to}` names the interface, \
             `softrdma link show` the devices on interfaces, and `softrdma link add NAME type rxe \
             netdev INTERFACE` makes one"
        )
    });
}

/// Nobody on the network of `link` answers to the address by which packets go to `to`.
pub(super) fn no_neighbour(to: IpAddr, hop: &Hop, link: &str) {
    tell_once(Lack::Neighbour, || {
        let neighbour = hop.neighbour;
        let who = if neighbour == to {
            format!("nobody has the address {to}")
        } else {
            format!("the gateway {neighbour} on the way to {to} is not")
        };
        format!(
            "{who} on the network of {link}, as far as the kernel can find out: is that host up, \
             and the address right? `ping {to}`, `ip neigh show to {neighbour}`"
        )
    });
}

/// No link has the address that a program wants to have.
pub(super) fn no_address(own: IpAddr) {
    tell_once(Lack::Address, || {
        format!(
            "no RDMA device has the address {own}: `softrdma resource show gid` lists those that \
             they have, and `softrdma link add NAME type rxe netdev INTERFACE` makes a device on \
             the interface with this one"
        )
    });
}

/// The peer is there and refuses, as no program listens at that port.
pub(super) fn no_listener(to: SocketAddr) {
    tell_once(Lack::Listener, || {
        format!(
            "{} is there, but nobody listens at its RDMA port {} (rejected, reason 8): start the \
             server first, and on the same port; ports of TCP are others",
            to.ip(),
            to.port()
        )
    });
}

/// Who listens at all addresses cannot do so over iWARP, and does without.
pub(super) fn no_tcp_port(port: u16, error: &Error) {
    tell_once(Lack::TcpPort, || {
        format!(
            "connections over RoCE will arrive at port {port}, those over iWARP will not \
             ({error}): `ss -tlnp` names who has this port of TCP"
        )
    });
}

/// The oldest request that may be without an answer: when it was sent, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    number: u64,
    to: SocketAddr,
    at: Instant,
}

impl Inner {
    /// An ID asks a peer.
    pub(super) fn remember_asking(&mut self, number: u64, now: Instant) {
        let to = self.records.get(&number).and_then(|record| record.remote);
        if self.asked.is_none() {
            self.asked = to.map(|to| Asked {
                number,
                to,
                at: now,
            });
        }
    }

    /// Tells of a peer that was asked more than once. Looked at when messages are sent again.
    pub(super) fn look_for_silence(&mut self, now: Instant) {
        /// Shorter than the time after which a request is repeated, longer than any answer takes.
        const SILENCE: Duration = Duration::from_secs(4);
        let Some(Asked { number, to, at }) = self.asked else {
            return;
        };
        let record = self.records.get(&number);
        if record.is_none_or(|record| record.state != State::Connecting) {
            self.asked = None;
        } else if now.since(at) >= SILENCE {
            self.asked = None;
            tell_once(Lack::Answer, || {
                let ip = to.ip();
                format!(
                    "{ip} does not answer to a request for a connection, which is repeated for \
                     about a minute: does `ping {ip}` answer, is an RDMA device on that address, \
                     does a firewall drop UDP port 4791?"
                )
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_told_once_and_hides_no_other() {
        use Lack::{Address, Answer, Listener, Neighbour, TcpPort, Way};
        let told = Told(AtomicU8::new(0));
        let met = [
            Answer, Way, Answer, Listener, Way, Address, Neighbour, TcpPort,
        ];
        let first = met.map(|lack| told.is_first(lack));
        assert_eq!(first, [true, true, false, true, false, true, true, true]);
    }
}
