//! Where the packets of a burst are cut into datagrams: the rule is [`engine::run`]'s.

use engine::PacketOut;
use engine::run::Run;

/// How many of `packets`, from the first on, can leave in one segmented send: 0 for none, at most
/// 128 packets and 65,507 bytes.
pub fn next_run(packets: &[PacketOut]) -> usize {
    let Some(first) = packets.first() else {
        return 0;
    };
    let mut run = Run::of(first.path, first.dest, first.sealed_length());
    for (index, packet) in packets.iter().enumerate().skip(1) {
        match run.with(packet.path, packet.dest, packet.sealed_length()) {
            Some(longer) => run = longer,
            None => return index,
        }
    }
    packets.len()
}

#[cfg(test)]
mod tests {
    use engine::{Origin, PathIndex, QpIndex};
    use wire::{Psn, Qpn};

    use super::*;

    /// Path, destination slot and sealed length: all that a run depends on.
    type Shape = (u32, u8, usize);

    fn packet((path, slot, length): Shape) -> PacketOut {
        PacketOut {
            header: 0..length as u32 - 4,
            spans: 0..0,
            span_length: 0,
            pad: 0,
            path: PathIndex(path),
            dest: Qpn::from_parts(slot, 7),
            origin: Origin {
                qp: QpIndex(0),
                psn: Psn::default(),
                is_response: false,
            },
        }
    }

    /// The rule as the kernel states it.
    fn fits_one_send(run: &[Shape]) -> bool {
        let (path, slot, size) = run[0];
        let (last, equal) = run.split_last().expect("not empty");
        run.iter().all(|(p, s, _)| (*p, *s) == (path, slot))
            && equal.iter().all(|(_, _, length)| *length == size)
            && last.2 <= size
            && run.len() <= 128
            && run.iter().map(|(_, _, length)| length).sum::<usize>() <= 65_507
    }

    fn longest_by_rule(shapes: &[Shape]) -> usize {
        (1..=shapes.len())
            .rev()
            .find(|count| fits_one_send(&shapes[..*count]))
            .unwrap_or(0)
    }

    fn run_of(shapes: &[Shape]) -> usize {
        next_run(&shapes.iter().copied().map(packet).collect::<Vec<_>>())
    }

    #[test]
    fn all_small_cases() {
        // three lengths, two of which fill a datagram fast; two paths; two slots
        let kinds: Vec<Shape> = [(0, 1), (0, 2), (1, 1)]
            .into_iter()
            .flat_map(|(path, slot)| [20, 40, 16_384].map(|length| (path, slot, length)))
            .collect();
        let mut cases = 0;
        for count in 0..=5_u32 {
            for case in 0..kinds.len().pow(count) {
                let shapes: Vec<Shape> = (0..count)
                    .map(|place| kinds[case / kinds.len().pow(place) % kinds.len()])
                    .collect();
                assert_eq!(run_of(&shapes), longest_by_rule(&shapes), "{shapes:?}");
                cases += 1;
            }
        }
        assert_eq!(cases, 1 + 9 + 81 + 729 + 6_561 + 59_049);
    }

    #[test]
    fn a_first_and_its_middle_are_a_run_of_two() {
        assert_eq!(run_of(&[(0, 1, 1056), (0, 1, 1040), (0, 1, 1040)]), 2);
        assert_eq!(run_of(&[(0, 1, 1040), (0, 1, 1056), (0, 1, 1040)]), 1);
    }

    #[test]
    fn limits_of_a_send() {
        assert_eq!(engine::run::PACKETS_MAX as usize, io::udp::MAX_SEGMENTS);
        assert_eq!(engine::run::BYTES_MAX as usize, io::udp::MAX_PAYLOAD);
        assert_eq!(run_of(&[(0, 1, 64); 200]), 128);
        // 511 × 128 = 65,408; 512 × 128 is too much
        assert_eq!(run_of(&[(0, 1, 511); 200]), 128);
        assert_eq!(run_of(&[(0, 1, 512); 200]), 127);
        assert_eq!(run_of(&[(0, 1, 4112); 200]), 15);
        // exactly full with a short last one
        let mut shapes = vec![(0, 1, 4112); 15];
        shapes.push((0, 1, 65_507 - 15 * 4112));
        assert_eq!(run_of(&shapes), 16);
        shapes[15].2 += 1;
        assert_eq!(run_of(&shapes), 15);
    }
}
