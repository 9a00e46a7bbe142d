//! Why a UDP port cannot be had: who holds it, told in a form that leads to the remedy.

use std::{collections::BTreeSet, fs, path::Path};

use crate::who::describe_uid;

/// How often to look for sockets that must be there: the kernel gives its table in pieces, and
/// leaves out what moves from one into another because sockets before it were closed meanwhile.
const LOOKS: usize = 5;

/// A socket bound to the port, from `/proc/net/udp` or `udp6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bound {
    uid: u32,
    inode: u64,
}

/// Says who holds `port` and what to do about it.
pub(super) fn describe_holders(port: u16) -> String {
    let mut bound = BTreeSet::new();
    for _ in 0..LOOKS {
        bound = sockets_on(port);
        if !bound.is_empty() {
            break;
        }
    }
    let inodes: BTreeSet<u64> = bound.iter().map(|socket| socket.inode).collect();
    let processes = processes_with(&inodes);
    let uids: BTreeSet<u32> = bound.iter().map(|socket| socket.uid).collect();
    let rxe_loaded = Path::new("/sys/module/rdma_rxe").exists();
    let own = rustix::process::geteuid().as_raw();
    explain(port, &processes, &uids, rxe_loaded, own)
}

fn sockets_on(port: u16) -> BTreeSet<Bound> {
    ["/proc/net/udp", "/proc/net/udp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|table| bound_to(&table, port))
        .collect()
}

fn explain(
    port: u16,
    processes: &[String],
    uids: &BTreeSet<u32>,
    rxe_loaded: bool,
    own: u32,
) -> String {
    let owners: Vec<String> = uids.iter().copied().map(describe_uid).collect();
    let owners = owners.join(", ");
    let mut text = format!("UDP port {port} is in use");
    if !processes.is_empty() {
        text += &format!(" by {}, owned by {owners}", processes.join(", "));
    } else if rxe_loaded {
        text += ", most likely by the kernel module rdma_rxe, which is loaded: \
                 `modprobe -r rdma_rxe` frees the port (or use a network namespace of your own)";
        return text;
    } else if uids.is_empty() {
        text += " (the owner is not visible from here)";
    } else {
        text += &format!(" by {owners}");
    }
    match uids.iter().find(|uid| **uid != own) {
        Some(other) if own == 0 => {
            text += &format!(
                "; if that is their softrdma broker, root may use it with \
                 SOFTRDMA_BROKER_UID={other}"
            );
        }
        Some(_) => {
            text += "; only one user of a network namespace can have it: use one of your own, \
                     such as `unshare -rn`";
        }
        None => text += "; end them, or wait until they have noticed the end of their broker",
    }
    text
}

/// The sockets of a table in the kernel's format that are bound to `port`.
fn bound_to(table: &str, port: u16) -> Vec<Bound> {
    let bound = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // sl, local, remote, st, queues, tr:when, retransmits, uid, timeout, inode
        let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
        if u16::from_str_radix(local_port, 16).ok()? != port {
            return None;
        }
        Some(Bound {
            uid: fields.get(7)?.parse().ok()?,
            inode: fields.get(9)?.parse().ok()?,
        })
    };
    table.lines().skip(1).filter_map(bound).collect()
}

/// Those processes, as far as `/proc` shows their descriptors, that hold one of the sockets.
fn processes_with(inodes: &BTreeSet<u64>) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let holds = fs::read_dir(entry.path().join("fd"))
                .ok()?
                .flatten()
                .any(|fd| {
                    fs::read_link(fd.path())
                        .ok()
                        .and_then(|target| socket_inode(target.to_str()?))
                        .is_some_and(|inode| inodes.contains(&inode))
                });
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            holds.then(|| format!("{} (pid {pid})", name.trim_end()))
        })
        .collect()
}

fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `/proc/net/udp` looks like.
    const TABLE: &str = include_str!("../../testdata/proc-net-udp.txt");

    #[test]
    fn sockets_of_the_port_are_found_with_their_owner() {
        assert_eq!(
            bound_to(TABLE, 4791),
            [Bound {
                uid: 1000,
                inode: 9001
            }]
        );
        assert_eq!(
            bound_to(TABLE, 53),
            [Bound {
                uid: 0,
                inode: 9002
            }]
        );
        assert_eq!(bound_to(TABLE, 54), []);
        assert_eq!(bound_to("header\nnonsense\n", 53), []);
    }

    #[test]
    fn each_cause_has_its_remedy() {
        let (root, other) = (BTreeSet::from([0]), BTreeSet::from([4_000_000]));
        let processes = ["rping (pid 7)".to_owned()];
        let own = explain(4791, &processes, &root, true, 0);
        assert!(
            own.contains("rping (pid 7)") && own.contains("end them"),
            "{own}"
        );
        let kernel = explain(4791, &[], &root, true, 0);
        assert!(kernel.contains("modprobe -r rdma_rxe"), "{kernel}");
        let for_root = explain(4791, &processes, &other, false, 0);
        assert!(
            for_root.contains("SOFTRDMA_BROKER_UID=4000000"),
            "{for_root}"
        );
        let for_user = explain(4791, &[], &other, false, 1000);
        assert!(for_user.contains("by uid 4000000"), "{for_user}");
        assert!(for_user.contains("unshare -rn"), "{for_user}");
    }

    #[test]
    fn a_socket_of_this_process_is_found() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback is up");
        let port = socket.local_addr().expect("it is bound").port();
        let text = describe_holders(port);
        assert!(
            text.contains(&format!("(pid {})", std::process::id())),
            "{text}"
        );
    }
}
