//! One datagram, one line.

use core::fmt;

use super::{Answered, Mad, Message, PortSpace, Rej, Rep, Req, ServiceId, SidrRep};

/// `CM REQ id=0x11223344 service=TCP:7471 qp=0x000011 psn=0x123456 …`
impl fmt::Display for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM {} ", self.message.name())?;
        match &self.message {
            Message::Req(req) => write_req(f, req)?,
            Message::Mra(mra) => {
                write!(f, "id={} to={} ", mra.local_id, mra.remote_id)?;
                let answers = name(mra.answers, "LAP");
                write!(f, "answers={answers} wait=2^{}", mra.service_timeout)?;
            }
            Message::Rej(rej) => write_rej(f, rej)?,
            Message::Rep(rep) => write_rep(f, rep)?,
            Message::Rtu(rtu) => write!(f, "id={} to={}", rtu.local_id, rtu.remote_id)?,
            Message::Dreq(dreq) => {
                write!(f, "id={} to={} ", dreq.local_id, dreq.remote_id)?;
                write!(f, "qp={}", dreq.remote_qpn)?;
            }
            Message::Drep(drep) => write!(f, "id={} to={}", drep.local_id, drep.remote_id)?,
            Message::SidrReq(sidr) => {
                write!(f, "id={} service=", sidr.request_id)?;
                write_service(f, sidr.service)?;
            }
            Message::SidrRep(sidr) => write_sidr_rep(f, sidr)?,
            Message::Lap(lap) => {
                write!(f, "id={} to={} ", lap.local_id, lap.remote_id)?;
                write!(
                    f,
                    "qp={} path={}>{}",
                    lap.remote_qpn, lap.local_gid, lap.remote_gid
                )?;
            }
            Message::Apr(apr) => {
                write!(f, "id={} to={} ", apr.local_id, apr.remote_id)?;
                write!(f, "status={}", apr.status)?;
            }
        }
        if self.modifier != 0 {
            write!(f, " modifier={:#x}", self.modifier)?;
        }
        write!(f, " tid={}", self.transaction)
    }
}

fn write_req(f: &mut fmt::Formatter<'_>, req: &Req) -> fmt::Result {
    write!(f, "id={} service=", req.local_id)?;
    write_service(f, req.service)?;
    write!(f, " {:?} qp={} ", req.transport, req.local_qpn)?;
    write!(f, "psn={} ", req.starting_psn)?;
    let (resources, depth) = (req.responder_resources, req.initiator_depth);
    write!(f, "resources={resources} depth={depth} mtu=")?;
    match req.mtu() {
        Some(mtu) => write!(f, "{}", mtu.bytes())?,
        None => write!(f, "code-{}", req.mtu_code)?,
    }
    let (local, remote) = (req.primary.local_gid, req.primary.remote_gid);
    write!(f, " path={}>{}", local.ip(), remote.ip())
}

fn write_rep(f: &mut fmt::Formatter<'_>, rep: &Rep) -> fmt::Result {
    write!(f, "id={} to={} ", rep.local_id, rep.remote_id)?;
    write!(f, "qp={} psn={} ", rep.local_qpn, rep.starting_psn)?;
    let (resources, depth) = (rep.responder_resources, rep.initiator_depth);
    write!(f, "resources={resources} depth={depth}")
}

fn write_rej(f: &mut fmt::Formatter<'_>, rej: &Rej) -> fmt::Result {
    write!(f, "id={} to={} ", rej.local_id, rej.remote_id)?;
    let answers = name(rej.answers, "none");
    write!(f, "answers={answers} reason={}", rej.reason)
}

fn write_sidr_rep(f: &mut fmt::Formatter<'_>, sidr: &SidrRep) -> fmt::Result {
    write!(f, "to={} status={} service=", sidr.request_id, sidr.status)?;
    write_service(f, sidr.service)?;
    write!(f, " qp={} qkey={}", sidr.qpn, sidr.qkey)
}

fn write_service(f: &mut fmt::Formatter<'_>, service: ServiceId) -> fmt::Result {
    let space = match service.port_space() {
        Some(PortSpace::Tcp) => "TCP",
        Some(PortSpace::Udp) => "UDP",
        Some(PortSpace::IpOverIb) => "IPOIB",
        Some(PortSpace::Ib) => "IB",
        None => return write!(f, "{service}"),
    };
    write!(f, "{space}:{}", service.port())
}

fn name(answered: Answered, other: &'static str) -> &'static str {
    match answered {
        Answered::Req => "REQ",
        Answered::Rep => "REP",
        Answered::Other => other,
        Answered::Reserved => "reserved",
    }
}
