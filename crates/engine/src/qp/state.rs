//! The states of a queue pair. spec: IBA 10.3.1

use core::fmt;

/// State of a queue pair; the values of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Just made: nothing may be posted.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    ReadyToReceive = 2,
    /// Ready to send.
    ReadyToSend = 3,
    /// Send queue drained: nothing new is started.
    SendQueueDrained = 4,
    /// Send queue error, of unreliable transports.
    SendQueueError = 5,
    /// Everything is flushed.
    Error = 6,
}

impl State {
    /// All states in the order of their values.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrained,
        Self::SendQueueError,
        Self::Error,
    ];

    /// The state with a verbs value; `None` for anything else.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u32 == code)
    }

    /// Whether requests of the peer are executed.
    pub const fn receives_requests(self) -> bool {
        matches!(
            self,
            Self::ReadyToReceive
                | Self::ReadyToSend
                | Self::SendQueueDrained
                | Self::SendQueueError
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendQueueDrained => "SQD",
            Self::SendQueueError => "SQE",
            Self::Error => "ERR",
        })
    }
}

/// Transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
}
