//! Copies right to the byte, and faults that are answers. Each by both methods.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::memory::tests::{PAGE, Pages};

/// Both ways. Threads of tests block no signals and nobody displaces the handler, so the first is
/// the direct one.
fn methods() -> [ProgramMemory; 2] {
    let direct = ProgramMemory::access();
    assert_eq!(direct.method, Method::Direct);
    [direct, ProgramMemory::through_kernel()]
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index * 7 + index / 251) as u8)
        .collect()
}

#[test]
fn every_length_and_alignment_to_the_byte() {
    for memory in methods() {
        for length in (0..300).chain(2030..2070).chain([1000, 4095, 4096, 4097]) {
            for alignment in 0..8 {
                let bytes = pattern(length);
                let mut program = vec![0xee_u8; length + 32];
                let address = program[8 + alignment..].as_mut_ptr() as u64;
                // SAFETY: inside the vector.
                unsafe { memory.write(address, &bytes) }.expect("it is mapped");
                assert!(program[..8 + alignment].iter().all(|byte| *byte == 0xee));
                assert_eq!(program[8 + alignment..][..length], bytes);
                assert!(
                    program[8 + alignment + length..]
                        .iter()
                        .all(|byte| *byte == 0xee)
                );

                let mut back = vec![0; length];
                memory.read(address, &mut back).expect("it is mapped");
                assert_eq!(back, bytes);
            }
        }
    }
}

#[test]
fn the_end_of_a_message_is_all_of_it() {
    for memory in methods() {
        for length in 0..40 {
            for alignment in 0..16 {
                let bytes = pattern(length);
                let mut program = [0xee_u8; 80];
                let at = 16 + alignment;
                // SAFETY: inside the vector.
                unsafe { memory.write_last(program[at..].as_mut_ptr() as u64, &bytes) }
                    .expect("it is mapped");
                assert_eq!(program[at..][..length], bytes);
                assert!(program[..at].iter().all(|byte| *byte == 0xee));
                assert!(program[at + length..].iter().all(|byte| *byte == 0xee));
            }
        }
    }
}

#[test]
fn the_last_word_is_stored_in_the_largest_aligned_pieces() {
    let widths = |mut address: u64, mut length: usize| {
        let mut widths = Vec::new();
        while length > 0 {
            let width = piece(address, length);
            assert!(address.is_multiple_of(width as u64) && width <= length);
            widths.push(width);
            address += width as u64;
            length -= width;
        }
        widths
    };
    assert_eq!(widths(0x1000, 8), [8]);
    assert_eq!(widths(0x1000, 7), [4, 2, 1]);
    assert_eq!(widths(0x1001, 7), [1, 2, 4]);
    assert_eq!(widths(0x1004, 4), [4]);
    assert_eq!(widths(0x1003, 3), [1, 2]);
    assert_eq!(widths(0x1007, 1), [1]);
}

#[test]
fn who_sees_the_last_byte_sees_all() {
    const LENGTH: usize = 1500;
    let memory = ProgramMemory::access();
    let program: Vec<AtomicU8> = (0..LENGTH).map(|_| AtomicU8::new(0)).collect();
    let seen = AtomicU8::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=200_u8 {
                while program[LENGTH - 1].load(Ordering::Acquire) != round {
                    thread::yield_now();
                }
                for (index, byte) in program.iter().enumerate() {
                    assert_eq!(byte.load(Ordering::Relaxed), round, "byte {index}");
                }
                seen.store(round, Ordering::Release);
            }
        });
        for round in 1..=200_u8 {
            let message = [round; LENGTH];
            // SAFETY: inside the vector, whose elements are atomics.
            unsafe { memory.write_last(program.as_ptr() as u64, &message) }.expect("mapped");
            while seen.load(Ordering::Acquire) != round {
                thread::yield_now();
            }
        }
    });
}

#[test]
fn aligned_words_of_small_copies_do_not_tear() {
    let memory = ProgramMemory::access();
    let program: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for value in [u64::MAX, 0] {
                    for word in &program {
                        word.store(value, Ordering::Relaxed);
                    }
                }
            }
        });
        for _ in 0..100_000 {
            let mut copy = [0_u64; 16];
            // SAFETY: the bytes of an array of integers.
            let bytes = unsafe { std::slice::from_raw_parts_mut(copy.as_mut_ptr().cast(), 128) };
            memory
                .read(program.as_ptr() as u64, bytes)
                .expect("it is mapped");
            assert!(
                copy.iter().all(|word| *word == 0 || *word == u64::MAX),
                "{copy:x?}"
            );
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn memory_that_is_gone_is_a_fault() {
    for memory in methods() {
        for length in [1, 8, 64, 128, 129, 2000] {
            let pages = Pages::anonymous(2);
            pages.unmap_from(1);
            let start = pages.address() + PAGE as u64 - length as u64 / 2;
            let mut into = vec![0; length + 1];
            assert_eq!(memory.read(start, &mut into), Err(Fault));
            // SAFETY: pages of this test, or nothing.
            unsafe {
                assert_eq!(memory.write(start, &into), Err(Fault));
                assert_eq!(memory.write_last(start, &into), Err(Fault));
            }
        }
    }
}

#[test]
fn protected_memory_is_a_fault() {
    for memory in methods() {
        let pages = Pages::anonymous(1);
        pages.protect(libc::PROT_READ);
        let mut into = [1; 8];
        assert_eq!(memory.read(pages.address(), &mut into), Ok(()));
        // SAFETY: pages of this test.
        unsafe {
            assert_eq!(memory.write(pages.address(), &into), Err(Fault));
            assert_eq!(memory.write_last(pages.address(), &into), Err(Fault));
            assert_eq!(memory.fetch_add(pages.address(), 1), Err(Fault));
            assert_eq!(memory.compare_swap(pages.address(), 5, 6), Err(Fault));
        }
        pages.protect(libc::PROT_NONE);
        assert_eq!(memory.read(pages.address(), &mut into), Err(Fault));
    }
}

#[test]
fn a_truncated_file_is_a_fault() {
    for memory in methods() {
        let pages = Pages::file(2);
        // SAFETY: pages of this test.
        unsafe {
            assert_eq!(memory.write(pages.address(), &[1; 2 * PAGE]), Ok(()));
            pages.truncate(1);
            assert_eq!(memory.write(pages.address(), &[2; 2 * PAGE]), Err(Fault));
            assert_eq!(
                memory.fetch_add(pages.address() + PAGE as u64, 1),
                Err(Fault)
            );
        }
        assert_eq!(memory.read(pages.address(), &mut [0; 2 * PAGE]), Err(Fault));
        assert_eq!(memory.read(pages.address(), &mut [0; PAGE]), Ok(()));
    }
}

#[test]
fn addresses_that_cannot_be_are_a_fault() {
    for memory in methods() {
        // null, the non-canonical hole, the kernel's half, the end
        for address in [
            0,
            8,
            1 << 56,
            0x8000_0000_0000,
            0xffff_8000_0000_0000,
            u64::MAX - 7,
        ] {
            for length in [1, 8, 200] {
                let mut into = vec![0; length];
                assert_eq!(memory.read(address, &mut into), Err(Fault), "{address:#x}");
                // SAFETY: no program has memory there.
                unsafe {
                    assert_eq!(memory.write(address, &into), Err(Fault), "{address:#x}");
                    assert_eq!(
                        memory.write_last(address, &into),
                        Err(Fault),
                        "{address:#x}"
                    );
                    assert_eq!(memory.fetch_add(address, 1), Err(Fault), "{address:#x}");
                }
            }
        }
    }
}

#[test]
fn a_region_that_comes_and_goes_under_the_copy() {
    let pages = Pages::anonymous(16);
    let done = AtomicBool::new(false);
    let (mut copied, mut faulted) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                pages.unmap_from(8);
                pages.map_again();
                pages.protect(libc::PROT_READ);
                pages.protect(libc::PROT_READ | libc::PROT_WRITE);
            }
        });
        let mut buffer = vec![0; 16 * PAGE];
        while copied < 200 || faulted < 200 {
            let memory = ProgramMemory::access();
            // SAFETY: pages of this test, or nothing.
            let results = unsafe {
                [
                    memory.write(pages.address(), &buffer),
                    memory.read(pages.address(), &mut buffer),
                ]
            };
            for result in results {
                match result {
                    Ok(()) => copied += 1,
                    Err(Fault) => faulted += 1,
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn atomic_operations_give_the_value_before() {
    for memory in methods() {
        let word = AtomicU64::new(10);
        let at = word.as_ptr() as u64;
        // SAFETY: a live word.
        unsafe {
            assert_eq!(memory.fetch_add(at, u64::MAX), Ok(10));
            assert_eq!(memory.compare_swap(at, 8, 1), Ok(9));
            assert_eq!(word.load(Ordering::Relaxed), 9);
            assert_eq!(memory.compare_swap(at, 9, 1), Ok(9));
        }
        assert_eq!(word.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn atomic_operations_of_both_methods_do_not_lose_each_other() {
    const EACH: u64 = 5_000;
    let word = AtomicU64::new(0);
    let at = word.as_ptr() as u64;
    thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let memory = methods()[thread % 2];
                for _ in 0..EACH {
                    // SAFETY: a live word.
                    unsafe { memory.fetch_add(at, 3) }.expect("it is mapped");
                }
            });
        }
    });
    assert_eq!(word.load(Ordering::Relaxed), 4 * EACH * 3);
}
