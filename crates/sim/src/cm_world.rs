//! Connection management alone: two hosts, programs of all tempers, a network that loses, doubles
//! and reorders until it heals.
//!
//! Each connection has a plan: when the active side asks, and what either program does. Checkers
//! look at what the programs are told:
//!
//! - a program is told the things of one connection in an order that makes sense, and none twice;
//! - two willing programs get their connection; both learn of its end;
//! - who is refused learns it; nobody waits for an answer for ever;
//! - in the end nothing is left of any connection.

mod plan;
mod story;

use core::time::Duration;
use std::collections::BTreeMap;

use engine::Instant;
use engine::cm::{Accept, Cm, CmEvent, CmEventKind, Config, ConnectRequest, Refusal};
use engine::cm::{Enhancements, SidrAnswer, SidrRequest};
use tap::FaultPlan;
use wire::QKey;
use wire::mad::{CommId, Mad, Padded, PortSpace, RejectReason, ServiceId, SidrStatus};

use crate::clock::Agenda;
use crate::network::{self, Link};
use crate::replay::Trace;
use crate::rng::Rng;
use crate::world::Summary;

use plan::{ActiveTemper, Asks, Ending, PassiveTemper, Plan};
use story::{Side, Story};

const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 7471);
/// When the network heals. Every message that is repeated has repetitions after that.
const HEALS_AT: Duration = Duration::from_secs(30);
/// Happenings after which a run is not getting anywhere.
const HAPPENINGS_MAX: u64 = 1_000_000;
const BACKLOG: usize = 4;

/// Runs one seed to its end. An error says what rule was broken.
pub fn run(seed: u64, trace: Trace) -> Result<Summary, String> {
    World::new(Rng::from_seed(seed), trace).run()
}

/// What can happen.
enum Happening {
    /// A datagram comes to a host.
    Arrives { host: usize, bytes: Vec<u8> },
    /// The active program of a plan asks.
    Begins { plan: usize },
    /// A program does something with a connection.
    Acts { host: usize, id: CommId, act: Act },
    /// A deadline of a host may be due.
    Wakes { host: usize },
    /// Nothing goes wrong from now on.
    Heals,
}

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Accept,
    Reject,
    Forget,
    Establish,
    DataCame,
    Disconnect,
    Answer,
    Destroy,
}

struct Host {
    cm: Cm,
    /// To the other host.
    link: Link,
    /// Of every connection that its program ever had; IDs do not come again in a run.
    stories: BTreeMap<CommId, Story>,
    /// For when the clock is set.
    alarm: Option<Instant>,
}

struct World {
    agenda: Agenda<Happening>,
    hosts: [Host; 2],
    plans: Vec<Plan>,
    is_v6: bool,
    trace: Trace,
    summary: Summary,
}

impl World {
    fn new(mut rng: Rng, trace: Trace) -> Self {
        let is_v6 = rng.chance(300);
        let faults = faults(&mut rng);
        let hosts = [0, 1].map(|number| {
            let delay = Duration::from_micros(rng.range(10, 20_000));
            let jitter = Duration::from_micros(rng.range(0, 20_000));
            let lag = Duration::from_millis(rng.range(0, 200));
            let config = Config::new(number as u8 + 1, rng.bits());
            let mut cm = Cm::new(config);
            cm.listen(SERVICE, BACKLOG).expect("nobody listens yet");
            Host {
                cm,
                link: Link::new(delay, jitter, rng.fork()).with_faults(&faults, lag),
                stories: BTreeMap::new(),
                alarm: None,
            }
        });
        let count = rng.range(1, 12) as usize;
        let plans: Vec<_> = (0..count).map(|_| Plan::random(&mut rng)).collect();
        let mut agenda = Agenda::new();
        agenda.after(HEALS_AT, Happening::Heals);
        for (number, plan) in plans.iter().enumerate() {
            agenda.after(plan.begins_at, Happening::Begins { plan: number });
        }
        Self {
            agenda,
            hosts,
            plans,
            is_v6,
            trace,
            summary: Summary::default(),
        }
    }

    fn run(mut self) -> Result<Summary, String> {
        self.live()?;
        for (number, plan) in self.plans.iter().enumerate() {
            let stories = self.hosts.iter().flat_map(|host| host.stories.values());
            let stories: Vec<_> = stories.filter(|story| story.plan == number).collect();
            let checked = plan.check(&stories);
            checked.map_err(|problem| format!("plan {number}: {problem}; {plan:?}"))?;
        }
        // the programs leave what they still have
        for host in 0..2 {
            let ids: Vec<_> = self.hosts[host].stories.keys().copied().collect();
            for id in ids {
                self.later(host, id, Act::Destroy, Duration::ZERO);
            }
        }
        self.live()?;
        for (number, host) in self.hosts.iter().enumerate() {
            let left = host.cm.connection_count();
            if left != 0 || host.cm.next_deadline().is_some() {
                return Err(format!("{left} connections are left at host {number}"));
            }
        }
        self.summary.events = self.agenda.count();
        Ok(self.summary)
    }

    /// Until nothing more happens.
    fn live(&mut self) -> Result<(), String> {
        while let Some(happening) = self.agenda.take() {
            if self.agenda.count() > HAPPENINGS_MAX {
                return Err("it does not come to an end".to_owned());
            }
            match happening {
                Happening::Arrives { host, bytes } => self.arrives(host, &bytes)?,
                Happening::Begins { plan } => self.begins(plan)?,
                Happening::Acts { host, id, act } => self.acts(host, id, act)?,
                Happening::Wakes { host } => self.wakes(host),
                Happening::Heals => self.hosts.iter_mut().for_each(|host| host.link.heal()),
            }
            for host in 0..2 {
                self.settle(host)?;
            }
        }
        Ok(())
    }

    fn arrives(&mut self, host: usize, bytes: &[u8]) -> Result<(), String> {
        let now = self.agenda.now();
        let mad = Mad::parse(bytes).map_err(|error| format!("{error}: {bytes:02x?}"))?;
        let meta = network::meta(self.is_v6, host);
        let outcome = self.hosts[host].cm.handle_mad(now, &mad, &meta);
        let told = || format!("{outcome:?}");
        self.trace.packet(now, host, "<", &mad, told);
        Ok(())
    }

    fn begins(&mut self, number: usize) -> Result<(), String> {
        let plan = &self.plans[number];
        let host = plan.host;
        let now = self.agenda.now();
        let path = engine::Path {
            local: network::address(self.is_v6, host).ip(),
            remote: network::address(self.is_v6, 1 - host).ip(),
            interface: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let cm = &mut self.hosts[host].cm;
        let id = match plan.asks {
            Asks::Connection => {
                let local = Plan::queue_pair(host, number);
                let request = ConnectRequest {
                    private_data: plan::mark(number),
                    ..ConnectRequest::new(path, SERVICE, local)
                };
                cm.connect(now, &request)
            }
            Asks::QueuePair => {
                let request = SidrRequest {
                    private_data: plan::mark(number),
                    ..SidrRequest::new(path, SERVICE)
                };
                cm.resolve(now, &request)
            }
        };
        let id = id.map_err(|error| error.to_string())?;
        self.trace
            .note(now, || format!("host {host} {id} asks: {plan:?}"));
        let story = Story::new(number, Side::Active, plan.asks);
        self.hosts[host].stories.insert(id, story);
        if let ActiveTemper::Leaves(after) = plan.active {
            self.later(host, id, Act::Destroy, after);
        }
        Ok(())
    }

    fn later(&mut self, host: usize, id: CommId, act: Act, after: Duration) {
        let happening = Happening::Acts { host, id, act };
        self.agenda.after(after, happening);
    }

    fn acts(&mut self, host: usize, id: CommId, act: Act) -> Result<(), String> {
        let now = self.agenda.now();
        let Some(story) = self.hosts[host].stories.get_mut(&id) else {
            return Err(format!("host {host} does not know {id}"));
        };
        // what has ended can only be closed and left
        let is_late = story.has_ended() && !matches!(act, Act::Disconnect | Act::Destroy);
        if story.has_left() || is_late {
            return Ok(());
        }
        let number = story.plan;
        let cm = &mut self.hosts[host].cm;
        let outcome = match act {
            Act::Accept => {
                let accept = Accept {
                    enhancements: Enhancements::default(),
                    local: Plan::queue_pair(host, number),
                    private_data: plan::mark(number),
                };
                cm.accept(now, id, &accept)
            }
            // the program is done with it then
            Act::Reject => cm
                .reject(now, id, &Refusal::new(RejectReason::Consumer))
                .and_then(|()| cm.destroy(now, id)),
            Act::Forget => cm.forget(now, id),
            Act::Establish => cm.establish(now, id, Padded::default()),
            Act::DataCame => cm.notify_established(now, id),
            // it may be closed already
            Act::Disconnect => cm.disconnect(now, id).or(Ok(())),
            Act::Answer => {
                let answer = SidrAnswer {
                    status: SidrStatus::Valid,
                    qpn: Plan::queue_pair(host, number).qpn,
                    qkey: QKey(0x0123_4567),
                    private_data: plan::mark(number),
                };
                cm.answer_sidr(now, id, &answer)
            }
            Act::Destroy => cm.destroy(now, id),
        };
        self.trace
            .note(now, || format!("host {host} {id} {act:?}: {outcome:?}"));
        outcome.map_err(|error| format!("host {host} {id} {act:?}: {error}"))?;
        match act {
            Act::Establish => self.is_ready(host, id, Side::Active, number),
            Act::Reject | Act::Destroy => story.leave(),
            Act::Forget => story.forget(),
            _ => {}
        }
        Ok(())
    }

    /// A side has got its connection.
    fn is_ready(&mut self, host: usize, id: CommId, side: Side, number: usize) {
        let plan = &self.plans[number];
        let lasts = plan.lasts;
        // data can only come from a side that is ready
        if side == Side::Active && plan.data_comes_first {
            let peers = self.hosts[1 - host].stories.iter();
            let peer = peers.filter(|(_, story)| story.plan == number && !story.has_left());
            let peer = peer.map(|(&id, _)| id).next();
            if let Some(peer) = peer {
                self.later(1 - host, peer, Act::DataCame, Duration::ZERO);
            }
        }
        let plan = &self.plans[number];
        if plan.closes(side) {
            self.later(host, id, Act::Disconnect, lasts);
        } else if plan.ending == Ending::Leaves(side) {
            self.later(host, id, Act::Destroy, lasts);
        }
    }

    fn wakes(&mut self, host: usize) {
        self.hosts[host].alarm = None;
        let now = self.agenda.now();
        self.hosts[host].cm.handle_timeout(now);
    }

    /// Sends what a host wants to send, tells its programs, sets its clock.
    fn settle(&mut self, host: usize) -> Result<(), String> {
        let now = self.agenda.now();
        self.hosts[host].cm.check_invariants()?;
        while let Some(event) = self.hosts[host].cm.poll_event() {
            self.tell(host, event)?;
        }
        while let Some(out) = self.hosts[host].cm.poll_transmit() {
            self.summary.packets += 1;
            let remote = network::address(self.is_v6, 1 - host).ip();
            if out.path.remote != remote {
                return Err(format!("host {host} sends to {:?}", out.path));
            }
            let agenda = &mut self.agenda;
            let link = &mut self.hosts[host].link;
            link.send(now, out.mad.to_vec(), |arrival| {
                let (host, bytes) = (1 - host, arrival.bytes);
                agenda.at(arrival.at, Happening::Arrives { host, bytes });
            });
        }
        let Host { cm, alarm, .. } = &mut self.hosts[host];
        if let Some(at) = cm.next_deadline()
            && alarm.is_none_or(|alarm| at < alarm)
        {
            *alarm = Some(at);
            self.agenda.at(at, Happening::Wakes { host });
        }
        Ok(())
    }

    /// A program is told something, and may do something about it.
    fn tell(&mut self, host: usize, event: CmEvent) -> Result<(), String> {
        let now = self.agenda.now();
        let CmEvent { id, kind } = event;
        self.trace
            .note(now, || format!("host {host} {id} is told {kind:?}"));
        let told = |problem: String| format!("host {host} {id}: {problem}");
        match &kind {
            CmEventKind::ConnectRequest(request) => {
                let number = plan::marked(request.private_data.trimmed())?;
                return self.asked(host, id, number, Asks::Connection).map_err(told);
            }
            CmEventKind::SidrRequest(request) => {
                let number = plan::marked(request.private_data.trimmed())?;
                return self.asked(host, id, number, Asks::QueuePair).map_err(told);
            }
            _ => {}
        }
        let Some(story) = self.hosts[host].stories.get_mut(&id) else {
            return Err(told(format!("told {kind:?} after it was left")));
        };
        story.tell(&kind).map_err(told)?;
        let number = story.plan;
        let plan = &self.plans[number];
        let pace = plan.pace;
        match kind {
            CmEventKind::ConnectResponse(_) => match plan.active {
                ActiveTemper::Willing => self.later(host, id, Act::Establish, pace),
                ActiveTemper::Rejects => self.later(host, id, Act::Reject, pace),
                ActiveTemper::Leaves(_) => {}
            },
            CmEventKind::Established { .. } => {
                self.summary.completed += 1;
                self.is_ready(host, id, Side::Passive, number);
            }
            CmEventKind::Disconnected { .. } => self.later(host, id, Act::Disconnect, pace),
            CmEventKind::SidrResponse(_) => self.summary.completed += 1,
            CmEventKind::Rejected(_) => self.summary.flawed += 1,
            CmEventKind::Unreachable => self.summary.exhausted += 1,
            _ => {}
        }
        Ok(())
    }

    /// Somebody asks a program.
    fn asked(&mut self, host: usize, id: CommId, number: usize, asks: Asks) -> Result<(), String> {
        let plan = self.plans.get(number).ok_or("an unknown plan")?;
        if plan.host == host || plan.asks != asks {
            return Err(format!("asked for plan {number} at the wrong place"));
        }
        let stories = &mut self.hosts[host].stories;
        let earlier = stories.values().filter(|story| story.plan == number);
        let is_first = earlier.clone().next().is_none();
        if earlier
            .clone()
            .any(|story| !story.has_left() && !story.has_ended())
        {
            return Err("told of a request twice".to_owned());
        }
        let story = Story::new(number, Side::Passive, asks);
        if stories.insert(id, story).is_some() {
            return Err("an ID came again".to_owned());
        }
        let act = match (plan.passive, asks) {
            (PassiveTemper::ForgetsFirst, _) if is_first => Act::Forget,
            (PassiveTemper::Rejects, Asks::Connection) => Act::Reject,
            (PassiveTemper::Rejects | PassiveTemper::Leaves, _) => Act::Destroy,
            (_, Asks::Connection) => Act::Accept,
            (_, Asks::QueuePair) => Act::Answer,
        };
        let pace = plan.pace;
        self.later(host, id, act, pace);
        Ok(())
    }
}

fn faults(rng: &mut Rng) -> FaultPlan {
    let mut share = |most: u64| rng.range(0, most);
    let text = format!(
        "loss={}%,duplicate={}%,reorder={}%,hold=1ms..300ms",
        share(40),
        share(20),
        share(30)
    );
    text.parse().unwrap_or(FaultPlan::NONE) // any shares of these are a plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_seeds() {
        let mut completed = 0;
        for seed in 0..300 {
            let summary = run(seed, Trace::Off).unwrap_or_else(|text| panic!("{seed}: {text}"));
            completed += summary.completed;
        }
        assert!(completed > 900, "{completed}");
    }
}
