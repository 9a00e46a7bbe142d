//! The one way to touch a program's memory: copies and 8-byte operations that end in [`Fault`]
//! where the memory is gone, and never in a signal that kills the process.
//!
//! Nothing pins a registered region. Its program may unmap, truncate or protect it at any time,
//! also while we copy. So on x86-64 and aarch64 every access is one of four leaf routines between
//! two symbols; they use no stack, and [`fault`](super::fault) continues a faulting one at their
//! common exit. Where that handler cannot be relied on, and on other architectures, the kernel
//! copies for us: `process_vm_readv` on the own process, which counts what it could do.
//!
//! No reference to program memory is ever made. Its bytes may change under us; what was copied is
//! what counts.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, PoisonError};

use super::fault::{self, Method};

/// The memory is not there, or not with the rights that the access needs. Bytes before the fault
/// may have been copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault;

/// How this thread may touch program memory at this moment. Plain data, asked for anew in each
/// lock section: [`ProgramMemory::access`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramMemory {
    method: Method,
}

/// Atomic operations of the whole process, one at a time: those that the kernel copies for us are
/// a read and a write, and must not be interleaved with others. Leaf lock.
static ATOMICS: Mutex<()> = Mutex::new(());

impl ProgramMemory {
    /// Finds out how; system calls at most once per clock tick and thread.
    #[inline]
    pub(crate) fn access() -> Self {
        Self {
            method: fault::method(),
        }
    }

    /// Through the kernel, for tests: what happens where the handler was displaced.
    #[cfg(test)]
    pub(crate) const fn through_kernel() -> Self {
        Self {
            method: Method::Kernel,
        }
    }

    /// Copies from the program. Where both sides are multiples of 8, so are the pieces: an aligned
    /// word of the program that changes meanwhile is seen before or after, not in between.
    ///
    /// Any address may be asked for: at worst the answer is [`Fault`].
    #[inline]
    pub(crate) fn read(self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let Ok(from) = usize::try_from(address) else {
            return Err(Fault);
        };
        match self.method {
            // SAFETY: `into` is ours and exclusively borrowed; reading program memory needs no
            // promise, as a fault there is caught and no reference to it is made.
            Method::Direct => unsafe {
                leaf::copy(into.as_mut_ptr(), from as *const u8, into.len())
            },
            Method::Kernel => kernel::read(from, into),
        }
    }

    /// Copies from the program behind what is in `into`, or nothing; aligned words as in
    /// [`read`](Self::read).
    pub(crate) fn append(
        self,
        address: u64,
        length: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let Ok(from) = usize::try_from(address) else {
            return Err(Fault);
        };
        let before = into.len();
        into.reserve(length);
        match self.method {
            Method::Direct => {
                let to = into.spare_capacity_mut().as_mut_ptr().cast();
                // SAFETY: there is room for `length` bytes, which are ours; a fault is caught.
                unsafe { leaf::copy(to, from as *const u8, length)? };
                // SAFETY: all of them were written.
                unsafe { into.set_len(before + length) };
                Ok(())
            }
            Method::Kernel => {
                into.resize(before + length, 0);
                kernel::read(from, &mut into[before..]).inspect_err(|_| into.truncate(before))
            }
        }
    }

    /// Copies from one place of the program to another; aligned words as in
    /// [`read`](Self::read).
    ///
    /// # Safety
    /// As for [`write`](Self::write), of `to`. The ranges do not overlap.
    pub(crate) unsafe fn copy(self, to: u64, from: u64, length: usize) -> Result<(), Fault> {
        let (Ok(to), Ok(from)) = (usize::try_from(to), usize::try_from(from)) else {
            return Err(Fault);
        };
        match self.method {
            // SAFETY: the caller's promise; a fault on either side is caught.
            Method::Direct => unsafe { leaf::copy(to as *mut u8, from as *const u8, length) },
            Method::Kernel => kernel::copy(to, from, length),
        }
    }

    /// Copies to the program; aligned words as in [`read`](Self::read).
    ///
    /// # Safety
    /// Whatever is mapped at `address` must be memory that its owner gave us to write: bytes there
    /// change as if another thread had stored them.
    #[inline]
    pub(crate) unsafe fn write(self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let Ok(to) = usize::try_from(address) else {
            return Err(Fault);
        };
        match self.method {
            // SAFETY: the caller's promise; a fault is caught.
            Method::Direct => unsafe { leaf::copy(to as *mut u8, bytes.as_ptr(), bytes.len()) },
            Method::Kernel => kernel::write(to, bytes),
        }
    }

    /// Copies to the program the end of a message: the part of `bytes` in the last aligned word
    /// (1 to 8 bytes) is stored after all before it, in ascending order and in the largest
    /// naturally aligned pieces. Who sees the last byte, or a last word of 8 bytes, sees the rest.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[inline]
    pub(crate) unsafe fn write_last(self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let end = address.wrapping_add(bytes.len() as u64);
        let last_word = end.wrapping_sub(1) & !7;
        let split = last_word.saturating_sub(address).min(bytes.len() as u64) as usize;
        let (body, mut tail) = bytes.split_at(split);
        let mut to = address.wrapping_add(split as u64);
        // SAFETY: the caller's promise covers both parts.
        unsafe { self.write(address, body)? };
        fence(Ordering::Release);
        while !tail.is_empty() {
            let (now, later) = tail.split_at(piece(to, tail.len()));
            // SAFETY: the caller's promise.
            unsafe { self.store(to, now)? };
            to = to.wrapping_add(now.len() as u64);
            tail = later;
        }
        Ok(())
    }

    /// One store of 1, 2, 4 or 8 bytes at a multiple of their number, after all before it.
    ///
    /// # Safety
    /// The bytes at `address` may be written, or are not mapped.
    unsafe fn store(self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let Ok(to) = usize::try_from(address) else {
            return Err(Fault);
        };
        match self.method {
            Method::Direct => {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                // the routine stores the low bytes
                let value = u64::from_le_bytes(word);
                // SAFETY: the caller's promise; a fault is caught.
                unsafe { leaf::store(to as *mut u8, value, bytes.len()) }
            }
            Method::Kernel => kernel::write(to, bytes),
        }
    }

    /// Writes `swap` to an aligned word if it is `compare`; gives the value before.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    pub(crate) unsafe fn compare_swap(
        self,
        address: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Fault> {
        let Ok(at) = usize::try_from(address) else {
            return Err(Fault);
        };
        let _one_at_a_time = ATOMICS.lock().unwrap_or_else(PoisonError::into_inner);
        match self.method {
            // SAFETY: the caller's promise; a fault is caught.
            Method::Direct => unsafe { leaf::compare_swap(at as *mut u64, compare, swap) },
            Method::Kernel => kernel::update(at, |value| (value == compare).then_some(swap)),
        }
    }

    /// Adds to an aligned word, modulo 2^64; gives the value before.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    pub(crate) unsafe fn fetch_add(self, address: u64, add: u64) -> Result<u64, Fault> {
        let Ok(at) = usize::try_from(address) else {
            return Err(Fault);
        };
        let _one_at_a_time = ATOMICS.lock().unwrap_or_else(PoisonError::into_inner);
        match self.method {
            // SAFETY: the caller's promise; a fault is caught.
            Method::Direct => unsafe { leaf::fetch_add(at as *mut u64, add) },
            Method::Kernel => kernel::update(at, |value| Some(value.wrapping_add(add))),
        }
    }
}

/// The largest of 1, 2, 4 and 8 bytes that is naturally aligned at `address` and not more than
/// `length`, which is not 0.
fn piece(address: u64, length: usize) -> usize {
    let aligned = 1 << address.trailing_zeros().min(3);
    aligned.min(1 << length.ilog2())
}

/// Copies by the kernel. Slower (about a microsecond), always safe.
mod kernel {
    use super::Fault;

    pub(super) fn read(from: usize, into: &mut [u8]) -> Result<(), Fault> {
        transfer(
            libc::SYS_process_vm_readv,
            into.as_mut_ptr() as usize,
            from,
            into.len(),
        )
    }

    pub(super) fn write(to: usize, bytes: &[u8]) -> Result<(), Fault> {
        transfer(
            libc::SYS_process_vm_writev,
            bytes.as_ptr() as usize,
            to,
            bytes.len(),
        )
    }

    pub(super) fn copy(to: usize, from: usize, length: usize) -> Result<(), Fault> {
        transfer(libc::SYS_process_vm_readv, to, from, length)
    }

    /// Reads a word, writes what `new` gives. Atomic for the operations of this process alone, who
    /// hold a lock around it: that is what `IBV_ATOMIC_HCA` promises.
    pub(super) fn update(at: usize, new: impl Fn(u64) -> Option<u64>) -> Result<u64, Fault> {
        let mut word = [0; 8];
        read(at, &mut word)?;
        let value = u64::from_ne_bytes(word);
        // Memory that cannot be written is a fault also where nothing is swapped.
        let to_write = new(value).unwrap_or(value);
        write(at, &to_write.to_ne_bytes())?;
        Ok(value)
    }

    /// All or a fault. The kernel stops at the first page that it cannot reach and tells how far it
    /// came. Where it refuses the call altogether (a seccomp filter), that is a fault as well: the
    /// message fails, the process lives.
    fn transfer(
        call: libc::c_long,
        ours: usize,
        theirs: usize,
        length: usize,
    ) -> Result<(), Fault> {
        if length == 0 {
            return Ok(());
        }
        let local = libc::iovec {
            iov_base: ours as *mut libc::c_void,
            iov_len: length,
        };
        let remote = libc::iovec {
            iov_base: theirs as *mut libc::c_void,
            iov_len: length,
        };
        // SAFETY: `local` is a live slice of ours (exclusively borrowed where it is written to), or
        // memory of the program that the caller may write; the kernel checks both page by page.
        // Both iovecs live through the call.
        let done = unsafe {
            libc::syscall(
                call,
                libc::getpid(),
                &raw const local,
                1_usize,
                &raw const remote,
                1_usize,
                0_usize,
            )
        };
        if usize::try_from(done) == Ok(length) {
            Ok(())
        } else {
            Err(Fault)
        }
    }
}

/// The routines that may fault. Their symbols are hidden: nothing outside can see or replace them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) mod leaf {
    use std::arch::global_asm;
    use std::ops::Range;

    use super::Fault;

    /// In two registers, so that the common exit can report a fault without a stack or memory.
    #[repr(C)]
    struct Outcome {
        value: u64,
        is_fault: u64,
    }

    unsafe extern "C" {
        fn softrdma_leaf_copy(to: *mut u8, from: *const u8, length: usize) -> Outcome;
        fn softrdma_leaf_store(to: *mut u8, value: u64, width: usize) -> Outcome;
        fn softrdma_leaf_compare_swap(at: *mut u64, compare: u64, swap: u64) -> Outcome;
        fn softrdma_leaf_fetch_add(at: *mut u64, add: u64) -> Outcome;
        static softrdma_leaf_begin: u8;
        static softrdma_leaf_faulted: u8;
        static softrdma_leaf_end: u8;
    }

    /// Where an access to program memory can fault.
    pub(in super::super) fn code() -> Range<usize> {
        (&raw const softrdma_leaf_begin).addr()..(&raw const softrdma_leaf_end).addr()
    }

    /// Where a routine that faulted goes on: it returns a fault to its caller.
    pub(in super::super) fn exit() -> usize {
        (&raw const softrdma_leaf_faulted).addr()
    }

    /// # Safety
    /// The `length` bytes at `to` may be written and those at `from` read, or they are not mapped.
    #[inline]
    pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> Result<(), Fault> {
        // SAFETY: follows the C calling convention; what it writes is the caller's promise.
        result(unsafe { softrdma_leaf_copy(to, from, length) }).map(drop)
    }

    #[inline]
    pub(super) unsafe fn store(to: *mut u8, value: u64, width: usize) -> Result<(), Fault> {
        // SAFETY: as above.
        result(unsafe { softrdma_leaf_store(to, value, width) }).map(drop)
    }

    pub(super) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        // SAFETY: as above.
        result(unsafe { softrdma_leaf_compare_swap(at, compare, swap) })
    }

    pub(super) unsafe fn fetch_add(at: *mut u64, add: u64) -> Result<u64, Fault> {
        // SAFETY: as above.
        result(unsafe { softrdma_leaf_fetch_add(at, add) })
    }

    #[inline]
    fn result(outcome: Outcome) -> Result<u64, Fault> {
        if outcome.is_fault == 0 {
            Ok(outcome.value)
        } else {
            Err(Fault)
        }
    }

    // Below 2 KiB by 16-byte moves, whatever the alignment; from there on the string instruction
    // has earned its start-up cost. Both move aligned words of 8 bytes whole. A store after a
    // string instruction is visible after all of it. It is the one of 8 bytes: as fast as that of
    // single bytes in silicon, and eight times as fast in an emulator, which goes step by step.
    #[cfg(target_arch = "x86_64")]
    global_asm!(
        ".pushsection .text.softrdma_leaf,\"ax\",@progbits",
        ".hidden softrdma_leaf_begin",
        ".hidden softrdma_leaf_end",
        ".hidden softrdma_leaf_faulted",
        ".hidden softrdma_leaf_copy",
        ".hidden softrdma_leaf_store",
        ".hidden softrdma_leaf_compare_swap",
        ".hidden softrdma_leaf_fetch_add",
        ".globl softrdma_leaf_begin",
        ".globl softrdma_leaf_end",
        ".globl softrdma_leaf_faulted",
        ".globl softrdma_leaf_copy",
        ".globl softrdma_leaf_store",
        ".globl softrdma_leaf_compare_swap",
        ".globl softrdma_leaf_fetch_add",
        ".balign 64",
        "softrdma_leaf_begin:",
        // rdi = to, rsi = from, rdx = length
        ".type softrdma_leaf_copy,@function",
        "softrdma_leaf_copy:",
        ".cfi_startproc",
        "    mov rcx, rdx",
        "    cmp rdx, 2048",
        "    jae 9f",
        "    shr rcx, 6",
        "    jz 3f",
        "2:  movups xmm0, [rsi]",
        "    movups xmm1, [rsi + 16]",
        "    movups xmm2, [rsi + 32]",
        "    movups xmm3, [rsi + 48]",
        "    movups [rdi], xmm0",
        "    movups [rdi + 16], xmm1",
        "    movups [rdi + 32], xmm2",
        "    movups [rdi + 48], xmm3",
        "    add rsi, 64",
        "    add rdi, 64",
        "    dec rcx",
        "    jnz 2b",
        "3:  test dl, 32",
        "    jz 4f",
        "    movups xmm0, [rsi]",
        "    movups xmm1, [rsi + 16]",
        "    movups [rdi], xmm0",
        "    movups [rdi + 16], xmm1",
        "    add rsi, 32",
        "    add rdi, 32",
        "4:  test dl, 16",
        "    jz 5f",
        "    movups xmm0, [rsi]",
        "    movups [rdi], xmm0",
        "    add rsi, 16",
        "    add rdi, 16",
        "5:  test dl, 8",
        "    jz 6f",
        "    mov rax, [rsi]",
        "    mov [rdi], rax",
        "    add rsi, 8",
        "    add rdi, 8",
        "6:  test dl, 4",
        "    jz 7f",
        "    mov eax, [rsi]",
        "    mov [rdi], eax",
        "    add rsi, 4",
        "    add rdi, 4",
        "7:  test dl, 2",
        "    jz 8f",
        "    movzx eax, word ptr [rsi]",
        "    mov [rdi], ax",
        "    add rsi, 2",
        "    add rdi, 2",
        "8:  test dl, 1",
        "    jz 20f",
        "    movzx eax, byte ptr [rsi]",
        "    mov [rdi], al",
        "    jmp 20f",
        "9:  shr rcx, 3",
        "    rep movsq",
        "    jmp 6b",
        "20: xor eax, eax",
        "    xor edx, edx",
        "    ret",
        ".cfi_endproc",
        ".size softrdma_leaf_copy, . - softrdma_leaf_copy",
        // rdi = to, rsi = value, rdx = width. Stores are never reordered before earlier ones.
        ".type softrdma_leaf_store,@function",
        "softrdma_leaf_store:",
        ".cfi_startproc",
        "    cmp edx, 4",
        "    ja 8f",
        "    je 4f",
        "    cmp edx, 2",
        "    je 2f",
        "    mov [rdi], sil",
        "    jmp 9f",
        "2:  mov [rdi], si",
        "    jmp 9f",
        "4:  mov [rdi], esi",
        "    jmp 9f",
        "8:  mov [rdi], rsi",
        "9:  xor eax, eax",
        "    xor edx, edx",
        "    ret",
        ".cfi_endproc",
        ".size softrdma_leaf_store, . - softrdma_leaf_store",
        // rdi = at, rsi = compare, rdx = swap
        ".type softrdma_leaf_compare_swap,@function",
        "softrdma_leaf_compare_swap:",
        ".cfi_startproc",
        "    mov rax, rsi",
        "    lock cmpxchg [rdi], rdx",
        "    xor edx, edx",
        "    ret",
        ".cfi_endproc",
        ".size softrdma_leaf_compare_swap, . - softrdma_leaf_compare_swap",
        // rdi = at, rsi = add
        ".type softrdma_leaf_fetch_add,@function",
        "softrdma_leaf_fetch_add:",
        ".cfi_startproc",
        "    lock xadd [rdi], rsi",
        "    mov rax, rsi",
        "    xor edx, edx",
        "    ret",
        ".cfi_endproc",
        ".size softrdma_leaf_fetch_add, . - softrdma_leaf_fetch_add",
        "softrdma_leaf_end:",
        // The exit is behind the end: a fault cannot lead to itself.
        ".type softrdma_leaf_faulted,@function",
        "softrdma_leaf_faulted:",
        ".cfi_startproc",
        "    xor eax, eax",
        "    mov edx, 1",
        "    ret",
        ".cfi_endproc",
        ".size softrdma_leaf_faulted, . - softrdma_leaf_faulted",
        ".popsection",
    );

    // 64 bytes a turn, then 8, then what is left.
    #[cfg(target_arch = "aarch64")]
    global_asm!(
        ".pushsection .text.softrdma_leaf,\"ax\",@progbits",
        ".hidden softrdma_leaf_begin",
        ".hidden softrdma_leaf_end",
        ".hidden softrdma_leaf_faulted",
        ".hidden softrdma_leaf_copy",
        ".hidden softrdma_leaf_store",
        ".hidden softrdma_leaf_compare_swap",
        ".hidden softrdma_leaf_fetch_add",
        ".globl softrdma_leaf_begin",
        ".globl softrdma_leaf_end",
        ".globl softrdma_leaf_faulted",
        ".globl softrdma_leaf_copy",
        ".globl softrdma_leaf_store",
        ".globl softrdma_leaf_compare_swap",
        ".globl softrdma_leaf_fetch_add",
        ".balign 64",
        "softrdma_leaf_begin:",
        // x0 = to, x1 = from, x2 = length
        ".type softrdma_leaf_copy,%function",
        "softrdma_leaf_copy:",
        ".cfi_startproc",
        "    b 3f",
        "2:  ldp x3, x4, [x1]",
        "    ldp x5, x6, [x1, #16]",
        "    ldp x7, x8, [x1, #32]",
        "    ldp x9, x10, [x1, #48]",
        "    stp x3, x4, [x0]",
        "    stp x5, x6, [x0, #16]",
        "    stp x7, x8, [x0, #32]",
        "    stp x9, x10, [x0, #48]",
        "    add x1, x1, #64",
        "    add x0, x0, #64",
        "    sub x2, x2, #64",
        "3:  cmp x2, #64",
        "    b.hs 2b",
        "    b 5f",
        "4:  ldr x3, [x1], #8",
        "    str x3, [x0], #8",
        "    sub x2, x2, #8",
        "5:  cmp x2, #8",
        "    b.hs 4b",
        "    tbz x2, #2, 6f",
        "    ldr w3, [x1], #4",
        "    str w3, [x0], #4",
        "6:  tbz x2, #1, 7f",
        "    ldrh w3, [x1], #2",
        "    strh w3, [x0], #2",
        "7:  tbz x2, #0, 8f",
        "    ldrb w3, [x1]",
        "    strb w3, [x0]",
        "8:  mov x0, #0",
        "    mov x1, #0",
        "    ret",
        ".cfi_endproc",
        ".size softrdma_leaf_copy, . - softrdma_leaf_copy",
        // x0 = to, x1 = value, x2 = width
        ".type softrdma_leaf_store,%function",
        "softrdma_leaf_store:",
        ".cfi_startproc",
        "    cmp x2, #4",
        "    b.hi 8f",
        "    b.eq 4f",
        "    cmp x2, #2",
        "    b.eq 2f",
        "    stlrb w1, [x0]",
        "    b 9f",
        "2:  stlrh w1, [x0]",
        "    b 9f",
        "4:  stlr w1, [x0]",
        "    b 9f",
        "8:  stlr x1, [x0]",
        "9:  mov x0, #0",
        "    mov x1, #0",
        "    ret",
        ".cfi_endproc",
        ".size softrdma_leaf_store, . - softrdma_leaf_store",
        // x0 = at, x1 = compare, x2 = swap
        ".type softrdma_leaf_compare_swap,%function",
        "softrdma_leaf_compare_swap:",
        ".cfi_startproc",
        "2:  ldaxr x3, [x0]",
        "    cmp x3, x1",
        "    csel x5, x2, x3, eq", // stored either way: memory must be writable
        "    stlxr w4, x5, [x0]",
        "    cbnz w4, 2b",
        "    mov x0, x3",
        "    mov x1, #0",
        "    ret",
        ".cfi_endproc",
        ".size softrdma_leaf_compare_swap, . - softrdma_leaf_compare_swap",
        // x0 = at, x1 = add
        ".type softrdma_leaf_fetch_add,%function",
        "softrdma_leaf_fetch_add:",
        ".cfi_startproc",
        "2:  ldaxr x3, [x0]",
        "    add x5, x3, x1",
        "    stlxr w4, x5, [x0]",
        "    cbnz w4, 2b",
        "    mov x0, x3",
        "    mov x1, #0",
        "    ret",
        ".cfi_endproc",
        ".size softrdma_leaf_fetch_add, . - softrdma_leaf_fetch_add",
        "softrdma_leaf_end:",
        // The exit is behind the end: a fault cannot lead to itself.
        ".type softrdma_leaf_faulted,%function",
        "softrdma_leaf_faulted:",
        ".cfi_startproc",
        "    mov x0, #0",
        "    mov x1, #1",
        "    ret",
        ".cfi_endproc",
        ".size softrdma_leaf_faulted, . - softrdma_leaf_faulted",
        ".popsection",
    );
}

#[cfg(test)]
mod tests;
