use std::fmt::Write;

use super::*;

const TRANSPORTS: [Transport; 3] = [Transport::Rc, Transport::Uc, Transport::Ud];

/// The table as people read it, then a drawing of the arrows.
fn print_table() -> String {
    let mut text = String::new();
    for row in TRANSITIONS {
        writeln!(text, "{} -> {}", row.from, row.to).unwrap(); // a String takes everything
        for transport in TRANSPORTS {
            let Needs { required, optional } = row.needs(transport);
            if required.is_empty() && optional.is_empty() {
                continue;
            }
            let name = format!("{transport:?}").to_uppercase();
            writeln!(text, "    {name} must {}", names(required)).unwrap();
            writeln!(text, "       may  {}", names(optional)).unwrap();
        }
    }
    text
}

fn names(mask: AttributeMask) -> String {
    let names: Vec<_> = mask.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() {
        "-".into()
    } else {
        names.join(" ")
    }
}

/// One row for each state before, one column for each state after: `m` by modify, `s` by a send
/// error, `f` by a fault.
fn draw(transport: Transport) -> String {
    let mut text = format!("{transport:?}").to_uppercase();
    text.push_str("    ");
    for to in State::ALL {
        write!(text, "{:>6}", to.to_string()).unwrap();
    }
    text.push('\n');
    for from in State::ALL {
        write!(text, "{:>6}", from.to_string()).unwrap();
        for to in State::ALL {
            let mark = |event, letter| match next_state(transport, from, event) {
                Some(state) if state == to => letter,
                _ => "",
            };
            let cell = [
                mark(Event::Modify(to), "m"),
                mark(Event::SendError, "s"),
                mark(Event::Fault, "f"),
            ]
            .concat();
            write!(text, "{:>6}", if cell.is_empty() { "." } else { &cell }).unwrap();
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_whole_table() {
    insta::assert_snapshot!(print_table());
}

#[test]
fn the_drawing() {
    let drawing: Vec<_> = TRANSPORTS.into_iter().map(draw).collect();
    insta::assert_snapshot!(drawing.join("\n"));
}

fn to(state: State) -> Attributes {
    Attributes {
        state,
        port: 1,
        ..Attributes::default()
    }
}

const TO_INIT: AttributeMask = AttributeMask::STATE.union(PKEY).union(PORT).union(ACCESS);

#[test]
fn each_required_attribute_is_missed() {
    for row in TRANSITIONS {
        for transport in TRANSPORTS {
            let required = row.needs(transport).required;
            for one in required.iter() {
                let mask = (required - one) | AttributeMask::STATE;
                assert_eq!(
                    check_modify(transport, row.from, &to(row.to), mask),
                    Err(ModifyError::Missing(one)),
                    "{transport:?} {} -> {}",
                    row.from,
                    row.to
                );
            }
        }
    }
}

#[test]
fn each_attribute_that_the_row_does_not_name_is_refused() {
    for row in TRANSITIONS {
        for transport in TRANSPORTS {
            let Needs { required, optional } = row.needs(transport);
            let mut others = AttributeMask::all() - required - optional - AttributeMask::STATE;
            others -= AttributeMask::CURRENT_STATE; // has a check of its own before
            for one in others.iter() {
                let mask = required | one | AttributeMask::STATE;
                assert_eq!(
                    check_modify(transport, row.from, &to(row.to), mask),
                    Err(ModifyError::NotAllowed(one)),
                    "{transport:?} {} -> {}",
                    row.from,
                    row.to
                );
            }
        }
    }
}

#[test]
fn an_attribute_bit_nobody_knows_is_refused() {
    let rate_limit = AttributeMask::from_bits_retain(1 << 25);
    assert_eq!(
        check_modify(
            Transport::Rc,
            State::Reset,
            &to(State::Init),
            TO_INIT | rate_limit
        ),
        Err(ModifyError::NotAllowed(rate_limit))
    );
}

#[test]
fn without_a_state_the_state_stays() {
    let attributes = Attributes {
        access: crate::Access::REMOTE_READ,
        ..to(State::Reset)
    };
    assert_eq!(
        check_modify(Transport::Rc, State::ReadyToSend, &attributes, ACCESS),
        Ok(State::ReadyToSend)
    );
    assert_eq!(
        check_modify(Transport::Rc, State::ReadyToReceive, &attributes, ACCESS),
        Err(ModifyError::Transition {
            from: State::ReadyToReceive,
            to: State::ReadyToReceive
        }),
        "there is no arrow from RTR to itself"
    );
}

#[test]
fn the_current_state_must_be_true_and_one_that_can_be_claimed() {
    let mask = AttributeMask::STATE | CURRENT;
    let claim = |current_state| Attributes {
        current_state,
        ..to(State::ReadyToSend)
    };
    let check =
        |attributes| check_modify(Transport::Rc, State::SendQueueDrained, &attributes, mask);
    assert_eq!(
        check(claim(State::SendQueueDrained)),
        Ok(State::ReadyToSend)
    );
    assert_eq!(
        check(claim(State::ReadyToSend)),
        Err(ModifyError::Transition {
            from: State::SendQueueDrained,
            to: State::ReadyToSend
        })
    );
    assert_eq!(check(claim(State::Init)), Err(ModifyError::Value(CURRENT)));
}

#[test]
fn reset_to_error_is_refused_as_by_linux() {
    for transport in TRANSPORTS {
        assert_eq!(
            check_modify(
                transport,
                State::Reset,
                &to(State::Error),
                AttributeMask::STATE
            ),
            Err(ModifyError::Transition {
                from: State::Reset,
                to: State::Error
            })
        );
    }
}

#[test]
fn values_out_of_range_are_refused_and_the_last_good_ones_taken() {
    let sqd = State::SendQueueDrained;
    let check = |attribute, attributes: Attributes| {
        check_modify(
            Transport::Rc,
            sqd,
            &Attributes {
                state: sqd,
                ..attributes
            },
            AttributeMask::STATE | attribute,
        )
    };
    type Set = fn(&mut Attributes, u8);
    let cases: [(AttributeMask, u8, u8, Set); 7] = [
        (PORT, 1, 2, |a, v| a.port = v),
        (PKEY, 0, 1, |a, v| a.pkey_index = v.into()),
        (TIMEOUT, 31, 32, |a, v| a.timeout = v),
        (RETRY, 7, 8, |a, v| a.retry_count = v),
        (RNR_RETRY, 7, 8, |a, v| a.rnr_retry = v),
        (RNR_TIMER, 31, 32, |a, v| a.min_rnr_timer = v),
        (MAX_RD, 128, 129, |a, v| a.max_rd_atomic = v),
    ];
    for (attribute, good, bad, set) in cases {
        let mut attributes = Attributes::default();
        set(&mut attributes, good);
        assert_eq!(check(attribute, attributes), Ok(sqd), "{attribute:?}");
        set(&mut attributes, bad);
        assert_eq!(
            check(attribute, attributes),
            Err(ModifyError::Value(attribute))
        );
    }
    let attributes = Attributes {
        max_dest_rd_atomic: 129,
        ..Attributes::default()
    };
    assert_eq!(
        check(MAX_DEST, attributes),
        Err(ModifyError::Value(MAX_DEST))
    );
}

#[test]
fn an_attribute_that_is_not_named_is_not_read() {
    let attributes = Attributes {
        timeout: 200,
        retry_count: 99,
        ..to(State::Init)
    };
    assert_eq!(
        check_modify(Transport::Rc, State::Reset, &attributes, TO_INIT),
        Ok(State::Init)
    );
}
