//! Which state follows which, and what `modify` must and may set on the way.
//!
//! Sections to read first: IBA 10.3.1 (states), 11.2.5.2 (modify queue pair). The one idea: the
//! rules are [`TRANSITIONS`], a table that is read and printed; a change is reviewed as a change of
//! its snapshot.

use crate::qp::{AttributeMask, Attributes, ModifyError, State, Transport};

/// READs and atomics in flight per direction that can be asked for.
pub const RD_ATOMIC_MAX: u8 = 128;

/// Checks the attributes of a `modify` on a queue pair in state `from` and gives the state it goes
/// to. Nothing is changed. spec: IBA 11.2.5.2
pub fn check_modify(
    transport: Transport,
    from: State,
    attributes: &Attributes,
    mask: AttributeMask,
) -> Result<State, ModifyError> {
    let to = if mask.contains(AttributeMask::STATE) {
        attributes.state
    } else {
        from
    };
    if mask.contains(AttributeMask::CURRENT_STATE) {
        check_current_state(from, to, attributes.current_state)?;
    }
    let needs = needs(transport, from, to).ok_or(ModifyError::Transition { from, to })?;
    let missing = needs.required - mask;
    if !missing.is_empty() {
        return Err(ModifyError::Missing(missing));
    }
    let unknown = mask - (needs.required | needs.optional | AttributeMask::STATE);
    if !unknown.is_empty() {
        return Err(ModifyError::NotAllowed(unknown));
    }
    match LIMITS
        .into_iter()
        .find(|limit| mask.contains(limit.attribute) && !(limit.admits)(attributes))
    {
        Some(limit) => Err(ModifyError::Value(limit.attribute)),
        None => Ok(to),
    }
}

/// What happens to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The program asks for a state.
    Modify(State),
    /// A send could not be done, and nothing but the send queue is concerned.
    SendError,
    /// The connection cannot go on.
    Fault,
}

/// The state after `event`; `None` if it has no place there. spec: IBA 10.3.1
pub fn next_state(transport: Transport, from: State, event: Event) -> Option<State> {
    match event {
        Event::Modify(to) => needs(transport, from, to).map(|_| to),
        // spec: IBA 10.3.1.5: only unreliable transports have the send queue error state
        Event::SendError => match (transport, from) {
            (Transport::Rc, State::ReadyToSend | State::SendQueueDrained) => Some(State::Error),
            (_, State::ReadyToSend) => Some(State::SendQueueError),
            (_, State::SendQueueDrained) => Some(State::Error),
            _ => None,
        },
        Event::Fault => match from {
            State::Reset => None,
            _ => Some(State::Error),
        },
    }
}

/// What `modify` must and may name, besides the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Attributes without which the transition fails.
    pub required: AttributeMask,
    /// Attributes that may be set as well.
    pub optional: AttributeMask,
}

/// A row of the table: one arrow between states.
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    /// The state before.
    pub from: State,
    /// The state after.
    pub to: State,
    /// For reliable connections.
    pub rc: Needs,
    /// For unreliable connections.
    pub uc: Needs,
    /// For unreliable datagrams.
    pub ud: Needs,
}

impl Transition {
    /// The attributes for one transport.
    pub const fn needs(&self, transport: Transport) -> Needs {
        match transport {
            Transport::Rc => self.rc,
            Transport::Uc => self.uc,
            Transport::Ud => self.ud,
        }
    }
}

/// Every transition that `modify` can make. RESET to ERR is missing on purpose: the standard has
/// it, Linux answers EINVAL, and programs are written against Linux. spec: IBA 10.3.1, table 91
pub const TRANSITIONS: &[Transition] = {
    use State::{
        Error as Err, Init, ReadyToReceive as Rtr, ReadyToSend as Rts, Reset,
        SendQueueDrained as Sqd, SendQueueError as Sqe,
    };
    const NOTHING: Needs = needs_of(&[], &[]);
    const SQD_RTS_CONNECTED: &[AttributeMask] = &[CURRENT, ALTERNATE, ACCESS, MIGRATION];
    const SQD_RTS_RC: &[AttributeMask] = &[CURRENT, ALTERNATE, ACCESS, RNR_TIMER, MIGRATION];
    &[
        bare(Reset, Reset),
        Transition {
            from: Reset,
            to: Init,
            rc: needs_of(&[PKEY, PORT, ACCESS], &[]),
            uc: needs_of(&[PKEY, PORT, ACCESS], &[]),
            ud: needs_of(&[PKEY, PORT, QKEY], &[]),
        },
        Transition {
            from: Init,
            to: Init,
            rc: needs_of(&[], &[PKEY, PORT, ACCESS]),
            uc: needs_of(&[], &[PKEY, PORT, ACCESS]),
            ud: needs_of(&[], &[PKEY, PORT, QKEY]),
        },
        Transition {
            from: Init,
            to: Rtr,
            rc: needs_of(
                &[VECTOR, MTU, DEST, RQ_PSN, MAX_DEST, RNR_TIMER],
                &[ALTERNATE, ACCESS, PKEY],
            ),
            uc: needs_of(&[VECTOR, MTU, DEST, RQ_PSN], &[ALTERNATE, ACCESS, PKEY]),
            ud: needs_of(&[], &[PKEY, QKEY]),
        },
        bare(Init, Reset),
        bare(Init, Err),
        Transition {
            from: Rtr,
            to: Rts,
            rc: needs_of(
                &[TIMEOUT, RETRY, RNR_RETRY, SQ_PSN, MAX_RD],
                &[CURRENT, ALTERNATE, ACCESS, RNR_TIMER, MIGRATION],
            ),
            uc: needs_of(&[SQ_PSN], &[CURRENT, ALTERNATE, ACCESS, MIGRATION]),
            ud: needs_of(&[SQ_PSN], &[CURRENT, QKEY]),
        },
        bare(Rtr, Reset),
        bare(Rtr, Err),
        Transition {
            from: Rts,
            to: Rts,
            rc: needs_of(&[], &[CURRENT, ACCESS, ALTERNATE, MIGRATION, RNR_TIMER]),
            uc: needs_of(&[], &[CURRENT, ACCESS, ALTERNATE, MIGRATION]),
            ud: needs_of(&[], &[CURRENT, QKEY]),
        },
        Transition {
            from: Rts,
            to: Sqd,
            rc: needs_of(&[], &[SQD_NOTIFY]),
            uc: needs_of(&[], &[SQD_NOTIFY]),
            ud: needs_of(&[], &[SQD_NOTIFY]),
        },
        bare(Rts, Reset),
        bare(Rts, Err),
        Transition {
            from: Sqd,
            to: Rts,
            rc: needs_of(&[], SQD_RTS_RC),
            uc: needs_of(&[], SQD_RTS_CONNECTED),
            ud: needs_of(&[], &[CURRENT, QKEY]),
        },
        Transition {
            from: Sqd,
            to: Sqd,
            rc: needs_of(
                &[],
                &[
                    PORT, VECTOR, TIMEOUT, RETRY, RNR_RETRY, MAX_RD, MAX_DEST, ALTERNATE, ACCESS,
                    PKEY, RNR_TIMER, MIGRATION,
                ],
            ),
            uc: needs_of(&[], &[VECTOR, ALTERNATE, ACCESS, PKEY, MIGRATION]),
            ud: needs_of(&[], &[PKEY, QKEY]),
        },
        bare(Sqd, Reset),
        bare(Sqd, Err),
        Transition {
            from: Sqe,
            to: Rts,
            rc: NOTHING, // never in SQE: the row is there because Linux has it
            uc: needs_of(&[], &[CURRENT, ACCESS]),
            ud: needs_of(&[], &[CURRENT, QKEY]),
        },
        bare(Sqe, Reset),
        bare(Sqe, Err),
        bare(Err, Reset),
        bare(Err, Err),
    ]
};

// short names for the table above
const CURRENT: AttributeMask = AttributeMask::CURRENT_STATE;
const SQD_NOTIFY: AttributeMask = AttributeMask::SQD_ASYNC_NOTIFY;
const ACCESS: AttributeMask = AttributeMask::ACCESS_FLAGS;
const PKEY: AttributeMask = AttributeMask::PKEY_INDEX;
const PORT: AttributeMask = AttributeMask::PORT;
const QKEY: AttributeMask = AttributeMask::QKEY;
const VECTOR: AttributeMask = AttributeMask::ADDRESS_VECTOR;
const MTU: AttributeMask = AttributeMask::PATH_MTU;
const TIMEOUT: AttributeMask = AttributeMask::TIMEOUT;
const RETRY: AttributeMask = AttributeMask::RETRY_COUNT;
const RNR_RETRY: AttributeMask = AttributeMask::RNR_RETRY;
const RQ_PSN: AttributeMask = AttributeMask::RQ_PSN;
const MAX_RD: AttributeMask = AttributeMask::MAX_RD_ATOMIC;
const ALTERNATE: AttributeMask = AttributeMask::ALTERNATE_PATH;
const RNR_TIMER: AttributeMask = AttributeMask::MIN_RNR_TIMER;
const SQ_PSN: AttributeMask = AttributeMask::SQ_PSN;
const MAX_DEST: AttributeMask = AttributeMask::MAX_DEST_RD_ATOMIC;
const MIGRATION: AttributeMask = AttributeMask::PATH_MIGRATION_STATE;
const DEST: AttributeMask = AttributeMask::DEST_QPN;

/// The row from one state to another; `None` if there is no arrow.
fn needs(transport: Transport, from: State, to: State) -> Option<Needs> {
    TRANSITIONS
        .iter()
        .find(|row| row.from == from && row.to == to)
        .map(|row| row.needs(transport))
}

/// `current_state` is for callers who may not know of an error that moved the queue pair.
fn check_current_state(from: State, to: State, claimed: State) -> Result<(), ModifyError> {
    let may_be_claimed = matches!(
        claimed,
        State::ReadyToReceive
            | State::ReadyToSend
            | State::SendQueueDrained
            | State::SendQueueError
    );
    if !may_be_claimed {
        return Err(ModifyError::Value(AttributeMask::CURRENT_STATE));
    }
    if claimed != from {
        return Err(ModifyError::Transition { from, to });
    }
    Ok(())
}

/// A range that one attribute must be in.
struct Limit {
    attribute: AttributeMask,
    admits: fn(&Attributes) -> bool,
}

/// All ranges. Types hold the others: a PSN, a QPN and an MTU are in range once they exist.
const LIMITS: [Limit; 8] = [
    Limit {
        attribute: PKEY,
        admits: |attributes| attributes.pkey_index == 0,
    },
    Limit {
        attribute: PORT,
        admits: |attributes| attributes.port == 1,
    },
    Limit {
        attribute: TIMEOUT,
        admits: |attributes| attributes.timeout <= 31,
    },
    Limit {
        attribute: RETRY,
        admits: |attributes| attributes.retry_count <= 7,
    },
    Limit {
        attribute: RNR_RETRY,
        admits: |attributes| attributes.rnr_retry <= 7,
    },
    Limit {
        attribute: RNR_TIMER,
        admits: |attributes| attributes.min_rnr_timer <= 31,
    },
    Limit {
        attribute: MAX_RD,
        admits: |attributes| attributes.max_rd_atomic <= RD_ATOMIC_MAX,
    },
    Limit {
        attribute: MAX_DEST,
        admits: |attributes| attributes.max_dest_rd_atomic <= RD_ATOMIC_MAX,
    },
];

const fn bare(from: State, to: State) -> Transition {
    let nothing = needs_of(&[], &[]);
    Transition {
        from,
        to,
        rc: nothing,
        uc: nothing,
        ud: nothing,
    }
}

const fn needs_of(required: &[AttributeMask], optional: &[AttributeMask]) -> Needs {
    Needs {
        required: union(required),
        optional: union(optional),
    }
}

const fn union(masks: &[AttributeMask]) -> AttributeMask {
    let mut all = AttributeMask::empty();
    let mut index = 0;
    while index < masks.len() {
        all = all.union(masks[index]);
        index += 1;
    }
    all
}

#[cfg(test)]
mod tests;
