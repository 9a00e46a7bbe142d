//! One process writes into the memory of another, which does not take part.
//!
//! ```text
//! softrdma link add rxe_lo type rxe netdev lo
//! cargo run --example write
//! ```
//!
//! The example starts itself as the peer; the two exchange their endpoints over pipes. Any other
//! way of carrying a line of JSON would do as well.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use softrdma::{Access, Device, Endpoint, QueuePairOptions, RcOptions, RemoteRegion};

const DEVICE: &str = "rxe_lo";
const REGION_BYTES: usize = 1 << 20;

/// What each side tells the other.
#[derive(Serialize, Deserialize)]
struct Peer {
    endpoint: Endpoint,
    region: RemoteRegion,
}

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args().nth(1).as_deref() == Some("peer") {
        return run(&mut std::io::stdin().lock(), &mut std::io::stdout(), false);
    }
    let mut peer = Command::new(std::env::current_exe()?)
        .arg("peer")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = BufReader::new(peer.stdout.take().ok_or("a pipe was asked for")?);
    let mut output = peer.stdin.take().ok_or("a pipe was asked for")?;
    run(&mut input, &mut output, true)?;
    drop(output); // its end of file tells the peer to look at its memory and finish
    print!("{}", std::io::read_to_string(input)?);
    if peer.wait()?.success() {
        Ok(())
    } else {
        Err("the peer failed".into())
    }
}

fn run(
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    writes: bool,
) -> Result<(), Box<dyn Error>> {
    let device = Device::open(DEVICE)?;
    let pd = device.protection_domain()?;
    let cq = device.completion_queue(256)?;
    let region = pd.register(
        vec![0; REGION_BYTES],
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
    )?;
    let qp = pd.queue_pair(QueuePairOptions::rc(&cq).send_depth(128).receive_depth(16))?;

    let options = RcOptions::default();
    let mine = Peer {
        endpoint: qp.endpoint(options.gid_index)?,
        region: region.remote(),
    };
    writeln!(output, "{}", serde_json::to_string(&mine)?)?;
    output.flush()?;
    let mut line = String::new();
    input.read_line(&mut line)?;
    let peer: Peer = serde_json::from_str(&line)?;
    qp.connect(peer.endpoint, &options)?; // INIT → RTR → RTS

    if !writes {
        // nothing to do while the peer writes: not even to poll
        input.read_line(&mut line)?;
        let mut greeting = [0; 5];
        region.copy_out(4096, &mut greeting)?;
        println!(
            "in the peer's memory: {:?}",
            String::from_utf8_lossy(&greeting)
        );
        return if &greeting == b"hello" {
            Ok(())
        } else {
            Err("not what was written".into())
        };
    }

    region.copy_in(0, b"hello")?;
    let mut batch = qp.batch(); // one lock, one run
    batch.write(region.slice(0..5)?, peer.region.at(0)).id(1);
    batch
        .write(region.slice(0..5)?, peer.region.at(4096))
        .id(2)
        .signaled();
    batch.post()?;
    let completions = cq.wait(Duration::from_secs(10));
    if completions.is_empty() {
        return Err("no completion within 10 s".into());
    }
    for completion in completions {
        let done = completion.result()?; // the error says why
        println!("work request {} done, {} bytes", done.id, done.length);
    }
    Ok(())
}
