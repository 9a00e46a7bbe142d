//! How much is in flight: what datagrams cost, what receivers allow, what losses teach, and how
//! queue pairs share it.

use super::*;

/// Where the peer's slot and our own are.
const TO: u8 = PEER.slot();

/// Truesize of a datagram of one small packet.
const SMALL: u64 = 832;

/// A bench whose peer is on this host.
fn on_one_host(credit: &ModelCredit, change: impl FnOnce(&mut Setup)) -> Bench {
    rc_in_rts_with(|setup| {
        setup.credit = credit.clone();
        setup.capabilities.send_wr_max = 256;
        change(setup);
    })
}

/// Sends all that may leave, each packet in a datagram of its own if `alone`; how many.
fn leave(bench: &mut Bench, alone: bool) -> usize {
    let mut burst = Burst::with_bound(256);
    burst.set_alone(alone);
    let mut count = 0;
    loop {
        burst.clear();
        let (shard, memory) = (&mut bench.shard, &bench.memory);
        shard.poll_transmit(bench.now, memory, &mut burst);
        shard.assert_invariants();
        bench
            .origins
            .extend(burst.packets().iter().map(|packet| packet.origin));
        count += burst.packets().len();
        if burst.is_empty() {
            return count;
        }
    }
}

#[test]
fn small_packets_cost_little_in_company_and_much_alone() {
    for alone in [false, true] {
        let mut bench = on_one_host(&ModelCredit::known(), |setup| {
            setup.config.window.bytes = 64 << 10;
        });
        for id in 0..128 {
            bench.post(id, Operation::Send, 64);
        }
        let left = leave(&mut bench, alone);
        if alone {
            assert_eq!(left as u64, (64_u64 << 10) / SMALL);
            assert_eq!(bench.shard.in_flight_bytes(), left as u64 * SMALL);
        } else {
            assert_eq!(left, 128);
            assert_eq!(bench.shard.in_flight_bytes(), 128 * (12 + 64 + 4) + SMALL);
        }
    }
}

#[test]
fn what_is_in_flight_follows_the_allowance_and_is_told() {
    let credit = ModelCredit::known();
    credit.allow(TO, 2000);
    let mut bench = on_one_host(&credit, |_| {});
    bench.post(1, Operation::Send, 100 * 256);
    let first = bench.sent().len();
    let in_flight = bench.shard.in_flight_bytes();
    assert!((1700..=2000).contains(&in_flight), "{in_flight} bytes");
    assert_eq!(credit.noted(TO), in_flight);
    // others came: one packet at a time, whatever they claim
    credit.allow(TO, 0);
    let mut acked = first as u32;
    bench.ack(packets(acked - 1));
    for _ in 0..3 {
        assert_eq!(bench.sent().len(), 1);
        acked += 1;
        bench.ack(packets(acked - 1));
    }
    // and went again
    credit.allow(TO, 1 << 20);
    assert_eq!(bench.sent().len(), 100 - acked as usize);
    bench.ack(packets(99));
    assert_eq!(bench.completions(), [(1, Status::Success)]);
    assert_eq!(credit.noted(TO), 0);
}

#[test]
fn reads_ask_for_what_the_own_buffer_holds_whoever_answers() {
    let credit = ModelCredit::known();
    credit.allow(SLOT, 20_000);
    let mut bench = on_one_host(&credit, |setup| setup.attributes.max_rd_atomic = 16);
    bench.post(1, Operation::Read(REMOTE), 100 * 256);
    let asked: Vec<String> = bench.sent();
    // pieces of at most half of it: 8 packets of 256 + 860 bytes
    assert!(asked[0].ends_with("dma=2048"), "{asked:?}");
    assert_eq!(asked.len(), 2);
    let noted = credit.noted(SLOT);
    assert!((17_000..=20_000).contains(&noted), "{noted} bytes");
    assert!(credit.noted(TO) < 3 * SMALL, "requests are small");
    bench.modify(State::Error);
    assert_eq!((credit.noted(SLOT), credit.noted(TO)), (0, 0));
}

#[test]
fn an_overflow_of_the_own_buffer_shrinks_what_reads_ask_for() {
    let credit = ModelCredit::known();
    let mut bench = on_one_host(&credit, |setup| {
        setup.config.window.bytes = 64 << 10;
        setup.attributes.max_rd_atomic = 1;
    });
    let ask = |bench: &mut Bench, first: &mut u32| {
        bench.post(1, Operation::Read(REMOTE), 30 * 256);
        let line = bench.sent().remove(0);
        bench.modify(State::Error);
        bench.modify(State::Reset);
        *first = 0;
        let bytes: u32 = line.rsplit('=').next().unwrap().parse().unwrap();
        bytes / 256
    };
    let view = bench.shard.query_qp(bench.qp).unwrap();
    let mut first = 0;
    assert_eq!(ask(&mut bench, &mut first), 29);
    for expected in [14, 7, 3, 3] {
        bench.shard.receive_buffer_overflowed();
        bench.connect(bench.qp, &view.attributes);
        assert_eq!(ask(&mut bench, &mut first), expected);
    }
}

/// What is in flight in KiB, rounded up to what a window that grows in such steps may be.
fn window(bench: &Bench) -> u64 {
    const STEP: u64 = 16;
    bench.shard.in_flight_bytes().div_ceil(STEP << 10) * STEP
}

#[test]
fn a_window_to_another_host_grows_by_what_arrives_and_a_loss_halves_it() {
    let mut bench = rc_in_rts_with(|setup| setup.capabilities.send_sge_max = 64);
    let sges = vec![bench.sge(1 << 20); 8];
    let payload = Payload::Sges(&sges);
    bench
        .post_payload(1, Operation::Send, SendFlags::SIGNALED, payload)
        .unwrap();
    let mut acked = 0;
    let mut windows = Vec::new();
    for _ in 0..5 {
        acked += leave(&mut bench, false) as u32;
        windows.push(window(&bench));
        bench.ack(packets(acked - 1));
    }
    assert_eq!(windows, [64, 128, 256, 512, 512]);
    // no more is sent again than the window that shrank
    let sent = leave(&mut bench, false);
    bench.nak(packets(acked + 5), NakCode::SequenceError);
    bench.nak(packets(acked + 5), NakCode::SequenceError);
    assert!(sent as u64 * 272 > 400 << 10);
    leave(&mut bench, false);
    assert_eq!(window(&bench), 256);
    // a timeout is a loss too
    bench.pass(ms(10_000));
    leave(&mut bench, false);
    assert_eq!(window(&bench), 128);
}

#[test]
fn one_with_long_messages_does_not_starve_one_with_short_ones() {
    let mut bench = on_one_host(&ModelCredit::known(), |setup| {
        setup.config.window.bytes = 64 << 10;
    });
    let view = bench.shard.query_qp(bench.qp).unwrap();
    let short = bench.create(&view.capabilities);
    let long = bench.qp;
    bench.connect(short, &view.attributes);
    for id in 0..16 {
        bench.post(id, Operation::Send, REGION as u32);
    }
    let mut acked = leave(&mut bench, false) as u32;
    let mut rounds = 0;
    for id in 0..20 {
        bench.qp = short;
        bench.post(100 + id, Operation::Send, 64);
        // it leaves within one window of the other
        loop {
            bench.origins.clear();
            leave(&mut bench, false);
            let of_long = bench.origins.iter().filter(|origin| origin.qp == long);
            acked += of_long.count() as u32;
            if bench.origins.iter().any(|origin| origin.qp == short) {
                break;
            }
            rounds += 1;
            bench.qp = long;
            bench.ack(packets(acked - 1));
            bench.qp = short;
        }
        bench.ack(packets(id as u32));
    }
    assert!(rounds <= 2 * 20, "{rounds} windows for 20 short messages");
}

#[test]
fn two_hundred_and_fifty_six_queue_pairs_share_evenly() {
    let mut bench = on_one_host(&ModelCredit::known(), |setup| {
        setup.config.window.bytes = 128 << 10;
    });
    let view = bench.shard.query_qp(bench.qp).unwrap();
    let mut qps = vec![bench.qp];
    for _ in 1..256 {
        let qp = bench.create(&view.capabilities);
        bench.connect(qp, &view.attributes);
        qps.push(qp);
    }
    for &qp in &qps {
        bench.qp = qp;
        bench.post(1, Operation::Send, REGION as u32);
    }
    let mut sent = vec![0_u32; qps.len()];
    for _ in 0..400 {
        bench.origins.clear();
        assert!(leave(&mut bench, false) > 0);
        let mut senders: Vec<u16> = bench.origins.iter().map(|origin| origin.qp.0).collect();
        senders.iter().for_each(|&qp| sent[usize::from(qp)] += 1);
        senders.sort_unstable();
        senders.dedup();
        for qp in senders {
            bench.qp = QpIndex(qp);
            bench.ack(packets(sent[usize::from(qp)] - 1));
        }
    }
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!(
        *least > 0 && most - least <= 64,
        "{least} to {most} packets"
    );
}

#[test]
fn what_is_in_flight_to_one_that_is_gone_does_not_stop_the_others_for_ever() {
    let mut bench = on_one_host(&ModelCredit::known(), |setup| {
        setup.config.window.bytes = 64 << 10;
        setup.attributes.timeout = 0; // it waits without end
    });
    let view = bench.shard.query_qp(bench.qp).unwrap();
    let gone = bench.qp;
    bench.post(1, Operation::Send, REGION as u32);
    leave(&mut bench, false);
    let mut others = Vec::new();
    for _ in 0..2 {
        let qp = bench.create(&view.capabilities);
        bench.connect(qp, &view.attributes);
        bench.qp = qp;
        bench.post(2, Operation::Send, 2 * 256);
        others.push(qp);
    }
    bench.origins.clear();
    assert_eq!(leave(&mut bench, false), 0, "the window is full");
    let mut owners = Vec::new();
    for _ in 0..4 {
        bench.pass(ms(1_000)); // 10 ms
        bench.origins.clear();
        leave(&mut bench, false);
        owners.extend(bench.origins.iter().map(|origin| origin.qp));
    }
    assert_eq!(
        owners, others,
        "a packet of each, the second after twice as long"
    );
    assert!(!owners.contains(&gone));
    // what is acknowledged makes no room: the next packet has to wait for its permit too
    bench.qp = others[0];
    bench.ack(packets(0));
    bench.pass(ms(2_000));
    bench.origins.clear();
    leave(&mut bench, false);
    assert_eq!(bench.origins.len(), 1);
    assert_eq!(bench.origins[0].qp, others[0]);
}
