//! `link`, `dev`, `resource`, `statistic`, in the syntax and with the output of iproute2's `rdma`.
//!
//! Scripts know these texts and exit codes, so they are the same byte for byte, with their oddities
//! (a usage error ends with 0). What we have to say beyond them goes to standard error, on a line
//! of its own that begins with `softrdma:`.

mod dev;
mod format;
mod link;
mod resource;
mod statistic;

use std::{collections::VecDeque, process::ExitCode};

use crate::connect::Failure;

/// What to show, and how; before or after the object. As in iproute2 each may be repeated.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct OutputOptions {
    /// Show details (link, dev, statistic)
    #[arg(short, long, overrides_with = "details")]
    details: bool,
    /// JSON (link, dev, resource, statistic)
    #[arg(short, long, overrides_with = "json")]
    json: bool,
    /// Indented JSON, with -j (link, dev, resource, statistic)
    #[arg(short, long, overrides_with = "pretty")]
    pretty: bool,
}

/// The words after the object, options among them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// What a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Link,
    Dev,
    Resource,
    Statistic,
}

/// Said below a usage error: its exit code does not tell.
const NOTHING_DONE: &str =
    "softrdma: nothing was done; the exit code is 0 all the same, as with iproute2's rdma\n";

/// The end of a command.
#[derive(Debug)]
enum Ended {
    /// Standard output; success.
    Output(String),
    /// Standard output and a remark on standard error; success.
    Remarked(String, String),
    /// A usage error: a text on standard error, and success all the same.
    Usage(String),
    /// A failure: a text on standard error.
    Failed(String),
}

/// Runs a command.
pub(crate) fn run(object: Object, options: OutputOptions, words: Words) -> ExitCode {
    let ended = match parse_options(options, words.words) {
        Ok((options, _)) if options.help => Ended::Output(match object {
            Object::Link => link::help(),
            Object::Dev => dev::HELP.into(),
            Object::Resource => resource::HELP.into(),
            Object::Statistic => statistic::HELP.into(),
        }),
        Ok((options, words)) => match object {
            Object::Link => link::run(options.output, words),
            Object::Dev => dev::run(options.output, words),
            Object::Resource => resource::run(options.output, words),
            Object::Statistic => statistic::run(options.output, words),
        },
        Err(unknown) => Ended::Failed(format!("Unknown option '{unknown}'.\n")),
    };
    match ended {
        Ended::Output(text) => crate::print(&text),
        Ended::Remarked(text, remark) => {
            let code = crate::print(&text);
            crate::print_error(&remark);
            code
        }
        Ended::Usage(text) => {
            crate::print_error(&format!("{text}{NOTHING_DONE}"));
            ExitCode::SUCCESS
        }
        Ended::Failed(text) => {
            crate::print_error(&text);
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Options {
    output: OutputOptions,
    help: bool,
}

/// Takes the options out of the words, wherever they stand, until `--`.
fn parse_options(
    given: OutputOptions,
    words: Vec<String>,
) -> Result<(Options, VecDeque<String>), String> {
    let mut options = Options {
        output: given,
        help: false,
    };
    let mut rest = VecDeque::new();
    let mut words = words.into_iter();
    for word in words.by_ref() {
        if word == "--" {
            break;
        }
        if let Some(long) = word.strip_prefix("--") {
            options.set(long).ok_or(&word)?;
        } else if let Some(short) = word.strip_prefix('-').filter(|short| !short.is_empty()) {
            for letter in short.chars() {
                options.set(letter.encode_utf8(&mut [0; 4])).ok_or(&word)?;
            }
        } else {
            rest.push_back(word);
        }
    }
    rest.extend(words);
    Ok((options, rest))
}

impl Options {
    fn set(&mut self, name: &str) -> Option<()> {
        let flag = match name {
            "d" | "details" => &mut self.output.details,
            "j" | "json" => &mut self.output.json,
            "p" | "pretty" => &mut self.output.pretty,
            "h" | "help" => &mut self.help,
            // raw output and force change nothing here
            "r" | "raw" | "f" | "force" => return Some(()),
            _ => return None,
        };
        *flag = true;
        Some(())
    }
}

/// Whether a word is `command` or the beginning of it.
fn abbreviates(word: &str, command: &str) -> bool {
    command.starts_with(word)
}

/// A command whose objects can only be shown, which it does without a word as well.
fn show_only(
    command: &str,
    help: &str,
    mut words: VecDeque<String>,
    show: impl FnOnce(VecDeque<String>) -> Result<Ended, Failure>,
) -> Ended {
    let ended = match words.pop_front() {
        None => show(words),
        Some(word) if abbreviates(&word, "show") || abbreviates(&word, "list") => show(words),
        Some(word) if abbreviates(&word, "help") => Ok(Ended::Output(help.into())),
        Some(word) => Ok(Ended::Usage(format!(
            "Unknown {command} command '{word}'.\n"
        ))),
    };
    ended.unwrap_or_else(|failure| failed(&failure, None))
}

/// The kernel's words for a failure, and below them ours.
fn failed(failure: &Failure, remedy: Option<&str>) -> Ended {
    let kernel = std::io::Error::from_raw_os_error(failure.errno()).to_string();
    // std appends the number, strerror does not
    let kernel = kernel.split(" (os error").next().unwrap_or_default();
    let remedy = remedy.map(|text| format!("; {text}")).unwrap_or_default();
    Ended::Failed(format!("error: {kernel}\nsoftrdma: {failure}{remedy}\n"))
}

/// The output of the `nth` time that `command` stands in a file of reference output, with the exit
/// code below it.
#[cfg(test)]
pub(crate) fn reference_output(file: &str, command: &str, nth: usize) -> String {
    let line = format!("$ {command}");
    let mut lines = file.lines();
    for _ in 0..=nth {
        lines
            .by_ref()
            .find(|found| **found == line)
            .expect("the command is in the file");
    }
    let mut output = String::new();
    for line in lines.take_while(|line| !line.starts_with("$ ")) {
        output += line;
        output += "\n";
    }
    // an empty line stands between commands
    output.strip_suffix('\n').unwrap_or(&output).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_stand_anywhere_and_together() {
        for text in [
            "-j -p -d show rxe0/1",
            "show -jpd rxe0/1",
            "show rxe0/1 --json -p --details",
        ] {
            let (options, rest) =
                parse_options(OutputOptions::default(), words(text)).expect("good options");
            let OutputOptions {
                details,
                json,
                pretty,
            } = options.output;
            assert!(details && json && pretty, "{text}");
            assert_eq!(rest, ["show", "rxe0/1"]);
        }
        assert_eq!(
            parse_options(OutputOptions::default(), words("show -x")).err(),
            { Some("-x".to_owned()) }
        );
        let (_, rest) = parse_options(OutputOptions::default(), words("-- -j")).expect("good");
        assert_eq!(rest, ["-j"]);
    }

    #[test]
    fn failures_begin_with_the_kernels_text() {
        let refusal = broker::Refusal::NameInUse {
            name: "rxe0".into(),
        };
        let failure = Failure::Call(refusal.into());
        let Ended::Failed(text) = failed(&failure, None) else {
            panic!("a failure");
        };
        assert!(
            text.starts_with("error: Too many open files in system\nsoftrdma: "),
            "{text}"
        );
    }
}
