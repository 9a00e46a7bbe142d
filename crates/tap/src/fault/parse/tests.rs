use super::*;

fn plan(text: &str) -> FaultPlan {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn parts(parts: u32) -> Probability {
    Probability::from_parts(parts).unwrap()
}

#[test]
fn every_key_sets_its_value() {
    let text = "loss=2%, reorder = 5%,duplicate=0.01,corrupt=0.5%,hold=1us..1.5us,\
                delay=200us..2ms,direction=both,seed=42";
    let expected = FaultPlan {
        loss: parts(20_000_000),
        duplicate: parts(10_000_000),
        corrupt: parts(5_000_000),
        reorder: parts(50_000_000),
        hold: Span::new(1_000, 1_500).unwrap(),
        delay: Span::new(200_000, 2_000_000),
        direction: Direction::Both,
        seed: 42,
    };
    assert_eq!(plan(text), expected);
}

#[test]
fn what_is_not_said_has_its_default() {
    let expected = FaultPlan {
        loss: parts(1_000_000_000),
        ..FaultPlan::NONE
    };
    assert_eq!(plan("loss=100%"), expected);
    assert_eq!(plan("loss=1"), expected);
    assert_eq!(expected.seed, 1);
    assert_eq!(expected.direction, Direction::Tx);
}

#[test]
fn a_plan_printed_is_the_same_plan() {
    for (text, printed) in [
        ("loss=2%", "loss=2%,seed=1"),
        ("corrupt=0.0000001%,seed=0", "corrupt=0.0000001%,seed=0"),
        ("duplicate=0.125", "duplicate=12.5%,seed=1"),
        ("delay=1500us", "delay=1500us,seed=1"),
        (
            "delay=2000us..60s,direction=rx",
            "delay=2ms..60s,direction=rx,seed=1",
        ),
        ("delay=0ns..1ns", "delay=0ns..1ns,seed=1"),
        (
            "seed=9,hold=7ms,corrupt=1%,duplicate=1%,reorder=5%,loss=2%",
            "loss=2%,reorder=5%,duplicate=1%,corrupt=1%,hold=7ms,seed=9",
        ),
    ] {
        let parsed = plan(text);
        assert_eq!(parsed.to_string(), printed);
        assert_eq!(plan(printed), parsed);
    }
}

#[test]
fn errors_name_the_part_and_the_problem() {
    for (text, part, problem) in [
        ("", "", Problem::Empty),
        ("loss=2%,", "loss=2%,", Problem::Empty),
        ("loss=2%,,seed=1", "loss=2%,,seed=1", Problem::Empty),
        ("loss", "loss", Problem::NoValue),
        ("loss=2%,los=3%", "los=3%", Problem::UnknownKey),
        ("LOSS=2%", "LOSS=2%", Problem::UnknownKey),
        ("loss=2%, loss=3%", "loss=3%", Problem::Twice),
        ("loss=", "loss=", Problem::Probability),
        ("loss=%", "loss=%", Problem::Probability),
        ("loss=two", "loss=two", Problem::Probability),
        ("loss=-1%", "loss=-1%", Problem::Probability),
        ("loss=101%", "loss=101%", Problem::Probability),
        ("loss=2", "loss=2", Problem::Probability),
        ("loss=1e-3", "loss=1e-3", Problem::Probability),
        ("loss=.5", "loss=.5", Problem::Probability),
        (
            "loss=0.0000000001",
            "loss=0.0000000001",
            Problem::Probability,
        ),
        (
            "loss=99999999999999999999%",
            "loss=99999999999999999999%",
            Problem::Probability,
        ),
        ("delay=5", "delay=5", Problem::Time),
        ("delay=5m", "delay=5m", Problem::Time),
        ("delay=ms", "delay=ms", Problem::Time),
        ("delay=2ms..1ms", "delay=2ms..1ms", Problem::Time),
        ("delay=1ms..", "delay=1ms..", Problem::Time),
        ("delay=61s", "delay=61s", Problem::Time),
        ("delay=0.5ns", "delay=0.5ns", Problem::Time),
        ("hold=x", "hold=x", Problem::Time),
        ("direction=up", "direction=up", Problem::Direction),
        ("seed=0x2a", "seed=0x2a", Problem::Seed),
        (
            "seed=18446744073709551616",
            "seed=18446744073709551616",
            Problem::Seed,
        ),
        (
            "loss=60%,reorder=41%",
            "loss=60%,reorder=41%",
            Problem::MoreThanCertain,
        ),
        ("seed=4", "seed=4", Problem::NoFault),
        ("loss=0%", "loss=0%", Problem::NoFault),
    ] {
        let part = part.to_owned();
        assert_eq!(
            text.parse::<FaultPlan>(),
            Err(PlanError { part, problem }),
            "{text:?}"
        );
    }
}

#[test]
fn errors_say_what_would_be_right() {
    let text = |plan: &str| plan.parse::<FaultPlan>().unwrap_err().to_string();
    assert_eq!(
        text("loss=2%,delay=5"),
        "`delay=5`: not a time; write 500us, or a range such as 200us..2ms \
         (ns, us, ms, s; at most 60s)"
    );
    assert_eq!(
        text("los=2%"),
        "`los=2%`: unknown key; there are loss, duplicate, corrupt, reorder, hold, delay, \
         direction, seed"
    );
}
