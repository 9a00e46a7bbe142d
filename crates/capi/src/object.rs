//! Objects that C holds by pointer: the public structure first, what it stands for behind it.
//!
//! Applications read the public part and wait for no lock; the library writes it through raw
//! pointers only. So the public part is in a cell, and a shared reference exists only to the rest.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use crate::errno::Errno;

/// A C structure that this library allocates.
pub trait Public {
    /// The structure as it is allocated; `Self`, or one that begins with it.
    type Whole: Copy;
    /// What follows it.
    type Private;
}

/// The allocation behind a pointer that C holds.
#[repr(C)]
pub struct Object<P: Public> {
    public: UnsafeCell<P::Whole>,
    private: P::Private,
}

/// Makes an object; C owns the pointer from now on.
pub fn publish<P: Public>(public: P::Whole, private: P::Private) -> *mut P {
    Box::into_raw(Box::new(Object::<P> {
        public: UnsafeCell::new(public),
        private,
    }))
    .cast()
}

/// The private part; EINVAL for NULL.
///
/// # Safety
/// `pointer` is NULL or was made by [`publish`] and not yet given to [`withdraw`].
pub unsafe fn private<'a, P: Public>(pointer: *mut P) -> Result<&'a P::Private, Errno> {
    let object = NonNull::new(pointer)
        .ok_or(Errno::INVALID)?
        .cast::<Object<P>>();
    // SAFETY: the caller's promise; the private part is only ever shared.
    Ok(unsafe { &(*object.as_ptr()).private })
}

/// Ends what an object stands for: drops the private part, runs `last` while the public part can
/// still be read, and frees it.
///
/// # Safety
/// As for [`private`], and nobody but `last` uses the object any more.
pub unsafe fn withdraw<P: Public>(pointer: *mut P, last: impl FnOnce()) -> Result<(), Errno> {
    let object = NonNull::new(pointer)
        .ok_or(Errno::INVALID)?
        .cast::<Object<P>>();
    // SAFETY: the caller's promise: this is the allocation of `publish`, and nobody has a reference
    // to its private part. Without that part nothing of it needs dropping, so the second box only
    // frees it, also if `last` panics.
    unsafe {
        core::ptr::drop_in_place(&raw mut (*object.as_ptr()).private);
        let _rest = Box::from_raw(object.cast::<MaybeUninit<Object<P>>>().as_ptr());
        last();
    }
    Ok(())
}
