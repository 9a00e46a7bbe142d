//! Messages between a program and its broker.
//!
//! One JSON text in each record of a `SOCK_SEQPACKET` connection; a record has a bound. The first
//! record in each direction is a [`Greeting`], whose `version` every release can read: a broker
//! of another version is an error that says so, never a misread message. After that, a client
//! sends a [`Call`] and gets the [`Answer`] with the same number; a connection that subscribed
//! gets [`News`] and nothing else, and answers questions with [`Request::Report`].

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{
    counters::LinkCounts,
    gsi::Counters,
    iwarp::IwarpOptions,
    link::LinkInfo,
    port::{BoundPort, PortAddress, PortRefusal, PortSpace, space_code},
    resource::{Process, Question, Report},
};

/// Raised with every change of a message.
pub const PROTOCOL_VERSION: u32 = 5;

/// The longest record, bytes: a link with a full GID table fits.
pub const RECORD_LENGTH_MAX: usize = 160 * 1024;

/// The RoCEv2 port. spec: IBA A17.3.1
pub const ROCE_PORT: u16 = 4791;

/// Number of socket slots: the top byte of a QPN.
pub const SLOT_COUNT: usize = 256;

/// Where the top byte of the destination QPN is in a UDP payload. spec: IBA 9.2
pub const SLOT_BYTE_OFFSET: u32 = 5;

/// The first record in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    /// Its process id, in its own namespace.
    #[serde(default)]
    pub pid: i32,
    /// Its program, for people.
    #[serde(default)]
    pub program: String,
    /// From a client only: it knows what to do with the credit table, which then comes with each
    /// lease.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub takes_credit: bool,
    /// From the broker only: why it does not serve this client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
}

/// A numbered request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Chosen by the client, repeated in the answer.
    pub id: u64,
    /// What it wants.
    pub request: Request,
}

/// What a client can ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The names of all links.
    Links,
    /// One link.
    Link {
        /// Its name.
        name: String,
    },
    /// A new link.
    LinkAdd {
        /// Its name.
        name: String,
        /// The word after `type`.
        kind: String,
        /// The interface below.
        netdev: String,
        /// Whether it keeps the broker running when nobody is connected.
        keep: bool,
        /// Options of a link of type `siw`, if they are not the usual ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        iwarp: Option<IwarpOptions>,
    },
    /// Takes a link away.
    LinkDelete {
        /// Its name.
        name: String,
    },
    /// This process opened (or closed) a device: a link in use cannot be deleted.
    LinkUse {
        /// Its name.
        name: String,
        /// Whether it begins or ends.
        using: bool,
    },
    /// A socket slot; it is free again when the process ends or its connection closes. A second one
    /// and more are given only while over half of all slots are free, and never waited for.
    LeaseSlot,
    /// Gives a slot back before that.
    ReleaseSlot {
        /// Its number.
        slot: u8,
    },
    /// Packets to a multicast group that arrive at an interface come to a slot of the caller as
    /// well, until it leaves the group or gives the slot back.
    JoinGroup {
        /// The slot.
        slot: u8,
        /// The group.
        address: IpAddr,
        /// Index of the interface.
        interface: u32,
    },
    /// Ends that.
    LeaveGroup {
        /// The slot.
        slot: u8,
        /// The group.
        address: IpAddr,
        /// Index of the interface.
        interface: u32,
    },
    /// A port of one's own; it is free again when the process ends or its connection closes.
    BindPort {
        /// Each has its own ports.
        #[serde(with = "space_code")]
        space: PortSpace,
        /// Which; 0 leaves it to the broker.
        port: u16,
        /// Where.
        address: PortAddress,
        /// Others who wish it too may be at the same address, until one of them listens.
        reuse: bool,
    },
    /// Requests for connections to a bound port go to a slot of the caller from now on, until the
    /// port or the slot is given back.
    Listen {
        /// The number of the bound port.
        id: u64,
        /// The slot.
        slot: u8,
    },
    /// Gives a port back.
    ReleasePort {
        /// The number of the bound port.
        id: u64,
    },
    /// Who has which slot.
    SlotHolders,
    /// Keeps broker and links for the life of this process, whatever becomes of the connection.
    Hold,
    /// From now on this connection gets [`News`], and must answer the questions among them.
    Subscribe,
    /// The processes that can be asked what they have.
    Processes,
    /// Asks one of them. It has a second to answer.
    Inquire {
        /// Its [`Process::key`].
        process: u64,
        /// What.
        question: Question,
    },
    /// What was counted for a link.
    Counts {
        /// Its name.
        link: String,
    },
    /// The answer of a process. Alone of all requests it gets none itself.
    Report {
        /// [`News::Question::inquiry`]
        inquiry: u64,
        /// What it has.
        report: Report,
    },
    /// The broker itself.
    Status,
    /// Asks the broker to end.
    Shutdown,
}

/// The answer to the call of the same number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The number of the call.
    pub id: u64,
    /// What came of it.
    pub result: Result<Reply, Refusal>,
}

/// What a request yields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It is done.
    Done,
    /// Names of links, oldest first.
    Names(Vec<String>),
    /// One link.
    Link(LinkInfo),
    /// A slot; the record carries the receive socket, the steering socket, and then what is there
    /// of the rest, in this order.
    Lease {
        /// Its number, 1 to 255.
        slot: u8,
        /// Whether the credit table is there: only for those who take it.
        has_credit: bool,
        /// Whether a counter page is.
        has_counters: bool,
        /// The names of all steering sockets, see [`steer_name`].
        steer_prefix: String,
    },
    /// A port.
    Bound(BoundPort),
    /// Who has which slot.
    Holders(Vec<Holder>),
    /// The broker itself.
    Status(Status),
    /// Processes that can be asked.
    Processes(Vec<Process>),
    /// What one of them answered.
    Report(Report),
    /// What was counted for a link.
    Counts(LinkCounts),
}

/// Who holds a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The slot.
    pub slot: u8,
    /// The process, as the broker's namespace numbers it; 0 if it is not visible there.
    pub pid: i32,
    /// Its program.
    pub program: String,
}

/// What a broker says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub pid: i32,
    /// Its owner, in its own user namespace.
    pub uid: u32,
    /// Release of the program.
    pub release: String,
    /// The UDP port of its group.
    pub port: u16,
    /// Why the port is not open; `None` if it is.
    pub port_problem: Option<String>,
    /// Connected clients.
    pub clients: u32,
    /// Slots in use.
    pub leased: u32,
    /// Slots of ended processes that wait for quiet.
    pub cooling: u32,
    /// Links.
    pub links: u32,
    /// How often the steering program was lost and attached again.
    pub steering_repairs: u64,
    /// Bound RDMA ports.
    pub ports: u32,
    /// What became of packets to QP 1.
    pub gsi: Counters,
}

/// What a subscribed connection gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// Something happened to a link.
    Link(Event),
    /// Somebody asks what this process has.
    Question {
        /// To be repeated in the answer.
        inquiry: u64,
        /// What.
        question: Question,
    },
}

/// What happened to a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A link was added.
    Added(LinkInfo),
    /// Something of a link changed.
    Changed {
        /// As it is now.
        link: LinkInfo,
        /// What differs.
        changes: Changes,
    },
    /// A link is gone, by request or with its interface.
    Removed {
        /// Its name.
        name: String,
    },
}

impl Event {
    /// The link that this is about.
    pub fn link_name(&self) -> &str {
        match self {
            Self::Added(link) | Self::Changed { link, .. } => &link.name,
            Self::Removed { name } => name,
        }
    }
}

/// What differs in a changed link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Its port went up or down.
    pub port_state: bool,
    /// Entries of its GID table came or went.
    pub gids: bool,
    /// Its MTU.
    pub mtu: bool,
    /// Its name or its interface's name or MAC.
    pub identity: bool,
}

impl Changes {
    /// What differs between two states of a link.
    pub fn between(old: &LinkInfo, new: &LinkInfo) -> Self {
        Self {
            port_state: old.physical_state() != new.physical_state(),
            gids: old.gids != new.gids,
            mtu: old.netdev_mtu != new.netdev_mtu,
            identity: (&old.name, &old.netdev, old.mac) != (&new.name, &new.netdev, new.mac),
        }
    }

    /// Whether anything does.
    pub const fn any(self) -> bool {
        self.port_state || self.gids || self.mtu || self.identity
    }

    /// Both together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self {
            port_state: self.port_state | other.port_state,
            gids: self.gids | other.gids,
            mtu: self.mtu | other.mtu,
            identity: self.identity | other.identity,
        }
    }
}

/// Why the broker does not do what it was asked; the text is for the person in front of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The name of a new link is that of another.
    #[error("a link named {name} exists already")]
    NameInUse {
        /// The name.
        name: String,
    },
    /// The interface has a link of this type.
    #[error("{netdev} already has the {kind} link {link}")]
    NetdevInUse {
        /// The interface.
        netdev: String,
        /// The type.
        kind: String,
        /// The link it has.
        link: String,
    },
    /// There is no such interface.
    #[error("there is no network interface {netdev}")]
    NoSuchNetdev {
        /// The name that was asked for.
        netdev: String,
    },
    /// There is no such link.
    #[error("there is no link {name}")]
    NoSuchLink {
        /// The name that was asked for.
        name: String,
    },
    /// The name of a new link cannot be one.
    #[error("{name:?} cannot be the name of a link: {reason}")]
    InvalidName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No such type of links.
    #[error("there is no link type {kind}; there are rxe and siw")]
    UnknownKind {
        /// The type that was asked for.
        kind: String,
    },
    /// Options that a new link cannot have.
    #[error("{detail}")]
    InvalidOption {
        /// Which, and what there is.
        detail: String,
    },
    /// Programs have the device open.
    #[error("link {name} is in use by {}", holders_text(.holders))]
    LinkInUse {
        /// The link.
        name: String,
        /// Who uses it (the slot means nothing here).
        holders: Vec<Holder>,
    },
    /// All slots are taken.
    #[error("all {} socket slots are taken, by {}", SLOT_COUNT - 1, holders_text(.holders))]
    SlotsExhausted {
        /// By whom.
        holders: Vec<Holder>,
    },
    /// The caller has one already, and others may need those that are left.
    #[error(
        "a program that has {holds} of the socket slots gets another only while over half of \
         all are free"
    )]
    NoSlotToSpare {
        /// How many it has.
        holds: u8,
    },
    /// The slot is not the caller's.
    #[error("slot {slot} is not leased to this client")]
    NotYourSlot {
        /// The slot.
        slot: u8,
    },
    /// An RDMA port cannot be had.
    #[error(transparent)]
    Port(#[from] PortRefusal),
    /// There is no such process, or it has just ended.
    #[error("this process has ended")]
    NoSuchProcess,
    /// A process was asked and did not answer: it may be stopped.
    #[error("{program} (pid {pid}) did not answer")]
    NoAnswer {
        /// Its number.
        pid: i32,
        /// Its program.
        program: String,
    },
    /// The broker could not open its UDP port.
    #[error("{detail}")]
    PortUnavailable {
        /// What is in the way, and what to do.
        detail: String,
    },
    /// The caller is somebody else.
    #[error("{detail}")]
    NotPermitted {
        /// Who may, and what to do.
        detail: String,
    },
    /// The versions differ.
    #[error(
        "the softrdma broker (pid {broker_pid}) speaks protocol version {broker}, this program \
         version {client}: stop it with `softrdma broker stop`, the next program starts a new one"
    )]
    VersionMismatch {
        /// The broker's version.
        broker: u32,
        /// The client's version.
        client: u32,
        /// The broker's process.
        broker_pid: i32,
    },
    /// A message made no sense.
    #[error("malformed request: {detail}")]
    Malformed {
        /// What was wrong.
        detail: String,
    },
    /// A system call failed in the broker.
    #[error("{action}: {}", std::io::Error::from_raw_os_error(*.errno))]
    System {
        /// What was attempted.
        action: String,
        /// The error number.
        errno: i32,
    },
}

impl Refusal {
    /// The error number that the kernel gives in this case.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NameInUse { .. } => libc::ENFILE,
            Self::NetdevInUse { .. } => libc::EEXIST,
            Self::NoSuchNetdev { .. } | Self::NoSuchLink { .. } => libc::ENODEV,
            Self::InvalidName { .. }
            | Self::UnknownKind { .. }
            | Self::InvalidOption { .. }
            | Self::NotYourSlot { .. }
            | Self::Malformed { .. } => libc::EINVAL,
            Self::LinkInUse { .. } | Self::NoSlotToSpare { .. } => libc::EBUSY,
            Self::SlotsExhausted { .. } => libc::EAGAIN,
            Self::Port(refusal) => refusal.errno(),
            Self::NoSuchProcess => libc::ESRCH,
            Self::NoAnswer { .. } => libc::ETIMEDOUT,
            Self::PortUnavailable { .. } => libc::EADDRINUSE,
            Self::NotPermitted { .. } => libc::EACCES,
            Self::VersionMismatch { .. } => libc::EPROTONOSUPPORT,
            Self::System { errno, .. } => *errno,
        }
    }
}

/// Names processes, each once: `ib_write_bw (pid 4711), rping (pid 4712) and 3 more`.
fn holders_text(holders: &[Holder]) -> String {
    const NAMED_MAX: usize = 8;
    let mut names: Vec<String> = Vec::new();
    for holder in holders {
        let name = format!("{} (pid {})", holder.program, holder.pid);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    let text = names.join(", ");
    if more > 0 {
        format!("{text} and {more} more")
    } else {
        text
    }
}

/// Abstract name of the control socket of the broker called `instance`.
pub fn control_name(instance: &str) -> String {
    format!("softrdma/{instance}/control")
}

/// What precedes the slot number in the name of a steering socket.
pub fn steer_prefix(instance: &str) -> String {
    format!("softrdma/{instance}/steer/")
}

/// Abstract name of a slot's steering socket, where other processes pass on what is its own.
pub fn steer_name(prefix: &str, slot: u8) -> String {
    format!("{prefix}{slot}")
}

/// This process, as greetings name it.
pub(crate) fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Bytes of a message.
pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    // these types have string keys only and no fallible serializer
    serde_json::to_vec(message).expect("messages are plain data")
}

/// A message of a record; the text says what is wrong with it.
pub(crate) fn decode<'a, T: Deserialize<'a>>(record: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(record).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_of_another_release_can_be_read() {
        let greeting: Greeting = decode(br#"{"version":77,"pid":5,"later":{"field":[1]}}"#)
            .expect("only version counts");
        assert_eq!(
            (greeting.version, greeting.pid, greeting.refused),
            (77, 5, None)
        );
    }

    #[test]
    fn messages_survive_the_way() {
        let call = Call {
            id: 7,
            request: Request::LinkAdd {
                name: "rxe0".into(),
                kind: "rxe".into(),
                netdev: "eth0".into(),
                keep: true,
                iwarp: None,
            },
        };
        let back: Call = decode(&encode(&call)).expect("what encode wrote");
        assert_eq!((back.id, back.request), (call.id, call.request));
        assert!(decode::<Call>(b"{").is_err());
        assert!(decode::<Call>(br#"{"id":1,"request":"NoSuch"}"#).is_err());
    }

    #[test]
    fn refusals_name_holders_once_and_not_all() {
        let holder = |pid| Holder {
            slot: 1,
            pid,
            program: "rping".into(),
        };
        assert_eq!(holders_text(&[holder(5), holder(5)]), "rping (pid 5)");
        let many: Vec<Holder> = (0..20).map(holder).collect();
        assert!(holders_text(&many).ends_with("rping (pid 7) and 12 more"));
    }
}
