//! Numbers from a seed.

/// A generator of xorshift kind: good enough to choose what a stranger does.
#[derive(Clone, Debug)]
pub struct Draws {
    state: u64,
}

impl Draws {
    /// Every seed draws something else.
    pub fn new(seed: u32) -> Self {
        Self {
            state: (u64::from(seed) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// A number below this one, which is not 0.
    pub fn draw(&mut self, below: u32) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        ((self.state >> 16) as u32) % below
    }

    /// True in so many of a hundred times.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.draw(100) < percent
    }

    /// So many bytes at most.
    pub fn bytes(&mut self, most: u32) -> Vec<u8> {
        let length = self.draw(most + 1);
        (0..length).map(|_| self.draw(256) as u8).collect()
    }
}
