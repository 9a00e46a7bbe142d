//! Counters with the names of the kernel's rxe, and a reason for every silent drop.
//!
//! Plain numbers: a tap belongs to one shard, whose lock protects it. Who reports sums the shards
//! with [`Counters::add`] and [`Drops::add`].

use core::fmt;

use wire::ParseError;
use wire::error::{Layer, Reason};

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident)*) => {
        /// What is counted. The first fields are rxe's hardware counters, in its order.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $(#[doc = $doc] pub $name: u64,)* }

        impl Counters {
            /// Names and values, rxe's first.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Adds the counts of another tap.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Packets that left.
    sent_pkts
    /// Packets that arrived, with a right ICRC and a queue pair of ours.
    rcvd_pkts
    /// Requests that were executed before.
    duplicate_request
    /// Requests that came after a gap.
    out_of_seq_request
    /// RNR NAKs received.
    rcvd_rnr_err
    /// RNR NAKs sent.
    send_rnr_err
    /// NAKs for a PSN sequence error received.
    rcvd_seq_err
    /// Acknowledgements that were put off and merged into a later one.
    ack_deferred
    /// Work requests that used up `retry_cnt`.
    retry_exceeded_err
    /// Work requests that used up `rnr_retry`.
    retry_rnr_exceeded_err
    /// Times that the requester went back and resent.
    completer_retry_err
    /// Packets that could not be sent.
    send_err
    /// Times that the interface went down.
    link_downed
    /// Messages sent.
    rdma_sends
    /// Messages received.
    rdma_recvs
    /// Packets for another process of this host that were passed on to it.
    foreign_passed_on
    /// Packets that a fault plan sent twice.
    fault_duplicated
    /// Packets in which a fault plan inverted a bit.
    fault_corrupted
    /// Packets that a fault plan held back.
    fault_delayed
}

impl Counters {
    /// How many of the counters are rxe's own.
    pub const RXE_COUNT: usize = 15;

    /// Names and values of rxe's own counters, in its order, as `rdma statistic show` prints them.
    pub fn rxe(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.iter().take(Self::RXE_COUNT)
    }
}

macro_rules! drop_reasons {
    ($($variant:ident $name:literal $text:literal)*) => {
        /// Why a packet was dropped in silence. The order is that of the checks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason { $(#[doc = $text] $variant,)* }

        impl DropReason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Name of its counter.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => concat!("drop_", $name),)* }
            }
        }

        /// What to tell a person.
        impl fmt::Display for DropReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }
    };
}

drop_reasons! {
    FaultInjected "fault_injected" "lost by the fault plan"
    TooShort "too_short" "too short for the headers of its opcode"
    UnknownOpcode "unknown_opcode" "an opcode that nobody defined"
    BadVersion "bad_version" "another version of the transport header"
    Malformed "malformed" "headers that contradict each other"
    BadIcrc "bad_icrc" "the ICRC does not match"
    ForeignSlot "foreign_slot" "for another process, and could not be passed on"
    UnknownQp "unknown_qp" "no queue pair has this number"
    WrongTransport "wrong_transport" "the queue pair is of another transport"
    WrongState "wrong_state" "the state of the queue pair does not take this packet"
    WrongAddress "wrong_address" "the addresses are not those of the connection"
    BadPKey "bad_pkey" "the partition key does not match"
    BadQKey "bad_qkey" "the queue key does not match"
    OutOfSequence "out_of_sequence" "after a gap for which a NAK was sent already"
    UnknownDuplicate "unknown_duplicate" "a duplicate READ or atomic that was forgotten"
    StaleResponse "stale_response" "a response to nothing that is outstanding"
    ResponseGap "response_gap" "a response whose predecessor is missing"
    Reserved "reserved" "a header that the standard reserves"
    NoReceive "no_receive" "a datagram for which no receive is posted"
    SendFailed "send_failed" "the kernel did not take it"
}

/// Why bytes that are no packet were dropped.
impl From<&ParseError> for DropReason {
    fn from(error: &ParseError) -> Self {
        match (error.layer, error.field, error.reason) {
            (_, _, Reason::TooShort { .. }) => Self::TooShort,
            (Layer::Bth, "opcode", _) => Self::UnknownOpcode,
            (Layer::Bth, "version", _) => Self::BadVersion,
            _ => Self::Malformed,
        }
    }
}

impl From<ParseError> for DropReason {
    fn from(error: ParseError) -> Self {
        Self::from(&error)
    }
}

/// Drops, counted by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

impl Drops {
    /// One more.
    #[inline]
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// How many for `reason`.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// How many in all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Reasons and numbers, in the order of the checks.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.iter().copied().zip(self.0)
    }

    /// Adds the counts of another tap.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_rxe_in_its_order() {
        // as `rdma statistic show` of Linux 6.12 prints them
        let expected = "sent_pkts rcvd_pkts duplicate_request out_of_seq_request rcvd_rnr_err \
                        send_rnr_err rcvd_seq_err ack_deferred retry_exceeded_err \
                        retry_rnr_exceeded_err completer_retry_err send_err link_downed \
                        rdma_sends rdma_recvs";
        let names: Vec<_> = Counters::default().rxe().map(|(name, _)| name).collect();
        assert_eq!(names.join(" "), expected);
    }

    #[test]
    fn sums_add_every_counter() {
        let one = Counters {
            sent_pkts: 1,
            fault_delayed: 2,
            ..Counters::default()
        };
        let mut sum = one;
        sum.add(&one);
        let expected = |name| match name {
            "sent_pkts" => 2,
            "fault_delayed" => 4,
            _ => 0,
        };
        for (name, value) in sum.iter() {
            assert_eq!(value, expected(name), "{name}");
        }
    }

    #[test]
    fn each_reason_has_its_own_counter_name_and_text() {
        let mut drops = Drops::default();
        for (index, &reason) in DropReason::ALL.iter().enumerate() {
            for _ in 0..=index {
                drops.count(reason);
            }
        }
        let mut doubled = drops;
        doubled.add(&drops);
        for (index, (reason, count)) in doubled.iter().enumerate() {
            assert_eq!(count, 2 * (index as u64 + 1), "{reason}");
            assert_eq!(doubled.of(reason), count);
        }
        let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        let mut texts: Vec<_> = DropReason::ALL.iter().map(DropReason::to_string).collect();
        names.sort_unstable();
        names.dedup();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(
            (names.len(), texts.len()),
            (DropReason::ALL.len(), DropReason::ALL.len())
        );
        assert!(names.iter().all(|name| name.starts_with("drop_")));
    }

    #[test]
    fn each_parse_error_has_its_reason() {
        let good = [
            0x11, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1, 0x1f, 0, 0, 1, 0, 0, 0, 0,
        ];
        let reason = |bytes: &[u8]| DropReason::from(wire::Packet::parse(bytes).unwrap_err());
        assert!(wire::Packet::parse(&good).is_ok());
        assert_eq!(reason(&good[..19]), DropReason::TooShort);
        let with = |at: usize, value| {
            let mut bytes = good;
            bytes[at] = value;
            bytes
        };
        assert_eq!(reason(&with(0, 0xff)), DropReason::UnknownOpcode);
        assert_eq!(reason(&with(1, 0x01)), DropReason::BadVersion);
        let with_payload = [&good[..], &[0; 4]].concat();
        assert_eq!(reason(&with_payload), DropReason::Malformed);
    }
}
