//! Memory that a program gives for the length of one call, as it gives it to `send` and `recv`.
//!
//! Like registered memory it is copied by the leaf routines alone and never borrowed: it may be
//! unmapped, or be registered as well and change meanwhile. A fault is an error of that call.

use std::marker::PhantomData;

use super::copy::ProgramMemory;
use crate::error::{Error, Result};

/// Bytes to be read.
#[derive(Clone, Copy, Debug)]
pub struct ProgramBytes<'a> {
    address: u64,
    length: usize,
    lifetime: PhantomData<&'a [u8]>,
}

impl ProgramBytes<'_> {
    /// Whatever is at `address`: if that cannot be read, a call that has to will say so.
    pub fn at(address: u64, length: usize) -> Self {
        Self {
            address,
            length,
            lifetime: PhantomData,
        }
    }

    /// How many there are.
    pub fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The bytes from `start` on, `length` of them or as many as there are.
    #[must_use]
    pub fn part(&self, start: usize, length: usize) -> Self {
        let start = start.min(self.length);
        Self {
            address: self.address.wrapping_add(start as u64),
            length: length.min(self.length - start),
            lifetime: PhantomData,
        }
    }

    /// Copies the first bytes out.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if they cannot be read, [`Error::Invalid`] if there are fewer.
    pub fn read(&self, into: &mut [u8]) -> Result<()> {
        if into.len() > self.length {
            return Err(Error::Invalid("there are fewer bytes"));
        }
        ProgramMemory::access()
            .read(self.address, into)
            .map_err(|_| Error::BadAddress)
    }
}

impl<'a> From<&'a [u8]> for ProgramBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::at(bytes.as_ptr() as u64, bytes.len())
    }
}

/// Bytes to be written.
#[derive(Debug)]
pub struct ProgramBytesMut<'a> {
    address: u64,
    length: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

impl ProgramBytesMut<'_> {
    /// Memory at `address`.
    ///
    /// # Safety
    /// What is mapped there is given to be written, as if another thread did it. It need not be
    /// mapped: then a call that has to write it will say so.
    pub unsafe fn at(address: u64, length: usize) -> Self {
        Self {
            address,
            length,
            lifetime: PhantomData,
        }
    }

    /// How many there are.
    pub fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The bytes from `start` on, `length` of them or as many as there are.
    #[must_use]
    pub fn part(&mut self, start: usize, length: usize) -> ProgramBytesMut<'_> {
        let start = start.min(self.length);
        ProgramBytesMut {
            address: self.address.wrapping_add(start as u64),
            length: length.min(self.length - start),
            lifetime: PhantomData,
        }
    }

    /// Copies bytes to the front.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if they cannot be written, [`Error::Invalid`] if there is less room.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.length {
            return Err(Error::Invalid("there is less room"));
        }
        // SAFETY: who made this gave the memory to be written.
        unsafe { ProgramMemory::access().write(self.address, bytes) }.map_err(|_| Error::BadAddress)
    }
}

impl<'a> From<&'a mut [u8]> for ProgramBytesMut<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self {
            address: bytes.as_mut_ptr() as u64,
            length: bytes.len(),
            lifetime: PhantomData,
        }
    }
}
