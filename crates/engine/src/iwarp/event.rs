//! What a queue pair tells its driver.

use wire::iwarp::TerminateCode;

use crate::event::AsyncEvent;

/// Something to do or to pass on, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// For the program: both ends may send.
    Established,
    /// For the program's queue of asynchronous events.
    Async(AsyncEvent),
    /// For the program: the connection is over. The queue pair is in the error state.
    Disconnected(Ending),
    /// Nothing more will be sent: shut down the sending half once what was polled has left.
    Finish,
    /// Close the connection; what was sent still arrives.
    Close,
    /// Abort the connection: the peer learns of it at once, and what was sent may be lost.
    Abort,
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The program closed it, and the peer did then.
    Closed,
    /// The peer closed it.
    PeerClosed,
    /// The peer met an error.
    PeerTerminated(TerminateCode),
    /// What the peer sent is an error.
    Refused(TerminateCode),
    /// A work request failed, or the program asked for the error state.
    Local,
    /// TCP lost it, or it ended within an FPDU.
    Lost,
    /// The peer did not do its part in time.
    TimedOut,
}
