//! What programs, and connection management in their name, do with streams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::iwarp::Depths;
use io::tcp::Stream;
use wire::Qpn;

use crate::core::Core;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::front::Front;
use crate::iwarp::listening::{Incoming, ListenAt, StreamListener};
use crate::iwarp::pair::Teller;
use crate::iwarp::report::Report;
use crate::iwarp::settings::{CONNECT_TIMEOUT, Call, REFUSED_PAUSES_MS, Settings, Terms};
use crate::iwarp::streams::{Accepting, Asking};
use crate::lane::Lane;
use crate::network::{Errno, Network};
use crate::process::Process;
use crate::queue_pair::QueuePair;

impl<N: Network> Core<N> {
    /// Asks for a connection.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the queue pair has had a connection, or is not of iWARP, or for too
    /// much private data.
    pub fn ask(&self, front: &Front, asking: Asking) -> Result<()> {
        let now = self.now();
        let mut inner = self.shard.lock();
        let streams = inner.streams_of(front)?;
        streams.ask(front.index(), now, &self.memory, asking)?;
        self.shard.serve_locked(&mut inner, now, &self.memory);
        Ok(())
    }

    /// Accepts one.
    ///
    /// # Errors
    /// As [`Self::ask`], and [`Error::Tcp`] with `ECONNRESET` or `EPROTO` if the peer has gone or
    /// said too much.
    pub fn accept(&self, front: &Front, accepting: Accepting) -> Result<()> {
        let now = self.now();
        let mut inner = self.shard.lock();
        let streams = inner.streams_of(front)?;
        streams.accept(front.index(), now, &self.memory, accepting)?;
        self.shard.serve_locked(&mut inner, now, &self.memory);
        Ok(())
    }

    /// Counts a call that TCP has failed before there was anything to ask.
    fn count_unreached(&self, front: &Front) {
        let mut inner = self.shard.lock();
        if let Ok(streams) = inner.streams_of(front) {
            streams.count_unreached(front.index());
        }
        self.shard
            .serve_locked(&mut inner, self.now(), &self.memory);
    }

    /// Closes the connection, if there is one: what was posted before is sent.
    pub fn disconnect(&self, front: &Front) {
        let now = self.now();
        let mut inner = self.shard.lock();
        inner.hand_over(front);
        if let Ok(streams) = inner.streams_of(front) {
            streams.disconnect(front.index(), now, &self.memory);
        }
        self.shard.serve_locked(&mut inner, now, &self.memory);
    }

    /// Ends the connection of which `manager` is told, which nobody manages any more.
    pub fn abandon(&self, front: &Front, manager: &Teller) {
        let now = self.now();
        let mut inner = self.shard.lock();
        inner.hand_over(front);
        if let Ok(streams) = inner.streams_of(front) {
            streams.abandon(front.index(), now, &self.memory, manager);
        }
        self.shard.serve_locked(&mut inner, now, &self.memory);
    }
}

impl Process {
    /// Connects by TCP, which blocks if the call waits, and asks the peer. Gives the own address;
    /// the rest is a report with `token`.
    ///
    /// # Errors
    /// [`Error::System`] with what TCP says, and those of [`Core::ask`].
    pub(crate) fn connect_stream(
        &self,
        qpn: Qpn,
        call: &Call<'_>,
        token: u64,
    ) -> Result<SocketAddr> {
        let to = self.teller(token);
        let (_, front) = self.stream(qpn)?;
        let settings = self.settings_of(&front);
        // not held meanwhile: it may be destroyed, and its completion queues then
        let expected = Arc::downgrade(&front);
        drop(front);
        let is_it = |front: &Arc<Front>| expected.as_ptr() == Arc::as_ptr(front);
        let stream = reach(call).inspect_err(|_| {
            if let Ok((lane, front)) = self.stream(qpn)
                && is_it(&front)
            {
                count_unreached(&lane, &front);
            }
        })?;
        let (lane, front) = self.stream(qpn)?;
        if !is_it(&front) {
            return Err(NO_QUEUE_PAIR);
        }
        ask_by(&lane, &front, stream, settings, call, to)
    }

    /// Listens; requests are reports with `token`.
    ///
    /// # Errors
    /// [`Error::System`] with what TCP says.
    pub(crate) fn listen_for_streams(
        &self,
        at: &ListenAt,
        terms: Terms,
        token: u64,
    ) -> Result<StreamListener> {
        self.listen(at, terms, self.teller(token))
    }

    fn listen(&self, at: &ListenAt, terms: Terms, to: Teller) -> Result<StreamListener> {
        self.check()?;
        let listener = self.reception.listen(at, terms, to)?;
        // it may be the first one, which the thread does not listen to yet
        self.attendant.wake.wake();
        Ok(listener)
    }

    /// Accepts a request; what comes of it is reports with `token`.
    ///
    /// # Errors
    /// Those of [`Core::accept`].
    pub(crate) fn accept_stream(
        &self,
        qpn: Qpn,
        incoming: Incoming,
        depths: Depths,
        private_data: &[u8],
        token: u64,
    ) -> Result<()> {
        let (lane, front) = self.stream(qpn)?;
        let accepting = Accepting {
            incoming,
            depths,
            private_data: private_data.to_vec(),
            to: self.teller(token),
        };
        accept_at(&lane, &front, accepting)
    }

    /// Closes the connection of a queue pair, if there is one.
    pub(crate) fn disconnect_stream(&self, qpn: Qpn) {
        if let Ok((lane, front)) = self.stream(qpn) {
            lane.core.disconnect(&front);
            lane.attendant.wake.wake();
        }
    }

    /// The ID with this `token` is gone: the connection that the queue pair has for it ends.
    pub(crate) fn abandon_stream(&self, qpn: Qpn, token: u64) {
        if let Ok((lane, front)) = self.stream(qpn) {
            lane.core.abandon(&front, &self.teller(token));
            lane.attendant.wake.wake();
        }
    }

    /// The oldest report of connections that connection management has asked for.
    pub(crate) fn take_stream_report(&self) -> Option<Report> {
        self.stream_reports.take()
    }

    fn teller(&self, token: u64) -> Teller {
        Teller {
            reports: Arc::clone(&self.stream_reports),
            token,
        }
    }

    /// The queue pair with this number, if it is of iWARP.
    fn stream(&self, qpn: Qpn) -> Result<(Arc<Lane>, Arc<Front>)> {
        self.check()?;
        let lane = self.lanes.all().find(|lane| lane.slot == qpn.slot());
        let found = lane.and_then(|lane| {
            let index = engine::QpIndex(qpn.index());
            let front = lane.core.shard.lock().fronts.get(&index).cloned()?;
            Some((Arc::clone(lane), front))
        });
        found.ok_or(NO_QUEUE_PAIR)
    }

    /// How connections are on the link of a queue pair.
    fn settings_of(&self, front: &Front) -> Settings {
        let contexts = self.contexts();
        let links = contexts.iter().map(|context| context.link());
        let mut own = links.filter(|link| link.index == front.link());
        own.next()
            .map(|link| Settings::of(&link))
            .unwrap_or_default()
    }
}

impl Device {
    /// Listens for connections of iWARP at an address of this device. Requests are reports.
    ///
    /// # Errors
    /// [`Error::System`] with what TCP says.
    pub fn listen(&self, address: SocketAddr, backlog: u32, to: Teller) -> Result<StreamListener> {
        let process = &self.0.process;
        let terms = Terms::Same(Settings::of(&self.0.link()));
        let at = ListenAt {
            address,
            v6_only: false,
            backlog,
            traffic_class: 0,
        };
        process.listen(&at, terms, to)
    }
}

impl QueuePair {
    /// Whether it is one of iWARP, which has a TCP connection.
    pub fn is_stream(&self) -> bool {
        self.front.is_stream()
    }

    /// Connects by TCP, which blocks if the call waits, and asks the peer for a connection of
    /// iWARP. Gives the own address; the rest is a report.
    ///
    /// # Errors
    /// [`Error::System`] with what TCP says, and those of [`Core::ask`].
    pub fn call(&self, call: &Call<'_>, to: Teller) -> Result<SocketAddr> {
        self.process().check()?;
        let settings = Settings::of(&self.pd.context.link());
        let stream = reach(call).inspect_err(|_| count_unreached(&self.place, &self.front))?;
        ask_by(&self.place, &self.front, stream, settings, call, to)
    }

    /// Accepts a peer that asks for a connection.
    ///
    /// # Errors
    /// Those of [`Core::accept`].
    pub fn accept(&self, accepting: Accepting) -> Result<()> {
        self.process().check()?;
        accept_at(&self.place, &self.front, accepting)
    }

    /// Closes the connection of iWARP, if there is one: what was posted before is sent.
    pub fn disconnect(&self) {
        if self.process().check().is_ok() {
            self.place.core.disconnect(&self.front);
            self.place.attendant.wake.wake();
        }
    }
}

const NO_QUEUE_PAIR: Error = Error::Invalid("there is no such queue pair");

fn failed(errno: Errno) -> Error {
    Error::System {
        attempt: "connect by TCP",
        errno,
    }
}

/// A connection of TCP to the peer, or one that is on its way if the call does not wait.
fn reach(call: &Call<'_>) -> Result<Stream> {
    let begin = || Stream::connect(call.local, call.remote, call.traffic_class);
    let reach = || {
        let stream = begin()?;
        stream.wait_connected(CONNECT_TIMEOUT)?;
        Ok(stream)
    };
    let reached = if call.waits {
        unless_refused(reach, std::thread::sleep)
    } else {
        begin()
    };
    reached.map_err(failed)
}

/// Counts a call for which TCP did not reach the peer.
fn count_unreached(lane: &Lane, front: &Front) {
    lane.core.count_unreached(front);
    // who writes down what was counted
    lane.attendant.wake.wake();
}

/// Asks the peer for a connection of iWARP; gives the own address.
fn ask_by(
    lane: &Lane,
    front: &Front,
    stream: Stream,
    settings: Settings,
    call: &Call<'_>,
    to: Teller,
) -> Result<SocketAddr> {
    let local = stream.local().map_err(failed)?;
    let asking = Asking {
        stream,
        settings,
        depths: call.depths,
        private_data: call.private_data.to_vec(),
        to,
    };
    lane.core.ask(front, asking)?;
    // the thread may not listen to streams yet
    lane.attendant.wake.wake();
    Ok(local)
}

type Attempt<T> = std::result::Result<T, Errno>;

/// What comes of an attempt to reach a peer, which is repeated for a while if nobody listens there:
/// programs that agreed by other ways connect while the peer is about to listen.
fn unless_refused<T>(
    mut reach: impl FnMut() -> Attempt<T>,
    mut pause: impl FnMut(Duration),
) -> Attempt<T> {
    for milliseconds in REFUSED_PAUSES_MS {
        match reach() {
            Err(Errno::CONNREFUSED) => pause(Duration::from_millis(milliseconds)),
            outcome => return outcome,
        }
    }
    reach()
}

fn accept_at(lane: &Lane, front: &Front, accepting: Accepting) -> Result<()> {
    lane.core.accept(front, accepting)?;
    lane.attendant.wake.wake();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of attempts with these outcomes, and for how long was waited in milliseconds.
    fn attempts(outcomes: &[Attempt<u8>]) -> (Attempt<u8>, u128) {
        let mut outcomes = outcomes.iter().copied();
        let mut waited = Duration::ZERO;
        let outcome = unless_refused(
            || outcomes.next().expect("no more attempts than these"),
            |pause| waited += pause,
        );
        assert_eq!(outcomes.len(), 0, "all were made");
        (outcome, waited.as_millis())
    }

    #[test]
    fn a_peer_that_is_about_to_listen_is_reached_and_one_that_does_not_refuses_in_the_end() {
        let refused = Err(Errno::CONNREFUSED);
        assert_eq!(attempts(&[Ok(7)]), (Ok(7), 0));
        assert_eq!(attempts(&[refused, refused, Ok(7)]), (Ok(7), 3));
        let all = vec![refused; REFUSED_PAUSES_MS.len() + 1];
        assert_eq!(attempts(&all), (refused, 127));
    }

    #[test]
    fn what_is_no_refusal_is_final() {
        let lost = Err(Errno::HOSTUNREACH);
        assert_eq!(attempts(&[Err(Errno::CONNREFUSED), lost]), (lost, 1));
    }
}
