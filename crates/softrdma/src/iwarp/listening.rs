//! Who listens, and who has called and not said yet what for. No queue pair is theirs, so they are
//! of the process and not of a shard; its first background thread serves them.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use broker::link::{LinkInfo, LinkKind};
use engine::Instant;
use engine::iwarp::{Asked, AwaitingRequest, Counters, Depths, Progress};
use io::Errno;
use io::fork::ClosedInChild;
use io::poll::{Events, Interest, Poller, Trigger};
use io::tcp::{Listener, Receiving, Stream};
use wire::iwarp::StartFrame;

use crate::error::{Error, Result};
use crate::iwarp::pair::Teller;
use crate::iwarp::parting::Parting;
use crate::iwarp::report::ReportKind;
use crate::iwarp::settings::{Settings, Terms};
use crate::iwarp::streams::refused;

/// Callers that have not said what they want: of more, the one that has been silent for longest is
/// given up. Whoever opens connections and says nothing keeps nobody out.
const CALLERS_MAX: usize = 1024;
/// Connections that may take their time to end; more end at once.
const PARTING_MAX: usize = 1024;
/// Connections taken from a listener before others have their turn.
const CALLS_PER_VISIT: usize = 16;
/// When a listener is looked at again that found no descriptor for a connection.
const NO_DESCRIPTOR: Duration = Duration::from_millis(100);
/// What one look at the epoll tells of.
const EVENTS: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct Reception {
    polled: OnceLock<Polled>,
    state: Mutex<State>,
}

/// The epoll of listeners and callers; level-triggered, and nobody sleeps in it.
struct Polled {
    /// Dropped before the epoll is.
    _inherited: ClosedInChild,
    poller: Poller,
}

/// Everybody by token, in the order in which they came.
#[derive(Default)]
struct State {
    last_token: u64,
    listeners: HashMap<u64, Host>,
    callers: BTreeMap<u64, Caller>,
    parting: HashMap<u64, Parting>,
    /// Those of iWARP, as last heard.
    links: Vec<LinkInfo>,
    /// Listeners that are not watched, until then.
    paused: Vec<(Instant, u64)>,
    /// Callers who have made no request, by the index of the link that they called.
    counted: BTreeMap<u32, Counters>,
    /// Changes when one of these does.
    counted_mark: u64,
}

/// A listener.
struct Host {
    listener: Listener,
    terms: Terms,
    traffic_class: u8,
    to: Teller,
    reception: Weak<Reception>,
}

/// Somebody who has called.
struct Caller {
    stream: Stream,
    call: Call,
    waiting: AwaitingRequest,
}

/// Whom somebody has called, and from where.
#[derive(Clone, Copy)]
struct Call {
    host: u64,
    local: SocketAddr,
    remote: SocketAddr,
    settings: Settings,
}

/// Where to listen, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenAt {
    /// Port 0 is any port.
    pub address: SocketAddr,
    /// Whether all addresses of IPv6 are not those of IPv4 too.
    pub v6_only: bool,
    /// How many connections the kernel may have taken that we have not.
    pub backlog: u32,
    /// TOS or traffic class of the connections, unless who accepts says otherwise.
    pub traffic_class: u8,
}

/// A port where peers ask for connections, until it is dropped.
pub struct StreamListener {
    reception: Arc<Reception>,
    token: u64,
    address: SocketAddr,
    generation: u64,
}

/// A peer that asks for a connection. Dropping it resets that.
#[derive(Debug)]
pub struct Incoming {
    /// The own end.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// What its program says.
    pub private_data: Vec<u8>,
    /// What it offers, from our view: how many READs it wants in flight towards us, and how many of
    /// ours it takes.
    pub offered: Depths,
    stream: Unanswered,
    asked: Asked,
    settings: Settings,
    traffic_class: u8,
    reception: Weak<Reception>,
}

/// A connection that is reset unless it is taken.
#[derive(Debug)]
struct Unanswered {
    held: Option<Stream>,
    generation: u64,
}

impl Unanswered {
    fn new(stream: Stream) -> Self {
        Self {
            held: Some(stream),
            generation: io::fork::generation(),
        }
    }

    fn take(&mut self) -> Option<Stream> {
        // in a child the connection is the parent's
        let is_ours = self.generation == io::fork::generation();
        self.held.take_if(|_| is_ours)
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if self.generation != io::fork::generation() {
            // the connection is the parent's, and the descriptor was closed
            std::mem::forget(self.held.take());
        } else if let Some(stream) = self.take() {
            stream.reset();
        }
    }
}

impl Incoming {
    /// Refuses, and lets the peer close the connection.
    ///
    /// # Errors
    /// [`Error::Invalid`] for too much private data: the connection is reset.
    pub fn reject(mut self, private_data: &[u8]) -> Result<()> {
        let mut reply = Vec::new();
        let rejected = self.asked.reject(private_data, &mut reply);
        rejected.map_err(|error| refused(&error, self.remote))?;
        if let Some(reception) = self.reception.upgrade()
            && let Some(stream) = self.stream.take()
        {
            let now = Instant::from_nanos(io::clock::now_ns());
            reception.see_off(Parting::refused(now, stream, reply), now);
        }
        Ok(())
    }

    /// The connection, what was asked, and how connections are here; nothing if it was answered.
    pub(super) fn into_parts(mut self) -> Option<(Stream, Asked, Settings)> {
        let stream = self.stream.take()?;
        Some((stream, self.asked, self.settings))
    }

    /// What is sent from now on has this TOS or traffic class, where it is not its listener's.
    ///
    /// # Errors
    /// Only those of wrong use.
    pub fn set_traffic_class(&mut self, class: u8) -> Result<()> {
        if class != self.traffic_class
            && let Some(stream) = &self.stream.held
        {
            stream
                .set_traffic_class(class)
                .map_err(|errno| Error::System {
                    attempt: "set the traffic class",
                    errno,
                })?;
            self.traffic_class = class;
        }
        Ok(())
    }
}

impl StreamListener {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StreamListener {
    fn drop(&mut self) {
        // a child must not touch its parent's lock
        if self.generation == io::fork::generation() {
            let mut state = self.reception.lock();
            state.listeners.remove(&self.token);
            // who has called it is reset: nobody will answer
            let orphans: Vec<u64> = state.callers_of(self.token).collect();
            for token in orphans {
                if let Some(caller) = state.callers.remove(&token) {
                    caller.stream.reset();
                }
            }
        }
    }
}

impl Reception {
    /// Listens.
    ///
    /// # Errors
    /// [`Error::System`] with what the kernel says: the address is in use, or is none of ours.
    pub fn listen(
        self: &Arc<Self>,
        at: &ListenAt,
        terms: Terms,
        to: Teller,
    ) -> Result<StreamListener> {
        let failed = |errno| Error::System {
            attempt: "listen for connections of iWARP",
            errno,
        };
        let polled = self.polled().map_err(failed)?;
        let listener = Listener::listen(at.address, at.v6_only, at.backlog).map_err(failed)?;
        if at.traffic_class != 0 {
            let set = listener.set_traffic_class(at.traffic_class);
            set.map_err(failed)?;
        }
        let address = listener.address().map_err(failed)?;
        let mut state = self.lock();
        let token = state.next_token();
        let added = polled
            .poller
            .add(&listener, token, Interest::READ, Trigger::Level);
        added.map_err(failed)?;
        let host = Host {
            listener,
            terms,
            traffic_class: at.traffic_class,
            to,
            reception: Arc::downgrade(self),
        };
        state.listeners.insert(token, host);
        Ok(StreamListener {
            reception: Arc::clone(self),
            token,
            address,
            generation: io::fork::generation(),
        })
    }

    /// The links of this host, for listeners that serve several of them.
    pub fn know(&self, links: &[LinkInfo]) {
        let of_iwarp = links.iter().filter(|link| link.kind == LinkKind::Siw);
        self.lock().links = of_iwarp.cloned().collect();
    }

    /// Readable when somebody calls, or says something; `None` before the first listener.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.polled.get().map(|polled| polled.poller.as_fd())
    }

    /// When [`Self::serve`] has something to do, whatever arrives.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.polled.get()?;
        let state = self.lock();
        let callers = state.callers.values();
        callers
            .map(|caller| caller.waiting.deadline())
            .chain(state.parting.values().map(Parting::deadline))
            .chain(state.paused.iter().map(|(until, _)| *until))
            .min()
    }

    /// Takes calls, and hears what callers want.
    pub fn serve(&self, now: Instant) {
        let Some(Polled { poller, .. }) = self.polled.get() else {
            return;
        };
        let mut events = Events::with_capacity(EVENTS);
        if let Err(errno) = poller.wait(&mut events, Some(0)) {
            tracing::warn!(%errno, "listeners cannot be looked at");
        }
        let mut state = self.lock();
        for ready in events.iter() {
            let token = ready.token;
            if state.listeners.contains_key(&token) {
                state.take_calls(now, token, poller);
            } else if let Some(caller) = state.callers.remove(&token) {
                state.hear(now, token, caller, poller);
            } else if let Some(parting) = state.parting.get_mut(&token)
                && parting.visit(now)
            {
                state.parting.remove(&token);
            }
        }
        state.expire(now, poller);
    }

    /// Callers who have made no request, by the index of the link that they called.
    pub fn counted(&self) -> Vec<(u32, Counters)> {
        let state = self.lock();
        let counted = state.counted.iter();
        counted.map(|(link, counters)| (*link, *counters)).collect()
    }

    /// Changes when there is something new to count.
    pub fn counted_mark(&self) -> u64 {
        self.polled.get().map_or(0, |_| self.lock().counted_mark)
    }

    fn see_off(&self, parting: Parting, now: Instant) {
        if let Some(Polled { poller, .. }) = self.polled.get() {
            self.lock().see_off(now, parting, poller);
        }
    }

    /// Ends everything: the process is to have no device any more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.listeners.clear();
        state.callers.clear();
        state.parting.clear();
    }

    fn polled(&self) -> std::result::Result<&Polled, Errno> {
        if let Some(polled) = self.polled.get() {
            return Ok(polled);
        }
        let poller = Poller::new()?;
        let inherited = ClosedInChild::new(poller.as_fd());
        Ok(self.polled.get_or_init(|| Polled {
            _inherited: inherited,
            poller,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // nothing between two consistent states can panic
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    fn callers_of(&self, host: u64) -> impl Iterator<Item = u64> {
        let of_host = self
            .callers
            .iter()
            .filter(move |(_, of)| of.call.host == host);
        of_host.map(|(token, _)| *token)
    }

    fn take_calls(&mut self, now: Instant, host: u64, poller: &Poller) {
        for _ in 0..CALLS_PER_VISIT {
            let Some(Host {
                listener, terms, ..
            }) = self.listeners.get(&host)
            else {
                return;
            };
            let (stream, remote) = match listener.accept() {
                Ok(Some(call)) => call,
                Ok(None) => return,
                Err(errno) => {
                    // it still waits, and would be told of again and again
                    tracing::warn!(%errno, "a connection cannot be taken");
                    let nothing = Interest::NONE;
                    let _ = poller.change(listener, host, nothing, Trigger::OneShot);
                    self.paused.push((now.plus(NO_DESCRIPTOR), host));
                    return;
                }
            };
            let Ok(local) = stream.local() else {
                continue; // which closes it
            };
            let settings = terms.at(local, &self.links);
            let waiting = AwaitingRequest::start(now, settings.options);
            if self.callers.len() >= CALLERS_MAX
                && let Some((_, oldest)) = self.callers.pop_first()
            {
                oldest.stream.reset();
                self.count(&oldest.call, |counters| counters.request_timeout += 1);
            }
            let token = self.next_token();
            let caller = Caller {
                stream,
                call: Call {
                    host,
                    local,
                    remote,
                    settings,
                },
                waiting,
            };
            let added = poller.add(&caller.stream, token, Interest::READ, Trigger::Level);
            if added.is_ok() {
                // most have said it by now
                self.hear(now, token, caller, poller);
            }
        }
    }

    /// Hears what a caller, who is in no table at the moment, wants.
    fn hear(&mut self, now: Instant, token: u64, mut caller: Caller, poller: &Poller) {
        // one byte more than any request: what follows one is an error
        let mut bytes = [0; StartFrame::LENGTH_MAX + 1];
        let count = match caller.stream.receive(&mut bytes) {
            Receiving::Received(count) => count,
            Receiving::Nothing => {
                self.callers.insert(token, caller);
                return;
            }
            Receiving::End | Receiving::Lost(_) => {
                self.count(&caller.call, |counters| counters.request_err += 1);
                return;
            }
        };
        let mut answer = Vec::new();
        match caller.waiting.handle_bytes(&bytes[..count], &mut answer) {
            Ok(Progress::Waiting(waiting)) => {
                caller.waiting = waiting;
                self.callers.insert(token, caller);
            }
            Ok(Progress::Done(asked)) => {
                let _ = poller.remove(&caller.stream);
                self.announce(caller.call, caller.stream, asked);
            }
            Err(error) => {
                tracing::debug!(?error, remote = %caller.call.remote, "no request of iWARP");
                self.count(&caller.call, |counters| counters.request_err += 1);
                let _ = poller.remove(&caller.stream);
                let parting = Parting::new(now, caller.stream, answer);
                self.see_off(now, parting, poller);
            }
        }
    }

    /// Counts for the link that was called. An address that is on none counts nowhere.
    fn count(&mut self, call: &Call, count: impl FnOnce(&mut Counters)) {
        if let Some(link) = call.settings.link {
            count(self.counted.entry(link).or_default());
            self.counted_mark += 1;
        }
    }

    fn announce(&self, call: Call, stream: Stream, asked: Asked) {
        let stream = Unanswered::new(stream);
        let Some(host) = self.listeners.get(&call.host) else {
            return; // which resets it
        };
        let incoming = Incoming {
            local: call.local,
            remote: call.remote,
            private_data: asked.private_data().to_vec(),
            offered: asked.offered(),
            stream,
            asked,
            settings: call.settings,
            traffic_class: host.traffic_class,
            reception: Weak::clone(&host.reception),
        };
        let kind = ReportKind::Requested(incoming);
        host.to.reports.push(host.to.token, kind);
    }

    /// Sends what there is to say to somebody who is in no table, and lets it go.
    fn see_off(&mut self, now: Instant, mut parting: Parting, poller: &Poller) {
        if parting.visit(now) || self.parting.len() >= PARTING_MAX {
            return;
        }
        let token = self.next_token();
        let interest = parting.interest();
        let added = poller.add(parting.fd(), token, interest, Trigger::Level);
        if added.is_ok() {
            self.parting.insert(token, parting);
        }
    }

    /// Does what is due.
    fn expire(&mut self, now: Instant, poller: &Poller) {
        // in the order in which they came, and all wait equally long
        while let Some(first) = self.callers.first_entry()
            && first.get().waiting.deadline() <= now
        {
            let Caller { stream, call, .. } = first.remove();
            stream.reset();
            self.count(&call, |counters| counters.request_timeout += 1);
        }
        self.parting.retain(|_, parting| now < parting.deadline());
        let listeners = &self.listeners;
        self.paused.retain(|(until, token)| {
            let is_over = *until <= now;
            if is_over && let Some(host) = listeners.get(token) {
                let level = Trigger::Level;
                let _ = poller.change(&host.listener, *token, Interest::READ, level);
            }
            !is_over
        });
    }
}
