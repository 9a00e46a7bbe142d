//! Memory that a program asks for in sizes of its own choice, so that there may be too little.

use std::alloc::{Layout, alloc_zeroed};

/// Zeros, which the kernel keeps no memory for until they are written; `None` if there are not so
/// many. `vec![0; length]` would end the process.
pub fn zeros(length: usize) -> Option<Vec<u8>> {
    if length == 0 {
        return Some(Vec::new());
    }
    let layout = Layout::array::<u8>(length).ok()?;
    // SAFETY: the layout has a size that is not zero.
    let first = unsafe { alloc_zeroed(layout) };
    if first.is_null() {
        return None;
    }
    // SAFETY: the global allocator gave it with the layout of such a vector, and all of it is zero.
    Some(unsafe { Vec::from_raw_parts(first, length, length) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_not_there_and_what_is_there_is_zero() {
        assert_eq!(zeros(0), Some(Vec::new()));
        assert_eq!(zeros(4097), Some(vec![0; 4097]));
        for length in [isize::MAX as usize, usize::MAX] {
            assert_eq!(zeros(length), None);
        }
    }
}
