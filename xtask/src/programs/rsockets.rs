//! Programs that use rsockets, all of Debian's `rdmacm-utils`: `rstream`, `riostream`, `rcopy`,
//! `udpong`.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::connections::{PAUSE, as_strs};
use super::scenes::Scene;
use super::succeeded;
use super::world::World;
use crate::process::{Ended, GUARD, Running};

/// Those that run once, as root on `lo`.
pub const SCENES: [Scene; 3] = [
    ("rcopy", copy),
    ("rspreload", preloaded),
    ("udpong", datagrams),
];

/// One run of a program that sends to and fro, both ends with the same options.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its name.
    pub program: &'static str,
    /// Address of the server; `None` is the one that the world gives.
    pub address: Option<&'static str>,
    /// How it calls: the letters of `-T`.
    pub manner: &'static str,
    /// Bytes of a transfer; `None` runs the program's own list of sizes.
    pub size: Option<u32>,
}

/// Blocking calls, data compared, sizes that no buffer divides.
pub const DEFAULT: Stream = Stream {
    program: "rstream",
    address: None,
    manner: "bv",
    size: Some(100_001),
};

/// What every network carries.
pub fn some() -> Vec<Stream> {
    let manner = |manner| Stream { manner, ..DEFAULT };
    vec![
        DEFAULT,
        manner("nv"),
        manner("av"),
        Stream {
            program: "riostream",
            ..DEFAULT
        },
    ]
}

/// Every way of calling with every kind of size.
pub fn every() -> Vec<Stream> {
    let mut all = Vec::new();
    for program in ["rstream", "riostream"] {
        for manner in ["b", "n", "a", "ab", "bv", "rbv"] {
            // `riostream` does not know the letter
            if program == "riostream" && manner.contains('r') {
                continue;
            }
            for size in [Some(1), Some(64), Some(4097), Some(1 << 20), None] {
                all.push(Stream {
                    program,
                    address: None,
                    manner,
                    size,
                });
            }
        }
    }
    all
}

impl Stream {
    /// The server's words with `-b`, the client's with `-s`.
    pub fn argv(&self, end: &str, address: &str) -> Vec<String> {
        let mut argv: Vec<String> = [self.program, end, address].map(String::from).into();
        for letter in self.manner.chars() {
            argv.extend(["-T".into(), letter.to_string()]);
        }
        if let Some(size) = self.size {
            let numbers = [("-S", size), ("-C", 20), ("-I", 10)];
            argv.extend(
                numbers
                    .into_iter()
                    .flat_map(|(name, n)| [name.into(), n.to_string()]),
            );
        }
        argv
    }

    /// Runs server and client and judges both.
    pub fn run(&self, world: &World) -> Result<()> {
        let start = Instant::now();
        while !self.meet(world, start.elapsed() > GUARD)? {}
        Ok(())
    }

    /// The program's own list takes longer on a busy machine: `riostream` looks at memory at both
    /// ends and leaves no processor to anybody.
    fn guard(&self) -> Duration {
        match self.size {
            Some(_) => GUARD,
            None => GUARD * 2,
        }
    }

    /// One attempt; false if it has to be repeated, unless it is the last. The server of
    /// `riostream` sets the size of its iomap only after it listens: a client that comes in between
    /// cannot map anything.
    fn meet(&self, world: &World, is_last: bool) -> Result<bool> {
        let address = self.address.unwrap_or(world.server.address);
        let argv = self.argv("-b", address);
        let mut server = world.server.start(&as_strs(&argv), &[])?;
        let argv = self.argv("-s", address);
        let client = client_within(world, &as_strs(&argv), self.guard())
            .with_context(|| format!("the server printed:\n{}", server.output()))?;
        if client.output.contains("riomap: Cannot allocate memory") && !is_last {
            server.kill()?;
            return Ok(false);
        }
        self.judge("client", &client)?;
        let server = server.wait_at_most(self.guard()).context("server")?;
        self.judge("server", &server)?;
        Ok(true)
    }

    /// Whether an end measured something, of right data.
    pub fn judge(&self, end: &str, ended: &Ended) -> Result<()> {
        succeeded(end, ended)?;
        let measured = ended
            .output
            .lines()
            .filter(|line| line.contains("s  "))
            .count();
        ensure!(
            measured > 0 && !ended.output.contains("verification failed"),
            "{end}: nothing was measured, or data were wrong:\n{}",
            ended.output
        );
        Ok(())
    }
}

impl std::fmt::Display for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            program, manner, ..
        } = self;
        let family = match self.address {
            Some(address) if address.contains(':') => "ipv6",
            _ => "ipv4",
        };
        write!(f, "{program},{family},{manner}")?;
        match self.size {
            Some(size) => write!(f, ",size={size}"),
            None => write!(f, ",all"),
        }
    }
}

/// What programs say when nobody listens yet; those that do not wait for the connection report
/// the error of the call before.
const REFUSED: [&str; 2] = ["Connection refused", "rpoll: Operation now in progress"];

/// A client that gets its connection: nothing outside tells when a server listens.
fn client(world: &World, argv: &[&str]) -> Result<Ended> {
    client_within(world, argv, GUARD)
}

/// The same, for one that may take so long.
fn client_within(world: &World, argv: &[&str], guard: Duration) -> Result<Ended> {
    let start = Instant::now();
    loop {
        let ended = world.client.start(argv, &[])?.wait_at_most(guard)?;
        let is_refused = REFUSED.iter().any(|text| ended.output.contains(text));
        if !is_refused || start.elapsed() > GUARD {
            return Ok(ended);
        }
        std::thread::sleep(PAUSE);
    }
}

/// A program of plain TCP sockets, which Debian's `librspreload` puts on rsockets: nobody listens
/// on its TCP port meanwhile.
fn preloaded(world: &World) -> Result<()> {
    let library = preload_library()?;
    let variables = [("LD_PRELOAD", library.as_str())];
    let stream = Stream {
        manner: "sbv",
        ..DEFAULT
    };
    let address = world.server.address;
    let argv = stream.argv("-b", address);
    let mut server = world.server.start(&as_strs(&argv), &variables)?;
    let argv = stream.argv("-s", address);
    let start = Instant::now();
    let client = loop {
        let ended = world.client.start(&as_strs(&argv), &variables)?.wait()?;
        ensure!(!server.listens(PORT)?, "it listens on a TCP port");
        if !ended.output.contains("Connection refused") || start.elapsed() > GUARD {
            break ended;
        }
        std::thread::sleep(PAUSE);
    };
    stream.judge("client", &client)?;
    stream.judge("server", &server.wait().context("server")?)
}

/// The port of `rstream`.
const PORT: u16 = 7471;

/// Where Debian has it; the folder is the architecture's.
fn preload_library() -> Result<String> {
    let folders = fs::read_dir("/usr/lib").context("/usr/lib")?;
    let candidates = folders
        .flatten()
        .map(|folder| folder.path().join("rsocket/librspreload.so"));
    let found = candidates.into_iter().find(|path| path.exists());
    let found = found.context("no librspreload.so: is librdmacm1 installed?")?;
    Ok(found.display().to_string())
}

/// Datagrams one way and echoed, in every way of calling.
fn datagrams(world: &World) -> Result<()> {
    pongs(world, world.server.address)
}

/// The same between IPv6 addresses.
pub fn datagrams_ipv6(world: &World) -> Result<()> {
    let is_one_host = world.server.namespace.is_none();
    pongs(world, if is_one_host { "::1" } else { "fd77::1" })
}

fn pongs(world: &World, address: &str) -> Result<()> {
    for manner in ["n", "b", "a", "ne", "be", "ae"] {
        pong(world, address, manner).with_context(|| format!("-T {manner}"))?;
    }
    Ok(())
}

/// Runs `udpong` until it counts right: a server that takes a second to answer is asked again, and
/// then counts from the front again.
fn pong(world: &World, address: &str, manner: &str) -> Result<()> {
    const ATTEMPTS: u32 = 3;
    let mut counted = Ok(());
    for _ in 0..ATTEMPTS {
        counted = pong_once(world, address, manner);
        if counted.is_ok() {
            break;
        }
    }
    counted
}

/// As many datagrams as there are receives for: none may be lost, however slow the server is.
fn pong_once(world: &World, address: &str, manner: &str) -> Result<()> {
    const COUNT: u32 = 300;
    let mut options = Vec::new();
    for letter in manner.chars() {
        options.extend(["-T".to_owned(), letter.to_string()]);
    }
    let argv = |end: &str| {
        let mut argv = ["udpong", end, address].map(String::from).to_vec();
        argv.extend(options.iter().cloned());
        argv
    };
    // what it does is up to the client, but for how it calls; it serves for ever
    let mut server = world.server.start(&as_strs(&argv("-b")), &[])?;
    let mut words = argv("-s");
    words.extend(["-S", "1000", "-C", &COUNT.to_string()].map(String::from));
    // it asks again until somebody answers
    let ended = world.client.start(&as_strs(&words), &[])?.wait();
    server.kill()?;
    let ended = ended?;
    succeeded("udpong", &ended)?;
    let measured = ended.output.lines().find(|line| line.starts_with("custom"));
    let counted = measured.and_then(|line| line.split_whitespace().nth(2));
    // an echo is counted twice
    let expected = if manner.contains('e') {
        2 * COUNT
    } else {
        COUNT
    };
    ensure!(
        counted == Some(expected.to_string().as_str()),
        "{expected} datagrams were expected:\n{}",
        ended.output
    );
    Ok(())
}

/// A file is copied and compared.
fn copy(world: &World) -> Result<()> {
    copy_of(world, 20_000_001)
}

/// The same, of 1 GiB.
pub fn copy_large(world: &World) -> Result<()> {
    copy_of(world, 1 << 30)
}

fn copy_of(world: &World, size: usize) -> Result<()> {
    const FROM: &str = "/run/rcopy.in";
    const TO: &str = "/run/rcopy.out";
    // words that differ everywhere: a piece in the wrong place is seen
    let words = (0..size.div_ceil(8) as u64).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(size);
    fs::write(FROM, &bytes).context(FROM)?;
    let mut server = world.server.start(&["rcopy"], &[])?;
    let to = format!("{}:{TO}", world.server.address);
    let ended = client(world, &["rcopy", FROM, &to])?;
    succeeded("rcopy", &ended)?;
    // it serves for ever
    server.kill()?;
    ensure!(fs::read(TO).context(TO)? == bytes, "the copy differs");
    Ok(())
}
