//! Queue pairs of programs. spec: IBA 10.3, 11.2.5

use std::sync::{Arc, Mutex, Once, PoisonError};

use broker::link::{LinkInfo, LinkKind};
use engine::qp::{
    AttributeMask, Attributes, Capabilities, PostError, SendRequest, State, Transport,
};
use engine::{Access, Group, QpView, ReceiveWqe, Sge};
use serde::{Deserialize, Serialize};
use wire::{Gid, Psn, QKey, Qpn};

use crate::address::AddressVector;
use crate::attributes::{MAX_INLINE, MAX_QP_WR, MAX_SGE};
use crate::batch::Batch;
use crate::core::{Core, QueuePairSpec};
use crate::cq::CompletionQueue;
use crate::error::{Error, Result};
use crate::front::{Carrier, Front};
use crate::iwarp::Settings;
use crate::lane::Place;
use crate::network::UdpNetwork;
use crate::process::{Process, look_for_vain_faults, random, report};
use crate::protection_domain::{PdInner, ProtectionDomain};
use crate::ring::capacity_for;
use crate::send_list::SendList;
use crate::srq::SharedReceiveQueue;

/// What a queue pair is made of.
pub struct QueuePairOptions<'a> {
    /// Its transport.
    pub transport: Transport,
    /// Completions of sends.
    pub send_cq: &'a CompletionQueue,
    /// Completions of receives.
    pub receive_cq: &'a CompletionQueue,
    /// Where its receives come from, if not from a queue of its own.
    pub shared_receives: Option<&'a SharedReceiveQueue>,
    /// Sizes asked for; at least so much is granted.
    pub capabilities: Capabilities,
    /// Whether every send completes with a completion.
    pub signal_all: bool,
}

impl<'a> QueuePairOptions<'a> {
    /// A reliable connection with one completion queue, 128 sends and 128 receives of one element.
    pub fn rc(cq: &'a CompletionQueue) -> Self {
        Self {
            transport: Transport::Rc,
            send_cq: cq,
            receive_cq: cq,
            shared_receives: None,
            capabilities: Capabilities {
                send_wr_max: 128,
                receive_wr_max: 128,
                send_sge_max: 1,
                receive_sge_max: 1,
                inline_max: 0,
            },
            signal_all: false,
        }
    }

    /// The same for unreliable datagrams.
    pub fn ud(cq: &'a CompletionQueue) -> Self {
        Self {
            transport: Transport::Ud,
            ..Self::rc(cq)
        }
    }

    /// Its receives come from `queue`.
    #[must_use]
    pub fn receive_from(mut self, queue: &'a SharedReceiveQueue) -> Self {
        self.shared_receives = Some(queue);
        self
    }

    /// Sends outstanding at once.
    #[must_use]
    pub fn send_depth(mut self, count: u32) -> Self {
        self.capabilities.send_wr_max = count;
        self
    }

    /// Receives outstanding at once.
    #[must_use]
    pub fn receive_depth(mut self, count: u32) -> Self {
        self.capabilities.receive_wr_max = count;
        self
    }
}

/// Where a queue pair can be reached, to be sent to the peer over any side channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its number.
    pub qpn: u32,
    /// Its first PSN.
    pub psn: u32,
    /// Its address.
    pub gid: [u8; 16],
}

/// How a connection behaves. The defaults are those of `rdma_cm`'s users: 7 retries each.
#[derive(Clone, Copy, Debug)]
pub struct RcOptions {
    /// Our place in the GID table.
    pub gid_index: u8,
    /// What the peer may do with our memory.
    pub access: Access,
    /// 4.096 µs · 2^n until a retry; 14 is 67 ms.
    pub timeout: u8,
    /// Retries after timeouts, 0 to 7.
    pub retry_count: u8,
    /// Retries when the peer has no receive posted; 7 is without end.
    pub rnr_retry: u8,
    /// READs and atomics in flight in each direction.
    pub max_rd_atomic: u8,
    /// RNR timer code; 12 is 0.64 ms.
    pub min_rnr_timer: u8,
}

impl Default for RcOptions {
    fn default() -> Self {
        Self {
            gid_index: 1,
            access: Access::LOCAL_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_WRITE
                | Access::REMOTE_ATOMIC,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            min_rnr_timer: 12,
        }
    }
}

/// A reliable connection, or a queue pair of unreliable datagrams.
pub struct QueuePair {
    pub(crate) pd: Arc<PdInner>,
    pub(crate) place: Place,
    pub(crate) front: Arc<Front>,
    first_psn: Psn,
    /// What `modify` was given last, for `query`.
    address: Mutex<AddressVector>,
    /// The multicast groups that it is attached to.
    pub(crate) groups: Mutex<Vec<Group>>,
}

impl QueuePair {
    pub(crate) fn new(pd: &ProtectionDomain, options: QueuePairOptions<'_>) -> Result<Self> {
        let process = &pd.0.context.process;
        pd.0.context.check()?;
        for cq in [options.send_cq, options.receive_cq] {
            if !Arc::ptr_eq(&cq.context().process, process) {
                return Err(Error::Invalid("the completion queue is of another process"));
            }
        }
        if let Some(queue) = options.shared_receives
            && !Arc::ptr_eq(&queue.context().process, process)
        {
            return Err(Error::Invalid(
                "the shared receive queue is of another process",
            ));
        }
        let capabilities = granted(&options.capabilities, options.shared_receives.is_some())?;
        let (send_cq, receive_cq) = (options.send_cq.queue(), options.receive_cq.queue());
        let place = process.place([&send_cq, &receive_cq])?;
        for cq in [options.send_cq, options.receive_cq] {
            // it may have been armed before it had a lane
            cq.watch_if_armed();
        }
        let link = pd.0.context.link();
        look_for_vain_faults(&link);
        let front = place.core.create_queue_pair(QueuePairSpec {
            transport: options.transport,
            carrier: carrier_of(&link),
            pd: pd.0.id,
            link: link.index,
            send_cq,
            receive_cq,
            shared_receives: options
                .shared_receives
                .map(|receives| Arc::clone(receives.queue())),
            capabilities,
            port_mtu: link.active_mtu,
            signal_all: options.signal_all,
            events: Arc::clone(&pd.0.context.events),
        })?;
        let first_psn = Psn::truncated(random());
        Ok(Self {
            pd: Arc::clone(&pd.0),
            place,
            front,
            first_psn,
            address: Mutex::default(),
            groups: Mutex::default(),
        })
    }

    pub(crate) fn process(&self) -> &Process {
        &self.pd.context.process
    }

    fn core(&self) -> &Core<UdpNetwork> {
        &self.place.core
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.front.qpn()
    }

    /// Sizes as granted: at least what was asked for.
    pub fn capabilities(&self) -> &Capabilities {
        self.front.capabilities()
    }

    /// Its transport.
    pub fn transport(&self) -> Transport {
        self.front.transport()
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.front.state()
    }

    /// What events of this queue pair carry to name it.
    pub fn set_cookie(&self, cookie: u64) {
        self.front.set_cookie(cookie);
    }

    /// Where the peer reaches it, with the address at `gid_index`.
    ///
    /// # Errors
    /// [`Error::EmptyGid`].
    pub fn endpoint(&self, gid_index: u8) -> Result<Endpoint> {
        let index = u16::from(gid_index);
        let link = self.pd.context.link();
        let gid = link.gid(index).ok_or(Error::EmptyGid(index))?.gid;
        Ok(Endpoint {
            qpn: self.qpn().get(),
            psn: self.first_psn.get(),
            gid: gid.0,
        })
    }

    /// Takes the queue pair from RESET to RTS, connected to `peer`.
    ///
    /// # Errors
    /// Those of [`Self::modify`].
    pub fn connect(&self, peer: Endpoint, options: &RcOptions) -> Result<()> {
        let attributes = Attributes {
            port: 1,
            access: options.access,
            path_mtu: self.pd.context.link().active_mtu,
            timeout: options.timeout,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            rq_psn: Psn::truncated(peer.psn),
            sq_psn: self.first_psn,
            max_rd_atomic: options.max_rd_atomic,
            max_dest_rd_atomic: options.max_rd_atomic,
            min_rnr_timer: options.min_rnr_timer,
            dest_qpn: Qpn::new(peer.qpn)
                .ok_or(Error::Invalid("the peer's QPN has over 24 bits"))?,
            ..Attributes::default()
        };
        let address = AddressVector {
            source_index: options.gid_index,
            dest: Gid(peer.gid),
            port: 1,
            ..AddressVector::default()
        };
        use AttributeMask as Mask;
        let steps = [
            (
                State::Init,
                Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS,
            ),
            (
                State::ReadyToReceive,
                Mask::ADDRESS_VECTOR
                    | Mask::PATH_MTU
                    | Mask::DEST_QPN
                    | Mask::RQ_PSN
                    | Mask::MAX_DEST_RD_ATOMIC
                    | Mask::MIN_RNR_TIMER,
            ),
            (
                State::ReadyToSend,
                Mask::TIMEOUT
                    | Mask::RETRY_COUNT
                    | Mask::RNR_RETRY
                    | Mask::SQ_PSN
                    | Mask::MAX_RD_ATOMIC,
            ),
        ];
        for (state, mask) in steps {
            self.modify(
                &Attributes {
                    state,
                    ..attributes
                },
                &address,
                Mask::STATE | mask,
            )?;
        }
        Ok(())
    }

    /// Takes a datagram queue pair from RESET to RTS. Who wants to reach it needs its number and
    /// `qkey`.
    ///
    /// # Errors
    /// Those of [`Self::modify`].
    pub fn open(&self, qkey: QKey) -> Result<()> {
        use AttributeMask as Mask;
        for (state, mask) in [
            (State::Init, Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY),
            (State::ReadyToReceive, Mask::empty()),
            (State::ReadyToSend, Mask::SQ_PSN),
        ] {
            let attributes = Attributes {
                state,
                port: 1,
                qkey,
                sq_psn: self.first_psn,
                ..Attributes::default()
            };
            self.modify(&attributes, &AddressVector::default(), Mask::STATE | mask)?;
        }
        Ok(())
    }

    /// Changes state and attributes; only what `mask` names is read. `attributes.path` is made
    /// from `address`.
    ///
    /// # Errors
    /// [`Error::Modify`], [`Error::EmptyGid`], [`Error::SyntheticGid`]; nothing was changed.
    pub fn modify(
        &self,
        attributes: &Attributes,
        address: &AddressVector,
        mask: AttributeMask,
    ) -> Result<()> {
        self.pd.context.check()?;
        let core = self.core();
        let mut attributes = *attributes;
        let active = self.pd.context.link().active_mtu;
        if mask.contains(AttributeMask::PATH_MTU) && attributes.path_mtu > active {
            return Err(Error::PathMtu {
                asked: attributes.path_mtu.bytes(),
                active: active.bytes(),
            });
        }
        if mask.contains(AttributeMask::ADDRESS_VECTOR) {
            core.check_modify(&self.front, &attributes, mask)?;
            if address.port > 1 {
                return Err(Error::Invalid("the device has port 1 only"));
            }
            attributes.path = self.pd.context.path(address)?;
        }
        core.modify(&self.front, &attributes, mask)?;
        if mask.contains(AttributeMask::ADDRESS_VECTOR) {
            *self.address.lock().unwrap_or_else(PoisonError::into_inner) = *address;
        }
        Ok(())
    }

    /// Attributes as they are now, and the address vector that `modify` was given.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn query(&self) -> Result<(QpView, AddressVector)> {
        if matches!(self.process().check(), Err(Error::Forked)) {
            return Err(Error::Forked);
        }
        let view = self.core().query(&self.front).ok_or(Error::DeviceFatal)?;
        Ok((
            view,
            *self.address.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    /// Posts one send work request.
    ///
    /// # Errors
    /// [`Error::Post`]; nothing was queued.
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<()> {
        self.queue_send(request)?;
        self.flush_sends();
        Ok(())
    }

    /// Queues a send work request; [`Self::flush_sends`] transmits.
    ///
    /// # Errors
    /// [`Error::Post`]; nothing was queued.
    pub fn queue_send(&self, request: &SendRequest<'_>) -> Result<()> {
        self.check_not_forked()?;
        let queued = self.core().queue_send(&self.front, request);
        queued.inspect_err(|error| self.explain(error))
    }

    /// Queues all send work requests of a list in order, or none of them;
    /// [`Self::flush_sends`] transmits.
    ///
    /// # Errors
    /// As for the first that [`Self::queue_send`] would refuse; nothing was queued.
    pub fn queue_sends(&self, list: &SendList) -> Result<()> {
        self.check_not_forked()?;
        let queued = self.core().queue_sends(&self.front, list);
        queued.inspect_err(|error| self.explain(error))
    }

    /// Tells, once, of an operation that iWARP does not have as the link is: programs that were
    /// not made for it print no more than that they cannot post.
    fn explain(&self, error: &Error) {
        static TOLD: Once = Once::new();
        if self.front.is_stream() && matches!(error, Error::Post(PostError::NotOfTransport)) {
            TOLD.call_once(|| report(&lacking(&self.pd.context.link())));
        }
    }

    /// Whether the queue pair belongs to this process: a child of `fork` must not touch what other
    /// threads of its parent may have been at work on.
    ///
    /// # Errors
    /// [`Error::Forked`]
    pub fn check_not_forked(&self) -> Result<()> {
        if io::fork::generation() != self.process().generation() {
            return Err(Error::Forked);
        }
        Ok(())
    }

    /// Transmits what was queued.
    pub fn flush_sends(&self) {
        let deadline = self.core().kick(&self.front);
        self.place.attendant.wake_before(deadline);
    }

    /// Posts one receive work request.
    ///
    /// # Errors
    /// [`Error::ReceiveQueueFull`], [`Error::Post`]; [`Error::Invalid`] where the queue is shared.
    pub fn post_receive(&self, id: u64, sges: &[Sge]) -> Result<()> {
        self.check_not_forked()?;
        self.core().post_receive(
            &self.front,
            ReceiveWqe {
                id,
                sges: sges.into(),
            },
        )
    }

    /// Copies memory of the program for an inline send.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if it is not mapped.
    pub fn copy_inline(&self, address: u64, into: &mut [u8]) -> Result<()> {
        self.process()
            .memory
            .copy_in(address, into)
            .map_err(|_| Error::BadAddress)
    }

    /// A batch of sends: one lock, one run where sizes allow.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if matches!(self.process().check(), Err(Error::Forked)) {
            return;
        }
        self.detach_all();
        self.core().destroy_queue_pair(&self.front);
        if self.place.queue_pairs() == 1 {
            // the last one: the process may be about to end
            self.place.publish(self.process());
        }
    }
}

/// What carries the messages of a link's queue pairs.
fn carrier_of(link: &LinkInfo) -> Carrier {
    match link.kind {
        LinkKind::Rxe => Carrier::Packets,
        LinkKind::Siw => Carrier::Stream {
            has_extensions: Settings::of(link).options.extensions,
        },
    }
}

/// What a link of iWARP does not have.
fn lacking(link: &LinkInfo) -> String {
    if link.iwarp.is_some_and(|options| options.rfc7306) {
        return format!(
            "{} has no SEND with immediate data: iWARP has immediate data with WRITEs alone, and \
             a device of type rxe has both",
            link.name
        );
    }
    Error::NoExtensions(link.name.clone()).to_string()
}

/// Sizes as they are granted: queues to 2^n - 1, inline data to whole elements, as the kernel does.
/// Those of receives mean nothing with a shared queue, and stay as they were asked for.
fn granted(asked: &Capabilities, shares_receives: bool) -> Result<Capabilities> {
    let own = |asked| if shares_receives { 0 } else { asked };
    let (receives, receive_sges) = (own(asked.receive_wr_max), own(asked.receive_sge_max));
    if asked.send_wr_max > MAX_QP_WR || receives > MAX_QP_WR {
        return Err(Error::Invalid("the queue is larger than max_qp_wr"));
    }
    if asked.send_sge_max > MAX_SGE || receive_sges > MAX_SGE {
        return Err(Error::Invalid("more elements than max_sge"));
    }
    if asked.inline_max > MAX_INLINE {
        return Err(Error::Invalid("more inline data than 512 bytes"));
    }
    let slots = |count| if count == 0 { 0 } else { capacity_for(count) };
    let inline = asked.inline_max.max(16 * asked.send_sge_max);
    Ok(Capabilities {
        send_wr_max: slots(asked.send_wr_max),
        receive_wr_max: if shares_receives {
            asked.receive_wr_max
        } else {
            slots(asked.receive_wr_max)
        },
        send_sge_max: asked.send_sge_max.max(inline / 16).min(MAX_SGE),
        receive_sge_max: asked.receive_sge_max,
        inline_max: inline,
    })
}

#[cfg(test)]
mod tests {
    use broker::iwarp::IwarpOptions;

    use super::*;
    use crate::iwarp::link_for_test as link;

    #[test]
    fn what_iwarp_lacks_is_told_as_the_link_is() {
        let mut siw = link("siw0", LinkKind::Siw, &["192.0.2.1"]);
        let text = lacking(&siw);
        assert!(
            text.starts_with("siw0") && text.contains("rfc7306 on"),
            "{text}"
        );
        siw.iwarp = Some(IwarpOptions {
            rfc7306: true,
            ..IwarpOptions::default()
        });
        let text = lacking(&siw);
        assert!(
            text.starts_with("siw0") && !text.contains("rfc7306"),
            "{text}"
        );
    }
}
