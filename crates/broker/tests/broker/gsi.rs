//! QP 1: what reaches the broker there, over real sockets, and who gets it.

use std::{
    io::IoSlice,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::support::{HANG, Running, eventually};
use io::{
    fdpass::DatagramSocket,
    poll::wait_readable,
    udp::{Family, SendOutcome, SendSocket, Transmit},
};
use softrdma_broker::{
    Client, Lease, PortAddress, PortSpace,
    gsi::{self, Counters, DropReason},
    steer::{MESSAGE_LENGTH_MAX, Origin},
};
use wire::{
    Mad, Packet, Psn,
    icrc::PseudoHeader,
    mad::{
        Answered, Bits, CmaHeader, CommId, Drep, Dreq, Guid, Message, Mra, Padded, Rej,
        RejectReason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, TransactionId,
    },
};

const PORT: u16 = 7471;

/// A program with a slot on a link: it sends from QP 1 and gets what is for it.
struct Program {
    client: Client,
    lease: Lease,
    steer: DatagramSocket,
    port: u16,
    sockets: [SendSocket; 2],
}

impl Program {
    fn start(running: &Running) -> Self {
        let client = running.client();
        let lease = client.lease_slot().expect("free");
        let steer = lease.steer.try_clone().expect("descriptors are left");
        Self {
            steer: DatagramSocket::from_fd(steer),
            client,
            lease,
            port: running.port,
            sockets: [Family::Ipv4, Family::Ipv6]
                .map(|family| SendSocket::open(family).expect("descriptors are left")),
        }
    }

    /// An ID of this program's.
    fn id(&self, rest: u32) -> CommId {
        CommId::from_parts(self.lease.slot, rest)
    }

    fn listen(&self, space: PortSpace, address: &str) -> u64 {
        let address = PortAddress::of(ip(address));
        let bound = self.client.bind_port(space, PORT, address, false);
        let bound = bound.expect("free");
        self.client
            .listen(bound.id, self.lease.slot)
            .expect("alone");
        bound.id
    }

    /// A sealed packet with `mad` from 127.0.0.1 or ::1.
    fn packet(&self, mad: &Mad, to: IpAddr) -> Vec<u8> {
        let source = SocketAddr::new(to, self.socket(to).local_port());
        let header = PseudoHeader::new(source, SocketAddr::new(to, self.port));
        gsi::emit(
            &mad.to_bytes(),
            Psn::truncated(0),
            &header.expect("one family"),
        )
    }

    fn socket(&self, to: IpAddr) -> &SendSocket {
        &self.sockets[usize::from(to.is_ipv6())]
    }

    fn send_bytes(&self, bytes: &[u8], to: IpAddr) {
        let transmit = Transmit {
            from: Some(to),
            ..Transmit::to(SocketAddr::new(to, self.port))
        };
        let sent = self.socket(to).send(&transmit, &[IoSlice::new(bytes)]);
        assert_eq!(sent, SendOutcome::Sent);
    }

    fn send(&self, message: impl Into<Message>) -> Mad {
        self.send_to(message, ip("127.0.0.1"))
    }

    /// Sends a message to QP 1 at `to`, from the same address.
    fn send_to(&self, message: impl Into<Message>, to: IpAddr) -> Mad {
        let mad = Mad {
            transaction: TransactionId(0x1234),
            modifier: 0,
            message: message.into(),
        };
        self.send_bytes(&self.packet(&mad, to), to);
        mad
    }

    /// The next message that the broker passes on to this program.
    fn receive(&self) -> (Origin, Mad) {
        let mut buffer = vec![0; MESSAGE_LENGTH_MAX];
        let nanoseconds = u64::try_from(HANG.as_nanos()).expect("a minute");
        let arrives = wait_readable(self.steer.as_fd(), Some(nanoseconds));
        assert!(arrives.expect("it is open"), "nothing is passed on");
        let message = self.steer.receive(&mut buffer).expect("it is open");
        let message = message.expect("it is readable");
        let credentials = message.credentials.expect("they are asked for");
        assert_eq!(credentials.uid, rustix::process::geteuid().as_raw());
        let (origin, bytes) = Origin::split(&buffer[..message.length]).expect("a message");
        let packet = Packet::parse(bytes).expect("a packet");
        (origin, gsi::mad_of(&packet).expect("for QP 1"))
    }

    fn counters(&self) -> Counters {
        self.client.status().expect("it runs").gsi
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.counters().dropped.get(&reason).copied().unwrap_or(0)
    }
}

/// A broker with a link on `lo`.
fn running() -> Running {
    let running = Running::start();
    let client = running.client();
    client
        .add_link("rxe_lo", "rxe", "lo", true)
        .expect("lo is there");
    running
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("a literal of this test")
}

fn private_data<const N: usize>(destination: IpAddr) -> Padded<N> {
    let addresses = CmaHeader {
        source_port: 1,
        source: destination,
        destination,
    };
    Padded::new(&addresses.to_bytes()).expect("there is room")
}

fn req(local_id: CommId, destination: &str) -> Req {
    Req {
        local_id,
        local_guid: Guid(7),
        service: ServiceId::new(PortSpace::Tcp, PORT),
        private_data: private_data(ip(destination)),
        ..Req::default()
    }
}

fn sidr_req(request_id: CommId, destination: &str) -> SidrReq {
    SidrReq {
        request_id,
        service: ServiceId::new(PortSpace::Udp, PORT),
        private_data: private_data(ip(destination)),
        ..SidrReq::default()
    }
}

#[test]
fn a_request_goes_to_who_listens_with_its_addresses() {
    let running = running();
    let (active, passive) = (Program::start(&running), Program::start(&running));
    passive.listen(PortSpace::Tcp, "0.0.0.0");
    passive.listen(PortSpace::Udp, "::");
    for (to, sent) in [
        ("127.0.0.1", active.send(req(active.id(1), "127.0.0.1"))),
        (
            "::1",
            active.send_to(sidr_req(active.id(2), "::1"), ip("::1")),
        ),
    ] {
        let (origin, received) = passive.receive();
        assert_eq!(received, sent);
        assert_eq!((origin.source, origin.destination), (ip(to), ip(to)));
        assert_ne!(origin.interface, 0);
    }
    assert_eq!(active.counters().passed, 2);
}

#[test]
fn a_listener_at_the_address_gets_the_request_before_one_everywhere() {
    let running = running();
    let (active, near, far) = (
        Program::start(&running),
        Program::start(&running),
        Program::start(&running),
    );
    near.listen(PortSpace::Tcp, "127.0.0.1");
    far.listen(PortSpace::Tcp, "::");
    let sent = active.send(req(active.id(1), "127.0.0.1"));
    assert_eq!(near.receive().1, sent);
    let sent = active.send_to(req(active.id(2), "::1"), ip("::1"));
    assert_eq!(far.receive().1, sent);
}

#[test]
fn answers_go_to_the_slot_in_their_id() {
    let running = running();
    let (active, passive) = (Program::start(&running), Program::start(&running));
    let reply = passive.send(Rep {
        local_id: passive.id(9),
        remote_id: active.id(1),
        ..Rep::default()
    });
    assert_eq!(active.receive().1, reply);
    let release = active.send(Dreq {
        local_id: active.id(1),
        remote_id: passive.id(9),
        ..Dreq::default()
    });
    assert_eq!(passive.receive().1, release);
    let resolved = passive.send(SidrRep {
        request_id: active.id(2),
        ..SidrRep::default()
    });
    assert_eq!(active.receive().1, resolved);
}

#[test]
fn where_nobody_listens_the_broker_answers() {
    let running = running();
    let (active, passive) = (Program::start(&running), Program::start(&running));
    let rejected = |id, reason| Rej {
        remote_id: id,
        reason,
        ..Rej::default()
    };
    let unresolved = |id, status| SidrRep {
        request_id: id,
        status,
        service: ServiceId::new(PortSpace::Udp, PORT),
        ..SidrRep::default()
    };
    let expect = |sent: Mad, expected: Message, from: &str| {
        let (origin, answer) = active.receive();
        assert_eq!(answer.message, expected);
        assert_eq!(answer.transaction, sent.transaction);
        assert_eq!((origin.source, origin.destination), (ip(from), ip(from)));
    };
    let (one, two) = (active.id(1), active.id(2));
    expect(
        active.send(req(one, "127.0.0.1")),
        rejected(one, RejectReason::InvalidServiceId).into(),
        "127.0.0.1",
    );
    expect(
        active.send_to(sidr_req(two, "::1"), ip("::1")),
        unresolved(two, SidrStatus::Unsupported).into(),
        "::1",
    );
    passive.listen(PortSpace::Tcp, "::1");
    passive.listen(PortSpace::Udp, "127.0.0.1");
    expect(
        active.send(req(one, "127.0.0.1")),
        rejected(one, RejectReason::Consumer).into(),
        "127.0.0.1",
    );
    expect(
        active.send_to(sidr_req(two, "::1"), ip("::1")),
        unresolved(two, SidrStatus::Rejected).into(),
        "::1",
    );
    assert_eq!(active.counters().answered, 4);
}

#[test]
fn a_release_of_what_nobody_has_is_answered() {
    let running = running();
    let active = Program::start(&running);
    let nobody = CommId::from_parts(active.lease.slot + 100, 5);
    active.send(Dreq {
        local_id: active.id(1),
        remote_id: nobody,
        ..Dreq::default()
    });
    let expected = Drep {
        local_id: nobody,
        remote_id: active.id(1),
        ..Drep::default()
    };
    assert_eq!(active.receive().1.message, expected.into());
}

#[test]
fn a_connection_with_who_is_gone_is_refused_to_its_peer() {
    let running = running();
    let active = Program::start(&running);
    let nobody = CommId::from_parts(active.lease.slot + 100, 5);
    let rep = Rep {
        local_id: active.id(1),
        remote_id: nobody,
        ..Rep::default()
    };
    let rtu = Rtu {
        local_id: active.id(1),
        remote_id: nobody,
        ..Rtu::default()
    };
    for (sent, answers) in [
        (Message::from(rep), Answered::Rep),
        (rtu.into(), Answered::Other),
    ] {
        active.send(sent);
        let expected = Rej {
            local_id: nobody,
            remote_id: active.id(1),
            answers,
            reason: RejectReason::InvalidCommId,
            ..Rej::default()
        };
        assert_eq!(active.receive().1.message, expected.into());
    }
}

#[test]
fn peers_are_told_when_a_program_ends() {
    let running = running();
    let (active, passive) = (Program::start(&running), Program::start(&running));
    passive.listen(PortSpace::Tcp, "0.0.0.0");
    for rest in [1, 2] {
        active.send(req(active.id(rest), "127.0.0.1"));
        passive.receive();
    }
    let established = passive.id(7);
    active.send(Rtu {
        local_id: active.id(1),
        remote_id: established,
        ..Rtu::default()
    });
    passive.receive();
    drop(passive);
    let dreq = Dreq {
        local_id: established,
        remote_id: active.id(1),
        ..Dreq::default()
    };
    let rej = Rej {
        remote_id: active.id(2),
        reason: RejectReason::Consumer,
        ..Rej::default()
    };
    let told = [(); 2].map(|()| active.receive().1.message);
    assert_eq!(told, [Message::from(dreq), rej.into()]);
    // what has an answer is said until it came
    assert_eq!(active.receive().1.message, dreq.into());
    active.send(Drep {
        local_id: active.id(1),
        remote_id: established,
        ..Drep::default()
    });
    // and is no message for nobody
    active.send(Dreq {
        local_id: active.id(1),
        remote_id: established,
        ..Dreq::default()
    });
    let answer = active.receive().1.message;
    assert!(matches!(answer, Message::Drep(_)), "{answer:?}");
    assert_eq!(active.dropped(DropReason::UnknownId), 0);
}

#[test]
fn a_request_between_two_listens_gets_to_the_second() {
    let running = running();
    let (active, passive) = (Program::start(&running), Program::start(&running));
    let mut listener = passive.listen(PortSpace::Tcp, "0.0.0.0");
    // on a busy machine a listen may come too late for the patience of a request
    let has_arrived = (1..1000).any(|rest| {
        passive.client.release_port(listener).expect("it is mine");
        let sent = active.send(req(active.id(rest), "127.0.0.1"));
        // what came first is dealt with first
        let _ = active.counters();
        listener = passive.listen(PortSpace::Tcp, "0.0.0.0");
        let sockets = [active.steer.as_fd(), passive.steer.as_fd()];
        eventually("the request is decided", || {
            let is_there = |socket| wait_readable(socket, Some(0)).expect("it is open");
            sockets.into_iter().any(is_there)
        });
        if wait_readable(passive.steer.as_fd(), Some(0)).expect("it is open") {
            assert_eq!(passive.receive().1, sent);
            return true;
        }
        let Message::Rej(reject) = active.receive().1.message else {
            panic!("a REJ expected");
        };
        assert_eq!(reject.reason, RejectReason::InvalidServiceId);
        false
    });
    assert!(has_arrived);

    // who waits in vain is refused
    passive.client.release_port(listener).expect("it is mine");
    active.send(req(active.id(1001), "127.0.0.1"));
    let Message::Rej(reject) = active.receive().1.message else {
        panic!("a REJ expected");
    };
    assert_eq!(reject.reason, RejectReason::InvalidServiceId);
}

#[test]
fn a_repeated_request_goes_to_who_got_it_though_nobody_listens_any_more() {
    let running = running();
    let (active, passive) = (Program::start(&running), Program::start(&running));
    let listener = passive.listen(PortSpace::Tcp, "0.0.0.0");
    let sent = active.send(req(active.id(1), "127.0.0.1"));
    assert_eq!(passive.receive().1, sent);
    passive.client.release_port(listener).expect("it is mine");
    let sent = active.send(req(active.id(1), "127.0.0.1"));
    assert_eq!(passive.receive().1, sent);
    // it gives up, and knows no ID but its own
    let sent = active.send(Rej {
        local_id: active.id(1),
        reason: RejectReason::Timeout,
        info_length: Bits::truncated(8),
        info: Padded::new(&7_u64.to_be_bytes()).expect("there is room"),
        ..Rej::default()
    });
    assert_eq!(passive.receive().1, sent);
    // once the slot is given back there is nobody
    let slot = passive.lease.slot;
    passive.client.release_slot(slot).expect("it is mine");
    active.send(req(active.id(1), "127.0.0.1"));
    let Message::Rej(reject) = active.receive().1.message else {
        panic!("a REJ expected");
    };
    assert_eq!(reject.reason, RejectReason::InvalidServiceId);
}

#[test]
fn what_is_wrong_is_dropped_with_its_reason() {
    let running = running();
    let program = Program::start(&running);
    program.listen(PortSpace::Tcp, "0.0.0.0");
    let to = ip("127.0.0.1");
    let mad = Mad {
        transaction: TransactionId(1),
        modifier: 0,
        message: req(program.id(1), "127.0.0.1").into(),
    };
    let right = program.packet(&mad, to);
    let reseal = |bytes: &mut Vec<u8>| {
        let source = SocketAddr::new(to, program.socket(to).local_port());
        let header = PseudoHeader::new(source, SocketAddr::new(to, program.port));
        header.expect("one family").seal(bytes, 0);
    };
    let changed = |at: usize, to: u8| {
        let mut bytes = right.clone();
        bytes[at] = to;
        reseal(&mut bytes);
        bytes
    };
    let mut damaged = right.clone();
    damaged[100] ^= 1;
    let cases = [
        (damaged, DropReason::BadIcrc),
        (right[..8].to_vec(), DropReason::Malformed),
        // QP 0; then the partition, the key's last byte, class 4 and method 0x83
        (changed(7, 0), DropReason::WrongQp),
        (changed(3, 1), DropReason::BadPKey),
        (changed(15, 1), DropReason::BadQKey),
        (changed(21, 4), DropReason::NoConnectionManagement),
        (changed(23, 0x83), DropReason::NoConnectionManagement),
    ];
    for (bytes, reason) in cases {
        let before = program.dropped(reason);
        program.send_bytes(&bytes, to);
        eventually("it is counted", || program.dropped(reason) == before + 1);
    }
    program.send(Mra {
        remote_id: CommId::from_parts(program.lease.slot + 1, 1),
        ..Mra::default()
    });
    eventually("nobody has the ID", || {
        program.dropped(DropReason::UnknownId) == 1
    });
    let counters = program.counters();
    assert_eq!((counters.passed, counters.answered), (0, 0));
    program.send_bytes(&right, to);
    assert_eq!(program.receive().1, mad, "after all that");
}

#[test]
fn without_a_link_at_the_address_nobody_is_there() {
    let running = Running::start();
    let program = Program::start(&running);
    program.listen(PortSpace::Tcp, "0.0.0.0");
    program.send(req(program.id(1), "127.0.0.1"));
    eventually("it is counted", || {
        program.dropped(DropReason::WrongAddress) == 1
    });
    program
        .client
        .add_link("rxe_lo", "rxe", "lo", false)
        .expect("lo is there");
    let sent = program.send(req(program.id(1), "127.0.0.1"));
    assert_eq!(program.receive().1, sent);
}

#[test]
fn a_program_that_looks_late_finds_all_in_order() {
    // more than the kernel keeps for a socket
    const MESSAGES: u32 = 1500;
    let running = running();
    let (active, passive) = (Program::start(&running), Program::start(&running));
    passive.listen(PortSpace::Tcp, "0.0.0.0");
    for n in 0..MESSAGES {
        active.send(req(active.id(n), "127.0.0.1"));
        if n % 100 == 99 {
            // no faster than the broker reads, whose buffer is the kernel's business
            eventually("the broker took them", || {
                active.counters().passed == u64::from(n) + 1
            });
        }
    }
    for n in 0..MESSAGES {
        let Message::Req(request) = passive.receive().1.message else {
            panic!("a REQ expected");
        };
        assert_eq!(request.local_id, active.id(n));
    }
}

#[test]
fn ten_thousand_requests_for_ten_thousand_listeners_all_arrive() {
    const FIRST: u16 = 20_000;
    const ALL: u16 = 10_000;
    let running = running();
    let (active, passive) = (Program::start(&running), Program::start(&running));
    let everywhere = PortAddress::of(ip("0.0.0.0"));
    for port in FIRST..FIRST + ALL {
        let bound = passive
            .client
            .bind_port(PortSpace::Tcp, port, everywhere, false)
            .expect("free");
        passive
            .client
            .listen(bound.id, passive.lease.slot)
            .expect("alone");
    }
    for first in (FIRST..FIRST + ALL).step_by(200) {
        for port in first..first + 200 {
            active.send(Req {
                service: ServiceId::new(PortSpace::Tcp, port),
                ..req(active.id(port.into()), "127.0.0.1")
            });
        }
        for port in first..first + 200 {
            let Message::Req(request) = passive.receive().1.message else {
                panic!("a REQ expected");
            };
            assert_eq!(request.service.port(), port);
        }
    }
}

#[test]
fn a_flood_at_qp_1_does_not_starve_clients() {
    static ENOUGH: AtomicBool = AtomicBool::new(false);
    let running = running();
    let program = Program::start(&running);
    let flood = |message: Message| {
        let program = Program::start(&running);
        let mad = Mad {
            transaction: TransactionId(1),
            modifier: 0,
            message,
        };
        let to = ip("127.0.0.1");
        let packet = program.packet(&mad, to);
        let socket = SendSocket::open(Family::Ipv4).expect("descriptors are left");
        let run = packet.repeat(64);
        let transmit = Transmit {
            from: Some(to),
            segment_size: Some(280),
            ..Transmit::to(SocketAddr::new(to, program.port))
        };
        std::thread::spawn(move || {
            while !ENOUGH.load(Ordering::Relaxed) {
                // right packets from one socket, wrong ones from another
                program.send_bytes(&packet, to);
                let _ = socket.send(&transmit, &[IoSlice::new(&run)]);
            }
        })
    };
    // what is to be answered, and what is to be passed on to a program that does not look
    let floods = [
        flood(req(CommId(1), "127.0.0.1").into()),
        flood(
            Rep {
                remote_id: program.id(1),
                ..Rep::default()
            }
            .into(),
        ),
    ];
    eventually("more arrives than is read", || {
        let counters = program.counters();
        counters.overflowed > 0 && counters.dropped_total() > 0
    });
    for _ in 0..100 {
        let client = running.client();
        let lease = client.lease_slot().expect("free");
        let bound = client
            .bind_port(PortSpace::Tcp, 0, PortAddress::of(ip("0.0.0.0")), false)
            .expect("free");
        client.listen(bound.id, lease.slot).expect("alone");
        client.release_slot(lease.slot).expect("it is mine");
    }
    ENOUGH.store(true, Ordering::Relaxed);
    for thread in floods {
        thread.join().expect("it does not panic");
    }
}
