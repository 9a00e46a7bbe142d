use super::*;

const TCP: PortSpace = PortSpace::Tcp;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("a literal of this test")
}

fn wish(address: &str) -> Wish {
    Wish {
        space: TCP,
        address: PortAddress::of(ip(address)),
        reuse: false,
    }
}

fn reusing(address: &str) -> Wish {
    Wish {
        reuse: true,
        ..wish(address)
    }
}

/// All addresses of both families.
fn anywhere() -> Wish {
    let mut wish = wish("::");
    wish.address.family_only = false;
    wish
}

fn called(service: ServiceId, destination: &str) -> Called {
    Called {
        service,
        destination: Some(ip(destination)),
    }
}

fn listening(ports: &mut Ports, slot: u8, wish: &Wish) {
    let bound = ports.bind(1, 7471, wish).expect("free");
    ports.listen(1, bound.id, slot).expect("nobody else");
}

#[test]
fn an_address_has_a_port_once() {
    let mut ports = Ports::default();
    ports.bind(1, 7471, &wish("10.0.0.1")).expect("free");
    let again = ports.bind(2, 7471, &wish("10.0.0.1"));
    assert_eq!(again, Err(PortRefusal::InUse { port: 7471 }));
    assert_eq!(again.map_err(|e| e.errno()), Err(libc::EADDRINUSE));
    ports.bind(2, 7471, &wish("10.0.0.2")).expect("another one");
    ports.bind(2, 7472, &wish("10.0.0.1")).expect("another one");
    let datagrams = Wish {
        space: PortSpace::Udp,
        ..wish("10.0.0.1")
    };
    ports.bind(2, 7471, &datagrams).expect("another space");
}

#[test]
fn all_addresses_overlap_with_each() {
    let overlaps = Err(PortRefusal::Overlaps { port: 7471 });
    let mut ports = Ports::default();
    ports.bind(1, 7471, &wish("10.0.0.1")).expect("free");
    let wide = ports.bind(2, 7471, &wish("0.0.0.0"));
    assert_eq!(wide, overlaps);
    assert_eq!(wide.map_err(|e| e.errno()), Err(libc::EADDRNOTAVAIL));
    assert_eq!(ports.bind(2, 7471, &anywhere()), overlaps);
    ports.bind(2, 7471, &wish("::")).expect("another family");
    assert_eq!(ports.bind(2, 7471, &wish("2001:db8::1")), overlaps);
}

#[test]
fn who_wishes_it_shares_until_one_listens() {
    let mut ports = Ports::default();
    let first = ports.bind(1, 7471, &reusing("10.0.0.1")).expect("free");
    let second = ports.bind(2, 7471, &reusing("10.0.0.1")).expect("shared");
    assert!(
        ports.bind(3, 7471, &wish("10.0.0.1")).is_err(),
        "not wished"
    );
    let refused = ports.listen(1, first.id, 5);
    assert_eq!(refused, Err(PortRefusal::InUse { port: 7471 }));
    ports.release(2, second.id).expect("it is theirs");
    ports.listen(1, first.id, 5).expect("alone");
    assert!(ports.bind(2, 7471, &reusing("10.0.0.1")).is_err());
    let again = ports.listen(1, first.id, 5);
    assert_eq!(again, Err(PortRefusal::Listening { port: 7471 }));
}

#[test]
fn link_local_addresses_are_one_for_each_interface() {
    let on = |scope| {
        let mut wish = wish("fe80::1");
        wish.address.scope = scope;
        wish
    };
    let mut ports = Ports::default();
    listening(&mut ports, 2, &on(2));
    listening(&mut ports, 3, &on(3));
    assert!(ports.bind(1, 7471, &on(3)).is_err());
    let service = ServiceId::new(TCP, 7471);
    assert_eq!(ports.listener(&called(service, "fe80::1"), 2), Ok(2));
    assert_eq!(ports.listener(&called(service, "fe80::1"), 3), Ok(3));
    assert_eq!(
        ports.listener(&called(service, "fe80::1"), 4),
        Err(Absence::OtherAddress)
    );
    // with others a scope says nothing
    let mut global = wish("2001:db8::1");
    global.address.scope = 2;
    ports.bind(1, 7471, &global).expect("free");
    global.address.scope = 3;
    assert!(ports.bind(1, 7471, &global).is_err());
}

#[test]
fn a_listener_at_the_address_comes_before_one_everywhere() {
    let mut ports = Ports::default();
    let service = ServiceId::new(TCP, 7471);
    let found = |ports: &Ports, at| ports.listener(&called(service, at), 1);
    assert_eq!(found(&ports, "10.0.0.1"), Err(Absence::NoListener));
    listening(&mut ports, 4, &wish("10.0.0.1"));
    listening(&mut ports, 6, &wish("::"));
    assert_eq!(found(&ports, "10.0.0.1"), Ok(4));
    assert_eq!(found(&ports, "10.0.0.2"), Err(Absence::OtherAddress));
    assert_eq!(found(&ports, "2001:db8::1"), Ok(6));
    let without = Called {
        service,
        destination: None,
    };
    assert_eq!(ports.listener(&without, 1), Ok(6));

    let mut both = Ports::default();
    listening(&mut both, 7, &anywhere());
    assert_eq!(found(&both, "10.0.0.1"), Ok(7));
    assert_eq!(found(&both, "::1"), Ok(7));
}

#[test]
fn ports_are_given_out_from_the_range_until_none_is_left() {
    let mut ports = Ports::default();
    let first = ports.bind_any(1, 100..=102, 2, &wish("0.0.0.0"));
    let first = first.expect("three are free");
    assert_eq!(first.port, 102, "where it was told to begin");
    ports.release(1, first.id).expect("it is theirs");
    let mut given: Vec<u16> = (0..3)
        .map(|_| {
            ports
                .bind_any(1, 100..=102, 2, &wish("0.0.0.0"))
                .expect("free")
                .port
        })
        .collect();
    assert_eq!(given[0], 100, "not the one that was just given back");
    given.sort_unstable();
    assert_eq!(given, [100, 101, 102]);
    let none = ports.bind_any(1, 100..=102, u32::MAX, &wish("0.0.0.0"));
    assert_eq!(none, Err(PortRefusal::NoneLeft));
    let all = ports.bind_any(1, 0..=u16::MAX, 0, &wish("0.0.0.0"));
    assert_ne!(all.expect("most are free").port, 0);
}

#[test]
fn a_client_ends_with_all_its_ports_and_no_others() {
    let mut ports = Ports::default();
    let mine = ports.bind(1, 7471, &wish("10.0.0.1")).expect("free");
    let theirs = ports.bind(2, 7472, &wish("10.0.0.1")).expect("free");
    ports.bind(1, 7473, &wish("10.0.0.1")).expect("free");
    ports.listen(1, mine.id, 9).expect("alone");
    let refused = Some(PortRefusal::NotBound { id: theirs.id });
    assert_eq!(ports.release(1, theirs.id).err(), refused);
    assert_eq!(ports.listen(1, theirs.id, 9).err(), refused);

    ports.end_slot(1, 8);
    assert_eq!(ports.len(), 3);
    ports.end_slot(1, 9);
    assert_eq!(ports.len(), 2, "what listened there");
    let service = ServiceId::new(TCP, 7471);
    assert_eq!(
        ports.listener(&called(service, "10.0.0.1"), 1),
        Err(Absence::NoListener)
    );
    ports.end_owner(1);
    assert_eq!(ports.len(), 1);
    ports.end_owner(2);
    assert!(ports.bindings.is_empty() && ports.bound.is_empty());
    assert!(ports.listeners.is_empty() && ports.of_owner.is_empty());
}
