//! A place in a message that is scattered over several elements.

use crate::access::Sge;

/// Where in a list of scatter/gather elements a message is: an element and bytes into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SgeCursor {
    index: u32,
    offset: u32,
}

impl SgeCursor {
    /// The place `offset` bytes into the message.
    pub fn at(sges: &[Sge], mut offset: u32) -> Self {
        for (index, sge) in sges.iter().enumerate() {
            if offset < sge.length {
                return Self {
                    index: index as u32,
                    offset,
                };
            }
            offset -= sge.length;
        }
        Self {
            index: sges.len() as u32,
            offset: 0,
        }
    }

    /// Gives the next `length` bytes piece by piece, none of them empty, and moves behind them.
    /// Stops at the first error of `each`, then the cursor is where it was.
    pub fn advance<E>(
        &mut self,
        sges: &[Sge],
        mut length: u32,
        mut each: impl FnMut(Sge) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut cursor = *self;
        while length > 0
            && let Some(sge) = sges.get(cursor.index as usize)
        {
            let taken = length.min(sge.length - cursor.offset);
            if taken > 0 {
                each(Sge {
                    address: sge.address.wrapping_add(cursor.offset.into()),
                    length: taken,
                    key: sge.key,
                })?;
            }
            length -= taken;
            cursor.offset += taken;
            if cursor.offset == sge.length {
                cursor = Self {
                    index: cursor.index + 1,
                    offset: 0,
                };
            }
        }
        *self = cursor;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::MemoryKey;

    fn sge(address: u64, length: u32) -> Sge {
        Sge {
            address,
            length,
            key: MemoryKey(1),
        }
    }

    #[test]
    fn a_cursor_walks_over_elements_and_skips_empty_ones() {
        let sges = [sge(100, 3), sge(200, 0), sge(300, 5)];
        let mut cursor = SgeCursor::default();
        let mut pieces = Vec::new();
        for length in [2, 4, 2] {
            cursor
                .advance(&sges, length, |piece| {
                    pieces.push((piece.address, piece.length));
                    Ok::<(), ()>(())
                })
                .unwrap();
        }
        assert_eq!(pieces, [(100, 2), (102, 1), (300, 3), (303, 2)]);
        for offset in 0..8 {
            let mut walked = SgeCursor::default();
            walked.advance(&sges, offset, |_| Ok::<(), ()>(())).unwrap();
            let mut rest = [0, 0];
            for (cursor, rest) in [walked, SgeCursor::at(&sges, offset)]
                .iter_mut()
                .zip(&mut rest)
            {
                cursor
                    .advance(&sges, 1, |piece| {
                        *rest = piece.address;
                        Ok::<(), ()>(())
                    })
                    .unwrap();
            }
            assert_eq!(rest[0], rest[1], "offset {offset}");
        }
    }
}
