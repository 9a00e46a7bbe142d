//! What clients ask of ports, and what the kernel has to say about it.

use std::{
    fs,
    net::IpAddr,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use super::{
    Server,
    ports::{Wish, is_link_local},
    slots::Owner,
};
use crate::{
    port::{PortAddress, PortRefusal},
    protocol::{Refusal, Reply},
};

/// Ports given out where the kernel does not say which. The kernel's own default.
const LOCAL_PORTS: RangeInclusive<u16> = 32_768..=60_999;

/// For how long the kernel's word on them holds: programs that bind thousands do not pay for a
/// look at each.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// The first port that anybody may bind, where the kernel does not say.
const UNPRIVILEGED_PORTS: u16 = 1024;

impl Server {
    pub(super) fn bind_port(
        &mut self,
        owner: Owner,
        port: u16,
        wish: &Wish,
    ) -> Result<Reply, Refusal> {
        self.check_address(&wish.address)?;
        let bound = if port == 0 {
            let start = random().map_err(|errno| Refusal::System {
                action: "draw a random number".into(),
                errno: errno.raw_os_error(),
            })?;
            let range = self.local_ports.now(Instant::now());
            self.ports.bind_any(owner, range, start, wish)
        } else {
            self.check_privilege(owner, port)?;
            self.ports.bind(owner, port, wish)
        };
        Ok(Reply::Bound(bound?))
    }

    pub(super) fn listen(&mut self, owner: Owner, id: u64, slot: u8) -> Result<Reply, Refusal> {
        if self.slots.owner(slot) != Some(owner) {
            return Err(Refusal::NotYourSlot { slot });
        }
        let service = self.ports.listen(owner, id, slot)?;
        self.open_listener(service);
        Ok(Reply::Done)
    }

    pub(super) fn release_port(&mut self, owner: Owner, id: u64) -> Result<Reply, Refusal> {
        if let Some(service) = self.ports.release(owner, id)? {
            self.close_listener(service);
        }
        Ok(Reply::Done)
    }

    /// One address must be this host's; one that was added a moment ago may not have been announced
    /// yet.
    fn check_address(&mut self, address: &PortAddress) -> Result<(), PortRefusal> {
        let PortAddress { ip, scope, .. } = *address;
        if ip.is_unspecified() {
            return Ok(());
        }
        if is_link_local(ip) && scope == 0 {
            return Err(PortRefusal::NoScope { address: ip });
        }
        let is_local = |server: &Self| server.links.is_local(ip, scope) || is_loopback(ip);
        if is_local(self) {
            return Ok(());
        }
        if let Err(errno) = self.follow_interfaces() {
            tracing::warn!(%errno, "cannot read the network interfaces");
        }
        if is_local(self) {
            Ok(())
        } else {
            Err(PortRefusal::NotLocal { address: ip })
        }
    }

    fn check_privilege(&self, owner: Owner, port: u16) -> Result<(), PortRefusal> {
        let is_root = self
            .clients
            .get(&owner)
            .is_some_and(|client| client.uid == 0);
        if is_root || port >= unprivileged_ports() {
            Ok(())
        } else {
            Err(PortRefusal::Privileged { port })
        }
    }
}

/// Which ports the kernel gives out, as last looked up.
#[derive(Debug, Default)]
pub(super) struct LocalPorts {
    known: Option<(RangeInclusive<u16>, Instant)>,
}

impl LocalPorts {
    fn now(&mut self, now: Instant) -> RangeInclusive<u16> {
        match &self.known {
            Some((range, at)) if now.saturating_duration_since(*at) < LOOK_PERIOD => range.clone(),
            _ => {
                let range = local_ports();
                self.known = Some((range.clone(), now));
                range
            }
        }
    }
}

/// 127.0.0.0/8 is all ours, though the interface shows one address.
fn is_loopback(ip: IpAddr) -> bool {
    ip.is_ipv4() && ip.is_loopback()
}

/// The ports that the kernel gives out by itself: ours are others, but people know the range.
fn local_ports() -> RangeInclusive<u16> {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| parse_range(&text))
        .unwrap_or(LOCAL_PORTS)
}

fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut words = text.split_whitespace().map(str::parse);
    let (low, high) = (words.next()?.ok()?, words.next()?.ok()?);
    (low <= high).then_some(low..=high)
}

fn unprivileged_ports() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(UNPRIVILEGED_PORTS)
}

fn random() -> Result<u32, io::Errno> {
    let mut bytes = [0; 4];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
        4 => Ok(u32::from_ne_bytes(bytes)),
        _ => Err(io::Errno::AGAIN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_two_numbers_in_order() {
        assert_eq!(parse_range("32768\t60999\n"), Some(32_768..=60_999));
        assert_eq!(parse_range("5 5"), Some(5..=5));
        for text in ["", "1", "2 1", "1 65536", "a b"] {
            assert_eq!(parse_range(text), None, "{text:?}");
        }
        assert!(local_ports().len() > 1);
    }
}
