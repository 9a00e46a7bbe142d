//! Keys, checks and generations; and that no program can lose its life by what it registered.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;

use wire::Qpn;

use super::*;
use crate::memory::tests::{PAGE, Pages};

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

const PD: PdId = PdId(3);

fn scope(pd: PdId) -> Scope {
    Scope {
        pd,
        qpn: Qpn::truncated(0x11),
    }
}

fn range(address: u64, length: u64) -> MemoryRange {
    MemoryRange { address, length }
}

fn register(
    table: &MemoryTable,
    address: u64,
    length: u64,
    access: Access,
) -> Result<MemoryKey, RegisterError> {
    // SAFETY: tests register memory of their own, or expect a refusal.
    unsafe { table.register(PD, address, length, address, access) }.map(|done| done.key)
}

/// A table with one region over `pages`, and a grant of all of it.
fn granted(pages: &Pages) -> (MemoryTable, MemoryKey, Grant) {
    let table = MemoryTable::new();
    let key = register(&table, pages.address(), pages.length(), ALL).expect("it is mapped");
    let whole = range(pages.address(), pages.length());
    let grant = table.check(key, scope(PD), whole, ALL).expect("all of it");
    (table, key, grant)
}

fn bytes_of(table: &MemoryTable, grant: &Grant) -> Vec<u8> {
    let span = grant.span(0, grant.length() as u32).expect("all of it");
    let mut bytes = vec![0; grant.length() as usize];
    table.gather(&span, &mut bytes).expect("it is mapped");
    bytes
}

#[test]
fn rights_that_can_be_asked_for() {
    use RegisterError::{InvalidAccess, NotMapped, Unsupported};
    let pages = Pages::anonymous(1);
    let read_only = Pages::anonymous(1);
    read_only.protect(libc::PROT_READ);
    let table = MemoryTable::new();
    let bit = |bit: u32| Access::from_bits_retain(1 << bit);
    for (access, writable, readable) in [
        (Access::empty(), Ok(()), Ok(())),
        (Access::LOCAL_WRITE, Ok(()), Err(NotMapped)),
        (Access::REMOTE_READ, Ok(()), Ok(())),
        (Access::REMOTE_WRITE, Err(InvalidAccess), Err(InvalidAccess)),
        (
            Access::REMOTE_ATOMIC,
            Err(InvalidAccess),
            Err(InvalidAccess),
        ),
        (
            Access::REMOTE_WRITE | Access::LOCAL_WRITE,
            Ok(()),
            Err(NotMapped),
        ),
        (ALL, Ok(()), Err(NotMapped)),
        (Access::MW_BIND, Ok(()), Ok(())),
        (Access::HUGETLB, Ok(()), Ok(())),
        (Access::FLUSH_GLOBAL, Ok(()), Ok(())),
        (Access::ZERO_BASED, Err(Unsupported), Err(Unsupported)),
        (Access::ON_DEMAND, Err(Unsupported), Err(Unsupported)),
        (Access::FLUSH_PERSISTENT, Err(Unsupported), Err(Unsupported)),
        (bit(10), Err(InvalidAccess), Err(InvalidAccess)),
        (bit(12), Err(InvalidAccess), Err(InvalidAccess)),
        (bit(18), Err(InvalidAccess), Err(InvalidAccess)),
        (bit(19), Err(InvalidAccess), Err(InvalidAccess)),
        (bit(20), Ok(()), Ok(())),
        (bit(29), Ok(()), Ok(())),
        (bit(30), Err(InvalidAccess), Err(InvalidAccess)),
        (bit(31), Err(InvalidAccess), Err(InvalidAccess)),
    ] {
        for (pages, expected) in [(&pages, writable), (&read_only, readable)] {
            let result = register(&table, pages.address(), 100, access);
            assert_eq!(result.map(drop), expected, "{access:?}");
        }
    }
}

#[test]
fn errno_values() {
    let errno = [
        (RegisterError::InvalidAccess, libc::EINVAL),
        (RegisterError::RangeWraps, libc::EINVAL),
        (RegisterError::Unsupported, libc::EOPNOTSUPP),
        (RegisterError::NotMapped, libc::EFAULT),
        (RegisterError::TableFull, libc::ENOMEM),
    ];
    for (error, expected) in errno {
        assert_eq!(error.errno(), expected);
    }
}

#[test]
fn ranges_that_wrap_are_refused_and_empty_ones_are_not() {
    let table = MemoryTable::new();
    assert_eq!(
        register(&table, u64::MAX - 7, 9, Access::empty()),
        Err(RegisterError::RangeWraps)
    );
    assert_eq!(
        register(&table, 0x10, u64::MAX, Access::empty()),
        Err(RegisterError::RangeWraps)
    );
    let pages = Pages::anonymous(1);
    // SAFETY: pages of this test.
    let wrapping_iova =
        unsafe { table.register(PD, pages.address(), 100, u64::MAX - 50, Access::empty()) };
    assert_eq!(wrapping_iova, Err(RegisterError::RangeWraps));
    assert_eq!(
        register(&table, 0x10, 100, Access::empty()),
        Err(RegisterError::NotMapped)
    );
    assert_eq!(table.registered(), 0);

    // page aligned or not, mapped or not
    for address in [0, 0x1000, pages.address(), pages.address() + 1] {
        let key = register(&table, address, 0, ALL).expect("nothing is needed");
        let check = |length| {
            table
                .check(key, scope(PD), range(address, length), ALL)
                .map(drop)
        };
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(1), Err(AccessError::OutOfBounds));
    }
}

#[test]
fn bounds_rights_and_scope() {
    let pages = Pages::anonymous(1);
    let table = MemoryTable::new();
    let (address, iova) = (pages.address() + 5, 0x7000_0001);
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    // SAFETY: pages of this test.
    let key = unsafe { table.register(PD, address, 100, iova, access) }
        .expect("mapped")
        .key;
    let check = |start, length, need| table.check(key, scope(PD), range(start, length), need);

    let grant = check(iova + 10, 90, Access::REMOTE_READ).expect("inside");
    assert_eq!((grant.address(), grant.length()), (address + 10, 90));
    assert!(check(iova, 100, access).is_ok());
    assert!(check(iova + 100, 0, access).is_ok());
    for (start, length) in [
        (iova - 1, 1),
        (iova, 101),
        (iova + 100, 1),
        (iova + 101, 0),
        (iova + 1, u64::MAX),
        (u64::MAX, 2),
        (0, 0),
        (address, 1),
    ] {
        let result = check(start, length, Access::empty());
        assert_eq!(result, Err(AccessError::OutOfBounds), "{start:#x} {length}");
    }
    for need in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, ALL] {
        assert_eq!(check(iova, 1, need), Err(AccessError::NotPermitted));
    }
    let elsewhere = table.check(key, scope(PdId(4)), range(iova, 1), Access::empty());
    assert_eq!(elsewhere, Err(AccessError::WrongScope));
}

#[test]
fn keys_that_nobody_has() {
    let pages = Pages::anonymous(1);
    let (table, key, _) = granted(&pages);
    assert_eq!(key.0 >> 8, 1, "indices start at 1");
    let others = [
        0,
        key.0 ^ 1,
        key.0 ^ 0x80,
        key.0 ^ 0x100,
        0x7_ffff << 8,
        0x80_0000,
        u32::MAX,
    ];
    for other in others {
        let whole = range(pages.address(), 1);
        let result = table.check(MemoryKey(other), scope(PD), whole, Access::empty());
        assert_eq!(result, Err(AccessError::UnknownKey), "{other:#x}");
        let result = table.deregister(MemoryKey(other));
        assert_eq!(result, Err(AccessError::UnknownKey), "{other:#x}");
    }
}

#[test]
fn a_deregistered_region_is_gone_for_grants_and_spans_too() {
    let pages = Pages::anonymous(1);
    let (table, key, grant) = granted(&pages);
    let span = grant.span(0, 8).expect("inside");
    assert_eq!(table.deregister(key), Ok(()));
    let gone = Err(AccessError::UnknownKey);
    assert_eq!(table.place(&grant, 0, &[1; 8], true), gone);
    assert_eq!(table.gather(&span, &mut [0; 8]), gone);
    assert_eq!(
        table
            .atomic(&grant, AtomicOperation::FetchAdd { add: 1 })
            .map(drop),
        gone
    );
    let whole = range(pages.address(), 1);
    assert_eq!(
        table
            .check(key, scope(PD), whole, Access::empty())
            .map(drop),
        gone
    );
    assert_eq!(table.deregister(key), gone);

    // nor does the next region of the same entry honour them
    for _ in 0..2 * QUARANTINE + 2 {
        let again = register(&table, pages.address(), pages.length(), ALL).expect("mapped");
        assert_ne!(again, key);
        assert_eq!(table.place(&grant, 0, &[1; 8], true), gone);
        table.deregister(again).expect("just registered");
    }
}

#[test]
fn indices_are_used_again_oldest_first_with_another_byte() {
    let table = MemoryTable::new();
    let new = || register(&table, 0, 0, ALL).expect("nothing is needed");
    let first = new();
    let mut old = Vec::new();
    for expected in 2..=QUARANTINE as u32 + 1 {
        let key = new();
        assert_eq!(key.0 >> 8, expected, "fresh as long as few are free");
        old.push(key);
    }
    table.deregister(first).expect("registered");
    for key in &old {
        table.deregister(*key).expect("registered");
    }
    for key in [first].iter().chain(&old).take(1) {
        let again = new();
        assert_eq!(again.0 >> 8, key.0 >> 8);
        assert_ne!(again.0 as u8, key.0 as u8);
    }
    // the quarantine is full but not more: fresh again
    assert_eq!(new().0 >> 8, QUARANTINE as u32 + 2);
}

#[test]
fn as_many_regions_as_there_are_keys() {
    let table = MemoryTable::new();
    let mut last = MemoryKey(0);
    for _ in 0..REGIONS_MAX {
        last = register(&table, 0, 0, Access::empty()).expect("there is room");
    }
    assert_eq!(last.0 >> 8, REGIONS_MAX);
    assert_eq!(
        register(&table, 0, 0, Access::empty()),
        Err(RegisterError::TableFull)
    );
    table.deregister(last).expect("registered");
    let again = register(&table, 0, 0, Access::empty()).expect("there is room");
    assert_eq!(again.0 >> 8, REGIONS_MAX);
    assert_eq!(table.registered(), REGIONS_MAX);
}

#[test]
fn fifty_thousand_regions() {
    const COUNT: usize = 50_000;
    let pages = Pages::anonymous(COUNT * 8 / PAGE + 1);
    let table = MemoryTable::new();
    let address = |index: usize| pages.address() + 8 * index as u64;
    let keys: Vec<MemoryKey> = (0..COUNT)
        .map(|index| register(&table, address(index), 8, ALL).expect("mapped"))
        .collect();
    assert_eq!(
        keys.iter().map(|key| key.0).collect::<HashSet<_>>().len(),
        COUNT
    );
    for (index, key) in keys.iter().enumerate() {
        let grant = table
            .check(*key, scope(PD), range(address(index), 8), ALL)
            .expect("its own range");
        table
            .place(&grant, 0, &(index as u64).to_ne_bytes(), true)
            .expect("mapped");
    }
    for (index, key) in keys.iter().enumerate().step_by(2) {
        table.deregister(*key).expect("registered");
        let gone = table.check(*key, scope(PD), range(address(index), 8), ALL);
        assert_eq!(gone, Err(AccessError::UnknownKey));
    }
    for (index, key) in keys.iter().enumerate().skip(1).step_by(2) {
        let grant = table
            .check(*key, scope(PD), range(address(index), 8), ALL)
            .expect("left");
        assert_eq!(bytes_of(&table, &grant), (index as u64).to_ne_bytes());
    }
    assert_eq!(table.registered() as usize, COUNT / 2);
}

#[test]
fn bytes_go_where_the_grant_says() {
    let pages = Pages::anonymous(2);
    let (table, _, grant) = granted(&pages);
    let message: Vec<u8> = (0..5000).map(|index| (index % 253) as u8).collect();
    let mut offset = 17;
    for (index, packet) in message.chunks(1024).enumerate() {
        table
            .place(&grant, offset, packet, index == 4)
            .expect("mapped");
        offset += packet.len() as u32;
    }
    let bytes = bytes_of(&table, &grant);
    assert!(
        bytes[..17]
            .iter()
            .chain(&bytes[5017..])
            .all(|byte| *byte == 0)
    );
    assert_eq!(bytes[17..5017], message);

    let end = grant.length() as u32;
    assert_eq!(
        table.place(&grant, end - 1, &[1, 2], false),
        Err(AccessError::OutOfBounds)
    );
    assert_eq!(
        table.place(&grant, u32::MAX, &[1], false),
        Err(AccessError::OutOfBounds)
    );
    assert_eq!(table.place(&grant, end, &[], true), Ok(()));
    let span = grant.span(0, 8).expect("inside");
    assert_eq!(
        table.gather(&span, &mut [0; 9]),
        Err(AccessError::OutOfBounds)
    );
}

#[test]
fn atomic_operations() {
    let pages = Pages::anonymous(1);
    let (table, key, grant) = granted(&pages);
    let add = AtomicOperation::FetchAdd { add: 5 };
    assert_eq!(table.atomic(&grant, add), Ok(0));
    let swap = |compare| AtomicOperation::CompareSwap { compare, swap: 77 };
    assert_eq!(table.atomic(&grant, swap(4)), Ok(5));
    assert_eq!(table.atomic(&grant, swap(5)), Ok(5));
    assert_eq!(bytes_of(&table, &grant)[..8], 77_u64.to_ne_bytes());

    let part = |start, length| {
        table
            .check(key, scope(PD), range(pages.address() + start, length), ALL)
            .expect("inside")
    };
    assert_eq!(table.atomic(&part(4, 8), add), Err(AccessError::Misaligned));
    assert_eq!(
        table.atomic(&part(8, 7), add),
        Err(AccessError::OutOfBounds)
    );
}

#[test]
fn plain_regions_cannot_be_invalidated() {
    let pages = Pages::anonymous(1);
    let (table, key, _) = granted(&pages);
    assert_eq!(
        table.invalidate(key, scope(PD)),
        Err(AccessError::NotPermitted)
    );
    assert_eq!(
        table.invalidate(key, scope(PdId(9))),
        Err(AccessError::WrongScope)
    );
    let unknown = MemoryKey(key.0 ^ 1);
    assert_eq!(
        table.invalidate(unknown, scope(PD)),
        Err(AccessError::UnknownKey)
    );
}

#[test]
fn memory_that_its_program_took_away_is_a_fault() {
    type TakeAway = (&'static str, Pages, fn(&Pages));
    let ways: [TakeAway; 4] = [
        ("unmapped", Pages::anonymous(2), |pages| pages.unmap_from(1)),
        ("read-only", Pages::anonymous(2), |pages| {
            pages.protect(libc::PROT_READ)
        }),
        ("without rights", Pages::file(2), |pages| {
            pages.protect(libc::PROT_NONE)
        }),
        ("truncated", Pages::file(2), |pages| pages.truncate(1)),
    ];
    for (how, pages, take) in ways {
        let (table, key, grant) = granted(&pages);
        take(&pages);
        let fault = Err(AccessError::Fault);
        assert_eq!(table.place(&grant, 0, &[1; 2 * PAGE], true), fault, "{how}");
        assert_eq!(
            table.place(&grant, PAGE as u32, &[1], false),
            fault,
            "{how}"
        );
        let start = pages.address() + PAGE as u64;
        let second = table
            .check(key, scope(PD), range(start, 8), ALL)
            .expect("registered");
        let add = AtomicOperation::FetchAdd { add: 1 };
        assert_eq!(table.atomic(&second, add).map(drop), fault, "{how}");
        if how != "read-only" {
            let span = second.span(0, 8).expect("inside");
            assert_eq!(table.gather(&span, &mut [0; 8]), fault, "{how}");
            assert_eq!(table.copy_in(start, &mut [0; 8]), fault, "{how}");
        }
        // what is gone can still be deregistered
        assert_eq!(table.deregister(key), Ok(()), "{how}");
    }
}

/// Everything about region `seed` follows from it, so a mixture of two is seen.
fn made_of(seed: u64) -> Region {
    Region {
        key: MemoryKey(0),
        pd: PdId(seed as u32),
        address: seed << 20,
        length: seed,
        iova: seed << 32,
        access: ALL,
    }
}

#[test]
fn a_reader_sees_one_region_or_none() {
    let entry = Entry::new();
    let done = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let Some((region, generation)) = entry.get(MemoryKey(0)) else {
                        continue;
                    };
                    let expected = made_of(region.length);
                    assert_eq!(region.pd, expected.pd);
                    assert_eq!(region.address, expected.address);
                    assert_eq!(region.iova, expected.iova);
                    assert_eq!(u64::from(generation), 2 * region.length);
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // the n-th registration makes version 2n
        let mut seed = 1;
        while seed < 100_000 || seen.load(Ordering::Relaxed) < 1000 {
            entry.set(&made_of(seed));
            assert!(entry.is_generation(2 * seed as u32));
            entry.invalidate();
            assert!(!entry.is_generation(2 * seed as u32));
            seed += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn checks_while_others_register_and_deregister() {
    let pages = Pages::anonymous(4);
    let table = MemoryTable::new();
    let current = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let placed = AtomicU64::new(0);
    let in_pd = scope(PD);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let key = MemoryKey(current.load(Ordering::Acquire) as u32);
                    let whole = range(pages.address(), pages.length());
                    match table.check(key, in_pd, whole, ALL) {
                        Ok(grant) => match table.place(&grant, 8, &[1; 8], true) {
                            Ok(()) => drop(placed.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => assert_eq!(error, AccessError::UnknownKey),
                        },
                        Err(error) => assert_eq!(error, AccessError::UnknownKey),
                    }
                }
            });
        }
        let mut rounds = 0;
        while rounds < 2000 || placed.load(Ordering::Relaxed) < 1000 {
            let key = register(&table, pages.address(), pages.length(), ALL).expect("mapped");
            current.store(u64::from(key.0), Ordering::Release);
            table.deregister(key).expect("registered");
            rounds += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
}
