//! How streams get their connections. The thread of [`service`](crate::service) does all of it but
//! the first step: each event of an ID brings the connection one step further.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use softrdma::State;
use softrdma::cm::{CmEvent, EventKind, Id, Request};
use wire::rsocket::ConnectionData;

use crate::endpoint::{End, Endpoint, RETRIES, lock};
use crate::error::{Error, Result};
use crate::service::Service;
use crate::stream::{Family, Phase, Stream};

/// How long the peer's host is looked for on its network, as in `librdmacm`.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connections that may wait for a program that asks for more, or does not say how many: as many as
/// connection management has wait.
const BACKLOG_MAX: usize = 1024;

impl Stream {
    /// Takes connections: at most `backlog` wait to be accepted, whatever has become of them; as
    /// many peers more wait until there is room.
    ///
    /// # Errors
    /// As [`Id::listen`](softrdma::cm::Id::listen).
    pub fn listen(self: &Arc<Self>, backlog: i32) -> Result<()> {
        let mut control = lock(&self.control);
        match control.phase {
            Phase::Listening => return Ok(()),
            Phase::Idle => {}
            _ => return Err(Error::Invalid("the rsocket is connected")),
        }
        let service = Service::current()?;
        service.attend_stream(self.token, self)?;
        let backlog = backlog.max(1);
        control.backlog =
            usize::try_from(backlog).map_or(BACKLOG_MAX, |many| many.min(BACKLOG_MAX));
        self.id.listen(backlog)?;
        control.phase = Phase::Listening;
        Ok(())
    }

    /// Begins to connect; [`Error::InProgress`] is what normally comes of it. Called again, it says
    /// what has come of it.
    ///
    /// # Errors
    /// [`Error::InProgress`], [`Error::Failed`] with the peer's or the device's reason.
    pub fn connect(self: &Arc<Self>, to: SocketAddr) -> Result<()> {
        {
            let mut control = lock(&self.control);
            match control.phase {
                Phase::Idle => control.phase = Phase::Opening,
                Phase::Opening => return Err(Error::InProgress),
                Phase::Open => return Err(Error::Connected),
                Phase::Failed => {
                    return Err(Error::Failed(
                        control.error.take().unwrap_or(libc::ENOTCONN),
                    ));
                }
                Phase::Listening | Phase::Closed => {
                    return Err(Error::Invalid("the rsocket listens or is closed"));
                }
            }
        }
        let service = Service::current()?;
        let begun = service
            .attend_stream(self.token, self)
            .and_then(|()| Ok(self.id.resolve_address(None, to, Some(PATIENCE))?));
        if let Err(error) = begun {
            let errno = error.errno();
            self.fail(errno);
            return Err(error);
        }
        Err(Error::InProgress)
    }

    /// Whether the connection is being made.
    pub fn is_connecting(&self) -> bool {
        lock(&self.control).phase == Phase::Opening
    }

    /// Whether the connection that was asked for is there.
    ///
    /// # Errors
    /// [`Error::InProgress`] not yet; [`Error::Failed`] it will never be.
    pub fn connected(&self) -> Result<()> {
        let mut control = lock(&self.control);
        match control.phase {
            Phase::Opening => Err(Error::InProgress),
            Phase::Open => Ok(()),
            _ => Err(Error::Failed(
                control.error.take().unwrap_or(libc::ENOTCONN),
            )),
        }
    }

    /// What happened to its ID.
    pub(crate) fn hear(self: &Arc<Self>, service: &Arc<Service>, mut event: CmEvent) {
        let done = match event.kind {
            EventKind::ConnectRequest => {
                if let Some(id) = event.request.take() {
                    self.keep_request(id, event);
                    self.take_requests(service);
                }
                return;
            }
            EventKind::AddressResolved => self.id.resolve_route().map_err(Error::from),
            EventKind::RouteResolved => self.ask(service),
            EventKind::ConnectResponse => self.take_response(&event),
            EventKind::Established => self.take_established(&event),
            EventKind::Disconnected | EventKind::DeviceRemoval => {
                self.take_end(event.kind);
                Ok(())
            }
            EventKind::TimeWaitExit => Ok(()),
            EventKind::Rejected => Err(Error::Failed(libc::ECONNREFUSED)),
            _ => match event.status {
                0 => Err(Error::Failed(libc::ECONNABORTED)),
                status => Err(Error::Failed(status.abs())),
            },
        };
        if let Err(error) = done {
            tracing::debug!(%error, "a connection cannot be made");
            self.fail(error.errno());
        }
    }

    /// The connection will not be made.
    fn fail(&self, errno: i32) {
        let mut control = lock(&self.control);
        if control.phase == Phase::Opening {
            control.phase = Phase::Failed;
            control.error = Some(errno);
        }
        drop(control);
        if let (Some(listener), Ok(service)) = (self.leave_listener(), Service::current()) {
            listener.take_requests(&service);
        }
        self.waiters.ring();
    }

    /// No longer one of those that a listener waits for.
    fn leave_listener(&self) -> Option<Arc<Stream>> {
        let listener = lock(&self.control).listener.upgrade()?;
        let mut control = lock(&listener.control);
        let at = control
            .opening
            .iter()
            .position(|other| other.token == self.token)?;
        let own = control.opening.swap_remove(at);
        drop(control);
        // the caller has one too, so nothing ends here
        drop(own);
        Some(listener)
    }

    /// The way to the peer is known: the peer is asked.
    fn ask(&self, service: &Service) -> Result<()> {
        let endpoint = self.make_endpoint(service)?;
        let mut request = request(endpoint);
        if self.id.is_stream() {
            // some devices READ to let the other end speak first
            request.initiator_depth = Some(1);
        }
        // this is the thread of all rsockets
        Ok(self.id.begin_connect(&request)?)
    }

    fn make_endpoint(&self, service: &Service) -> Result<&Endpoint> {
        let link = self.id.link().ok_or(Error::NotConnected)?;
        let (device, domain) = service.device(&link)?;
        let settings = lock(&self.control).settings;
        let endpoint = Endpoint::new(
            &device,
            &domain,
            &self.channel,
            &self.waiters,
            &self.id,
            &settings,
        )?;
        self.endpoint
            .set(endpoint)
            .map_err(|_| Error::Invalid("a stream connects once"))?;
        self.endpoint.get().ok_or(Error::NotConnected)
    }

    /// The peer has accepted.
    fn take_response(&self, event: &CmEvent) -> Result<()> {
        let endpoint = self.meet(event)?;
        endpoint.step(&self.id, State::ReadyToReceive)?;
        endpoint.step(&self.id, State::ReadyToSend)?;
        self.id.establish()?;
        self.begin(endpoint);
        Ok(())
    }

    /// The connection is there. Over iWARP this is the first that who asked hears of the peer.
    fn take_established(self: &Arc<Self>, event: &CmEvent) -> Result<()> {
        let has_met = self.endpoint.get().is_some_and(Endpoint::has_met);
        if self.id.is_stream() && !has_met {
            self.begin(self.meet(event)?);
        } else {
            self.establish();
        }
        Ok(())
    }

    /// Takes what the peer, who has accepted, says of itself.
    fn meet(&self, event: &CmEvent) -> Result<&Endpoint> {
        let endpoint = self.endpoint.get().ok_or(Error::NotConnected)?;
        let peer = ConnectionData::parse(&event.parameters.private_data).map_err(|error| {
            tracing::debug!(%error, "the peer is no rsocket");
            // the peer waits; if it cannot be told it will find out
            let _ = self.id.reject(&[]);
            Error::Failed(libc::ECONNREFUSED)
        })?;
        endpoint.meet(peer);
        Ok(endpoint)
    }

    /// The connection is there.
    fn begin(&self, endpoint: &Endpoint) {
        endpoint.open();
        let mut control = lock(&self.control);
        if control.phase == Phase::Opening {
            control.phase = Phase::Open;
        }
        drop(control);
        self.waiters.ring();
        if let Ok(service) = Service::current() {
            // for its signs of life
            service.wake();
        }
    }

    /// Keeps a peer that asks until there is room for its connection; too many are refused.
    fn keep_request(&self, id: Id, event: CmEvent) {
        let mut control = lock(&self.control);
        if control.requests.len() < control.backlog {
            control.requests.push_back((id, event));
        } else {
            drop(control);
            // without the lock, as this tells the peer
            drop(id);
        }
    }

    /// Accepts peers that ask, as long as there is room for their connections.
    pub(crate) fn take_requests(self: &Arc<Self>, service: &Arc<Service>) {
        loop {
            let mut control = lock(&self.control);
            let waiting = control.accepted.len() + control.opening.len();
            if control.phase != Phase::Listening || waiting >= control.backlog {
                return;
            }
            let Some((id, event)) = control.requests.pop_front() else {
                return;
            };
            drop(control);
            if let Err(error) = self.take_request(service, id, &event) {
                // the ID went with it, which refuses the request
                tracing::debug!(%error, "a connection is not accepted");
            }
        }
    }

    /// Somebody asks this listener for a connection.
    fn take_request(
        self: &Arc<Self>,
        service: &Arc<Service>,
        id: Id,
        event: &CmEvent,
    ) -> Result<()> {
        let peer = ConnectionData::parse(&event.parameters.private_data)
            .map_err(|_| Error::Unsupported("a peer that is no rsocket"))?;
        let family = match id.remote() {
            Some(SocketAddr::V6(_)) => Family::V6,
            _ => Family::V4,
        };
        let settings = lock(&self.control).settings;
        let stream = Stream::new(service, id, family, settings)?;
        {
            let mut control = lock(&stream.control);
            control.phase = Phase::Opening;
            control.listener = Arc::downgrade(self);
        }
        let endpoint = stream.make_endpoint(service)?;
        endpoint.meet(peer);
        let request = request(endpoint);
        stream.id.prepare_accept(&request)?;
        // its rights again, which the request decides
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            endpoint.step(&stream.id, state)?;
        }
        service.attend_stream(stream.token, &stream)?;
        stream.id.accept(&request)?;
        // until it is established nobody else has it
        lock(&self.control).opening.push(stream);
        Ok(())
    }

    /// This side has accepted, and the peer knows: a listener has one more.
    fn establish(self: &Arc<Self>) {
        let Some(endpoint) = self.endpoint.get() else {
            return;
        };
        self.begin(endpoint);
        let Some(listener) = self.leave_listener() else {
            return;
        };
        let mut control = lock(&listener.control);
        if control.phase == Phase::Listening {
            control.accepted.push_back(Arc::clone(self));
        }
        drop(control);
        listener.waiters.ring();
    }

    /// The peer, or the device, is gone.
    fn take_end(&self, kind: EventKind) {
        let end = match kind {
            EventKind::DeviceRemoval => End::Broken("the device is gone"),
            _ => End::Closed,
        };
        if let Some(endpoint) = self.endpoint.get() {
            endpoint.end(end);
        }
        // answers the peer; on what is over already it does nothing
        let _ = self.id.disconnect();
        self.fail(libc::ECONNRESET);
    }
}

/// What the peer's connection management has to know of this side.
fn request(endpoint: &Endpoint) -> Request {
    Request {
        qpn: endpoint.qpn(),
        has_srq: false,
        responder_resources: Some(0),
        initiator_depth: Some(0),
        flow_control: true,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        private_data: endpoint.connection_data().to_bytes().to_vec(),
    }
}
