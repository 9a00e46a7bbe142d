//! The C side: structures and constants of `infiniband/verbs.h` and `rdma/rdma_cma.h`.
//!
//! Layouts are rdma-core 44's with what release 65 appended where a structure may grow. Every
//! structure and constant is also entered in a table, [`structures`] and [`constants()`], which
//! `cargo xtask abi` compares with the headers installed on the machine: much of verbs is inline
//! code in those headers, so an offset binds us as much as a symbol does.
#![allow(
    missing_docs,
    reason = "the names are C's; their manual pages are the documentation"
)]
#![allow(non_camel_case_types, reason = "the names are C's")]

pub mod constants;
pub mod kern;
pub mod rdma_cma;
pub mod verbs;

/// One structure as declared here.
#[derive(Debug, Clone, Copy)]
pub struct Structure {
    /// `struct` or `union`.
    pub kind: &'static str,
    pub name: &'static str,
    pub size: usize,
    pub fields: &'static [Field],
}

/// One field, or a path into an anonymous member (`wr.rdma.rkey`).
#[derive(Debug, Clone, Copy)]
pub struct Field {
    pub path: &'static str,
    pub offset: usize,
    /// Bytes; `None` for paths into anonymous members, whose type has no name here.
    pub size: Option<usize>,
}

/// One enumerator or macro.
#[derive(Debug, Clone, Copy)]
pub struct Constant {
    pub name: &'static str,
    pub value: i64,
}

/// Fields that headers of release 44 do not have.
pub const ADDED_AFTER_44: &[&str] = &[
    "ibv_port_attr.active_speed_ex",
    "ibv_qp_ex.wr_flush",
    "verbs_context.alloc_buf",
    "verbs_context.alloc_dmah",
    "verbs_context.dealloc_dmah",
    "verbs_context.dm_export_dmabuf_fd",
    "verbs_context.free_buf",
    "verbs_context.reg_mr_ex",
];

/// All structures declared here.
pub fn structures() -> impl Iterator<Item = &'static Structure> {
    verbs::STRUCTURES
        .iter()
        .chain(rdma_cma::STRUCTURES)
        .chain(kern::STRUCTURES)
        .copied()
}

/// All constants declared here.
pub fn constants() -> impl Iterator<Item = &'static Constant> {
    constants::CONSTANTS.iter()
}

/// Declares C structures and, next to each, its row of the layout table. After `; also` come paths
/// into members that are anonymous in C.
macro_rules! c_structures {
    ($(
        $(#[$attribute:meta])*
        $kind:ident $name:ident {
            $($field:ident: $type:ty),* $(,)?
            $(; also $($($path:ident).+),* $(,)?)?
        }
    )*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            $(#[$attribute])*
            pub $kind $name { $(pub $field: $type),* }

            impl $name {
                #[doc = "Its row of the layout table."]
                pub const LAYOUT: $crate::abi::Structure = $crate::abi::Structure {
                    kind: stringify!($kind),
                    name: stringify!($name),
                    size: size_of::<$name>(),
                    fields: &[
                        $($crate::abi::Field {
                            path: stringify!($field),
                            offset: core::mem::offset_of!($name, $field),
                            size: Some(size_of::<$type>()),
                        },)*
                        $($($crate::abi::Field {
                            path: stringify!($($path).+),
                            offset: core::mem::offset_of!($name, $($path).+),
                            size: None,
                        },)*)?
                    ],
                };
            }
        )*
        pub(super) const STRUCTURES: &[&$crate::abi::Structure] = &[$(&$name::LAYOUT),*];
    };
}
pub(crate) use c_structures;

/// Declares C constants and their table.
macro_rules! c_constants {
    ($($type:ty { $($name:ident = $value:expr),* $(,)? })*) => {
        $($(pub const $name: $type = $value;)*)*
        pub(super) const CONSTANTS: &[$crate::abi::Constant] = &[
            $($($crate::abi::Constant { name: stringify!($name), value: $name as i64 },)*)*
        ];
    };
}
pub(crate) use c_constants;
