//! How the command reaches the broker.

use std::{
    env,
    time::{Duration, Instant},
};

use broker::{CallError, Client, ConnectError, ConnectOptions, LinkInfo, Refusal};

fn options(start: bool) -> ConnectOptions {
    // this very program is the broker's
    ConnectOptions {
        start,
        program: env::current_exe().ok(),
        ..ConnectOptions::default()
    }
}

/// Connects, starting the broker if none runs.
pub(crate) fn connect_or_start() -> Result<Client, ConnectError> {
    Client::connect(&options(true))
}

/// Connects; `None` if no broker runs: to look at nothing needs none.
pub(crate) fn connect() -> Result<Option<Client>, ConnectError> {
    match Client::connect(&options(false)) {
        Ok(client) => Ok(Some(client)),
        Err(ConnectError::NotRunning) => Ok(None),
        Err(error) => Err(error),
    }
}

/// All links, for commands that only look.
pub(crate) fn links() -> Result<Vec<LinkInfo>, Failure> {
    match connect()? {
        Some(client) => Ok(client.links()?),
        None => Ok(Vec::new()),
    }
}

/// A program without the port gets no device that works, of either type: better said now. Clients
/// of a broker that was killed need a moment to let go of it.
pub(crate) fn wait_for_port(client: &Client) -> Result<(), Failure> {
    const WAIT: Duration = Duration::from_secs(3);
    let deadline = Instant::now() + WAIT;
    while let Some(detail) = client.status()?.port_problem {
        if Instant::now() >= deadline {
            return Err(CallError::from(Refusal::PortUnavailable { detail }).into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// What keeps a command from the broker's answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Failure {
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::Connect(error) => error.errno(),
            Self::Call(error) => error.errno(),
        }
    }
}
