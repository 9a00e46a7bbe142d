//! Packets that reached the wrong process: the kernel steers a merged datagram by its first
//! packet, and stacks that are not ours may have packets of several of our processes merged.
//!
//! Such a packet travels, verified and with its original addresses, over a private datagram socket
//! to the process that has its slot. Only the own user is believed, and the rate is bounded. By the
//! same way the broker passes on what came to QP 1 for this process.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use broker::steer::{MESSAGE_LENGTH_MAX, Origin};
use engine::PathMeta;
use io::fdpass::{DatagramSocket, Sent};

/// Packets passed on in one second at most: more is not bad luck but a wrong set-up.
const PER_SECOND_MAX: u32 = 10_000;
/// Messages of strangers that are skipped before something else gets its turn.
const STRANGERS_MAX: usize = 32;
/// The name of the steering socket of a slot.
pub type SlotName = Box<dyn Fn(u8) -> String + Send>;

/// A packet as it arrived at the process that passed it on.
#[derive(Clone, Debug)]
pub struct ForeignPacket {
    /// What its IP header said.
    pub meta: PathMeta,
    /// BTH to ICRC.
    pub bytes: Vec<u8>,
}

/// The two ways of a slot: out to any other, in from them.
pub struct Steering {
    socket: DatagramSocket,
    name_of: SlotName,
    own_uid: u32,
    second: u64,
    passed_in_second: u32,
    /// Room for one message.
    buffer: Box<[u8]>,
}

impl Steering {
    /// On a leased socket, which brings the credentials of senders.
    pub fn new(socket: OwnedFd, name_of: SlotName) -> Self {
        Self {
            socket: DatagramSocket::from_fd(socket),
            name_of,
            own_uid: rustix::process::geteuid().as_raw(),
            second: 0,
            passed_in_second: 0,
            buffer: message_buffer(),
        }
    }

    /// Readable when a packet was passed on to us.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Passes a verified packet on to its slot; whether it was taken.
    pub fn pass_on(&mut self, slot: u8, meta: &PathMeta, bytes: &[u8], now_ns: u64) -> bool {
        self.may_pass(now_ns) && self.send(slot, meta, bytes)
    }

    /// Passes a packet on to every slot, the own one too; whether anybody took it.
    pub fn pass_to_all(&mut self, meta: &PathMeta, bytes: &[u8], now_ns: u64) -> bool {
        if !self.may_pass(now_ns) {
            return false;
        }
        let taken = (1..=u8::MAX).filter(|slot| self.send(*slot, meta, bytes));
        taken.count() > 0
    }

    /// Counts one more against the rate.
    fn may_pass(&mut self, now_ns: u64) -> bool {
        let second = now_ns / 1_000_000_000;
        if second != self.second {
            (self.second, self.passed_in_second) = (second, 0);
        }
        if self.passed_in_second == PER_SECOND_MAX {
            return false;
        }
        self.passed_in_second += 1;
        true
    }

    fn send(&self, slot: u8, meta: &PathMeta, bytes: &[u8]) -> bool {
        let origin = origin(meta).to_bytes();
        let payload = [IoSlice::new(&origin), IoSlice::new(bytes)];
        matches!(
            self.socket
                .send_to((self.name_of)(slot).as_bytes(), &payload),
            Ok(Sent::Sent)
        )
    }

    /// The next packet that another process of the same user passed on to us.
    pub fn receive(&mut self) -> Option<ForeignPacket> {
        // strangers can send to an abstract name: their messages are read and forgotten, a bounded
        // number in one lock section
        for _ in 0..STRANGERS_MAX {
            let Ok(Some(message)) = self.socket.receive(&mut self.buffer) else {
                return None;
            };
            let is_own = message
                .credentials
                .is_some_and(|sender| sender.uid == self.own_uid || sender.uid == 0);
            if !is_own || message.truncated {
                continue;
            }
            if let Some((origin, bytes)) = Origin::split(&self.buffer[..message.length]) {
                return Some(ForeignPacket {
                    meta: meta(&origin),
                    bytes: bytes.to_vec(),
                });
            }
        }
        None
    }
}

fn message_buffer() -> Box<[u8]> {
    vec![0; MESSAGE_LENGTH_MAX].into_boxed_slice()
}

fn origin(meta: &PathMeta) -> Origin {
    Origin {
        source: meta.source,
        destination: meta.destination,
        interface: meta.interface,
        traffic_class: meta.traffic_class,
        hop_limit: meta.hop_limit,
    }
}

fn meta(origin: &Origin) -> PathMeta {
    PathMeta {
        source: origin.source,
        destination: origin.destination,
        interface: origin.interface,
        traffic_class: origin.traffic_class,
        hop_limit: origin.hop_limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_reaches_the_slot_it_is_passed_on_to() {
        let name = |slot: u8| format!("softrdma-test-{}/{slot}", std::process::id());
        let bind = |slot: u8| DatagramSocket::bind(name(slot).as_bytes()).expect("a free name");
        let steering = |slot: u8| Steering {
            socket: bind(slot),
            name_of: Box::new(name),
            own_uid: rustix::process::geteuid().as_raw(),
            second: 0,
            passed_in_second: 0,
            buffer: message_buffer(),
        };
        let (mut one, mut two) = (steering(1), steering(2));
        let meta = PathMeta {
            source: "10.0.0.1".parse().expect("a literal"),
            destination: "10.0.0.2".parse().expect("a literal"),
            interface: 3,
            traffic_class: 0,
            hop_limit: 64,
        };
        assert!(one.pass_on(2, &meta, b"packet", 0));
        let packet = two.receive().expect("just sent");
        assert_eq!(
            (packet.meta, packet.bytes.as_slice()),
            (meta, b"packet".as_slice())
        );
        assert!(!one.pass_on(9, &meta, b"packet", 0), "nobody has slot 9");
        assert!(one.pass_to_all(&meta, b"for all", 0));
        for end in [&mut one, &mut two] {
            let packet = end.receive().expect("just sent");
            assert_eq!(packet.bytes, b"for all");
        }
        assert!(one.receive().is_none() && two.receive().is_none());
        one.passed_in_second = PER_SECOND_MAX;
        assert!(!one.pass_on(2, &meta, b"packet", 0), "the rate is bounded");
        assert!(one.pass_on(2, &meta, b"packet", 1_000_000_000));
    }
}
