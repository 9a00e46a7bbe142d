//! `ping`: what `rping` of rdmacm-utils does, in both roles, and with it as the other end.
//!
//! Each round goes: the client tells where its text lies, the server READs it and says so; the
//! client tells of another buffer, the server WRITEs the text there and says so. So one round
//! tries connection management, SEND, READ and WRITE.

mod connection;
mod info;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use softrdma::cm::{CmEvent, EventKind, Id, PortSpace};
use softrdma::{Access, choice};

use connection::{Connection, Watch};
use info::BufferInfo;

/// Bytes of the shortest buffer: the head of a text and something behind it.
const SIZE_MIN: u32 = 32;
/// Bytes of the longest one.
const SIZE_MAX: u32 = 65_535;

/// Clients that a persistent server serves at the same time, and those that may wait for it.
const CLIENTS_MAX: usize = 256;
const BACKLOG: i32 = 128;

/// How long the server's host is looked for on its network.
const PATIENCE: Duration = Duration::from_secs(2);

/// What can be done when no device has an address.
const NO_ADDRESS: &str = "`softrdma -d link show` lists the addresses that devices have";

/// The characters of a text go round between these.
const CHARACTERS: std::ops::RangeInclusive<u8> = b'A'..=b'z';

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("role").required(true))]
pub(crate) struct Arguments {
    /// Wait for a client and serve it
    #[arg(short, long, group = "role")]
    server: bool,
    /// Ask a server
    #[arg(short, long, group = "role", requires = "address")]
    client: bool,
    /// Serve all clients that come, also several at once, until it is ended
    #[arg(short = 'P', long, conflicts_with = "client")]
    persistent: bool,
    /// The server's address; the server itself listens at all of them without one
    #[arg(short, long)]
    address: Option<String>,
    /// The address that the client asks from, if not the one that the route says
    #[arg(short = 'I', long, value_name = "ADDRESS", conflicts_with = "server")]
    interface: Option<String>,
    /// The server's RDMA port; 0 is any that is free
    #[arg(short, long, default_value_t = 7174)]
    port: u16,
    /// Rounds; 0 is without end
    #[arg(short = 'C', long, default_value_t = 0)]
    count: u32,
    /// Bytes of a text
    #[arg(short = 'S', long, default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(i64::from(SIZE_MIN)..=i64::from(SIZE_MAX)))]
    size: u32,
    /// Print each text
    #[arg(short, long)]
    verbose: bool,
    /// Compare what comes back with what was sent
    #[arg(short = 'V', long)]
    validate: bool,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let ended = prepare().and_then(|_broker| {
        if arguments.server {
            serve(arguments)
        } else {
            ask(arguments)
        }
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::complain(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// As for a program that is run: a broker, and a link if there is none.
fn prepare() -> Result<broker::Client> {
    Ok(crate::run::broker_with_link()?)
}

/// What an address or a name stands for.
fn look_up(name: &str, port: u16) -> Result<SocketAddr> {
    let found = (name, port).to_socket_addrs();
    let mut found = found.with_context(|| format!("the address {name}"))?;
    found
        .next()
        .with_context(|| format!("{name} has no address"))
}

/// The address to listen at or to connect to.
fn address(arguments: &Arguments) -> Result<SocketAddr> {
    match &arguments.address {
        Some(name) => look_up(name, arguments.port),
        None => Ok((everywhere(), arguments.port).into()),
    }
}

/// All addresses of this host: those of IPv4 are among those of IPv6, where the kernel has that.
fn everywhere() -> IpAddr {
    let all = Ipv6Addr::UNSPECIFIED;
    match UdpSocket::bind((all, 0)) {
        Ok(_) => all.into(),
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Said behind what a device is missing for: the links that this process sees are not all.
fn shown_only() -> String {
    match std::env::var(choice::VARIABLE) {
        Ok(names) if !names.is_empty() => {
            format!(
                "; {}={names} shows this program only these",
                choice::VARIABLE
            )
        }
        _ => String::new(),
    }
}

/// Serves one client, or with `-P` every one that comes.
fn serve(arguments: &Arguments) -> Result<()> {
    let at = address(arguments)?;
    let watch = Watch::new()?;
    let listener = Id::new(watch.events(), PortSpace::Tcp)?;
    listener
        .bind(at)
        .with_context(|| format!("bind {at} ({NO_ADDRESS}{})", shown_only()))?;
    let waiting_max = if arguments.persistent { BACKLOG } else { 1 };
    listener
        .listen(waiting_max)
        .with_context(|| format!("listen at {at}"))?;
    if let Some(bound) = listener.local().filter(|_| arguments.port == 0) {
        crate::print(&format!("listening at port {}\n", bound.port()));
    }
    if !arguments.persistent {
        let id = watch.request()?;
        return converse(watch, id, arguments);
    }
    let served = Served::default();
    std::thread::scope(|scope| {
        loop {
            let place = served.take_place();
            let id = watch.request()?;
            scope.spawn(move || {
                serve_beside(id, arguments);
                drop(place);
            });
        }
    })
}

/// How many clients are being served: at most [`CLIENTS_MAX`].
#[derive(Default)]
struct Served {
    count: Mutex<usize>,
    has_changed: Condvar,
}

/// Of a client; given back when it is dropped.
struct Place<'a>(&'a Served);

impl Served {
    /// Waits for a place that is free.
    fn take_place(&self) -> Place<'_> {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |count: &mut usize| *count >= CLIENTS_MAX;
        let waited = self.has_changed.wait_while(count, is_full);
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let count = &self.0.count;
        *count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.has_changed.notify_one();
    }
}

/// Serves one client of several: its events come through a channel of its own, and what goes wrong
/// with it is no matter to the others.
fn serve_beside(id: Id, arguments: &Arguments) {
    let peer = id.remote();
    let served = Watch::new().and_then(|watch| {
        id.migrate(watch.events())?;
        converse(watch, id, arguments)
    });
    if let Err(error) = served {
        let peer = peer.map_or("a client".into(), |peer| peer.to_string());
        crate::complain(format_args!("{peer}: {error:#}"));
    }
}

/// Serves the client whose request this is.
fn converse(watch: Watch, id: Id, arguments: &Arguments) -> Result<()> {
    id.delivered();
    let connection = Connection::new(watch, id, arguments.size, Access::LOCAL_WRITE)?;
    connection.accept()?;
    connection.watch.expect(EventKind::Established)?;
    loop {
        let Some(source) = connection.receive()? else {
            break;
        };
        let length = fitting(source, arguments.size)?;
        connection.read(source, length)?;
        if arguments.verbose {
            show("server ping data: ", &connection.text(length)?);
        }
        connection.send(BufferInfo::default())?;
        let sink = connection
            .receive()?
            .context("the client left in the middle of a round")?;
        ensure!(
            sink.length >= length,
            "the client wants {length} bytes in {}",
            sink.length
        );
        connection.write(sink, length)?;
        connection.send(BufferInfo::default())?;
    }
    connection.disconnect()
}

/// Bytes of the client's buffer, which have to fit into one's own.
fn fitting(source: BufferInfo, size: u32) -> Result<u32> {
    ensure!(
        source.length <= size,
        "the client sends {} bytes and there is room for {size}: give both ends the same -S",
        source.length
    );
    Ok(source.length)
}

/// Asks a server, so many times.
fn ask(arguments: &Arguments) -> Result<()> {
    let to = address(arguments)?;
    let from = arguments.interface.as_deref();
    let from = from.map(|name| look_up(name, 0)).transpose()?;
    let watch = Watch::new()?;
    let id = Id::new(watch.events(), PortSpace::Tcp)?;
    if let Some(from) = from {
        id.bind(from)
            .with_context(|| format!("bind {from} ({NO_ADDRESS}{})", shown_only()))?;
    }
    id.resolve_address(None, to, Some(PATIENCE))?;
    watch
        .expect(EventKind::AddressResolved)
        .with_context(|| format!("find the way to {}", to.ip()))?;
    id.resolve_route()?;
    watch.expect(EventKind::RouteResolved)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let connection = Connection::new(watch, id, arguments.size, rights)?;
    connection
        .connect()
        .with_context(|| format!("connect to {to}"))?;

    let mut round: u32 = 0;
    while arguments.count == 0 || round < arguments.count {
        let text = text(round, arguments.size as usize);
        connection.set_source(&text)?;
        connection.send(connection.source())?;
        told(&connection, "has read the text")?;
        connection.send(connection.sink())?;
        told(&connection, "has written it back")?;
        let back = connection.text(arguments.size)?;
        if arguments.validate {
            ensure!(back == text, "round {round}: not what was sent came back");
        }
        if arguments.verbose {
            show("ping data: ", &back);
        }
        round = round.wrapping_add(1);
    }
    connection.disconnect()
}

/// The server's word that it is done.
fn told(connection: &Connection, what: &str) -> Result<()> {
    match connection.receive()? {
        Some(_) => Ok(()),
        None => bail!("the server left before it {what}"),
    }
}

/// The text of a round: its number, then characters that begin one later each time, and a zero.
fn text(round: u32, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{round}: ").into_bytes();
    let count = CHARACTERS.len();
    let characters = CHARACTERS.cycle().skip(round as usize % count);
    text.extend(characters.take(size.saturating_sub(text.len())));
    text.truncate(size);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

/// Prints a text up to its zero.
fn show(before: &str, text: &[u8]) {
    let end = text.iter().position(|byte| *byte == 0);
    let text = String::from_utf8_lossy(&text[..end.unwrap_or(text.len())]);
    crate::print(&format!("{before}{text}\n"));
}

/// What an event says that was not waited for.
fn unexpected(event: &CmEvent, peer: Option<SocketAddr>) -> anyhow::Error {
    let peer = peer.map_or(IpAddr::from(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
    match event.kind {
        EventKind::Rejected if event.status == 8 => {
            anyhow::anyhow!(
                "nobody listens there (rejected, reason 8): start the server first, and on the \
                 same port"
            )
        }
        EventKind::Rejected => anyhow::anyhow!("rejected, reason {}", event.status),
        EventKind::Unreachable => anyhow::anyhow!(
            "no answer: does `ping` reach that address, is an RDMA device on it, does a firewall \
             drop UDP port 4791?"
        ),
        EventKind::AddressError if event.status == -libc::ETIMEDOUT => anyhow::anyhow!(
            "nobody on the network answers for that address: is the host up, and the address right?"
        ),
        EventKind::AddressError => {
            let error = std::io::Error::from_raw_os_error(-event.status);
            anyhow::anyhow!(
                "no RDMA device leads there ({error}): `ip route get` names the interface, \
                 `softrdma link add NAME type rxe netdev INTERFACE` makes a device on it{}",
                shown_only()
            )
        }
        kind => anyhow::anyhow!("unexpected {kind:?} ({}) of {peer}", event.status),
    }
}

/// Why no connection of iWARP came of it; a status is an error of TCP, negative.
fn no_stream(status: i32) -> Option<anyhow::Error> {
    Some(match -status {
        libc::ECONNREFUSED => anyhow::anyhow!(
            "nobody listens at that TCP port: start the server first, on the same port and on a \
             device of type siw"
        ),
        libc::ETIMEDOUT => anyhow::anyhow!(
            "no answer over iWARP: does `ping` reach that address, does a firewall drop that TCP \
             port, is a server of RDMA behind it (`ss -tlnp` there)?"
        ),
        libc::ECONNRESET => anyhow::anyhow!(
            "it hung up: its program refused, the options of both devices do not agree (`softrdma \
             -d link show`), or it is no server of RDMA (`ss -tlnp` there)"
        ),
        libc::EPROTO => anyhow::anyhow!(
            "what answers there does not speak iWARP: `ss -tlnp` there names the program"
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_rping() {
        let shown = |round, size| {
            let text = text(round, size);
            assert_eq!((text.len(), text.last()), (size, Some(&0)));
            String::from_utf8(text[..size - 1].to_vec()).expect("ASCII")
        };
        // as rping printed them
        assert_eq!(
            shown(0, 64),
            "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr"
        );
        assert_eq!(
            shown(2, 64),
            "rdma-ping-2: CDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrst"
        );
        // after z it begins again
        assert!(shown(0, 100).ends_with("xyzABCDEFGHIJKLMNOPQRSTUVWXYZ[\\"));
        assert!(shown(57, 64).starts_with("rdma-ping-57: zABC"));
        assert!(shown(58, 64).starts_with("rdma-ping-58: ABC"));
        assert!(shown(u32::MAX, SIZE_MIN as usize).starts_with("rdma-ping-4294967295: "));
    }

    #[test]
    fn what_tcp_says_is_told_with_a_remedy() {
        for (errno, remedy) in [
            (libc::ECONNREFUSED, "start the server first"),
            (libc::ETIMEDOUT, "TCP port"),
            (libc::ECONNRESET, "options"),
            (libc::EPROTO, "ss -tlnp"),
        ] {
            let text = no_stream(-errno).expect("it is of the set-up").to_string();
            assert!(text.contains(remedy) && !text.contains("4791"), "{text}");
        }
        assert!(no_stream(-libc::ENOMEM).is_none(), "of this side");
    }

    #[test]
    fn a_place_that_is_given_back_is_free_again() {
        let served = Served::default();
        let mut places: Vec<_> = (0..CLIENTS_MAX).map(|_| served.take_place()).collect();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(served.take_place()));
            places.pop();
            waiting.join().expect("it waits and ends");
        });
        drop(places);
        assert_eq!(served.count.into_inner().expect("nobody panicked"), 0);
    }

    #[test]
    fn a_text_longer_than_the_own_buffer_is_refused() {
        let source = BufferInfo {
            length: 65,
            ..BufferInfo::default()
        };
        assert!(fitting(source, 64).is_err());
        assert_eq!(fitting(source, 65).ok(), Some(65));
    }
}
