//! RDMA verbs on ordinary sockets: the device in a process and the safe Rust API.
//!
//! # The tour
//!
//! [`Device::open`] opens a link by name; `softrdma link add` makes links. From a device come
//! [`ProtectionDomain`]s, which register memory and make [`QueuePair`]s, and [`CompletionQueue`]s.
//! Two queue pairs are connected by exchanging their [`Endpoint`]s over any side channel. Work is
//! posted one by one or in a [`Batch`], and completions are polled. `examples/write.rs` does all of
//! it in a page.
//!
//! # Inside
//!
//! | module | what |
//! |---|---|
//! | [`device`], [`protection_domain`], [`cq`], [`queue_pair`], [`srq`], [`batch`] | the API |
//! | [`address_handle`], [`address`], `multicast` | where datagrams go, and come from |
//! | [`core`] | memory and a shard, no globals, no threads: on sockets and in simulation |
//! | [`shard`] | the lock section: engine, sealing, tap, network |
//! | [`front`], [`ring`], [`receive_queue`], [`shared_receive_queue`] | posting, in no section |
//! | [`send_list`] | what is posted as a whole or not at all |
//! | [`completion_queue`], [`completion_channel`], [`event_queue`] | polling and waiting |
//! | [`memory`] | registered memory: keys, and access that cannot kill the process |
//! | [`run`], [`seal`] | packets to datagrams |
//! | [`network`], [`steer`] | sockets; packets that reached the wrong process |
//! | [`gsi`] | what the broker passes on of QP 1 |
//! | [`cm`] | connection management: IDs, event channels |
//! | [`iwarp`] | queue pairs that are TCP connections |
//! | [`choice`], [`sysfs`] | which links are seen; what the kernel's files would say of one |
//! | `process`, `progress` | the only globals and the only threads |
//! | `counting` | what was counted, written where the broker finds it |
//! | `registry` | what the process answers when somebody asks what it has |
//! | `lane`, `lanes` | a slot with its shard and its thread; which one a queue pair gets |
//!
//! Lock order, everywhere: control (broker, contexts) → connections → shard → receive queue →
//! completion queue → channel and events. Never two shards. Within a lock of the `registry` nobody
//! takes another. No lock is held while C code runs.

pub mod address;
pub mod address_handle;
pub mod attributes;
pub mod batch;
pub mod choice;
pub mod cm;
pub mod completion_channel;
pub mod completion_queue;
pub mod core;
mod counting;
mod courtesy;
pub mod cq;
pub mod credit;
pub mod device;
pub mod error;
pub mod event_queue;
pub mod front;
pub mod gsi;
pub mod hold;
pub mod iwarp;
mod lane;
mod lanes;
pub mod linger;
pub mod memory;
mod multicast;
pub mod network;
pub mod pace;
mod process;
mod progress;
pub mod protection_domain;
pub mod queue_pair;
pub mod receive_queue;
mod registry;
pub mod ring;
pub mod run;
pub mod seal;
pub mod send_list;
pub mod shard;
pub mod shared_receive_queue;
mod spins;
pub mod srq;
pub mod steer;
pub mod sysfs;

pub use address::AddressVector;
pub use address_handle::AddressHandle;
pub use attributes::{DeviceAttributes, PortAttributes};
pub use batch::{Batch, BatchError, Posting};
pub use broker::link::{GidEntry, LinkInfo, LinkKind, PhysicalState, PortState};
pub use completion_channel::CompletionChannel;
pub use cq::{Completion, CompletionQueue, WorkError};
pub use device::{Device, devices};
pub use engine::QpView;
pub use engine::qp::{
    Addressee, AttributeMask, Attributes, Capabilities, Operation, Payload, PostError,
    RemoteMemory, SendFlags, SendRequest, State, Transport,
};
pub use engine::{Access, CompletionOpcode, Path, Sge, Status, WorkCompletion};
pub use error::{Error, Result};
pub use event_queue::{EventKind, EventQueue};
pub use memory::{ProgramBytes, ProgramBytesMut};
pub use process::report_by;
pub use protection_domain::{MemoryRegion, ProtectionDomain, Region, RemoteRegion};
pub use queue_pair::{Endpoint, QueuePair, QueuePairOptions, RcOptions};
pub use send_list::SendList;
pub use shared_receive_queue::SharedReceiveAttributes;
pub use srq::SharedReceiveQueue;
pub use wire::{Gid, MemoryKey, Mtu, PKey, Psn, QKey, Qpn};
