//! Programs that are watched: their output at hand at any time, their end at the latest by a guard.
//!
//! Output goes to a file and not through a pipe, so that a daemon that inherits it cannot hold us
//! up. A [`Local`] program that is dropped is ended first; nothing is left behind.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long anything may take before it counts as hung.
pub const GUARD: Duration = Duration::from_secs(90);

const PAUSE: Duration = Duration::from_millis(10);

/// How a program ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit code, or 128 + the number of the signal that ended it, as a shell says it.
    pub code: i32,
    /// Standard output, and behind it standard error.
    pub output: String,
}

/// A program that runs, here or in a guest.
pub trait Running {
    /// What it has printed so far on standard output and on standard error. Apart, because
    /// programs buffer the one and not the other, which would come in the middle of its lines.
    fn streams(&self) -> [String; 2];

    /// Both.
    fn output(&self) -> String {
        self.streams().concat()
    }

    /// Its end, if it has come.
    fn ended(&mut self) -> Result<Option<Ended>>;

    /// Whether anybody where it runs listens on this TCP port.
    fn listens(&mut self, port: u16) -> Result<bool>;

    /// Waits for its end; an error after [`GUARD`].
    fn wait(&mut self) -> Result<Ended> {
        self.wait_at_most(GUARD)
    }

    /// Waits for its end and prints meanwhile what it prints; an error after this time.
    fn wait_showing(&mut self, guard: Duration) -> Result<Ended> {
        let mut shown = [0; 2];
        let mut show = |streams: &[String; 2]| {
            for (stream, shown) in streams.iter().zip(&mut shown) {
                print!("{}", stream.get(*shown..).unwrap_or_default());
                *shown = stream.len();
            }
        };
        let outcome = self.wait_with(guard, &mut show);
        show(&self.streams());
        outcome
    }

    /// Waits for its end; an error after this time.
    fn wait_at_most(&mut self, guard: Duration) -> Result<Ended> {
        self.wait_with(guard, &mut |_| ())
    }

    /// Waits for its end and lets somebody see its output now and then.
    fn wait_with(&mut self, guard: Duration, see: &mut dyn FnMut(&[String; 2])) -> Result<Ended> {
        let deadline = Instant::now() + guard;
        loop {
            see(&self.streams());
            if let Some(ended) = self.ended()? {
                return Ok(ended);
            }
            if Instant::now() > deadline {
                bail!(
                    "still running after {guard:?}; it printed:\n{}",
                    self.output()
                );
            }
            sleep(PAUSE);
        }
    }

    /// Waits until it has printed `text`.
    fn wait_for_text(&mut self, text: &str) -> Result<()> {
        let deadline = Instant::now() + GUARD;
        while !self.output().contains(text) {
            self.still_coming(&format!("printing {text:?}"), deadline)?;
        }
        Ok(())
    }

    /// Waits until something listens on `port`.
    fn wait_for_listener(&mut self, port: u16) -> Result<()> {
        let deadline = Instant::now() + GUARD;
        while !self.listens(port)? {
            self.still_coming(&format!("listening on port {port}"), deadline)?;
        }
        Ok(())
    }

    /// One turn of waiting for `what`, an error when it cannot come any more.
    fn still_coming(&mut self, what: &str, deadline: Instant) -> Result<()> {
        if let Some(ended) = self.ended()? {
            bail!(
                "ended with code {} before {what}:\n{}",
                ended.code,
                ended.output
            );
        }
        if Instant::now() > deadline {
            bail!(
                "not {what} within {GUARD:?}; it printed:\n{}",
                self.output()
            );
        }
        sleep(PAUSE);
        Ok(())
    }
}

/// A child process of ours.
pub struct Local {
    child: Child,
    /// What it prints, and its standard error.
    streams: [File; 2],
    status: Option<ExitStatus>,
}

impl Local {
    /// Starts a program with its output in files of `folder`.
    pub fn start<S: AsRef<OsStr>>(
        folder: &Path,
        argv: &[S],
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        let [program, arguments @ ..] = argv else {
            bail!("no program to start")
        };
        let streams = [unnamed(folder)?, unnamed(folder)?];
        let child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(streams[0].try_clone()?)
            .stderr(streams[1].try_clone()?)
            .spawn()
            .with_context(|| format!("cannot start {}", program.as_ref().display()))?;
        Ok(Self {
            child,
            streams,
            status: None,
        })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once, as `kill -9` does.
    pub fn kill(&mut self) -> Result<()> {
        if self.status.is_none() {
            self.child.kill()?;
            self.status = Some(self.child.wait()?);
        }
        Ok(())
    }
}

impl Running for Local {
    fn streams(&self) -> [String; 2] {
        self.streams.each_ref().map(contents)
    }

    fn ended(&mut self) -> Result<Option<Ended>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        let output = self.output();
        Ok(self.status.map(|status| Ended {
            code: code(status),
            output,
        }))
    }

    fn listens(&mut self, port: u16) -> Result<bool> {
        // per process, because the process may be in a network namespace of its own
        let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{}/net/{table}", self.id()));
        let entry = format!(":{port:04X} ");
        let listening = |line: &str| {
            let mut columns = line.split_ascii_whitespace().skip(1);
            let local = columns
                .next()
                .is_some_and(|local| format!("{local} ").ends_with(&entry));
            local && columns.nth(1) == Some("0A")
        };
        let table = |path: &String| fs::read_to_string(path).unwrap_or_default();
        Ok(tables
            .iter()
            .map(table)
            .any(|table| table.lines().any(listening)))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.kill(); // nothing can be done about a child that will not die
    }
}

/// A new file that is gone when it is closed.
fn unnamed(folder: &Path) -> Result<File> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("{}-{number}.out", std::process::id()));
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(&path);
    let file = file.with_context(|| path.display().to_string())?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// All of a file that somebody else writes to.
fn contents(file: &File) -> String {
    let length = file.metadata().map_or(0, |file| file.len());
    let mut bytes = vec![0; length as usize];
    // at a position, because the file's own is where the child writes next
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("(output cannot be read: {error})"),
    }
}

/// An exit code as a shell gives it.
pub fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::{Local, Running};

    #[test]
    fn code_and_output_come_back() {
        let argv = ["sh", "-c", "printf 'one '; echo err >&2; echo line; exit 7"];
        let mut program = Local::start(&std::env::temp_dir(), &argv, &[]).unwrap();
        let ended = program.wait().unwrap();
        assert_eq!((ended.code, ended.output.as_str()), (7, "one line\nerr\n"));
    }

    #[test]
    fn a_listener_is_seen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut program = Local::start(&std::env::temp_dir(), &["sleep", "60"], &[]).unwrap();
        program
            .wait_for_listener(listener.local_addr().unwrap().port())
            .unwrap();
    }

    #[test]
    fn waiting_ends_when_the_program_does() {
        let mut program = Local::start(&std::env::temp_dir(), &["true"], &[]).unwrap();
        let error = program.wait_for_text("never").unwrap_err();
        assert!(error.to_string().contains("ended with code 0"), "{error}");
    }
}
