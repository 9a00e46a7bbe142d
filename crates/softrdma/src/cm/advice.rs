//! What the person in front of a program is told when a connection does not come about.
//!
//! The program gets an event with a number, and most programs print no more than that. So the first
//! trouble of each kind is told in words, with what can be done; later ones of the same process are
//! not, as a program may try again and again.

use core::fmt::Display;
use core::time::Duration;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

use broker::link::{LinkInfo, LinkKind};
use engine::Instant;
use engine::iwarp::StartError;
use io::Errno;
use io::netlink::Hop;

use super::Inner;
use super::record::State;
use super::resolve::link_of;
use crate::choice;
use crate::error::Error;
use crate::process::{Process, report};

/// What can be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Lack {
    Way = 1,
    Address = 2,
    Listener = 4,
    Answer = 8,
    Neighbour = 16,
    TcpPort = 32,
    Iwarp = 64,
    Port = 128,
    Markers = 256,
}

/// Which of them were told.
struct Told(AtomicU16);

/// Those of the process.
static TOLD: Told = Told(AtomicU16::new(0));

impl Told {
    /// Whether this is the first of its kind.
    fn is_first(&self, lack: Lack) -> bool {
        let bit = lack as u16;
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

/// No link that the program sees has the address that it wants to have.
pub(super) fn no_address(process: &Process, own: SocketAddr, kinds: &[&[LinkKind]]) {
    tell_once(Lack::Address, || {
        let ip = own.ip();
        unfit_of(process, own, kinds).unwrap_or_else(|| {
            format!(
                "no RDMA device has the address {ip}: `softrdma resource show gid` lists those \
                 that they have, and `softrdma link add NAME type rxe netdev INTERFACE` makes a \
                 device on the interface with this one"
            )
        })
    });
}

/// None has `local`, the source address of the route to `to`.
pub(super) fn no_device(
    process: &Process,
    to: SocketAddr,
    local: SocketAddr,
    kinds: &[&[LinkKind]],
) {
    if let Some(text) = unfit_of(process, local, kinds) {
        return tell_once(Lack::Way, || text);
    }
    no_way(to.ip(), format_args!("none has its source, {}", local.ip()));
}

fn unfit_of(process: &Process, own: SocketAddr, kinds: &[&[LinkKind]]) -> Option<String> {
    let all = process.broker.links().ok()?;
    let shown = choice::visible(all.clone());
    unfit(&all, &shown, own, kinds)
}

/// Why a link that has the address is none for this program, which wants one of `kinds`.
fn unfit(
    all: &[LinkInfo],
    shown: &[LinkInfo],
    own: SocketAddr,
    kinds: &[&[LinkKind]],
) -> Option<String> {
    if shown.is_empty() && !all.is_empty() {
        return Some(choice::names_none());
    }
    let ip = own.ip();
    if let Some((link, _)) = kinds.iter().find_map(|kinds| link_of(all, own, kinds)) {
        let name = &link.name;
        let is_hidden = shown.iter().all(|shown| shown.name != *name);
        return is_hidden.then(|| {
            format!(
                "{name} has the address {ip}, but {} does not show it to this program: add it \
                 there",
                choice::VARIABLE
            )
        });
    }
    let (link, _) = link_of(all, own, &[LinkKind::Siw])?;
    Some(format!(
        "{} has the address {ip}, but iWARP has no datagrams: `softrdma link add NAME type rxe \
         netdev {}` makes a device that has",
        link.name, link.netdev
    ))
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

/// TCP does not reach the peer that iWARP is to connect to.
pub(super) fn no_connection(to: SocketAddr, errno: Errno) {
    if let Some((lack, text)) = unreached(to, errno) {
        tell_once(lack, || text);
    }
}

fn unreached(to: SocketAddr, errno: Errno) -> Option<(Lack, String)> {
    let (ip, port) = (to.ip(), to.port());
    Some(match errno {
        Errno::CONNREFUSED => (
            Lack::Listener,
            format!(
                "{ip} is there, but nobody listens at its TCP port {port}, where iWARP connects: \
                 start the server first, on the same port and on a device of type siw"
            ),
        ),
        Errno::TIMEDOUT => (
            Lack::Answer,
            format!(
                "{ip} does not answer at TCP port {port}, where iWARP connects: does `ping {ip}` \
                 answer, does a firewall drop that port?"
            ),
        ),
        Errno::HOSTUNREACH | Errno::NETUNREACH => (
            Lack::Way,
            format!(
                "TCP has no way to {ip} ({errno}): does `ping {ip}` answer? `ip route get {ip}` \
                 names the way"
            ),
        ),
        _ => return None,
    })
}

/// TCP reaches the peer, and no connection of iWARP comes of it.
pub(super) fn no_iwarp(to: SocketAddr, error: &StartError) {
    if let Some(text) = disagreement(to, error) {
        tell_once(Lack::Iwarp, || text);
    }
}

fn disagreement(to: SocketAddr, error: &StartError) -> Option<String> {
    let (ip, port) = (to.ip(), to.port());
    let answer = match error {
        StartError::TimedOut => "says nothing",
        StartError::Ended => "hangs up",
        StartError::Invalid(_) => "says something else",
        StartError::Markers | StartError::NotAsked | StartError::NoRtr => {
            return Some(format!(
                "{ip} and the device here do not agree on how to connect: `softrdma -d link show` \
                 at both ends lists `crc`, `markers`, `mpa` and `peer_to_peer`"
            ));
        }
        // a no of its program, and what is wrong here
        StartError::Rejected(_)
        | StartError::TooEarly
        | StartError::TooManyReads
        | StartError::PrivateData(_) => return None,
    };
    Some(format!(
        "whoever listens at TCP port {port} of {ip} {answer} when asked for a connection of \
         iWARP: is that the RDMA server, and does it still run? `ss -ltnp` there names it"
    ))
}

/// The peer refuses a connection of iWARP that `link` asks for. Its program may have done so, but
/// who has no markers does it too, and the frame does not tell which.
pub(super) fn refused(to: SocketAddr, link: &LinkInfo, private_data: &[u8]) {
    if let Some(text) = refusal(to, link, private_data) {
        tell_once(Lack::Markers, || text);
    }
}

fn refusal(to: SocketAddr, link: &LinkInfo, private_data: &[u8]) -> Option<String> {
    let has_markers = link.iwarp.is_some_and(|options| options.markers);
    (has_markers && private_data.is_empty()).then(|| {
        format!(
            "{} refuses, and does not say why: {} asks for markers, and whoever has none refuses \
             them; `softrdma -d link show` at both ends lists `markers`",
            to.ip(),
            link.name
        )
    })
}

/// Nobody can be heard at a port: with iWARP, it may be another program's.
pub(super) fn not_listening(error: &Error) {
    let Error::Tcp {
        address,
        errno: Errno::ADDRINUSE,
    } = error
    else {
        return;
    };
    tell_once(Lack::Port, || {
        let port = address.port();
        format!(
            "another program has TCP port {port}, which iWARP listens at: \
             `ss -ltnp 'sport = :{port}'` names it; end it, or take another port"
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
        let told = Told(AtomicU16::new(0));
        let met = [
            Answer, Way, Answer, Listener, Way, Address, Neighbour, TcpPort,
        ];
        let first = met.map(|lack| told.is_first(lack));
        assert_eq!(first, [true, true, false, true, false, true, true, true]);
    }

    #[test]
    fn what_tcp_says_is_told_with_its_port() {
        let to = SocketAddr::from(([192, 0, 2, 1], 7174));
        for (errno, lack) in [
            (Errno::CONNREFUSED, Lack::Listener),
            (Errno::TIMEDOUT, Lack::Answer),
        ] {
            let (told, text) = unreached(to, errno).expect("it is of the set-up");
            assert_eq!(told, lack);
            assert!(
                text.contains("192.0.2.1") && text.contains("7174"),
                "{text}"
            );
        }
        assert!(unreached(to, Errno::ADDRINUSE).is_none(), "of this side");
    }

    #[test]
    fn a_refusal_by_the_peers_program_is_not_explained() {
        let to = SocketAddr::from(([192, 0, 2, 1], 7174));
        assert!(disagreement(to, &StartError::Rejected(Vec::new())).is_none());
        let hung_up = disagreement(to, &StartError::Ended).expect("it is explained");
        assert!(hung_up.contains("TCP port 7174"), "{hung_up}");
    }

    #[test]
    fn a_refusal_without_words_is_explained_where_markers_are_asked_for() {
        use crate::iwarp::link_for_test as link;
        let to = SocketAddr::from(([192, 0, 2, 1], 7174));
        let mut siw = link("siw0", LinkKind::Siw, &["192.0.2.2"]);
        assert!(refusal(to, &siw, b"").is_none(), "nothing is asked for");
        siw.iwarp = Some(broker::iwarp::IwarpOptions {
            markers: true,
            ..Default::default()
        });
        let text = refusal(to, &siw, b"").expect("that may be why");
        assert!(
            text.contains("192.0.2.1") && text.contains("siw0"),
            "{text}"
        );
        assert!(refusal(to, &siw, b"full").is_none(), "of its program");
    }

    #[test]
    fn a_link_that_the_program_cannot_take_is_named() {
        use crate::iwarp::link_for_test as link;
        let own = SocketAddr::from(([192, 0, 2, 1], 0));
        let siw = link("siw0", LinkKind::Siw, &["5254::", "192.0.2.1"]);
        let rxe = link("rxe0", LinkKind::Rxe, &["fe80::1", "192.0.2.1"]);
        let both = [siw.clone(), rxe.clone()];
        let of_datagrams: [&[LinkKind]; 1] = [&[LinkKind::Rxe]];
        let told = |all: &[LinkInfo], shown: &[LinkInfo]| unfit(all, shown, own, &of_datagrams);
        let text = told(&both, &both[..1]).expect("there is one");
        assert!(
            text.starts_with("rxe0") && text.contains("SOFTRDMA_DEVICES"),
            "{text}"
        );
        let text = told(&both[..1], &both[..1]).expect("it has the address");
        assert!(
            text.starts_with("siw0") && text.contains("netdev eth0"),
            "{text}"
        );
        let text = told(&both, &[]).expect("nothing is shown");
        assert!(text.starts_with("SOFTRDMA_DEVICES="), "{text}");
        assert!(told(&[], &[]).is_none(), "there is nothing to name");
    }
}
