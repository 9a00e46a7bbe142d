//! What is counted for queue pairs on streams, beside what those of both transports count.

use wire::iwarp::TerminateCode;

use super::event::Ending;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident)*) => {
        /// Ends of connections that somebody should look at. The names are ours: the kernel's siw
        /// counts nothing.
        ///
        /// An end that the program or the peer wanted is none. Every other one counts once, by its
        /// reason; and once more if it left with a Terminate.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[doc = $doc])+ pub $name: u64,)* }

        impl Counters {
            /// Names and values.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Adds the counts of others.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Terminates that left.
    sent_terminates
    /// Connections that the peer ended with a Terminate.
    rcvd_terminates
    /// Connections that ended with a wrong CRC.
    rcvd_crc_err
    /// Connections that ended with a wrong marker, or with a length that cannot be.
    rcvd_framing_err
    /// Connections that ended with a segment that is not allowed: its header, its place in the
    /// order, memory that it may not use, no receive for it.
    rcvd_segment_err
    /// Connections that TCP lost, or that ended within an FPDU.
    conn_lost
    /// Connections of which the peer did not do its part in time.
    conn_timeout
    /// Connections that were asked for and did not come about: nobody at the TCP port, no reply, or
    /// one that cannot be. A refusal is a reply.
    connect_err
    /// Callers who made no request: something else, something behind it, or nothing before they
    /// hung up.
    request_err
    /// Callers who were given up before they had made one: their time was over, or too many called.
    request_timeout
}

impl Counters {
    /// A connection is over.
    pub(super) fn end(&mut self, ending: Ending) {
        let count = match ending {
            Ending::Closed | Ending::PeerClosed | Ending::Local => return,
            Ending::PeerTerminated(_) => &mut self.rcvd_terminates,
            Ending::Lost => &mut self.conn_lost,
            Ending::TimedOut => &mut self.conn_timeout,
            Ending::Refused(TerminateCode::CRC) => &mut self.rcvd_crc_err,
            Ending::Refused(TerminateCode::MARKER_OR_LENGTH) => &mut self.rcvd_framing_err,
            // it is not the peer who cannot go on
            Ending::Refused(
                TerminateCode::LOCAL_CATASTROPHIC | TerminateCode::DDP_CATASTROPHIC,
            ) => return,
            Ending::Refused(_) => &mut self.rcvd_segment_err,
        };
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_counts_once_by_its_reason() {
        let refused = Ending::Refused;
        for (ending, counted) in [
            (Ending::Closed, None),
            (Ending::PeerClosed, None),
            (Ending::Local, None),
            (
                Ending::PeerTerminated(TerminateCode::CRC),
                Some("rcvd_terminates"),
            ),
            (Ending::Lost, Some("conn_lost")),
            (Ending::TimedOut, Some("conn_timeout")),
            (refused(TerminateCode::CRC), Some("rcvd_crc_err")),
            (
                refused(TerminateCode::MARKER_OR_LENGTH),
                Some("rcvd_framing_err"),
            ),
            (refused(TerminateCode::NO_BUFFER), Some("rcvd_segment_err")),
            (
                refused(TerminateCode::REMOTE_BOUNDS),
                Some("rcvd_segment_err"),
            ),
            (refused(TerminateCode::LOCAL_CATASTROPHIC), None),
            (refused(TerminateCode::DDP_CATASTROPHIC), None),
        ] {
            let mut counters = Counters::default();
            counters.end(ending);
            let found: Vec<_> = counters.iter().filter(|(_, count)| *count > 0).collect();
            let expected: Vec<_> = counted.iter().map(|name| (*name, 1)).collect();
            assert_eq!(found, expected, "{ending:?}");
        }
    }

    #[test]
    fn sums_add_every_counter() {
        let one = Counters {
            sent_terminates: 1,
            request_timeout: 2,
            ..Counters::default()
        };
        let mut sum = one;
        sum.add(&one);
        for ((name, sum), (_, one)) in sum.iter().zip(one.iter()) {
            assert_eq!(sum, 2 * one, "{name}");
        }
    }
}
