//! Which port is whose, and who listens where. Pure state: what the kernel knows is the caller's.
//!
//! The rules are those of Linux's rdma_cm. A port may be bound several times at different
//! addresses; where addresses overlap, only if all who bind there wish it (`reuse`) and none of
//! them listens.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

use wire::mad::{PortSpace, ServiceId};

use super::{
    route::{Absence, Called},
    slots::Owner,
};
use crate::port::{BoundPort, PortAddress, PortRefusal};

/// Ports of one client; a process that accepts a connection needs none for it.
const PORTS_OF_CLIENT_MAX: usize = 1 << 16;

/// What a client asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) space: PortSpace,
    pub(super) address: PortAddress,
    pub(super) reuse: bool,
}

#[derive(Clone, Copy, Debug)]
struct Binding {
    owner: Owner,
    service: ServiceId,
    address: PortAddress,
    reuse: bool,
    /// Where requests go while it listens.
    slot: Option<u8>,
}

impl Binding {
    /// Why `other` cannot be at the same port; `reuse` is what `other` wants.
    fn conflict(&self, other: &PortAddress, reuse: bool) -> Option<PortRefusal> {
        let port = self.service.port();
        let apart = self.address.family_only
            && other.family_only
            && self.address.ip.is_ipv4() != other.ip.is_ipv4();
        if (reuse && self.reuse) || apart {
            None
        } else if self.address.is_wildcard() || other.is_wildcard() {
            Some(PortRefusal::Overlaps { port })
        } else if self.address == *other {
            Some(PortRefusal::InUse { port })
        } else {
            None
        }
    }
}

/// One who listens on a port.
#[derive(Clone, Copy, Debug)]
struct Listener {
    id: u64,
    address: PortAddress,
    slot: u8,
}

impl Listener {
    /// Whether it is at exactly this address; `interface` matters to link-local ones.
    fn is_at(&self, destination: IpAddr, interface: u32) -> bool {
        self.address.ip == destination
            && (!is_link_local(destination) || self.address.scope == interface || interface == 0)
    }

    fn is_everywhere(&self, destination: Option<IpAddr>) -> bool {
        let family = destination.is_none_or(|ip| ip.is_ipv4() == self.address.ip.is_ipv4());
        self.address.is_wildcard() && (family || !self.address.family_only)
    }
}

/// All ports of all clients.
#[derive(Debug, Default)]
pub(super) struct Ports {
    bindings: HashMap<u64, Binding>,
    bound: BTreeMap<ServiceId, Vec<u64>>,
    listeners: HashMap<ServiceId, Vec<Listener>>,
    of_owner: HashMap<Owner, BTreeSet<u64>>,
    next_id: u64,
    /// A port that was given out is not the next one again when it becomes free.
    last_given: Option<u16>,
}

impl Ports {
    /// Binds `port`, which is not 0.
    pub(super) fn bind(
        &mut self,
        owner: Owner,
        port: u16,
        wish: &Wish,
    ) -> Result<BoundPort, PortRefusal> {
        self.check_room(owner)?;
        let address = normal(wish.address);
        let service = ServiceId::new(wish.space, port);
        self.check(service, None, &address, wish.reuse)?;
        Ok(self.insert(owner, service, address, wish.reuse))
    }

    /// Binds a port of `range` that nobody has at an address that overlaps, looking from `start`
    /// (any number) on.
    pub(super) fn bind_any(
        &mut self,
        owner: Owner,
        range: RangeInclusive<u16>,
        start: u32,
        wish: &Wish,
    ) -> Result<BoundPort, PortRefusal> {
        self.check_room(owner)?;
        let address = normal(wish.address);
        let (low, length) = (*range.start(), range.len() as u32);
        let port = (0..length)
            // below 65,536, as the range is
            .map(|step| (u32::from(low) + (start % length + step) % length) as u16)
            .filter(|port| *port != 0 && Some(*port) != self.last_given)
            .find(|port| {
                let service = ServiceId::new(wish.space, *port);
                self.check(service, None, &address, false).is_ok()
            })
            .ok_or(PortRefusal::NoneLeft)?;
        self.last_given = Some(port);
        let service = ServiceId::new(wish.space, port);
        Ok(self.insert(owner, service, address, wish.reuse))
    }

    fn check_room(&self, owner: Owner) -> Result<(), PortRefusal> {
        match self.of_owner.get(&owner) {
            Some(ids) if ids.len() >= PORTS_OF_CLIENT_MAX => Err(PortRefusal::NoneLeft),
            _ => Ok(()),
        }
    }

    /// Whether a binding beside all but `except` is allowed.
    fn check(
        &self,
        service: ServiceId,
        except: Option<u64>,
        address: &PortAddress,
        reuse: bool,
    ) -> Result<(), PortRefusal> {
        let ids = self.bound.get(&service).map_or(&[][..], Vec::as_slice);
        ids.iter()
            .filter(|id| Some(**id) != except)
            .find_map(|id| self.bindings.get(id)?.conflict(address, reuse))
            .map_or(Ok(()), Err)
    }

    fn insert(
        &mut self,
        owner: Owner,
        service: ServiceId,
        address: PortAddress,
        reuse: bool,
    ) -> BoundPort {
        self.next_id += 1;
        let id = self.next_id;
        let binding = Binding {
            owner,
            service,
            address,
            reuse,
            slot: None,
        };
        self.bindings.insert(id, binding);
        self.bound.entry(service).or_default().push(id);
        self.of_owner.entry(owner).or_default().insert(id);
        BoundPort {
            id,
            port: service.port(),
        }
    }

    /// Requests for this port, whose service is given back, go to `slot` from now on. Who listens
    /// shares its address with nobody, whatever was wished when the port was bound.
    pub(super) fn listen(
        &mut self,
        owner: Owner,
        id: u64,
        slot: u8,
    ) -> Result<ServiceId, PortRefusal> {
        let binding = *self.own(owner, id)?;
        if binding.slot.is_some() {
            let port = binding.service.port();
            return Err(PortRefusal::Listening { port });
        }
        self.check(binding.service, Some(id), &binding.address, false)?;
        if let Some(binding) = self.bindings.get_mut(&id) {
            binding.slot = Some(slot);
            binding.reuse = false;
        }
        let listener = Listener {
            id,
            address: binding.address,
            slot,
        };
        self.listeners
            .entry(binding.service)
            .or_default()
            .push(listener);
        Ok(binding.service)
    }

    /// Gives a port back. The service, if it was listened on.
    pub(super) fn release(
        &mut self,
        owner: Owner,
        id: u64,
    ) -> Result<Option<ServiceId>, PortRefusal> {
        let Binding { service, slot, .. } = *self.own(owner, id)?;
        self.remove(id);
        Ok(slot.map(|_| service))
    }

    /// Gives back all that a client had.
    pub(super) fn end_owner(&mut self, owner: Owner) {
        for id in self.of_owner.remove(&owner).unwrap_or_default() {
            self.remove(id);
        }
    }

    /// A slot is given back: nobody listens there any more. The client's other ports are its own
    /// still.
    pub(super) fn end_slot(&mut self, owner: Owner, slot: u8) {
        let Some(ids) = self.of_owner.get(&owner) else {
            return;
        };
        let of_slot = |id: &&u64| {
            self.bindings
                .get(*id)
                .is_some_and(|binding| binding.slot == Some(slot))
        };
        let ending: Vec<u64> = ids.iter().filter(of_slot).copied().collect();
        for id in ending {
            self.remove(id);
        }
    }

    fn own(&self, owner: Owner, id: u64) -> Result<&Binding, PortRefusal> {
        self.bindings
            .get(&id)
            .filter(|binding| binding.owner == owner)
            .ok_or(PortRefusal::NotBound { id })
    }

    fn remove(&mut self, id: u64) {
        let Some(binding) = self.bindings.remove(&id) else {
            return;
        };
        if let Some(ids) = self.bound.get_mut(&binding.service) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.bound.remove(&binding.service);
            }
        }
        if let Some(listeners) = self.listeners.get_mut(&binding.service) {
            listeners.retain(|listener| listener.id != id);
            if listeners.is_empty() {
                self.listeners.remove(&binding.service);
            }
        }
        if let Some(ids) = self.of_owner.get_mut(&binding.owner) {
            ids.remove(&id);
            if ids.is_empty() {
                self.of_owner.remove(&binding.owner);
            }
        }
    }

    /// The slot that is to have a request: of who listens at the address, or else of who listens at
    /// all. Each address has one listener, so this looks at no more than there are addresses.
    pub(super) fn listener(&self, called: &Called, interface: u32) -> Result<u8, Absence> {
        let listeners = self
            .listeners
            .get(&called.service)
            .ok_or(Absence::NoListener)?;
        let here = called.destination.and_then(|destination| {
            listeners
                .iter()
                .find(|listener| listener.is_at(destination, interface))
        });
        here.or_else(|| {
            listeners
                .iter()
                .find(|listener| listener.is_everywhere(called.destination))
        })
        .map(|listener| listener.slot)
        .ok_or(Absence::OtherAddress)
    }

    pub(super) fn len(&self) -> usize {
        self.bindings.len()
    }
}

/// With a scope only where there can be several of an address, so that equal means the same.
fn normal(address: PortAddress) -> PortAddress {
    PortAddress {
        scope: if is_link_local(address.ip) {
            address.scope
        } else {
            0
        },
        ..address
    }
}

/// Whether an address is one for each interface.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6_link_local(v6))
}

const fn v6_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests;
