use super::*;

const PACKET: [u8; 20] = [0; 20];

fn tap(plan: &str) -> Tap {
    Tap::new(Some(plan.parse().unwrap()))
}

/// What happens to `count` packets of 20 bytes, one a microsecond.
fn verdicts(tap: &mut Tap, count: u64) -> Vec<Verdict> {
    (0..count)
        .map(|i| tap.outgoing(1_000 * i, &PACKET))
        .collect()
}

/// Dropped, duplicated, corrupted, delayed, of `count` packets.
fn tally(plan: &str, count: u64) -> [usize; 4] {
    let verdicts = verdicts(&mut tap(plan), count);
    let of = |test: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| test(verdict)).count();
    [
        of(|verdict| *verdict == Verdict::Drop),
        of(|verdict| *verdict == Verdict::Duplicate),
        of(|verdict| matches!(verdict, Verdict::Corrupt { .. })),
        of(|verdict| matches!(verdict, Verdict::Delay { .. })),
    ]
}

#[test]
fn without_a_plan_every_packet_passes() {
    let mut tap = Tap::default();
    assert!(!tap.has_plan());
    assert_eq!(verdicts(&mut tap, 3), [Verdict::Pass; 3]);
    assert_eq!(tap.incoming(0, &PACKET), Verdict::Pass);
    assert_eq!(
        tap.counters().iter().map(|(_, value)| value).sum::<u64>(),
        0
    );
}

#[test]
fn faults_are_as_frequent_as_the_plan_says() {
    let plan = "loss=2%,reorder=5%,duplicate=1%,corrupt=1%,seed=42";
    // exact for this seed; 2000, 1000, 1000, 5000 on average
    assert_eq!(tally(plan, 100_000), [1980, 927, 1014, 5031]);
    for seed in 0..50 {
        let plan = format!("loss=2%,reorder=5%,duplicate=1%,corrupt=1%,seed={seed}");
        for (found, expected) in tally(&plan, 10_000).into_iter().zip([200, 100, 100, 500]) {
            // five standard deviations
            let bound = 5.0 * (expected as f64).sqrt();
            assert!(
                (found as f64 - expected as f64).abs() < bound,
                "seed {seed}: {found}"
            );
        }
    }
    assert_eq!(tally("loss=100%", 1000), [1000, 0, 0, 0]);
    assert_eq!(tally("loss=0%,duplicate=50%,corrupt=50%", 1000)[3], 0);
}

#[test]
fn the_same_seed_decides_the_same_and_another_does_not() {
    let plan = |seed| format!("loss=10%,reorder=10%,duplicate=10%,corrupt=10%,seed={seed}");
    let of = |seed| verdicts(&mut tap(&plan(seed)), 1000);
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
}

#[test]
fn one_fault_does_not_move_the_others() {
    // a packet that is lost under both plans is the same packet
    let lost = |plan| {
        let verdicts = verdicts(&mut tap(plan), 1000);
        let mut lost = Vec::new();
        for (index, verdict) in verdicts.into_iter().enumerate() {
            if verdict == Verdict::Drop {
                lost.push(index);
            }
        }
        lost
    };
    assert_eq!(
        lost("loss=3%,seed=5"),
        lost("loss=3%,corrupt=20%,delay=1us..9us,seed=5")
    );
    assert!(!lost("loss=3%,seed=5").is_empty());
}

#[test]
fn directions_are_independent() {
    let both = "loss=50%,direction=both,seed=3";
    let outgoing = verdicts(&mut tap(both), 200);
    // what arrives in between changes nothing for what leaves
    let mut busy = tap(both);
    let mut incoming = Vec::new();
    for (index, expected) in outgoing.iter().enumerate() {
        incoming.push(busy.incoming(0, &PACKET));
        assert_eq!(busy.outgoing(1_000 * index as u64, &PACKET), *expected);
    }
    assert_ne!(incoming, outgoing);

    let mut arriving = tap("loss=100%,direction=rx");
    assert_eq!(arriving.outgoing(0, &PACKET), Verdict::Pass);
    assert_eq!(arriving.incoming(0, &PACKET), Verdict::Drop);
    let mut leaving = tap("loss=100%");
    assert_eq!(leaving.outgoing(0, &PACKET), Verdict::Drop);
    assert_eq!(leaving.incoming(0, &PACKET), Verdict::Pass);
}

#[test]
fn a_corrupted_packet_is_one_that_the_receiver_detects() {
    let source = "192.0.2.1:50000".parse().unwrap();
    let pseudo = wire::icrc::PseudoHeader::new(source, "192.0.2.2:4791".parse().unwrap()).unwrap();
    let mut sealed = PACKET;
    pseudo.seal(&mut sealed, 0);
    let mut bits = [0; 8 * PACKET.len()];
    for verdict in verdicts(&mut tap("corrupt=100%"), 20_000) {
        let Verdict::Corrupt { bit } = verdict else {
            panic!("{verdict:?}");
        };
        bits[bit] += 1;
        let mut damaged = sealed;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!pseudo.verify(&damaged, 0), "bit {bit}");
        assert_eq!(
            pseudo.recover(&damaged, 0, wire::icrc::Believe::Any),
            None,
            "bit {bit}"
        );
    }
    // all bits that the ICRC covers, the ICRC's own included, and none of the fifth byte
    let hit = |bit: usize| bits[bit] > 0;
    assert!(
        (0..bits.len()).all(|bit| hit(bit) != (32..40).contains(&bit)),
        "{bits:?}"
    );
    // what is too short to be a packet is left alone
    assert_eq!(tap("corrupt=100%").outgoing(0, &PACKET[..4]), Verdict::Pass);
}

#[test]
fn a_delay_keeps_the_order() {
    let mut last = 0;
    for (index, verdict) in verdicts(&mut tap("delay=200us..2ms"), 5000)
        .into_iter()
        .enumerate()
    {
        let Verdict::Delay { until_ns } = verdict else {
            panic!("{verdict:?}");
        };
        let now = 1_000 * index as u64;
        assert!(
            until_ns >= last && until_ns >= now + 200_000,
            "packet {index}"
        );
        assert!(until_ns <= now.max(last) + 2_000_000, "packet {index}");
        last = until_ns;
    }
}

#[test]
fn a_reordered_packet_is_overtaken() {
    let mut tap = tap("reorder=10%,hold=50us..60us,seed=11");
    let mut delayed = Delayed::with_bound(100);
    let mut arrived = Vec::new();
    for number in 0..1000_u64 {
        let now = 1_000 * number;
        while let Some(late) = delayed.pop_due(now) {
            arrived.push(late);
        }
        match tap.outgoing(now, &PACKET) {
            Verdict::Pass => arrived.push(number),
            Verdict::Delay { until_ns } => {
                assert!((now + 50_000..=now + 60_000).contains(&until_ns));
                delayed.push(until_ns, number).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    let overtaken = arrived.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(overtaken > 50, "{overtaken}");
    assert!(tap.counters().fault_delayed > 50);
}

#[test]
fn faults_and_packets_are_counted() {
    let mut tap = tap("loss=20%,reorder=20%,duplicate=20%,corrupt=20%,seed=2");
    let verdicts = verdicts(&mut tap, 500);
    let of = |test: fn(&Verdict) -> bool| verdicts.iter().filter(|v| test(v)).count() as u64;
    let counters = *tap.counters();
    let lost = tap.drops().of(DropReason::FaultInjected);
    assert_eq!(lost, of(|v| *v == Verdict::Drop));
    assert_eq!(counters.fault_duplicated, of(|v| *v == Verdict::Duplicate));
    assert_eq!(
        counters.fault_corrupted,
        of(|v| matches!(v, Verdict::Corrupt { .. }))
    );
    assert_eq!(
        counters.fault_delayed,
        of(|v| matches!(v, Verdict::Delay { .. }))
    );

    tap.sent(7);
    tap.received();
    tap.dropped(DropReason::BadIcrc);
    tap.foreign(true);
    tap.foreign(false);
    let counters = tap.counters();
    assert_eq!((counters.sent_pkts, counters.rcvd_pkts), (7, 1));
    assert_eq!(counters.foreign_passed_on, 1);
    assert_eq!(tap.drops().of(DropReason::BadIcrc), 1);
    assert_eq!(tap.drops().of(DropReason::ForeignSlot), 1);
    assert_eq!(tap.drops().total(), lost + 2);
}
