//! Options that are remembered, and those that do something.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::error::Result;
use crate::stream::Stream;

/// Options that are on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Flag {
    /// Others who wish it too may bind the same address.
    ReuseAddress = 1 << 0,
    /// The peer is asked for signs of life at intervals that the program chooses.
    KeepAlive = 1 << 1,
    /// Remembered: there are no urgent data.
    OutOfBandInline = 1 << 2,
    /// Closing does not wait. Remembered: it always waits until what was sent has arrived.
    NoLinger = 1 << 3,
    /// Remembered: nothing waits for company.
    NoDelay = 1 << 4,
    /// All addresses of IPv6 are not those of IPv4 too.
    V6Only = 1 << 5,
}

/// The default of `TCP_KEEPIDLE`.
const KEEP_IDLE_SECONDS: u32 = 7200;

/// See the module.
#[derive(Debug)]
pub struct Options {
    flags: AtomicU32,
    keep_idle_seconds: AtomicU32,
    traffic_class: AtomicU32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            flags: AtomicU32::new(0),
            keep_idle_seconds: AtomicU32::new(KEEP_IDLE_SECONDS),
            traffic_class: AtomicU32::new(0),
        }
    }
}

impl Options {
    /// Whether it is on.
    pub fn is_on(&self, flag: Flag) -> bool {
        self.flags.load(Ordering::Relaxed) & flag as u32 != 0
    }

    /// Remembers that it is.
    pub fn set(&self, flag: Flag, on: bool) {
        if on {
            self.flags.fetch_or(flag as u32, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!(flag as u32), Ordering::Relaxed);
        }
    }

    /// TOS or traffic class.
    pub fn traffic_class(&self) -> u32 {
        self.traffic_class.load(Ordering::Relaxed)
    }

    /// `TCP_KEEPIDLE`
    pub fn keep_idle_seconds(&self) -> u32 {
        self.keep_idle_seconds.load(Ordering::Relaxed)
    }

    /// The interval of signs of life, if the program chose one.
    pub(crate) fn keep_alive_seconds(&self) -> Option<u32> {
        self.is_on(Flag::KeepAlive)
            .then(|| self.keep_idle_seconds())
    }
}

impl Stream {
    /// Its options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Sets an option.
    ///
    /// # Errors
    /// Those of the device.
    pub fn set_flag(&self, flag: Flag, on: bool) -> Result<()> {
        match flag {
            Flag::ReuseAddress => self.id.set_options(|options| options.reuse_address = on)?,
            Flag::V6Only => self.id.set_options(|options| options.family_only = on)?,
            Flag::KeepAlive | Flag::OutOfBandInline | Flag::NoLinger | Flag::NoDelay => {}
        }
        self.options.set(flag, on);
        if flag == Flag::KeepAlive {
            self.set_keep_idle(self.options.keep_idle_seconds());
        }
        Ok(())
    }

    /// `IP_TOS`
    ///
    /// # Errors
    /// Those of the device.
    pub fn set_traffic_class(&self, class: u8) -> Result<()> {
        self.id
            .set_options(|options| options.traffic_class = class)?;
        self.options
            .traffic_class
            .store(class.into(), Ordering::Relaxed);
        Ok(())
    }

    /// `TCP_KEEPIDLE`
    pub fn set_keep_idle(&self, seconds: u32) {
        self.options
            .keep_idle_seconds
            .store(seconds, Ordering::Relaxed);
        if let Some(seconds) = self.options.keep_alive_seconds() {
            self.set_probe_time(Duration::from_secs(seconds.into()));
        }
    }
}
