//! `cargo xtask bench`: what this machine can do, in figures that are kept.

mod raw;

use anyhow::Result;
use clap::Subcommand;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Plain sockets between two processes on loopback: the limits for everything above them
    Raw(raw::Arguments),
    /// The second process of `raw`
    #[command(hide = true)]
    RawPeer(raw::PeerArguments),
}

pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.what {
        What::Raw(arguments) => raw::run(arguments),
        What::RawPeer(arguments) => raw::run_peer(arguments),
    }
}
