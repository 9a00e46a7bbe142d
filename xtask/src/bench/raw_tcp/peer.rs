//! The receiving process: takes FPDUs apart, checks and places them, or sends back what comes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use io::clock::now_ns;
use serde::{Deserialize, Serialize};
use wire::iwarp::{Deframer, Header, fpdu};

use super::sender::poll_exactly;
use super::{Plan, REGION, SMALL_FPDU, pattern};
use crate::bench::machine::Pinned;
use crate::bench::second_process::tell;

/// One read takes so much at most; behind it there is room for the rest of an FPDU.
const READ: usize = 256 << 10;

/// A sender that is silent for so long is gone.
const SILENCE: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub struct Arguments {
    /// What is measured, as JSON
    plan: String,
    /// Processor to stay on
    #[arg(long)]
    processor: Option<usize>,
}

/// First line of the peer's output: where it is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    pub port: u16,
}

/// Last line of the peer's output: what it saw.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Payload.
    pub bytes: u64,
    /// Messages whose last FPDU came.
    pub messages: u64,
    /// Whether the region is now as the sender's.
    pub is_whole: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let plan: Plan = serde_json::from_str(&arguments.plan).context("the plan")?;
    let _pinned = arguments.processor.map(Pinned::to).transpose()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    tell(&Ready { port })?;
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    match plan {
        Plan::Stream { has_crc, .. } => tell(&take(stream, has_crc)?),
        Plan::PingPong => send_back(stream),
    }
}

/// Takes all that comes.
fn take(mut stream: TcpStream, has_crc: bool) -> Result<Seen> {
    let mut deframer = Deframer::new(has_crc, false);
    let mut buffer = vec![0; fpdu::FPDU_MAX + READ];
    let mut region = vec![0; REGION];
    let mut seen = Seen::default();
    let mut filled = 0;
    let mut silent_since = None;
    loop {
        match stream.read(&mut buffer[filled..filled + READ]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let now = now_ns();
                let since = *silent_since.get_or_insert(now);
                let silence = u128::from(now - since);
                ensure!(silence < SILENCE.as_nanos(), "the sender is silent");
                continue;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("receiving"),
        }
        silent_since = None;
        let mut used = 0;
        while let Some(fpdu) = deframer.next(&buffer[used..filled])? {
            place(fpdu.ulpdu, &mut region, &mut seen)?;
            used += fpdu.length;
        }
        buffer.copy_within(used..filled, 0);
        filled -= used;
    }
    ensure!(filled == 0, "the stream ended inside of an FPDU");
    seen.is_whole = region == pattern();
    Ok(seen)
}

fn place(ulpdu: &[u8], region: &mut [u8], seen: &mut Seen) -> Result<()> {
    let (header, payload) = Header::parse(ulpdu)?;
    let Header::Tagged(tagged) = header else {
        bail!("not a WRITE");
    };
    let start = usize::try_from(tagged.offset.0)?;
    let place = region
        .get_mut(start..)
        .and_then(|region| region.get_mut(..payload.len()))
        .context("outside of the region")?;
    place.copy_from_slice(payload);
    seen.bytes += payload.len() as u64;
    seen.messages += u64::from(tagged.control.is_last());
    Ok(())
}

fn send_back(mut stream: TcpStream) -> Result<()> {
    let mut message = [0; SMALL_FPDU];
    while poll_exactly(&mut stream, &mut message)? {
        // never more than this in flight, for which there is room
        stream.write_all(&message).context("sending")?;
    }
    Ok(())
}
