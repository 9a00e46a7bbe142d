//! The daemon that leases socket slots, its protocol and its client.
