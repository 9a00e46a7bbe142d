//! One object: its line, its JSON, and the values that filters compare.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use broker::{
    LinkInfo, LinkKind, PortSpace,
    resource::{Details, Kind, Object, Process},
};

use super::survey::Found;
use crate::rdma::{
    format::{Entry, Field, Value},
    link::PORT,
};

/// Numbers of objects are unique in their process; with so many bits of it below the process's own
/// number they are on the host.
const NUMBER_BITS: u32 = 20;

/// One object.
#[derive(Debug)]
pub(super) struct Row {
    entry: Entry,
    /// What only filters know: parts of what is shown as one.
    parts: Vec<(&'static str, Value)>,
}

impl Row {
    /// Of a device.
    fn of_device(link: &LinkInfo) -> Self {
        let mut row = Self {
            entry: Entry {
                head: format!("dev {} ", link.name),
                fields: Vec::new(),
            },
            parts: Vec::new(),
        };
        row.head_field("ifindex", Value::Number(link.index.into()));
        row.head_field("ifname", Value::Text(link.name.clone()));
        row
    }

    /// Of a port, if it is of one.
    fn of_port(link: &LinkInfo, port: Option<u8>) -> Self {
        let mut row = Self::of_device(link);
        row.entry.head = match port {
            Some(port) => format!("link {}/{port} ", link.name),
            None => format!("link {}/- ", link.name),
        };
        if let Some(port) = port {
            row.head_field("port", Value::Number(port.into()));
        }
        row
    }

    fn head_field(&mut self, name: &'static str, value: Value) {
        let in_text = false;
        self.entry.fields.push(Field {
            name,
            value,
            in_text,
        });
    }

    fn field(&mut self, name: &'static str, value: Value) {
        let in_text = true;
        self.entry.fields.push(Field {
            name,
            value,
            in_text,
        });
    }

    fn number(&mut self, name: &'static str, number: impl Into<u64>) {
        self.field(name, Value::Number(number.into()));
    }

    fn text(&mut self, name: &'static str, text: impl Into<String>) {
        self.field(name, Value::Text(text.into()));
    }

    /// The process, which is the last of most lines.
    fn process(&mut self, process: &Process) {
        // a process that is not visible here has no number
        if let Ok(pid) = u32::try_from(process.pid) {
            self.number("pid", pid);
        }
        self.text("comm", process.program.clone());
    }

    /// An address and its port, which filters compare each for itself.
    fn address(&mut self, names: [&'static str; 2], address: SocketAddr) {
        let ip = address.ip().to_string();
        self.text(names[0], format!("{ip}:{}", address.port()));
        self.parts.push((names[0], Value::Text(ip)));
        self.parts
            .push((names[1], Value::Number(address.port().into())));
    }

    /// What filters compare.
    pub(super) fn values(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        let is_whole = |field: &&Field| !self.parts.iter().any(|(name, _)| *name == field.name);
        let fields = self.entry.fields.iter().filter(is_whole);
        let fields = fields.map(|field| (field.name, &field.value));
        fields.chain(self.parts.iter().map(|(name, value)| (*name, value)))
    }

    /// Lists of numbers, by name.
    pub(super) fn lists(&mut self) -> impl Iterator<Item = (&'static str, &mut Vec<u32>)> {
        let fields = self.entry.fields.iter_mut();
        fields.filter_map(|field| match &mut field.value {
            Value::Ranges(numbers) => Some((field.name, numbers)),
            _ => None,
        })
    }

    pub(super) fn into_entry(self) -> Entry {
        self.entry
    }
}

/// What an object is.
pub(super) fn kind(object: &Object) -> Kind {
    match object.details {
        Details::Context => Kind::Context,
        Details::ProtectionDomain { .. } => Kind::ProtectionDomain,
        Details::MemoryRegion { .. } => Kind::MemoryRegion,
        Details::CompletionQueue { .. } => Kind::CompletionQueue,
        Details::QueuePair { .. } => Kind::QueuePair,
        Details::SharedReceiveQueue { .. } => Kind::SharedReceiveQueue,
        Details::ConnectionId { .. } => Kind::ConnectionId,
    }
}

/// The objects of one kind, of each of these links. What belongs to no link in particular belongs
/// to all.
pub(super) fn of_objects(wanted: Kind, found: &[Found], links: &[&LinkInfo]) -> Vec<Row> {
    let sharers = Sharers::among(found);
    let mut rows = Vec::new();
    for link in links {
        for found in found.iter().filter(|found| kind(&found.object) == wanted) {
            let of = found.object.link.as_ref();
            if of.is_none_or(|of| *of == link.name) {
                rows.push(of_object(found, link, &sharers));
            }
        }
    }
    rows
}

/// The queue pairs of shared receive queues, by process and number of the queue.
struct Sharers(HashMap<(u64, u32), Vec<u32>>);

impl Sharers {
    fn among(found: &[Found]) -> Self {
        let mut sharers: HashMap<_, Vec<u32>> = HashMap::new();
        for Found { process, object } in found {
            if let Details::QueuePair { srq: Some(srq), .. } = object.details {
                sharers
                    .entry((process.key, srq))
                    .or_default()
                    .push(object.number);
            }
        }
        sharers.values_mut().for_each(|numbers| numbers.sort());
        Self(sharers)
    }

    /// Ascending.
    fn of(&self, queue: &Found) -> Vec<u32> {
        let numbers = self.0.get(&(queue.process.key, queue.object.number));
        numbers.cloned().unwrap_or_default()
    }
}

fn of_object(found: &Found, link: &LinkInfo, sharers: &Sharers) -> Row {
    let Found { process, object } = found;
    // of a number that only its process knows
    let unique = |number: u32| (process.ordinal << NUMBER_BITS).wrapping_add(number);
    let mut row = match &object.details {
        Details::QueuePair { port, .. } => Row::of_port(link, *port),
        Details::ConnectionId { .. } => Row::of_port(link, Some(PORT as u8)), // 1
        _ => Row::of_device(link),
    };
    match &object.details {
        Details::Context => row.number("ctxn", unique(object.number)),
        Details::ProtectionDomain { context, users } => {
            row.number("pdn", unique(object.number));
            row.field("local_dma_lkey", Value::Key(0));
            row.number("users", *users);
            row.number("ctxn", unique(*context));
        }
        Details::MemoryRegion { key, length, pd } => {
            row.number("mrn", unique(object.number));
            row.field("rkey", Value::Key(*key));
            row.field("lkey", Value::Key(*key));
            row.number("mrlen", *length);
            row.number("pdn", unique(*pd));
        }
        Details::CompletionQueue {
            context,
            capacity,
            users,
        } => {
            row.number("cqn", unique(object.number));
            row.number("cqe", *capacity);
            row.number("users", *users);
            row.field("adaptive-moderation", Value::Switch(false));
            row.number("ctxn", unique(*context));
        }
        Details::QueuePair {
            transport,
            state,
            peer,
            sq_psn,
            pd,
            ..
        } => {
            row.number("lqpn", object.number);
            if let Some(peer) = peer {
                row.number("rqpn", peer.qpn);
            }
            row.text("type", name_of(&QP_TYPES, *transport));
            row.text("state", name_of(&QP_STATES, *state));
            if let Some(peer) = peer {
                row.number("rq-psn", peer.rq_psn);
            }
            row.number("sq-psn", *sq_psn);
            if peer.is_some() {
                row.text("path-mig-state", "MIGRATED");
            }
            row.number("pdn", unique(*pd));
        }
        Details::SharedReceiveQueue { pd } => {
            row.number("srqn", unique(object.number));
            row.text("type", "BASIC");
            let sharers = sharers.of(found);
            if !sharers.is_empty() {
                row.field("lqpn", Value::Ranges(sharers));
            }
            row.number("pdn", unique(*pd));
        }
        Details::ConnectionId {
            state, space, qpn, ..
        } => {
            row.number("cm-idn", unique(object.number));
            if let Some(qpn) = qpn {
                row.number("lqpn", *qpn);
                row.text(
                    "qp-type",
                    if *space == PortSpace::Tcp { "RC" } else { "UD" },
                );
            }
            row.text("state", name_of(&CM_STATES, *state));
            row.text("ps", space_name(*space));
        }
    }
    row.process(process);
    if let Details::ConnectionId {
        source,
        destination,
        ..
    } = &object.details
    {
        // the kernel shows a listener's as all addresses of its family
        let destination = destination.unwrap_or_else(|| SocketAddr::new(any(source.ip()), 0));
        row.address(["src-addr", "src-port"], *source);
        row.address(["dst-addr", "dst-port"], destination);
    }
    row
}

/// The tables of GIDs: iproute2 has none, and people look for one.
pub(super) fn of_gids(links: &[&LinkInfo]) -> Vec<Row> {
    let mut rows = Vec::new();
    for link in links {
        for entry in link.gid_table() {
            let mut row = Row::of_port(link, Some(PORT as u8)); // 1
            row.number("gid-index", entry.index);
            row.text("gid", entry.gid.to_string());
            let kind = match link.kind {
                LinkKind::Rxe => "RoCEv2",
                LinkKind::Siw => "IB/RoCEv1",
            };
            row.text("type", kind);
            row.text("netdev", entry.netdev.clone());
            rows.push(row);
        }
    }
    rows
}

const QP_TYPES: [&str; 11] = [
    "SMI",
    "GSI",
    "RC",
    "UC",
    "UD",
    "RAW_IPV6",
    "RAW_ETHERTYPE",
    "UNKNOWN",
    "RAW_PACKET",
    "XRC_INI",
    "XRC_TGT",
];

const QP_STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];

const CM_STATES: [&str; 11] = [
    "IDLE",
    "ADDR_QUERY",
    "ADDR_RESOLVED",
    "ROUTE_QUERY",
    "ROUTE_RESOLVED",
    "CONNECT",
    "DISCONNECT",
    "ADDR_BOUND",
    "LISTEN",
    "DEVICE_REMOVAL",
    "DESTROYING",
];

fn name_of(names: &[&'static str], code: u8) -> &'static str {
    names.get(usize::from(code)).copied().unwrap_or("UNKNOWN")
}

fn space_name(space: PortSpace) -> &'static str {
    match space {
        PortSpace::Tcp => "TCP",
        PortSpace::Udp => "UDP",
        // both have one name there
        PortSpace::IpOverIb | PortSpace::Ib => "IPoIB",
    }
}

fn any(of: IpAddr) -> IpAddr {
    match of {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}
