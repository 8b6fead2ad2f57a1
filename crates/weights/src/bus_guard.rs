//! Survives `SIGBUS` when a mapped file loses pages.
//!
//! Reading a page that its file no longer has, or that the disk cannot read, raises `SIGBUS`, which
//! ends the process. This handler replaces the whole mapping with zeros and marks it as lost; the
//! reader continues, and the code that uses the results checks [`Guarded::is_lost`]. Other faults
//! go to the previous handler.
//!
//! The handler may interrupt any code, so it takes no lock and does not allocate: it walks a list
//! that only grows and whose entries are reused.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// Guards a mapping until dropped. Drop it before the mapping.
pub struct Guarded(&'static Region);

/// Addresses that the handler covers; none while `start` is 0.
#[derive(Default)]
struct Region {
    start: AtomicUsize,
    len: AtomicUsize,
    lost: AtomicBool,
    /// Does not change once the region is in the list.
    next: AtomicPtr<Region>,
}

/// All regions. They are never freed, since a handler may be reading them.
static REGIONS: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
/// Regions without a mapping.
static FREE: Mutex<Vec<&'static Region>> = Mutex::new(Vec::new());
/// The previous action for the signal.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

impl Guarded {
    /// Guards the mapping that starts with `bytes`, at a page boundary. It must stay mapped while
    /// the result exists.
    pub fn new(bytes: &[u8]) -> Self {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(install);
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        // The lock also orders additions to the list.
        let region = free.pop().unwrap_or_else(Region::add_to_list);
        region.lost.store(false, Ordering::Relaxed);
        region.len.store(bytes.len(), Ordering::SeqCst);
        region
            .start
            .store(bytes.as_ptr() as usize, Ordering::SeqCst);
        Self(region)
    }

    /// Whether a read faulted. The bytes are zeros from then on.
    pub fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.start.store(0, Ordering::SeqCst);
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(self.0);
    }
}

impl Region {
    /// A new region in the list.
    fn add_to_list() -> &'static Self {
        let region: &'static Self = Box::leak(Box::default());
        let next = REGIONS.load(Ordering::SeqCst);
        region.next.store(next, Ordering::SeqCst);
        REGIONS.store(ptr::from_ref(region).cast_mut(), Ordering::SeqCst);
        region
    }

    /// The mapping's start and length if it contains the address.
    fn mapping_of(&self, address: usize) -> Option<(usize, usize)> {
        let start = self.start.load(Ordering::SeqCst);
        let len = self.len.load(Ordering::SeqCst);
        // Otherwise the region was reused, and the length may belong to another mapping.
        let consistent = start == self.start.load(Ordering::SeqCst);
        let inside = start != 0 && address.checked_sub(start).is_some_and(|at| at < len);
        (consistent && inside).then_some((start, len))
    }

    /// Replaces the mapping of a faulting address; `false` if the address is not in this region or
    /// the replacement fails.
    fn rescue(&self, address: usize) -> bool {
        let Some((start, len)) = self.mapping_of(address) else {
            return false;
        };
        // Set before any thread can read the zeros.
        self.lost.store(true, Ordering::SeqCst);
        // SAFETY: the faulting thread is reading this mapping, so it exists and is registered; the
        // new pages take its place whole and are readable as it was. `mmap` is a plain system call,
        // which a handler may make, and leaves `errno` alone when it succeeds.
        let mapped = unsafe {
            libc::mmap(
                start as *mut c_void,
                len,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        mapped != libc::MAP_FAILED
    }
}

fn install() {
    let mut previous = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with no new action, `sigaction` only writes the present one.
    let read = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), previous.as_mut_ptr()) };
    if read != 0 {
        return;
    }
    // Stored before the handler that needs it is installed.
    // SAFETY: `sigaction` succeeded, so it wrote the action.
    PREVIOUS.get_or_init(|| unsafe { previous.assume_init() });
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
    // SAFETY: zeros are a valid action, and the fields that matter are set. The handler has the
    // signature that `SA_SIGINFO` requires.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        // The fault may be a stack overflow, which the previous handler reports.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes the signal's description. The address is that of a fault: signals
    // that programs send have a code of 0 or less, or no address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let is_fault = code > 0;
    if is_fault && regions().any(|region| region.rescue(address)) {
        return;
    }
    // SAFETY: the arguments are those of this call.
    unsafe { call_previous(signal, info, context) };
    let by_default = PREVIOUS
        .get()
        .is_none_or(|previous| previous.sa_sigaction == libc::SIG_DFL);
    if by_default && !is_fault {
        // There is no access that will fault again, so send the signal again.
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(signal) };
    }
}

fn regions() -> impl Iterator<Item = &'static Region> {
    let at = |pointer: *mut Region| {
        // SAFETY: regions are leaked, so a pointer in the list is null or valid for ever.
        unsafe { pointer.as_ref() }
    };
    let first = at(REGIONS.load(Ordering::SeqCst));
    std::iter::successors(first, move |region| at(region.next.load(Ordering::SeqCst)))
}

/// Runs the previous action. If that is the default action after a fault, it is only restored: the
/// access faults again when the handler returns, and ends the process.
///
/// # Safety
///
/// The arguments must be those of a handler of this signal.
unsafe fn call_previous(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get();
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    match handler {
        libc::SIG_IGN => {}
        libc::SIG_DFL => {
            // SAFETY: zeros are the default action without flags.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &default, ptr::null_mut());
            }
        }
        handler if previous.is_some_and(|action| action.sa_flags & libc::SA_SIGINFO != 0) => {
            // SAFETY: with `SA_SIGINFO`, the address is that of a function of this signature.
            unsafe {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        handler => {
            // SAFETY: without `SA_SIGINFO`, the address is that of a function of this signature.
            unsafe {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}
