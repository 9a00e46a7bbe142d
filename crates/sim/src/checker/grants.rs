//! No byte changes outside of what was granted.

use core::ops::Range;

/// What a region that only its owner reads must look like.
#[derive(Debug)]
pub struct Canvas {
    expected: Vec<u8>,
    /// Where anything may be: what failed may have come in part.
    loose: Vec<Range<usize>>,
}

/// What is in a region where nothing arrived.
pub const BLANK: u8 = 0xee;

impl Canvas {
    /// A blank region.
    pub fn blank(length: usize) -> Self {
        Self {
            expected: vec![BLANK; length],
            loose: Vec::new(),
        }
    }

    /// Bytes of the region.
    pub fn length(&self) -> usize {
        self.expected.len()
    }

    /// The bytes that the region starts with.
    pub fn bytes(&self) -> Vec<u8> {
        self.expected.clone()
    }

    /// These bytes arrived.
    pub fn paint(&mut self, offset: usize, bytes: &[u8]) {
        self.expected[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Anything may have arrived here.
    pub fn loosen(&mut self, range: Range<usize>) {
        self.loose.push(range);
    }

    /// Checks the whole region.
    pub fn check(&self, found: &[u8]) -> Result<(), String> {
        if self.expected == found {
            return Ok(());
        }
        for (offset, (found, expected)) in found.iter().zip(&self.expected).enumerate() {
            if found != expected && !self.loose.iter().any(|range| range.contains(&offset)) {
                return Err(format!(
                    "byte {offset} is {found:#04x} and nothing put it there"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_beyond_shows() {
        let mut canvas = Canvas::blank(8);
        canvas.paint(2, &[1, 2]);
        canvas.loosen(6..7);
        assert_eq!(
            canvas.check(&[0xee, 0xee, 1, 2, 0xee, 0xee, 9, 0xee]),
            Ok(())
        );
        assert!(canvas.check(&[0xee, 0xee, 1, 2, 3, 0xee, 9, 0xee]).is_err());
    }
}
