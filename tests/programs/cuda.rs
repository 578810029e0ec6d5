//! A real GPU: memory through NVIDIA's driver API, which is loaded at run time.
//!
//! Always true: only used where the harness asks for it; no setting of the GPU is changed; what was
//! allocated stays until the process ends.

#![expect(unsafe_code, reason = "the driver API is a C library, loaded at run time")]

use std::ffi::{CStr, c_int, c_uchar, c_uint, c_void};
use std::io;

type Status = c_int;

/// Makes the primary context of GPU 0 current and allocates, and touches what it got so that it is really there.
pub(crate) fn allocate(mib: u64) -> io::Result<()> {
    // SAFETY: opens the system's driver library, which is made for being loaded into any process.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err(io::Error::other("libcuda.so.1 cannot be loaded: is NVIDIA's driver installed?"));
    }
    let bytes = usize::try_from(mib << 20).map_err(io::Error::other)?;
    let (mut device, mut context, mut memory) = (0, std::ptr::null_mut(), 0);
    // SAFETY: the signatures are those of cuda.h, the same in every release since CUDA 3.2; every pointer outlives its call.
    unsafe {
        let init: extern "C" fn(c_uint) -> Status = symbol(library, c"cuInit")?;
        let get: extern "C" fn(*mut c_int, c_int) -> Status = symbol(library, c"cuDeviceGet")?;
        let retain: extern "C" fn(*mut *mut c_void, c_int) -> Status = symbol(library, c"cuDevicePrimaryCtxRetain")?;
        let current: extern "C" fn(*mut c_void) -> Status = symbol(library, c"cuCtxSetCurrent")?;
        let alloc: extern "C" fn(*mut u64, usize) -> Status = symbol(library, c"cuMemAlloc_v2")?;
        let set: extern "C" fn(u64, c_uchar, usize) -> Status = symbol(library, c"cuMemsetD8_v2")?;
        let wait: extern "C" fn() -> Status = symbol(library, c"cuCtxSynchronize")?;
        must("cuInit", init(0))?;
        must("cuDeviceGet", get(&raw mut device, 0))?;
        must("cuDevicePrimaryCtxRetain", retain(&raw mut context, device))?;
        must("cuCtxSetCurrent", current(context))?;
        must("cuMemAlloc", alloc(&raw mut memory, bytes))?;
        must("cuMemsetD8", set(memory, 1, bytes))?;
        must("cuCtxSynchronize", wait())
    }
}

fn must(what: &str, status: Status) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::other(format!("{what} failed: CUDA error {status}"))) }
}

/// A function of the library.
///
/// # Safety
/// `F` must be the function's own type.
unsafe fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> io::Result<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the library is never closed, and the name is a C string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    if address.is_null() {
        return Err(io::Error::other(format!("libcuda has no {}", name.to_string_lossy())));
    }
    // SAFETY: a function pointer has the size of an address (asserted), and the caller vouches for its type.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}
