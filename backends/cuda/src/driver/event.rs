//! Marks in the stream of work, to wait for and to measure time.

use std::ptr;
use std::sync::Arc;

use super::context::{Context, Inner};
use super::error::DriverError;
use super::ffi::{Handle, NOT_READY};

/// A mark that the device passes once all work before it is done.
pub struct Event {
    context: Arc<Inner>,
    handle: Handle,
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Context {
    /// An event that is not in the stream yet.
    pub fn event(&self) -> Result<Event, DriverError> {
        self.inner.make_current()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the function writes a handle, which `Event` destroys.
        let code = unsafe { (self.inner.api().event_create)(&mut handle, 0) };
        self.inner.check("cuEventCreate", code)?;
        Ok(Event {
            context: Arc::clone(&self.inner),
            handle,
        })
    }
}

impl Event {
    /// Puts the event at the end of the stream, also if it was in the stream before.
    pub fn record(&self) -> Result<(), DriverError> {
        self.context.make_current()?;
        // SAFETY: both handles are alive.
        let code = unsafe { (self.context.api().event_record)(self.handle, self.context.stream) };
        self.context.check("cuEventRecord", code)
    }

    /// Whether the device has passed it. An event that was never recorded counts as passed.
    pub fn is_complete(&self) -> Result<bool, DriverError> {
        self.context.make_current()?;
        // SAFETY: the handle is alive.
        let code = unsafe { (self.context.api().event_query)(self.handle) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.context.check("cuEventQuery", code).map(|()| true)
    }

    /// Waits until the device has passed it.
    pub fn wait(&self) -> Result<(), DriverError> {
        self.context.make_current()?;
        // SAFETY: the handle is alive.
        let code = unsafe { (self.context.api().event_synchronize)(self.handle) };
        self.context.check("cuEventSynchronize", code)
    }

    /// Milliseconds on the device between `earlier` and this event. Waits for both.
    pub fn elapsed_ms(&self, earlier: &Event) -> Result<f32, DriverError> {
        earlier.wait()?;
        self.wait()?;
        let mut elapsed = 0.0;
        // SAFETY: the function writes one number.
        let code = unsafe {
            (self.context.api().event_elapsed)(&mut elapsed, earlier.handle, self.handle)
        };
        self.context.check("cuEventElapsedTime", code)?;
        Ok(elapsed)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.make_current();
        // SAFETY: it was made once and is destroyed once.
        unsafe { (self.context.api().event_destroy)(self.handle) };
    }
}
