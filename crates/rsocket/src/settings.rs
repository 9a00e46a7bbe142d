//! Sizes of an rsocket, and where their defaults come from. spec: rsocket(7) of rdma-core

use wire::rsocket::sayable_entries;

/// Where rdma-core's library looks for defaults, one number in each file.
const FOLDER: &str = "/etc/rdma/rsocket";

/// Sends or receives outstanding, at most and at least.
pub const QUEUE_MAX: u16 = 0xfffe;
const QUEUE_MIN: u16 = 16;

/// The smallest send buffer: what a writer waits for has to fit.
const SEND_BUFFER_MIN: u32 = 2048;
/// The largest buffer: the peer counts bytes in 29 bits.
const BUFFER_MAX: u32 = 1 << 29;

/// Sizes that can be set before an rsocket connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes that may be sent and not yet acknowledged.
    pub send_buffer: u32,
    /// Bytes that may be received and not yet read.
    pub receive_buffer: u32,
    /// Messages that may be sent and not yet acknowledged.
    pub send_queue: u16,
    /// Messages that may be received and not yet read.
    pub receive_queue: u16,
    /// Bytes of a message that are sent without the send buffer.
    pub inline: u16,
    /// Entries of the iomap that the peer fills.
    pub iomap: u16,
}

impl Default for Settings {
    /// Those of rdma-core's library.
    fn default() -> Self {
        Self {
            send_buffer: 1 << 17,
            receive_buffer: 1 << 17,
            send_queue: 384,
            receive_queue: 384,
            inline: 64,
            iomap: 0,
        }
    }
}

impl Settings {
    /// The defaults of this host.
    pub fn of_host() -> Self {
        let mut settings = Self::default();
        let file = |name: &str| std::fs::read_to_string(format!("{FOLDER}/{name}")).ok();
        settings.apply(file);
        settings
    }

    /// Takes over what `file` says of each name, if that is a number.
    fn apply(&mut self, file: impl Fn(&str) -> Option<String>) {
        let number = |name: &str| file(name)?.trim().parse::<u32>().ok();
        let small = |name: &str| Some(number(name)?.min(QUEUE_MAX.into()) as u16);
        if let Some(size) = number("wmem_default") {
            self.send_buffer = size.clamp(SEND_BUFFER_MIN, BUFFER_MAX);
        }
        if let Some(size) = number("mem_default") {
            self.receive_buffer = size.clamp(2, BUFFER_MAX);
        }
        if let Some(count) = small("sqsize_default") {
            self.send_queue = count.max(QUEUE_MIN);
        }
        if let Some(count) = small("rqsize_default") {
            self.receive_queue = count.max(QUEUE_MIN);
        }
        if let Some(size) = small("inline_default") {
            self.inline = size;
        }
        if let Some(count) = small("iomap_size") {
            self.iomap = sayable_entries(count);
        }
    }

    /// `SO_SNDBUF`: doubled, as the kernel does for sockets.
    pub fn set_send_buffer(&mut self, size: u32) {
        self.send_buffer = size.saturating_mul(2).clamp(SEND_BUFFER_MIN, BUFFER_MAX);
    }

    /// `SO_RCVBUF`, in the same way.
    pub fn set_receive_buffer(&mut self, size: u32) {
        self.receive_buffer = size.saturating_mul(2).clamp(2, BUFFER_MAX);
    }

    /// `RDMA_SQSIZE`
    pub fn set_send_queue(&mut self, count: u32) {
        self.send_queue = queue(count);
    }

    /// `RDMA_RQSIZE`
    pub fn set_receive_queue(&mut self, count: u32) {
        self.receive_queue = queue(count);
    }

    /// `RDMA_INLINE`: as much of it as the device can.
    pub fn set_inline(&mut self, size: u32) {
        self.inline = size.min(QUEUE_MAX.into()) as u16;
    }

    /// `RDMA_IOMAPSIZE`: as many of them as can be said to the peer.
    pub fn set_iomap(&mut self, count: u32) {
        self.iomap = sayable_entries(count.min(QUEUE_MAX.into()) as u16);
    }
}

fn queue(count: u32) -> u16 {
    count.clamp(QUEUE_MIN.into(), QUEUE_MAX.into()) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_have_defaults_of_its_own() {
        let mut settings = Settings::default();
        settings.apply(|name| match name {
            "mem_default" => Some("1048576\n".into()),
            "wmem_default" => Some("1".into()),
            "sqsize_default" => Some("nonsense".into()),
            "rqsize_default" => Some("1000000".into()),
            "iomap_size" => Some("300".into()),
            _ => None,
        });
        let expected = Settings {
            receive_buffer: 1 << 20,
            send_buffer: SEND_BUFFER_MIN,
            receive_queue: QUEUE_MAX,
            iomap: 256,
            ..Settings::default()
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn sizes_of_programs_are_kept_in_bounds() {
        let mut settings = Settings::default();
        settings.set_send_buffer(0);
        settings.set_receive_buffer(u32::MAX);
        settings.set_send_queue(0);
        settings.set_receive_queue(u32::MAX);
        assert_eq!(settings.send_buffer, SEND_BUFFER_MIN);
        assert_eq!(settings.receive_buffer, BUFFER_MAX);
        assert_eq!(
            (settings.send_queue, settings.receive_queue),
            (QUEUE_MIN, QUEUE_MAX)
        );
        settings.set_send_buffer(1 << 19);
        assert_eq!(settings.send_buffer, 1 << 20);
    }
}
