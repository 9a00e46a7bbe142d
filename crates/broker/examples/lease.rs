//! Leases a slot of a broker and prints the sizes of the datagrams that arrive there.
//!
//! `cargo run -p softrdma-broker --example lease -- [INSTANCE [PORT]]`, with a broker running; with
//! a port it listens on that RDMA port.

use std::{env, error::Error, net::Ipv4Addr, os::fd::AsFd};

use io::{poll::wait_readable, udp};
use softrdma_broker::{Client, ConnectOptions, PortAddress, PortSpace};

fn main() -> Result<(), Box<dyn Error>> {
    let options = ConnectOptions {
        start: false,
        instance: env::args().nth(1),
        ..ConnectOptions::default()
    };
    let client = Client::connect(&options)?;
    let lease = client.lease_slot()?;
    if let Some(port) = env::args().nth(2) {
        let everywhere = PortAddress::of(Ipv4Addr::UNSPECIFIED.into());
        let bound = client.bind_port(PortSpace::Tcp, port.parse()?, everywhere, false)?;
        client.listen(bound.id, lease.slot)?;
    }
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
