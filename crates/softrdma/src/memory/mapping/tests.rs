//! The three ways to ask must agree on everything that the third can know.

use std::time::Instant;

use super::*;
use crate::memory::tests::{PAGE, Pages, full_name, in_child};

/// What each way says: the first missing address.
fn answers(address: u64, length: u64, writable: bool) -> [Option<u64>; 3] {
    let range = Needed {
        start: address,
        end: address + length,
        writable,
    };
    let open = || OwnedFd::from(File::open("/proc/self/maps").expect("there is /proc"));
    let text = range.missing_in_text(open());
    // an older kernel answers with `None`: then the text alone counts
    let query = range.missing_by_query(&open()).unwrap_or(text);
    [query, text, range.missing_by_msync()]
}

fn is_complete(address: u64, length: u64, writable: bool) -> bool {
    let [query, text, _] = answers(address, length, writable);
    assert_eq!(query, text);
    assert_eq!(
        is_mapped(ProgramMemory::access(), address, length, writable),
        query.is_none()
    );
    query.is_none()
}

#[test]
fn rights_are_those_that_are_needed() {
    let pages = Pages::anonymous(4);
    for (rights, readable, writable) in [
        (libc::PROT_READ | libc::PROT_WRITE, true, true),
        (libc::PROT_READ, true, false),
        (libc::PROT_NONE, false, false),
    ] {
        pages.protect(rights);
        // odd addresses: nothing needs to be aligned
        assert_eq!(
            is_complete(pages.address() + 3, 3 * PAGE as u64, false),
            readable
        );
        assert_eq!(
            is_complete(pages.address() + 3, 3 * PAGE as u64, true),
            writable
        );
    }
}

#[test]
fn mappings_side_by_side_are_one_range() {
    let pages = Pages::anonymous(8);
    pages.unmap_from(4);
    assert_eq!(answers(pages.address(), 8 * PAGE as u64, true)[..2], {
        [Some(pages.address() + 4 * PAGE as u64); 2]
    });
    assert!(is_complete(pages.address(), 4 * PAGE as u64, true));
    let file = Pages::file(4);
    assert!(is_complete(file.address(), file.length(), true));
}

#[test]
fn a_hole_is_missing() {
    let name = full_name(module_path!(), "a_hole_is_missing");
    // alone in a process, so that nothing is mapped into the hole
    let status = in_child(&name, || {
        let mut pages = Pages::anonymous(8);
        let (start, end) = (pages.address(), pages.address() + pages.length());
        pages.punch_from(6);
        let hole = start + 6 * PAGE as u64;
        assert_eq!(
            answers(start, end - start, false),
            [Some(hole), Some(hole), Some(start)]
        );
        assert_eq!(answers(hole, 1, false), [Some(hole); 3]);
        assert_eq!(answers(start, hole - start, true), [None; 3]);
        assert!(!is_mapped(
            ProgramMemory::access(),
            start,
            end - start,
            false
        ));
    });
    assert_eq!(status.code(), Some(0));
}

#[test]
fn nothing_is_mapped_where_nothing_can_be() {
    for (address, length) in [
        (0, 1),
        (u64::MAX - 10, 10),
        (1, u64::MAX - 1),
        (1 << 60, 4096),
    ] {
        assert!(!is_complete(address, length, false), "{address:#x}");
        assert!(answers(address, length, false)[2].is_some(), "{address:#x}");
    }
}

#[test]
fn an_empty_range_needs_nothing() {
    assert!(is_mapped(ProgramMemory::access(), 0, 0, true));
}

#[test]
fn stack_and_heap_and_code() {
    let on_stack = [0_u8; 100];
    let on_heap = Box::new([0_u8; 100]);
    assert!(is_complete(on_stack.as_ptr() as u64, 100, true));
    assert!(is_complete(on_heap.as_ptr() as u64, 100, true));
    let code = stack_and_heap_and_code as *const () as u64;
    assert!(is_complete(code, 1, false));
    assert!(!is_complete(code, 1, true));
}

#[test]
fn hundreds_of_gigabytes_without_touching_them() {
    let count = (256 << 30) / PAGE;
    let pages = Pages::sparse(count);
    let start = Instant::now();
    assert!(is_complete(pages.address(), pages.length(), true));
    // not a measurement: touching every page takes minutes and more memory than there is
    assert!(start.elapsed().as_secs() < 30);
    let mut resident = vec![0_u8; 4096];
    // SAFETY: asks about 4096 pages of the mapping, one byte each.
    let result = unsafe {
        libc::mincore(
            pages.address() as *mut _,
            resident.len() * PAGE,
            resident.as_mut_ptr(),
        )
    };
    assert_eq!(result, 0);
    assert!(resident.iter().all(|byte| byte & 1 == 0));
    pages.protect(libc::PROT_NONE);
    assert!(!is_complete(pages.address(), pages.length(), false));
}

#[test]
fn a_stack_that_has_not_grown_yet_is_mapped() {
    let name = full_name(module_path!(), "a_stack_that_has_not_grown_yet_is_mapped");
    let status = in_child(&name, || {
        // room for it to grow into, then the stack at the top of it
        let mut room = Pages::anonymous(1024);
        let top = room.address() + room.length() - PAGE as u64;
        room.punch_from(1);
        // SAFETY: where nothing is mapped any more.
        let stack = unsafe {
            libc::mmap(
                top as *mut _,
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_GROWSDOWN,
                -1,
                0,
            )
        };
        assert_eq!(stack as u64, top);
        let unused = top - 16 * PAGE as u64;
        assert!(answers(unused, 17 * PAGE as u64, true)[1].is_some());
        assert!(is_mapped(
            ProgramMemory::access(),
            unused,
            17 * PAGE as u64,
            true
        ));
    });
    assert_eq!(status.code(), Some(0));
}

#[test]
fn lines_of_the_map() {
    let line = b"7ffc1a2b3000-7ffc1a2d4000 rw-p 00000000 00:00 0                   [stack]";
    let stack = Mapping {
        start: 0x7ffc_1a2b_3000,
        end: 0x7ffc_1a2d_4000,
        readable: true,
        writable: true,
    };
    assert_eq!(parse(line), Some(stack));
    let code = parse(b"00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/x").expect("valid");
    assert_eq!((code.readable, code.writable), (true, false));
    assert_eq!(parse(b""), None);
    assert_eq!(parse(b"00400000-00452000"), None);
    assert_eq!(parse(b"00400000-00452000 r"), None);
    assert_eq!(parse(b"x-y rw-p 0"), None);
}
