//! Leases a slot of a broker and prints the sizes of the datagrams that arrive there.
//!
//! `cargo run -p softrdma-broker --example lease -- [INSTANCE]`, with a broker running.

use std::{env, error::Error, os::fd::AsFd};

use io::{poll::wait_readable, udp};
use softrdma_broker::{Client, ConnectOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let options = ConnectOptions {
        start: false,
        instance: env::args().nth(1),
        ..ConnectOptions::default()
    };
    let client = Client::connect(&options)?;
    let lease = client.lease_slot()?;
    println!("slot {}", lease.slot);
    let waiting = lease.receive.as_fd().try_clone_to_owned()?;
    let mut socket = udp::ReceiveSocket::from_fd(lease.receive);
    let mut buffer = vec![0; udp::RECEIVE_BUFFER];
    loop {
        wait_readable(&waiting, None)?;
        while let Some(received) = socket.receive(&mut buffer)? {
            println!("{} bytes", received.length);
        }
    }
}
