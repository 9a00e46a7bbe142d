//! What one measurement gives, and the median of several.

use serde::Serialize;

/// The figures of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Figures {
    /// Packets of plain sockets.
    Packets {
        gbit_per_s: f64,
        mega_packets_per_s: f64,
        lost_bytes: u64,
    },
    /// Messages of a device.
    Messages {
        gbit_per_s: f64,
        mega_messages_per_s: f64,
        /// Of all processes together, in user space and in the kernel, where it was looked at.
        cpu_seconds_per_gbyte: Option<f64>,
        /// By the kernel at full receive buffers; a merged datagram counts once.
        datagrams_dropped: Option<u64>,
    },
    /// What one packet or message takes: half a round trip where both ends send, a whole one where
    /// one end waits for an answer.
    Latency { p50_us: f64, p99_us: f64 },
    /// The same from who does not tell quantiles.
    Average { us: f64 },
    /// Connections that `librdmacm` makes.
    Connections { connections_per_s: f64 },
}

/// The figure by which rows are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    Bandwidth,
    /// Packets, messages or connections per second.
    Rate,
    Latency,
}

impl Figures {
    /// The one that decides about a row.
    pub fn main(self) -> f64 {
        match self {
            Self::Packets { gbit_per_s, .. } | Self::Messages { gbit_per_s, .. } => gbit_per_s,
            Self::Latency { p50_us, .. } => p50_us,
            Self::Average { us } => us,
            Self::Connections { connections_per_s } => connections_per_s,
        }
    }

    /// The figure to compare by; none where this measurement has no such figure.
    pub fn by(self, by: By) -> Option<f64> {
        match (self, by) {
            (Self::Packets { gbit_per_s, .. }, By::Bandwidth)
            | (Self::Messages { gbit_per_s, .. }, By::Bandwidth) => Some(gbit_per_s),
            (
                Self::Packets {
                    mega_packets_per_s, ..
                },
                By::Rate,
            ) => Some(mega_packets_per_s),
            (
                Self::Messages {
                    mega_messages_per_s,
                    ..
                },
                By::Rate,
            ) => Some(mega_messages_per_s),
            (Self::Latency { p50_us, .. }, By::Latency) => Some(p50_us),
            (Self::Average { us }, By::Latency) => Some(us),
            (Self::Connections { connections_per_s }, By::Rate) => Some(connections_per_s),
            _ => None,
        }
    }
}

/// The round in the middle by its main figure, so that its figures belong together.
pub fn median(rounds: &[Figures]) -> Option<Figures> {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(|one, other| one.main().total_cmp(&other.main()));
    sorted.get(sorted.len() / 2).copied()
}

/// The value below which this part of them lies. They must be sorted.
pub fn quantile(sorted: &[u64], part: f64) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * part) as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(p50_us: f64) -> Figures {
        Figures::Latency {
            p50_us,
            p99_us: 100.0 - p50_us,
        }
    }

    #[test]
    fn the_median_is_one_whole_round() {
        let rounds = [9.0, 1.0, 3.0].map(latency);
        assert_eq!(median(&rounds), Some(latency(3.0)));
        assert_eq!(median(&rounds[..1]), Some(latency(9.0)));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn only_like_is_compared_with_like() {
        assert_eq!(latency(3.0).by(By::Latency), Some(3.0));
        assert_eq!(latency(3.0).by(By::Bandwidth), None);
        let packets = Figures::Packets {
            gbit_per_s: 8.0,
            mega_packets_per_s: 2.0,
            lost_bytes: 0,
        };
        assert_eq!(packets.by(By::Rate), Some(2.0));
        assert_eq!(packets.by(By::Bandwidth), Some(8.0));
        assert_eq!(packets.by(By::Latency), None);
    }

    #[test]
    fn quantiles_of_few() {
        let sorted = [1, 2, 3, 4, 5];
        assert_eq!(quantile(&sorted, 0.5), Some(3));
        assert_eq!(quantile(&sorted, 1.0), Some(5));
        assert_eq!(quantile(&[7], 0.99), Some(7));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
