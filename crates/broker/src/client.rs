//! The client: what a program and the command line ask of the broker.
//!
//! No thread and no buffering of its own: a call sends one record and waits for one, with a guard
//! against a broker that hangs. Calls and news have separate connections, so that whoever watches
//! [`Client::as_fd`] for news (or for the end of the broker) never meets an answer.

use std::{
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::geteuid;

pub use crate::error::{CallError, ConnectError};
use crate::{
    counters::{CounterPage, LinkCounts},
    credit::CreditTable,
    iwarp::IwarpOptions,
    link::LinkInfo,
    port::{BoundPort, PortAddress, PortSpace},
    protocol::{
        Answer, Call, Greeting, Holder, News, PROTOCOL_VERSION, ROCE_PORT, Refusal, Reply, Request,
        Status, control_name, decode, encode, own_pid, steer_name,
    },
    resource::{Process, Question, Report},
    spawn,
    transport::{Connection, Received, Room},
    who::{self, IdMap, Peer},
};

/// Names the user whose broker to use; only root can use somebody else's.
pub const OWNER_VARIABLE: &str = "SOFTRDMA_BROKER_UID";

/// A broker that was started and is not there after this may have met the end of another one that
/// still had the address: start again.
const RESTART_AFTER: Duration = Duration::from_secs(3);

/// How to find, or start, a broker.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Start one if none runs.
    pub start: bool,
    /// Open a connection for [`Client::news`]. Who does must take them, and answer the questions
    /// among them.
    pub subscribe: bool,
    /// The library that this code is in: the broker program is in the `bin` folder beside its
    /// folder, unless `SOFTRDMA_BIN` names another.
    pub library: Option<PathBuf>,
    /// The broker program, before all other places.
    pub program: Option<PathBuf>,
    /// Distinguishes brokers of one network namespace; by default the user's id.
    pub instance: Option<String>,
    /// UDP port of a broker that is started here.
    pub port: u16,
    /// Bounds connecting, and each call. A lease may take several seconds while slots or the port
    /// become free.
    pub timeout: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            start: true,
            subscribe: false,
            library: None,
            program: None,
            instance: None,
            port: ROCE_PORT,
            timeout: Duration::from_secs(20),
        }
    }
}

/// A leased slot. Dropping it closes this process's descriptors; the slot itself is given back by
/// [`Client::release_slot`], or by the end of the connection or of the process.
#[derive(Debug)]
pub struct Lease {
    /// The top byte of the QPNs that may be used, 1 to 255.
    pub slot: u8,
    /// The member of the group that gets this slot's packets. Never connect it.
    pub receive: OwnedFd,
    /// A unix datagram socket, where other processes pass on packets of this slot that reached
    /// them; it brings the sender's credentials, and only one's own uid is to be believed.
    pub steer: OwnedFd,
    /// How full the receive buffers of this host are; `None` from a broker that has no such table.
    pub credit: Option<CreditTable>,
    /// Where to write what was counted; `None` where the broker could not make it.
    pub counters: Option<CounterPage>,
    steer_prefix: String,
}

impl Lease {
    /// The abstract name of the steering socket of any slot of this broker.
    pub fn steer_name(&self, slot: u8) -> String {
        steer_name(&self.steer_prefix, slot)
    }
}

/// A connection to the broker. Calls from several threads take turns.
#[derive(Debug)]
pub struct Client {
    calls: Mutex<Calls>,
    /// For watching: the connection of news, else a duplicate of the one of calls.
    watch: Connection,
    /// For news.
    room: Mutex<Room>,
    subscribed: bool,
    broker: Greeting,
    timeout: Duration,
}

#[derive(Debug)]
struct Calls {
    connection: Connection,
    next_id: u64,
    /// For answers.
    room: Room,
}

impl Client {
    /// Connects to the broker of this user and network namespace, starting it if need be.
    pub fn connect(options: &ConnectOptions) -> Result<Self, ConnectError> {
        let deadline = Instant::now() + options.timeout;
        let (name, judge) = address(options)?;
        let (connection, broker) = match open(&name, &judge, deadline)? {
            Some(opened) => opened,
            None if options.start && judge.owner == geteuid().as_raw() => {
                start_and_open(options, &name, &judge, deadline)?
            }
            None => return Err(ConnectError::NotRunning),
        };
        let calls = Calls::new(connection);
        let watch = if options.subscribe {
            let (connection, _) = open(&name, &judge, deadline)?.ok_or(ConnectError::NotRunning)?;
            let mut events = Calls::new(connection);
            events
                .call(Request::Subscribe, options.timeout)
                .map_err(|error| match error {
                    CallError::Refused(refusal) => ConnectError::Refused(refusal),
                    CallError::System(cause) => ConnectError::System {
                        attempt: "subscribe",
                        cause,
                    },
                    CallError::Lost => ConnectError::NotRunning,
                    CallError::Timeout | CallError::Malformed(_) => {
                        ConnectError::Timeout(options.timeout)
                    }
                })?;
            events.connection
        } else {
            calls
                .connection
                .duplicate()
                .map_err(|cause| ConnectError::System {
                    attempt: "duplicate the connection to the softrdma broker",
                    cause,
                })?
        };
        Ok(Self {
            calls: Mutex::new(calls),
            watch,
            room: Mutex::default(),
            subscribed: options.subscribe,
            broker,
            timeout: options.timeout,
        })
    }

    /// All links, oldest first.
    pub fn links(&self) -> Result<Vec<LinkInfo>, CallError> {
        let names = match self.call(Request::Links)?.0 {
            Reply::Names(names) => names,
            other => return Err(unexpected(&other)),
        };
        let mut links = Vec::with_capacity(names.len());
        for name in names {
            match self.link(&name) {
                Ok(link) => links.push(link),
                // deleted since the names were given
                Err(CallError::Refused(Refusal::NoSuchLink { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(links)
    }

    /// One link.
    pub fn link(&self, name: &str) -> Result<LinkInfo, CallError> {
        link_of(self.call(Request::Link { name: name.into() })?.0)
    }

    /// Makes a link of type `kind` on `netdev`; with `keep` the broker stays for it when nobody is
    /// connected.
    pub fn add_link(
        &self,
        name: &str,
        kind: &str,
        netdev: &str,
        keep: bool,
    ) -> Result<LinkInfo, CallError> {
        self.add_link_with(name, kind, netdev, keep, None)
    }

    /// The same with options, which links of type `siw` have.
    pub fn add_link_with(
        &self,
        name: &str,
        kind: &str,
        netdev: &str,
        keep: bool,
        iwarp: Option<IwarpOptions>,
    ) -> Result<LinkInfo, CallError> {
        let (name, kind, netdev) = (name.into(), kind.into(), netdev.into());
        let request = Request::LinkAdd {
            name,
            kind,
            netdev,
            keep,
            iwarp,
        };
        link_of(self.call(request)?.0)
    }

    /// Takes a link away that nobody uses.
    pub fn delete_link(&self, name: &str) -> Result<(), CallError> {
        self.done(Request::LinkDelete { name: name.into() })
    }

    /// Says that this process has the device open: its link cannot be deleted until
    /// [`Self::end_use`] was called as often.
    pub fn begin_use(&self, name: &str) -> Result<(), CallError> {
        self.done(Request::LinkUse {
            name: name.into(),
            using: true,
        })
    }

    /// Ends what [`Self::begin_use`] began.
    pub fn end_use(&self, name: &str) -> Result<(), CallError> {
        self.done(Request::LinkUse {
            name: name.into(),
            using: false,
        })
    }

    /// A slot of one's own. Waits some seconds if slots or the port are about to become free. Who
    /// has one gets another, without waiting, only while over half of all are free:
    /// [`Refusal::NoSlotToSpare`] otherwise.
    pub fn lease_slot(&self) -> Result<Lease, CallError> {
        let (reply, descriptors) = self.call(Request::LeaseSlot)?;
        let Reply::Lease {
            slot,
            has_credit,
            has_counters,
            steer_prefix,
        } = reply
        else {
            return Err(unexpected(&reply));
        };
        let mut descriptors = descriptors.into_iter();
        let (Some(receive), Some(steer)) = (descriptors.next(), descriptors.next()) else {
            // the kernel had no numbers for them here: the slot must not stay ours for nothing
            self.release_slot(slot)?;
            return Err(CallError::System(io::Errno::MFILE));
        };
        // a program does without either
        let useless = |what| move |errno: &io::Errno| tracing::warn!(%errno, what, "of no use");
        let credit = has_credit.then(|| descriptors.next()).flatten();
        let credit = credit.and_then(|file| {
            let opened = CreditTable::open(file);
            opened.inspect_err(useless("credit table")).ok()
        });
        let counters = has_counters.then(|| descriptors.next()).flatten();
        let counters = counters.and_then(|file| {
            let opened = CounterPage::open(file);
            opened.inspect_err(useless("counter page")).ok()
        });
        Ok(Lease {
            slot,
            receive,
            steer,
            credit,
            counters,
            steer_prefix,
        })
    }

    /// Gives a slot back; close its descriptors first.
    pub fn release_slot(&self, slot: u8) -> Result<(), CallError> {
        self.done(Request::ReleaseSlot { slot })
    }

    /// Has packets to a multicast group that arrive at an interface come to the receive socket of
    /// `slot` as well, until [`Self::leave_group`] or the end of the lease.
    ///
    /// # Errors
    /// `ENOMEM` when the socket is in as many groups as the kernel allows.
    pub fn join_group(&self, slot: u8, address: IpAddr, interface: u32) -> Result<(), CallError> {
        self.done(Request::JoinGroup {
            slot,
            address,
            interface,
        })
    }

    /// Ends what [`Self::join_group`] began.
    pub fn leave_group(&self, slot: u8, address: IpAddr, interface: u32) -> Result<(), CallError> {
        self.done(Request::LeaveGroup {
            slot,
            address,
            interface,
        })
    }

    /// Binds an RDMA port, 0 for any; several may be bound at one port. It is free again after
    /// [`Self::release_port`], or with the end of the connection or of the process.
    ///
    /// # Errors
    /// [`PortRefusal`](crate::port::PortRefusal) says why not.
    pub fn bind_port(
        &self,
        space: PortSpace,
        port: u16,
        address: PortAddress,
        reuse: bool,
    ) -> Result<BoundPort, CallError> {
        let request = Request::BindPort {
            space,
            port,
            address,
            reuse,
        };
        match self.call(request)?.0 {
            Reply::Bound(bound) => Ok(bound),
            other => Err(unexpected(&other)),
        }
    }

    /// Has requests for connections to a bound port passed on to the steering socket of `slot`,
    /// until the port or the slot is given back.
    ///
    /// # Errors
    /// [`PortRefusal`](crate::port::PortRefusal) also where the port is shared with others.
    pub fn listen(&self, id: u64, slot: u8) -> Result<(), CallError> {
        self.done(Request::Listen { id, slot })
    }

    /// Gives a port back.
    pub fn release_port(&self, id: u64) -> Result<(), CallError> {
        self.done(Request::ReleasePort { id })
    }

    /// Who has which slot.
    pub fn slot_holders(&self) -> Result<Vec<Holder>, CallError> {
        match self.call(Request::SlotHolders)?.0 {
            Reply::Holders(holders) => Ok(holders),
            other => Err(unexpected(&other)),
        }
    }

    /// Keeps broker and links as long as this process lives, also through `exec`.
    pub fn hold(&self) -> Result<(), CallError> {
        self.done(Request::Hold)
    }

    /// What the broker says of itself.
    pub fn status(&self) -> Result<Status, CallError> {
        match self.call(Request::Status)?.0 {
            Reply::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks the broker to end; whoever still uses it loses its devices.
    pub fn shut_down(&self) -> Result<(), CallError> {
        self.done(Request::Shutdown)
    }

    /// The broker's greeting: its process and release of the protocol.
    pub fn broker(&self) -> &Greeting {
        &self.broker
    }

    /// The processes that can be asked what they have: those with an open device.
    pub fn processes(&self) -> Result<Vec<Process>, CallError> {
        match self.call(Request::Processes)?.0 {
            Reply::Processes(processes) => Ok(processes),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks the process with this [`Process::key`] what it has. It may take some seconds.
    ///
    /// # Errors
    /// [`Refusal::NoSuchProcess`], [`Refusal::NoAnswer`].
    pub fn inquire(&self, process: u64, question: Question) -> Result<Report, CallError> {
        match self.call(Request::Inquire { process, question })?.0 {
            Reply::Report(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    /// What was counted for a link up to now, as far as programs have written it.
    pub fn counts(&self, link: &str) -> Result<LinkCounts, CallError> {
        match self.call(Request::Counts { link: link.into() })?.0 {
            Reply::Counts(counts) => Ok(counts),
            other => Err(unexpected(&other)),
        }
    }

    /// Answers a question that came among the [`Self::news`]. Nothing is waited for: a broker that
    /// does not read the answer does without it.
    pub fn report(&self, inquiry: u64, report: Report) -> Result<(), CallError> {
        // the number of a call that has no answer means nothing
        let call = Call {
            id: 0,
            request: Request::Report { inquiry, report },
        };
        self.watch.send(&encode(&call), &[]).map_err(lost_or)
    }

    /// What came since the last time, without waiting; `Lost` when the broker has ended. Nothing
    /// without [`ConnectOptions::subscribe`].
    pub fn news(&self) -> Result<Vec<News>, CallError> {
        let mut news = Vec::new();
        if !self.subscribed {
            // records on this connection are answers, and somebody waits for them
            return if self.watch.has_ended() {
                Err(CallError::Lost)
            } else {
                Ok(news)
            };
        }
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match self
                .watch
                .try_receive(&mut room)
                .map_err(CallError::System)?
            {
                Received::Record { bytes, .. } => {
                    news.push(decode(&bytes).map_err(CallError::Malformed)?);
                }
                Received::Nothing => return Ok(news),
                Received::End if news.is_empty() => return Err(CallError::Lost),
                Received::End => return Ok(news),
            }
        }
    }

    fn call(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>), CallError> {
        // a thread that panicked between sending and receiving leaves an answer behind, which the
        // number of the next call sorts out
        let mut calls = self
            .calls
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        calls.call(request, self.timeout)
    }

    fn done(&self, request: Request) -> Result<(), CallError> {
        match self.call(request)?.0 {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

impl AsFd for Client {
    /// Readable when [`Client::news`] has something, or the broker has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl Calls {
    fn new(connection: Connection) -> Self {
        Self {
            connection,
            next_id: 1,
            room: Room::default(),
        }
    }

    fn call(
        &mut self,
        request: Request,
        timeout: Duration,
    ) -> Result<(Reply, Vec<OwnedFd>), CallError> {
        let deadline = Instant::now() + timeout;
        let id = self.next_id;
        self.next_id += 1;
        self.connection
            .send(&encode(&Call { id, request }), &[])
            .map_err(lost_or)?;
        loop {
            let received = self.connection.receive(deadline, &mut self.room);
            let answer = match received.map_err(lost_or)? {
                Received::Record { bytes, descriptors } => {
                    let answer: Answer = decode(&bytes).map_err(CallError::Malformed)?;
                    (answer, descriptors)
                }
                Received::End => return Err(CallError::Lost),
                Received::Nothing => return Err(CallError::Timeout),
            };
            match answer {
                (Answer { id: of, result }, descriptors) if of == id => {
                    return Ok((result?, descriptors));
                }
                // the late answer to a call that was given up
                _ => {}
            }
        }
    }
}

fn lost_or(errno: io::Errno) -> CallError {
    match errno {
        io::Errno::PIPE | io::Errno::CONNRESET => CallError::Lost,
        other => CallError::System(other),
    }
}

fn link_of(reply: Reply) -> Result<LinkInfo, CallError> {
    match reply {
        Reply::Link(link) => Ok(link),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(reply: &Reply) -> CallError {
    CallError::Malformed(format!("unexpected {reply:?}"))
}

/// How to judge who is at the other end.
struct Judge {
    /// Whose broker is wanted, as this namespace numbers users.
    owner: u32,
    map: IdMap,
    overflow: u32,
}

impl Judge {
    fn check(&self, peer: u32) -> Result<(), ConnectError> {
        match who::judge(peer, self.owner, &self.map, self.overflow) {
            Peer::Own | Peer::Root => Ok(()),
            Peer::Stranger => Err(ConnectError::Stranger { uid: peer }),
            Peer::Outsider => Err(ConnectError::Outsider),
        }
    }
}

/// The abstract name of the broker's socket, and who may be behind it.
fn address(options: &ConnectOptions) -> Result<(String, Judge), ConnectError> {
    let own = geteuid().as_raw();
    let map = IdMap::of_this_process();
    if map.outside(own).is_none() {
        return Err(ConnectError::Unmapped { uid: own });
    }
    let chosen = spawn::trusted_variable(OWNER_VARIABLE).and_then(|text| text.parse().ok());
    let owner = chosen.unwrap_or(own);
    let instance = options
        .instance
        .clone()
        .unwrap_or_else(|| default_instance(owner, &map));
    Ok((
        control_name(&instance),
        Judge {
            owner,
            map,
            overflow: who::overflow_uid(),
        },
    ))
}

/// The user's id as the parent namespace has it: so a program in a user namespace of its own, in
/// the network namespace of its user, finds the broker of its user.
pub(crate) fn default_instance(uid: u32, map: &IdMap) -> String {
    map.outside(uid).unwrap_or(uid).to_string()
}

/// Connects and greets; `None` if nobody is there.
fn open(
    name: &str,
    judge: &Judge,
    deadline: Instant,
) -> Result<Option<(Connection, Greeting)>, ConnectError> {
    let system = |attempt| move |cause| ConnectError::System { attempt, cause };
    let connection = match Connection::connect(name) {
        Ok(connection) => connection,
        Err(io::Errno::CONNREFUSED | io::Errno::NOENT) => return Ok(None),
        Err(cause) => return Err(system("connect to the softrdma broker")(cause)),
    };
    let peer = connection
        .peer()
        .map_err(system("read the credentials of the broker"))?;
    judge.check(peer.uid)?;

    let greeting = Greeting {
        version: PROTOCOL_VERSION,
        pid: own_pid(),
        program: program_name(),
        takes_credit: true,
        refused: None,
    };
    // where the kernel or a filter has no pidfd for us, the broker gets its own
    let pidfd = io::poll::pidfd(own_pid()).ok();
    let descriptors: Vec<BorrowedFd<'_>> = pidfd.iter().map(AsFd::as_fd).collect();
    let received = connection
        .send(&encode(&greeting), &descriptors)
        .and_then(|()| connection.receive(deadline, &mut Room::default()));
    let bytes = match received {
        Ok(Received::Record { bytes, .. }) => bytes,
        // it ended this very moment: as if it had not been there
        Ok(Received::End) | Err(io::Errno::PIPE | io::Errno::CONNRESET) => return Ok(None),
        Ok(Received::Nothing) => {
            return Err(ConnectError::System {
                attempt: "wait for the greeting of the softrdma broker",
                cause: io::Errno::TIMEDOUT,
            });
        }
        Err(cause) => return Err(system("greet the softrdma broker")(cause)),
    };
    let broker: Greeting = decode(&bytes).map_err(|detail| Refusal::Malformed { detail })?;
    if broker.version != PROTOCOL_VERSION {
        return Err(ConnectError::Refused(Refusal::VersionMismatch {
            broker: broker.version,
            client: PROTOCOL_VERSION,
            broker_pid: if peer.pid > 0 { peer.pid } else { broker.pid },
        }));
    }
    match broker.refused {
        Some(refusal) => Err(ConnectError::Refused(refusal)),
        None => Ok(Some((connection, broker))),
    }
}

/// Starts the broker and connects to it. Several programs may do so at once: one of their brokers
/// gets the address, the others end, and all programs end up with the one.
fn start_and_open(
    options: &ConnectOptions,
    name: &str,
    judge: &Judge,
    deadline: Instant,
) -> Result<(Connection, Greeting), ConnectError> {
    const FIRST_PAUSE: Duration = Duration::from_millis(2);
    const LONGEST_PAUSE: Duration = Duration::from_millis(100);
    let program = find_program(options)?;
    let arguments = start_arguments(options);
    loop {
        spawn::start(&program, &arguments).map_err(|cause| ConnectError::Start {
            program: program.clone(),
            cause,
        })?;
        let again_at = Instant::now() + RESTART_AFTER;
        let mut pause = FIRST_PAUSE;
        while Instant::now() < again_at {
            if let Some(opened) = open(name, judge, deadline)? {
                return Ok(opened);
            }
            if Instant::now() >= deadline {
                return Err(ConnectError::Timeout(options.timeout));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn find_program(options: &ConnectOptions) -> Result<PathBuf, ConnectError> {
    let looked_for: Vec<PathBuf> = options
        .program
        .clone()
        .into_iter()
        .chain(spawn::candidates(options.library.as_deref()))
        .collect();
    match looked_for.iter().find(|path| is_program(path)) {
        Some(program) => Ok(program.clone()),
        None => Err(ConnectError::NoProgram { looked_for }),
    }
}

fn is_program(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file()
}

fn start_arguments(options: &ConnectOptions) -> Vec<String> {
    let mut arguments = Vec::new();
    if options.port != ROCE_PORT {
        arguments.extend(["--port".to_owned(), options.port.to_string()]);
    }
    if let Some(instance) = &options.instance {
        arguments.extend(["--instance".to_owned(), instance.clone()]);
    }
    arguments
}

/// The name that messages call this process by.
fn program_name() -> String {
    std::fs::read_to_string("/proc/self/comm")
        .map(|name| name.trim_end().to_owned())
        .unwrap_or_else(|_| "?".into())
}
