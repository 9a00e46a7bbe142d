//! What clients ask, and what is done about it.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::{Duration, Instant},
};

use io::{
    Descriptor, Errno,
    poll::{Interest, Trigger},
};

use super::{
    Server, Token, Waiting,
    clients::{Client, Process, clean_program_name},
    ports::Wish,
    slots::Owner,
};
use crate::{
    protocol::{
        Call, Event, Greeting, Holder, PROTOCOL_VERSION, Refusal, Reply, Request, Status, decode,
        encode, own_pid,
    },
    transport::{Connection, Received},
    who::{self, Peer, describe_uid},
};

/// Connections at once; each slot holder has two.
const CLIENTS_MAX: usize = 2048;

/// Connections without a greeting, beyond which those of other users are closed at once.
const STRANGERS_MAX: usize = 64;

/// How long a lease waits for a slot to become quiet, or for the sockets of a former broker's
/// clients to vanish, before it is refused.
const LEASE_WAIT: Duration = Duration::from_secs(5);

impl Server {
    pub(super) fn accept(&mut self) {
        loop {
            let connection = match self.listener.accept() {
                Ok(Some(connection)) => Connection::new(connection),
                Ok(None) => return,
                Err(errno) => {
                    tracing::warn!(%errno, "cannot accept a connection");
                    return;
                }
            };
            let peer = match connection.peer() {
                Ok(peer) => peer,
                Err(errno) => {
                    tracing::warn!(%errno, "a connection without credentials");
                    continue;
                }
            };
            // whoever may not is told so in answer to the greeting: closing before that was read
            // would take the answer away. Strangers get no more than a few places to wait in.
            let waiting = self
                .clients
                .values()
                .filter(|client| client.process.is_none())
                .count();
            if self.clients.len() >= CLIENTS_MAX
                || (waiting >= STRANGERS_MAX && self.admit(peer.uid).is_err())
            {
                tracing::warn!(pid = peer.pid, uid = peer.uid, "too many connections");
                continue;
            }
            let owner = self.new_key();
            if let Err(errno) = self.watch(&connection, Token::Connection(owner)) {
                tracing::warn!(%errno, "cannot watch a connection");
                continue;
            }
            self.clients.insert(owner, Client::new(connection, peer));
        }
    }

    fn admit(&self, uid: u32) -> Result<(), Refusal> {
        let detail = match who::judge(uid, self.own_uid, &self.map, self.overflow_uid) {
            Peer::Own | Peer::Root => return Ok(()),
            Peer::Stranger => format!(
                "this softrdma broker belongs to {} and does not serve {}: use a network \
                 namespace of your own, such as `unshare -rn`",
                describe_uid(self.own_uid),
                describe_uid(uid)
            ),
            Peer::Outsider => {
                "this softrdma broker cannot see who you are: you are outside of its \
                               user namespace"
                    .into()
            }
        };
        Err(Refusal::NotPermitted { detail })
    }

    fn greeting(&self, refused: Option<Refusal>) -> Greeting {
        Greeting {
            version: PROTOCOL_VERSION,
            pid: own_pid(),
            program: format!("softrdma {}", env!("CARGO_PKG_VERSION")),
            takes_credit: false,
            refused,
        }
    }

    /// Takes one record of a client.
    pub(super) fn serve(&mut self, owner: Owner) {
        let Some(client) = self.clients.get(&owner) else {
            return;
        };
        let (bytes, descriptors) = match client.connection.try_receive(&mut self.room) {
            Ok(Received::Record { bytes, descriptors }) => (bytes, descriptors),
            Ok(Received::Nothing) => return,
            Ok(Received::End) => return self.end_client(owner, "it closed its connection"),
            Err(errno) => return self.end_client(owner, &errno.to_string()),
        };
        if client.process.is_none() {
            let pidfd = descriptors.into_iter().next().map(Descriptor::from);
            return self.greet(owner, &bytes, pidfd);
        }
        match decode::<Call>(&bytes) {
            Ok(call) => self.call(owner, call),
            Err(detail) => self.end_client(owner, &detail),
        }
    }

    fn greet(&mut self, owner: Owner, bytes: &[u8], pidfd: Option<Descriptor>) {
        let result = self.meet(owner, bytes, pidfd);
        let greeting = self.greeting(result.err());
        let Some(client) = self.clients.get(&owner) else {
            return;
        };
        let sent = client.connection.send(&encode(&greeting), &[]);
        match (greeting.refused, sent) {
            (Some(refusal), _) => self.end_client(owner, &refusal.to_string()),
            (None, Err(errno)) => self.end_client(owner, &errno.to_string()),
            (None, Ok(())) => {}
        }
    }

    fn meet(
        &mut self,
        owner: Owner,
        bytes: &[u8],
        pidfd: Option<Descriptor>,
    ) -> Result<(), Refusal> {
        let greeting: Greeting = decode(bytes).map_err(|detail| Refusal::Malformed { detail })?;
        if greeting.version != PROTOCOL_VERSION {
            return Err(Refusal::VersionMismatch {
                broker: PROTOCOL_VERSION,
                client: greeting.version,
                broker_pid: own_pid(),
            });
        }
        let Some(uid) = self.clients.get(&owner).map(|client| client.uid) else {
            return Ok(());
        };
        self.admit(uid)?;
        let Some(client) = self.clients.get_mut(&owner) else {
            return Ok(());
        };
        // the kernel's word for who connected; before Linux 6.5 it has none for another pid
        // namespace, and the client's own word must do
        let pidfd = match (client.connection.peer_pidfd(), pidfd) {
            (Ok(pidfd), _) => pidfd,
            (Err(_), Some(given)) if is_pidfd(&given) => given,
            (Err(errno), _) => return Err(system("watch your process")(errno)),
        };
        self.poller
            .add(
                &pidfd,
                Token::Process(owner).encode(),
                Interest::READ,
                Trigger::Level,
            )
            .map_err(system("watch your process"))?;
        let program = clean_program_name(&greeting.program);
        client.process = Some(Process {
            pidfd,
            program,
            takes_credit: greeting.takes_credit,
        });
        Ok(())
    }

    /// Forgets a client and takes back what it had.
    pub(super) fn end_client(&mut self, owner: Owner, why: &str) {
        let Some(client) = self.clients.remove(&owner) else {
            return;
        };
        tracing::debug!(
            pid = client.pid,
            program = client.program(),
            why,
            "client ends"
        );
        // the client may have other descriptors of the same pidfd: closing ours would leave the
        // registration behind
        if let Some(process) = &client.process {
            self.unwatch(&process.pidfd);
        }
        self.waiting.retain(|waiting| waiting.owner != owner);
        for slot in self.slots.of(owner) {
            self.release(slot, owner);
        }
        self.ports.end_owner(owner);
        self.end_inquiries(owner);
    }

    pub(super) fn unwatch(&self, what: impl AsFd) {
        if let Err(errno) = self.poller.remove(what) {
            tracing::debug!(%errno, "was not watched");
        }
    }

    fn call(&mut self, owner: Owner, call: Call) {
        let Call { id, request } = call;
        match request {
            Request::LeaseSlot => return self.lease(owner, id),
            Request::Inquire { process, question } => {
                return self.inquire((owner, id), process, question);
            }
            Request::Report { inquiry, report } => {
                return self.take_report(owner, inquiry, report);
            }
            _ => {}
        }
        let result = self.execute(owner, request);
        self.answer(owner, id, result);
    }

    /// A first slot is waited for. One more, which only makes a program faster, is there or is not,
    /// and leaves enough for others.
    fn lease(&mut self, owner: Owner, call: u64) {
        let now = Instant::now();
        self.settle_slots(now);
        let holds = self.slots.of(owner).len();
        if holds > 0 && !self.slots.has_plenty() {
            let refusal = Refusal::NoSlotToSpare {
                holds: u8::try_from(holds).unwrap_or(u8::MAX),
            };
            return self.answer(owner, call, Err(refusal));
        }
        self.waiting.push_back(Waiting {
            owner,
            call,
            until: now + LEASE_WAIT,
        });
        self.serve_waiting(now);
    }

    pub(super) fn answer(&mut self, owner: Owner, id: u64, result: Result<Reply, Refusal>) {
        let Some(client) = self.clients.get(&owner) else {
            return;
        };
        // a client that does not read its answers is of no use to anybody
        if let Err(errno) = client.answer(id, result, &[]) {
            self.end_client(owner, &errno.to_string());
        }
    }

    fn execute(&mut self, owner: Owner, request: Request) -> Result<Reply, Refusal> {
        match request {
            Request::Links => Ok(Reply::Names(self.links.names())),
            Request::Link { name } => self.links.get(&name).cloned().map(Reply::Link),
            Request::LinkAdd {
                name,
                kind,
                netdev,
                keep,
                iwarp,
            } => {
                // what `ip link add` made a moment ago may not have been announced yet
                self.follow_interfaces()
                    .map_err(system("read the network interfaces"))?;
                let link = self.links.add(&name, &kind, &netdev, keep, iwarp)?;
                self.publish(&Event::Added(link.clone()));
                Ok(Reply::Link(link))
            }
            Request::LinkDelete { name } => self.delete_link(&name),
            Request::LinkUse { name, using } => self.use_link(owner, &name, using),
            // answered in `call`, since they may have to wait
            Request::LeaseSlot | Request::Inquire { .. } | Request::Report { .. } => {
                Err(malformed("this cannot be executed at once"))
            }
            Request::ReleaseSlot { slot } => {
                if self.release(slot, owner) {
                    Ok(Reply::Done)
                } else {
                    Err(Refusal::NotYourSlot { slot })
                }
            }
            Request::JoinGroup {
                slot,
                address,
                interface,
            } => self.join_group(owner, slot, (address, interface)),
            Request::LeaveGroup {
                slot,
                address,
                interface,
            } => self.leave_group(owner, slot, (address, interface)),
            Request::BindPort {
                space,
                port,
                address,
                reuse,
            } => {
                let wish = Wish {
                    space,
                    address,
                    reuse,
                };
                self.bind_port(owner, port, &wish)
            }
            Request::Listen { id, slot } => self.listen(owner, id, slot),
            Request::ReleasePort { id } => self.release_port(owner, id),
            Request::SlotHolders => Ok(Reply::Holders(self.holders())),
            Request::Hold => self.hold(owner),
            Request::Subscribe => {
                self.subscribe(owner);
                Ok(Reply::Done)
            }
            Request::Counts { link } => {
                let link = self.links.get(&link)?;
                Ok(Reply::Counts(self.tallies.of(link)))
            }
            Request::Processes => Ok(Reply::Processes(self.processes())),
            Request::Status => {
                self.open_port();
                Ok(Reply::Status(self.status()))
            }
            Request::Shutdown => {
                self.stopping = true;
                Ok(Reply::Done)
            }
        }
    }

    fn delete_link(&mut self, name: &str) -> Result<Reply, Refusal> {
        self.links.get(name)?;
        let holders: Vec<Holder> = self
            .clients
            .values()
            .filter(|client| client.uses(name))
            .map(|client| holder(0, client))
            .collect();
        if !holders.is_empty() {
            return Err(Refusal::LinkInUse {
                name: name.into(),
                holders,
            });
        }
        let event = self.links.delete(name)?;
        self.publish(&event);
        Ok(Reply::Done)
    }

    fn use_link(&mut self, owner: Owner, name: &str, using: bool) -> Result<Reply, Refusal> {
        if using {
            self.links.get(name)?;
        }
        if let Some(client) = self.clients.get_mut(&owner) {
            client.count_use(name, using);
        }
        Ok(Reply::Done)
    }

    fn hold(&mut self, owner: Owner) -> Result<Reply, Refusal> {
        let process = self
            .clients
            .get(&owner)
            .and_then(|client| client.process.as_ref());
        let process = process.ok_or_else(|| malformed("there was no greeting"))?;
        let pidfd = process
            .pidfd
            .duplicate()
            .map_err(system("keep your process"))?;
        let key = self.new_key();
        self.watch(&pidfd, Token::Hold(key))
            .map_err(system("watch your process"))?;
        self.holds.insert(key, pidfd);
        Ok(Reply::Done)
    }

    pub(super) fn end_hold(&mut self, key: u64) {
        if let Some(pidfd) = self.holds.remove(&key) {
            self.unwatch(&pidfd);
        }
    }

    fn status(&self) -> Status {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Status {
            pid: own_pid(),
            uid: self.own_uid,
            release: env!("CARGO_PKG_VERSION").into(),
            port: self.config.port,
            port_problem: self.sockets.problem().map(str::to_owned),
            clients: count(self.clients.len()),
            leased: count(self.slots.leased().count()),
            cooling: count(self.slots.cooling().len()),
            links: count(self.links.len()),
            steering_repairs: self.sockets.repairs(),
            ports: count(self.ports.len()),
            gsi: self.gsi.counters.clone(),
        }
    }

    fn holders(&self) -> Vec<Holder> {
        self.slots
            .leased()
            .filter_map(|(slot, owner)| Some(holder(slot, self.clients.get(&owner)?)))
            .collect()
    }

    /// Opens the port; from then on the broker's own slot is read.
    pub(super) fn open_port(&mut self) {
        if !self.sockets.open() {
            return;
        }
        if let Some(socket) = self.sockets.receive(0)
            && let Err(errno) = self.watch(socket, Token::Slot(0))
        {
            tracing::error!(%errno, "cannot watch the broker's own slot");
        }
    }

    /// Gives slots to those who wait, in their order, and refuses those who waited too long.
    pub(super) fn serve_waiting(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            return;
        }
        self.open_port();
        while let Some(Waiting { owner, call, until }) = self.waiting.front() {
            let (owner, call, late) = (*owner, *call, now >= *until);
            let slot = if self.sockets.is_open() {
                let quiet = self.slots.lease(owner, now);
                quiet.or_else(|| late.then(|| self.slots.lease_unquiet(owner, now))?)
            } else {
                None
            };
            if slot.is_none() && !late {
                return;
            }
            self.waiting.pop_front();
            match slot {
                Some(slot) => self.grant(owner, call, slot),
                None => {
                    let refusal = self.why_no_slot();
                    self.answer(owner, call, Err(refusal));
                }
            }
        }
    }

    fn why_no_slot(&self) -> Refusal {
        match self.sockets.problem() {
            Some(problem) => Refusal::PortUnavailable {
                detail: problem.into(),
            },
            None => Refusal::SlotsExhausted {
                holders: self.holders(),
            },
        }
    }

    fn grant(&mut self, owner: Owner, call: u64, slot: u8) {
        let sent = self.hand_out(owner, call, slot);
        let Err(errno) = sent else {
            return;
        };
        self.slots.put_back(slot);
        self.tallies.close(slot, self.links.all());
        self.answer(owner, call, Err(system("hand out a slot")(errno)));
    }

    fn hand_out(&mut self, owner: Owner, call: u64, slot: u8) -> Result<(), Errno> {
        // what came between the last quiet moment and now was for somebody else
        self.unwatch_slot(slot);
        self.sockets.drain(slot)?;
        self.sockets.steering(slot)?;
        let steer_prefix = self.sockets.steer_prefix().to_owned();
        let receive = self
            .sockets
            .receive(slot)
            .ok_or(Errno::BADF)?
            .try_clone_to_owned();
        let receive = Descriptor::from(receive.map_err(|_| Errno::MFILE)?);
        self.accounts.open(slot, self.sockets.granted());
        let counters = self.tallies.open(slot);
        let client = self.clients.get(&owner).ok_or(Errno::PIPE)?;
        let takes_credit = |_: &BorrowedFd<'_>| client.takes_credit();
        let credit = self.accounts.descriptor().filter(takes_credit);
        let reply = Ok(Reply::Lease {
            slot,
            has_credit: credit.is_some(),
            has_counters: counters.is_some(),
            steer_prefix,
        });
        let mut descriptors = vec![receive.as_fd(), self.sockets.steering(slot)?];
        descriptors.extend(credit);
        descriptors.extend(counters.as_ref().map(AsFd::as_fd));
        client.answer(call, reply, &descriptors)?;
        tracing::debug!(
            slot,
            pid = client.pid,
            program = client.program(),
            "slot leased"
        );
        Ok(())
    }

    /// Ends a lease: from now on the broker reads what still arrives at the slot.
    fn release(&mut self, slot: u8, owner: Owner) -> bool {
        if !self.slots.release(slot, owner, Instant::now()) {
            return false;
        }
        tracing::debug!(slot, "slot released");
        self.accounts.close(slot);
        self.leave_groups(slot);
        self.tallies.close(slot, self.links.all());
        self.ports.end_slot(owner, slot);
        self.take_leave(slot);
        self.end_outbox(slot);
        if let Some(socket) = self.sockets.receive(slot)
            && let Err(errno) = self.watch(socket, Token::Slot(slot))
        {
            tracing::warn!(%errno, slot, "cannot watch a slot for quiet");
        }
        true
    }

    /// Takes what arrived at a slot that waits for quiet.
    pub(super) fn drain_slot(&mut self, slot: u8) {
        match self.sockets.drain(slot) {
            Ok(0) => {}
            Ok(count) => {
                tracing::trace!(slot, count, "packets for nobody");
                self.slots.packet_seen(slot, Instant::now());
            }
            Err(errno) => tracing::warn!(%errno, slot, "cannot read a slot"),
        }
    }

    /// Slots that became quiet are ready for the next client.
    pub(super) fn settle_slots(&mut self, now: Instant) {
        for slot in self.slots.settle(now) {
            self.unwatch_slot(slot);
        }
    }

    fn unwatch_slot(&self, slot: u8) {
        if let Some(socket) = self.sockets.receive(slot) {
            self.unwatch(socket);
        }
    }

    pub(super) fn flush_events(&mut self) {
        let broken: Vec<(Owner, Errno)> = self
            .clients
            .iter_mut()
            .filter_map(|(owner, client)| Some((*owner, client.flush().err()?)))
            .collect();
        for (owner, errno) in broken {
            self.end_client(owner, &errno.to_string());
        }
    }
}

/// Whether a descriptor tells the end of a process, as the kernel describes it.
fn is_pidfd(descriptor: &Descriptor) -> bool {
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    std::fs::read_to_string(path).is_ok_and(|text| text.lines().any(|l| l.starts_with("Pid:")))
}

fn holder(slot: u8, client: &Client) -> Holder {
    Holder {
        slot,
        pid: client.pid,
        program: client.program().to_owned(),
    }
}

pub(super) fn malformed(detail: &str) -> Refusal {
    Refusal::Malformed {
        detail: detail.into(),
    }
}

pub(super) fn system(action: &str) -> impl Fn(Errno) -> Refusal {
    move |errno| Refusal::System {
        action: action.into(),
        errno: errno.raw_os_error(),
    }
}
