//! What the memory of a target may look like, given how far its work requests can have come.

use core::ops::Range;

/// What a step leaves in the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Which step.
    pub step: usize,
    /// Where.
    pub offset: usize,
    /// What.
    pub data: Vec<u8>,
}

/// The history of one target. At the start all is zero.
#[derive(Debug)]
pub struct Oracle {
    length: usize,
    writes: Vec<Written>,
}

/// A byte that no order of execution explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexplained {
    /// Where in the target.
    pub offset: usize,
    /// What is there.
    pub found: u8,
    /// What would be, if only the steps that are done for sure were.
    pub expected: u8,
}

impl Oracle {
    /// The oracle of a target of `length` bytes; `writes` are in the order of their steps.
    pub fn new(length: usize, writes: Vec<Written>) -> Self {
        Self { length, writes }
    }

    /// Bytes of the target.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Checks `found`, the bytes from `offset` on. Steps before `steps.start` are done; those in
    /// `steps` may be, each packet of its own.
    pub fn explain(
        &self,
        offset: usize,
        found: &[u8],
        steps: Range<usize>,
    ) -> Result<(), Unexplained> {
        let mut image = vec![0; found.len()];
        let seen = offset..offset + found.len();
        for written in self.writes.iter().filter(|w| w.step < steps.start) {
            let start = written.offset.max(seen.start);
            let end = (written.offset + written.data.len()).min(seen.end);
            if start < end {
                image[start - seen.start..end - seen.start]
                    .copy_from_slice(&written.data[start - written.offset..end - written.offset]);
            }
        }
        if image == found {
            return Ok(());
        }
        for (index, (&found, &expected)) in found.iter().zip(&image).enumerate() {
            if found != expected && !self.may_be(offset + index, found, &steps) {
                return Err(Unexplained {
                    offset: offset + index,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }

    /// Whether one of `steps` puts `value` there.
    fn may_be(&self, at: usize, value: u8, steps: &Range<usize>) -> bool {
        self.writes
            .iter()
            .filter(|written| steps.contains(&written.step))
            .any(|written| {
                at.checked_sub(written.offset)
                    .and_then(|inside| written.data.get(inside))
                    .is_some_and(|&byte| byte == value)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oracle() -> Oracle {
        let write = |step, offset, data: &[u8]| Written {
            step,
            offset,
            data: data.to_vec(),
        };
        Oracle::new(8, vec![write(0, 1, &[1, 1, 1]), write(2, 2, &[3, 3])])
    }

    #[test]
    fn what_is_done_must_be_there() {
        assert_eq!(oracle().explain(0, &[0, 1, 1, 1, 0], 1..1), Ok(()));
        assert_eq!(
            oracle().explain(0, &[0, 1, 0, 1, 0], 1..1),
            Err(Unexplained {
                offset: 2,
                found: 0,
                expected: 1
            })
        );
    }

    #[test]
    fn what_may_be_done_may_be_there_in_part() {
        assert_eq!(oracle().explain(1, &[1, 3, 1], 1..3), Ok(()));
        assert!(oracle().explain(1, &[1, 3, 1], 1..2).is_err(), "not begun");
        assert!(oracle().explain(1, &[3, 3, 3], 1..3).is_err(), "not there");
    }

    #[test]
    fn what_was_overwritten_is_gone() {
        assert!(oracle().explain(2, &[1], 3..3).is_err());
        assert_eq!(oracle().explain(2, &[3], 3..3), Ok(()));
    }
}
