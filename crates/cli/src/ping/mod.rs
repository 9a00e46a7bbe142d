//! `ping`: what `rping` of rdmacm-utils does, in both roles, and with it as the other end.
//!
//! Each round goes: the client tells where its text lies, the server READs it and says so; the
//! client tells of another buffer, the server WRITEs the text there and says so. So one round
//! tries connection management, SEND, READ and WRITE.

mod connection;
mod info;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use softrdma::Access;
use softrdma::cm::{CmEvent, EventKind, Id, PortSpace};

use connection::{Connection, Watch};
use info::BufferInfo;

/// Bytes of the shortest buffer: the head of a text and something behind it.
const SIZE_MIN: u32 = 32;
/// Bytes of the longest one.
const SIZE_MAX: u32 = 65_535;

/// The characters of a text go round between these.
const CHARACTERS: std::ops::RangeInclusive<u8> = b'A'..=b'z';

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Wait for a client and serve it
    #[arg(
        short,
        long,
        conflicts_with = "client",
        required_unless_present = "client"
    )]
    server: bool,
    /// Ask a server
    #[arg(short, long, requires = "address")]
    client: bool,
    /// The server's address; the server itself listens at all of them without one
    #[arg(short, long)]
    address: Option<String>,
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
    let ended = if arguments.server {
        serve(arguments)
    } else {
        ask(arguments)
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("softrdma: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The address to listen at or to connect to.
fn address(arguments: &Arguments) -> Result<SocketAddr> {
    let Some(name) = &arguments.address else {
        return Ok((Ipv4Addr::UNSPECIFIED, arguments.port).into());
    };
    let found = (name.as_str(), arguments.port).to_socket_addrs();
    let mut found = found.with_context(|| format!("the address {name}"))?;
    found
        .next()
        .with_context(|| format!("{name} has no address"))
}

/// Serves one client.
fn serve(arguments: &Arguments) -> Result<()> {
    let at = address(arguments)?;
    let watch = Watch::new()?;
    let listener = Id::new(watch.events(), PortSpace::Tcp)?;
    listener.bind(at).with_context(|| format!("bind {at}"))?;
    listener
        .listen(1)
        .with_context(|| format!("listen at {at}"))?;
    if let Some(bound) = listener.local().filter(|_| arguments.port == 0) {
        println!("listening at port {}", bound.port());
    }
    let request = watch.expect(EventKind::ConnectRequest)?.request;
    let id = request.context("a request without an ID")?;
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
    let watch = Watch::new()?;
    let id = Id::new(watch.events(), PortSpace::Tcp)?;
    id.resolve_address(None, to)?;
    watch
        .expect(EventKind::AddressResolved)
        .with_context(|| format!("no device leads to {}", to.ip()))?;
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
            anyhow::anyhow!("nobody listens there (rejected, reason 8)")
        }
        EventKind::Rejected => anyhow::anyhow!("rejected, reason {}", event.status),
        EventKind::Unreachable => anyhow::anyhow!("no answer"),
        EventKind::AddressError => {
            let error = std::io::Error::from_raw_os_error(-event.status);
            anyhow::anyhow!("no way, or no device on it: {error}")
        }
        kind => anyhow::anyhow!("unexpected {kind:?} ({}) of {peer}", event.status),
    }
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
    fn a_text_longer_than_the_own_buffer_is_refused() {
        let source = BufferInfo {
            length: 65,
            ..BufferInfo::default()
        };
        assert!(fitting(source, 64).is_err());
        assert_eq!(fitting(source, 65).ok(), Some(65));
    }
}
