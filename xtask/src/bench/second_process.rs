//! The other one of two processes that measure plain sockets: this program once more. It talks
//! with lines of JSON on its output.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Ended when dropped.
pub struct SecondProcess {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl SecondProcess {
    /// Starts `xtask bench` with these arguments, and on this processor if it is to stay on one.
    pub fn start(arguments: &[String], processor: Option<usize>) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("this program's name")?);
        command.arg("bench").args(arguments);
        if let Some(processor) = processor {
            command.args(["--processor", &processor.to_string()]);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the second process")?;
        let output = child
            .stdout
            .take()
            .map(BufReader::new)
            .context("its output")?;
        Ok(Self { child, output })
    }

    /// The next line of its output. It ends by itself when it hears nothing from us.
    pub fn line<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .context("hearing from the second process")?;
        ensure!(!line.is_empty(), "the second process ended early");
        serde_json::from_str(&line).context("what the second process says")
    }

    /// Waits for its good end.
    pub fn wait(&mut self) -> Result<()> {
        let status = self.child.wait().context("the second process")?;
        ensure!(status.success(), "the second process: {status}");
        Ok(())
    }
}

impl Drop for SecondProcess {
    fn drop(&mut self) {
        // After `wait` both are refused, which is well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tells the first process, from the second one.
pub fn tell(value: &impl Serialize) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(value)?)?;
    out.flush().context("telling the first process")
}
