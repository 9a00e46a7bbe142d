//! `link show`, `link add`, `link delete`.

use std::collections::VecDeque;

use broker::{
    CallError, IwarpOptions, LinkInfo, LinkKind, PhysicalState, PortState, Refusal, iwarp,
};

use super::{
    Ended, NOTHING_DONE, OutputOptions, abbreviates, failed,
    format::{Entry, Field, Value, render},
};
use crate::connect::{Failure, connect, connect_or_start, links, wait_for_port};

/// As iproute2 has it.
const USAGE: &str = "\
Usage: softrdma link show [DEV/PORT_INDEX]
Usage: softrdma link add NAME type TYPE netdev NETDEV
Usage: softrdma link delete NAME
";

/// What it does not have.
const MORE: &str = "
TYPE is rxe (Soft-RoCE) or siw (Soft-iWARP), which has options behind NETDEV, here with what they
are without being named:
  crc off          CRC of the data: off, on (ask for it), required
  markers off      take MPA markers, and send them to who asks: on, off
  mpa 2            revision of MPA to ask for: 1 (which says nothing of READs: both programs have
                   to name how many, and rping does not), 2
  peer_to_peer off let the accepting side send first: on, off
  segment mulpdu   largest segment: mulpdu (what fits one of TCP), or 128 to 65535 bytes
  rfc7306 off      atomics and immediate data, if both ends have it on: on, off
";

pub(super) fn help() -> String {
    [USAGE, MORE].concat()
}

/// Every device has one port.
pub(super) const PORT: u64 = 1;

pub(super) const WRONG_NAME: &str = "Wrong device name";

pub(super) fn run(options: OutputOptions, mut words: VecDeque<String>) -> Ended {
    let Some(command) = words.pop_front() else {
        return show(options, None);
    };
    match command.as_str() {
        word if abbreviates(word, "show") || abbreviates(word, "list") => {
            show(options, words.pop_front())
        }
        word if abbreviates(word, "help") => Ended::Output(help()),
        word if abbreviates(word, "add") => add(words),
        word if abbreviates(word, "delete") => delete(words),
        word => Ended::Usage(format!("Unknown link command '{word}'.\n")),
    }
}

fn show(options: OutputOptions, wanted: Option<String>) -> Ended {
    let links = match links() {
        Ok(links) => links,
        Err(failure) => return failed(&failure, None),
    };
    let shown: Vec<&LinkInfo> = match wanted {
        None => links.iter().collect(),
        Some(wanted) => {
            let named = |link: &&LinkInfo| wanted == format!("{}/{PORT}", link.name);
            match links.iter().find(named) {
                Some(link) => vec![link],
                None => return Ended::Failed(format!("{WRONG_NAME}\n")),
            }
        }
    };
    let entries: Vec<Entry> = shown.iter().map(|link| entry(link, options)).collect();
    let output = render(&entries, options);
    if options.details && !options.json {
        Ended::Remarked(output, shown.iter().map(|link| remark(link)).collect())
    } else {
        Ended::Output(output)
    }
}

fn entry(link: &LinkInfo, options: OutputOptions) -> Entry {
    let state = match link.port_state() {
        PortState::Active => "ACTIVE",
        PortState::Down => "DOWN",
    };
    let physical = match link.physical_state() {
        PhysicalState::LinkUp => "LINK_UP",
        PhysicalState::Polling => "POLLING",
        PhysicalState::Disabled => "DISABLED",
    };
    let field = |name, value, in_text| Field {
        name,
        value,
        in_text,
    };
    let mut fields = vec![
        field("ifindex", Value::Number(link.index.into()), false),
        field("ifname", Value::Text(link.name.clone()), false),
        field("port", Value::Number(PORT), false),
        field("state", Value::Text(state.into()), true),
        field("physical_state", Value::Text(physical.into()), true),
        field("netdev", Value::Text(link.netdev.clone()), true),
        field(
            "netdev_index",
            Value::Number(link.netdev_index.into()),
            options.details,
        ),
    ];
    if let Some(own) = link.iwarp.filter(|_| options.details) {
        let words = own.words().into_iter();
        fields.extend(words.map(|(name, value)| field(name, Value::Text(value), true)));
    }
    Entry {
        head: format!("link {}/{PORT} ", link.name),
        fields,
    }
}

/// What people look for an IP address of the device for.
fn remark(link: &LinkInfo) -> String {
    let (what, shown): (_, Vec<String>) = match link.kind {
        LinkKind::Rxe => {
            let named = |entry: &broker::GidEntry| format!("{} {}", entry.index, entry.gid);
            (
                "its GIDs follow them",
                link.gids.iter().map(named).collect(),
            )
        }
        LinkKind::Siw => {
            let addresses = link.addresses().map(|entry| entry.gid.ip().to_string());
            ("programs reach it by rdma_cm at", addresses.collect())
        }
    };
    format!(
        "softrdma: {} needs no IP address of its own, it uses those of {}; {what}: {}\n",
        link.name,
        link.netdev,
        shown.join(", ")
    )
}

fn add(mut words: VecDeque<String>) -> Ended {
    let missing = |what: &str| Ended::Failed(format!("Please provide {what}.\n"));
    let Some(name) = words.pop_front() else {
        return missing("a link name to add");
    };
    if let Some(ended) = expect(&mut words, "type") {
        return ended;
    }
    let Some(kind) = words.pop_front() else {
        return missing("a link type name");
    };
    if let Some(ended) = expect(&mut words, "netdev") {
        return ended;
    }
    let Some(netdev) = words.pop_front() else {
        return missing("a net device name");
    };
    let options = match options(&kind, words) {
        Ok(options) => options,
        Err(ended) => return ended,
    };
    match try_add(&name, &kind, &netdev, options) {
        Ok(remarks) if remarks.is_empty() => Ended::Output(String::new()),
        Ok(remarks) => Ended::Remarked(String::new(), remarks),
        Err(failure) => explain_add(&failure, &name),
    }
}

/// Adds a link; says what keeps it from being of use for now.
fn try_add(
    name: &str,
    kind: &str,
    netdev: &str,
    options: Option<IwarpOptions>,
) -> Result<String, Failure> {
    let client = connect_or_start()?;
    wait_for_port(&client)?;
    let link = client.add_link_with(name, kind, netdev, true, options)?;
    let mut remarks = String::new();
    if !link.up {
        remarks += &format!(
            "softrdma: {netdev} is down: `ip link set {netdev} up` makes the port active\n"
        );
    }
    Ok(remarks)
}

/// The words behind the interface, in pairs, which links of type `siw` have; otherwise how the
/// command ends.
fn options(kind: &str, mut words: VecDeque<String>) -> Result<Option<IwarpOptions>, Ended> {
    let mut options = None;
    let mut given = Vec::new();
    while let Some(name) = words.pop_front() {
        if LinkKind::from_name(kind) != Some(LinkKind::Siw) {
            return Err(Ended::Failed(format!(
                "Unknown parameter '{name}'.\nsoftrdma: only links of type siw have options\n"
            )));
        }
        if !iwarp::NAMES.contains(&name.as_str()) {
            return Err(Ended::Failed(format!(
                "Unknown parameter '{name}'.\nsoftrdma: links of type siw have the options {}\n",
                iwarp::NAMES.join(", ")
            )));
        }
        if given.contains(&name) {
            return Err(Ended::Failed(format!(
                "error: Invalid argument\nsoftrdma: {name} is given twice\n"
            )));
        }
        let Some(value) = words.pop_front() else {
            return Err(Ended::Failed(format!(
                "Please provide a value of {name}.\n"
            )));
        };
        options
            .get_or_insert_with(IwarpOptions::default)
            .set(&name, &value)
            .map_err(|error| {
                Ended::Failed(format!("error: Invalid argument\nsoftrdma: {error}\n"))
            })?;
        given.push(name);
    }
    Ok(options)
}

/// Takes the word `keyword`; otherwise how the command ends.
fn expect(words: &mut VecDeque<String>, keyword: &str) -> Option<Ended> {
    match words.pop_front() {
        None => Some(Ended::Remarked(USAGE.into(), NOTHING_DONE.into())),
        Some(word) if abbreviates(&word, keyword) => None,
        // a script that asks for an option must not go on without the link
        Some(word) if iwarp::NAMES.contains(&word.as_str()) => Some(Ended::Failed(format!(
            "Unknown parameter '{word}'.\nsoftrdma: options stand behind the interface: `softrdma \
             link add NAME type siw netdev NETDEV {word} …`\n"
        ))),
        Some(word) => Some(Ended::Usage(format!("Unknown parameter '{word}'.\n"))),
    }
}

fn explain_add(failure: &Failure, name: &str) -> Ended {
    let Failure::Call(CallError::Refused(refusal)) = failure else {
        return failed(failure, None);
    };
    let remedy = match refusal {
        Refusal::NoSuchNetdev { .. } => Some(
            "`ip link show` lists them; to practise: `softrdma link add rxe_lo type rxe netdev lo`",
        ),
        Refusal::UnknownKind { .. } => {
            Some("for example `softrdma link add rxe_lo type rxe netdev lo`")
        }
        Refusal::NameInUse { .. } => {
            Some("choose another name, or `softrdma link delete` it first")
        }
        Refusal::NetdevInUse { .. } => Some("an interface has one link of each type: use that one"),
        _ => None,
    };
    match (failed(failure, remedy), refusal) {
        (Ended::Failed(text), Refusal::InvalidName { .. }) if name.len() >= 64 => Ended::Failed(
            format!("Error: Attribute failed policy validation.\n{text}"),
        ),
        (ended, _) => ended,
    }
}

fn delete(mut words: VecDeque<String>) -> Ended {
    let Some(name) = words.pop_front() else {
        return Ended::Failed("Please provide device name.\n".into());
    };
    let deleted = match connect() {
        Ok(Some(client)) => client.delete_link(&name).map_err(Failure::from),
        Ok(None) => Err(Failure::Call(
            Refusal::NoSuchLink { name: name.clone() }.into(),
        )),
        Err(error) => Err(error.into()),
    };
    match deleted {
        Ok(()) => Ended::Output(String::new()),
        Err(Failure::Call(CallError::Refused(Refusal::NoSuchLink { .. }))) => {
            Ended::Failed(format!("{WRONG_NAME} - {name}\n"))
        }
        Err(failure) => {
            let busy = matches!(
                &failure,
                Failure::Call(CallError::Refused(Refusal::LinkInUse { .. }))
            );
            failed(&failure, busy.then_some("end these programs first"))
        }
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
